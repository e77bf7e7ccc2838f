"""Which configs of Inductor's own templates are left for it to compile and time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.choices import InductorChoices  # noqa: E402
from torch._inductor.kernel.mm import aten_mm, mm_template  # noqa: E402
from torch._inductor.template_heuristics.params import DictKernelTemplateParams  # noqa: E402
from torch._inductor.virtualized import V  # noqa: E402

from tritongemm import inductor  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import device_named  # noqa: E402
from tritongemm.errors import UsageError  # noqa: E402
from tritongemm.integration import inductor as made  # noqa: E402
from tritongemm.integration import template_choices  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402
from tritongemm.selection.columns import Columns  # noqa: E402
from tritongemm.selection.model import model_for  # noqa: E402

H100 = device_named("nvidia-h100-80gb-hbm3")
TILES = ((128, 128, 64), (64, 64, 64), (16, 32, 32), (128, 64, 32), (32, 16, 64))


class Operands:
    """Inductor's operands of a product, as far as they are asked."""

    count, _mat1_idx, _mat2_idx = 2, -2, -1

    def __init__(self, m, n, k, dtype=torch.bfloat16):
        self._shapes, self._dtype = ((m, k), (k, n)), dtype

    def shapes_hinted(self):
        return self._shapes

    def strides_hinted(self):
        (_, k), _ = self._shapes
        return (k, 1), (1, k)

    def dtypes(self):
        return self._dtype, self._dtype

    def out_dtype(self):
        return self._dtype

    def device(self):
        return torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def h100(monkeypatch):
    monkeypatch.setattr(template_choices, "device_of", lambda where: H100)
    monkeypatch.setattr(template_choices, "precision_setting", lambda *a: "ieee")


def choice(template, **kwargs):
    return SimpleNamespace(template=template, params=DictKernelTemplateParams(kwargs))


def of_tile(m, n, k):
    return choice(mm_template, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, num_stages=3, num_warps=4,
                  GROUP_M=8, ACC_TYPE="tl.float32", EVEN_K=True)


ATEN = choice(aten_mm)
CHOICES = [ATEN, *(of_tile(*tile) for tile in TILES)]


def predicted(m, n, k):
    """The tiles, the fastest first."""
    problem = GemmProblem.contiguous(m, n, k, layout="nt")
    configs = [KernelConfig("tiled", *tile, num_warps=4, num_stages=3, group_m=8)
               for tile in TILES]
    return [CHOICES[1 + i] for i in np.argsort(
        model_for(problem, H100).times(problem, Columns(configs)))]


@pytest.mark.parametrize("count", (1, 3))
@pytest.mark.parametrize("extents", ((4096, 4096, 4096), (16, 4096, 4096), (64, 64, 8192)))
def test_those_with_the_least_predicted_times_stay(extents, count):
    found = template_choices.fastest(CHOICES, Operands(*extents), count)
    assert found[0] is ATEN and len(found) == 1 + count
    assert {id(x) for x in found[1:]} == {id(x) for x in predicted(*extents)[:count]}
    # As they were ordered.
    assert [CHOICES.index(x) for x in found] == sorted(CHOICES.index(x) for x in found)


def test_a_config_that_needs_more_shared_memory_than_there_is_goes_last():
    large = choice(mm_template, BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, num_stages=4, num_warps=8,
                   GROUP_M=8)
    for extents in ((512, 4096, 14336), (777, 2048, 5120)):
        kept = template_choices.fastest([large, *CHOICES], Operands(*extents), len(TILES))
        assert large not in kept and len(kept) == len(CHOICES)


def test_products_of_other_sizes_keep_other_tiles():
    large, = template_choices.fastest(CHOICES[1:], Operands(4096, 4096, 4096), 1)
    small, = template_choices.fastest(CHOICES[1:], Operands(16, 4096, 4096), 1)
    assert large.params.to_kwargs()["BLOCK_M"] == 128
    assert small.params.to_kwargs()["BLOCK_M"] <= 32


def test_a_template_that_the_model_does_not_know_is_left_out():
    other = choice(SimpleNamespace(name="else"))
    unknown = choice(type("T", (type(mm_template),), {})("else", mm_template.grid, "{{x}}"),
                     BLOCK_M=1)
    found = template_choices.fastest([*CHOICES, other, unknown], Operands(512, 512, 512), 1)
    assert ATEN in found and other in found and unknown not in found
    assert template_choices.fastest([CHOICES[1], unknown], Operands(512, 512, 512), 1) == [
        CHOICES[1]]
    assert template_choices.fastest([ATEN, unknown], Operands(512, 512, 512), 1) == [ATEN, unknown]


@pytest.mark.parametrize("operands", (
    Operands(64, 64, 64, torch.int8), Operands(64, 64, 64, torch.float64)), ids=("int8", "fp64"))
def test_what_no_kernel_takes_is_left_to_inductor(operands):
    assert template_choices.fastest(CHOICES, operands, 1) == CHOICES


def test_a_device_without_measurements_is_left_to_inductor(monkeypatch):
    monkeypatch.setattr(template_choices, "device_of", lambda where: device_named("nvidia-l40s"))
    assert template_choices.fastest(CHOICES, Operands(512, 512, 512), 1) == CHOICES


def test_an_odd_config_is_left_to_inductor():
    odd = choice(mm_template, BLOCK_M=0, num_stages="x")
    assert template_choices.fastest([ATEN, odd], Operands(512, 512, 512), 1) == [ATEN, odd]


class Kept(InductorChoices):
    """A user's own choices: all that it was asked for."""


def test_inductors_choices_ask_while_a_pass_wants_it():
    handler = Kept()
    graph = torch.fx.Graph()

    def ask():
        return handler._finalize_template_configs(
            {"a": iter(CHOICES[:3]), "b": iter(CHOICES[3:])}, Operands(4096, 4096, 4096), [], "mm")

    with V.set_choices_handler(handler):
        options = inductor.options(templates=1)
        with inductor_config.patch(options):
            assert ask() == CHOICES  # no compilation has begun
            for _ in range(2):
                options[made._SLOT](graph)
            assert [x.template for x in ask()] == [aten_mm, mm_template]
            with inductor_config.patch(inductor.options()):
                assert ask() == CHOICES
        assert ask() == CHOICES
        with inductor.enable(templates=2):
            with inductor.enable():  # a pass behind it that has no wish of its own
                assert len(ask()) == 3
        several = made.FusePass(before=[made.FusePass(templates=1), made.FusePass()])
        with inductor_config.patch({made._SLOT: several}):
            assert len(ask()) == 2
        assert ask() == CHOICES


def test_an_inductor_of_other_parts_keeps_its_choices(caplog):
    class Other(Operands):
        def strides_hinted(self):
            raise AttributeError("renamed")

    handler = Kept()
    with V.set_choices_handler(handler), inductor.enable(templates=1):
        getattr(inductor_config, made._SLOT)(torch.fx.Graph())
        found = handler._finalize_template_configs({"a": iter(CHOICES)}, Other(64, 64, 64), [],
                                                   "mm")
    assert found == CHOICES and "AttributeError: renamed" in caplog.text


@pytest.mark.parametrize("wrong", (0, -1, 1.5, True, "2"))
def test_a_wrong_number_of_templates_is_named(wrong):
    with pytest.raises(UsageError, match=f"templates={wrong!r} is not a number of configs"):
        inductor.options(templates=wrong)


def test_the_number_belongs_to_the_id_of_a_compiled_graph():
    ids = [made.FusePass(templates=n).uuid() for n in (None, 1, 2)]
    assert len(set(ids)) == 3
