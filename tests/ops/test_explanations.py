"""``tritongemm.explain``: by tensors, sizes or a problem; as text and as HTML for notebooks."""

from __future__ import annotations

import html.parser
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tritongemm as tg
from tritongemm import settings
from tritongemm.compute import COMPUTES
from tritongemm.device import device_named
from tritongemm.errors import DeviceError, ProblemError, UnsupportedError, UsageError
from tritongemm.integration.override import Calls, OverrideReport
from tritongemm.kernels import SPECS
from tritongemm.notebook import table
from tritongemm.ops import explain as explaining
from tritongemm.ops.explain import explain_problem
from tritongemm.ops.float32 import float32_path
from tritongemm.problem import GemmProblem
from tritongemm.tuning.candidates import PruneReport
from tritongemm.tuning.sweep import SweepReport
from tritongemm.tuning.task import ProblemReport

PROBLEM = GemmProblem.contiguous(4096, 4096, 4096, layout="nt")


def test_rows_and_columns_that_fp16_parts_cannot_hold_are_counted():
    a, b = torch.randn(2048, 2048), torch.randn(2048, 2048)
    a[[3, 5, 2047], 7], b[:, 9] = 1e-30, float("inf")
    problem = GemmProblem.contiguous(2048, 2048, 2048, dtype="fp32", precision="fp16x3")
    found = explain_problem(problem, device_named("nvidia-h200"))
    assert SPECS[found.config.kernel].guarded
    text = explaining._flagged(found, a, b)
    assert text == "rows of A: 3, columns of B: 1, which a slower kernel computes"
    assert f"flagged    {text}" in str(replace(found, flagged=text))
    batch = explaining._flagged(found, a.expand(2, -1, -1), b[None])
    assert "rows of A: 6, columns of B: 1" in batch
    assert explaining._flagged(found, a[0], b[:, 0]) == ""


class Cells(html.parser.HTMLParser):
    """The texts of a table's cells, and how many of each tag there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: Counter[str] = Counter()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1

    def handle_data(self, data):
        self.texts.append(data)


def test_sizes_and_a_problem_say_the_same():
    by_sizes = tg.explain(4096, 4096, 4096, layout="nt", device="nvidia-h200")
    assert by_sizes == tg.explain(PROBLEM, device="h200") == explain_problem(
        PROBLEM, device_named("nvidia-h200"))
    assert by_sizes.config is not None and "tiles" in str(by_sizes)


@pytest.mark.parametrize("arguments", [(), (1,), (64, 64), (64, 64.0, 64), (1, 2, 3, 4)], ids=str)
def test_other_arguments_are_refused(arguments):
    with pytest.raises(UsageError, match="two tensors"):
        tg.explain(*arguments, device="h200")


def test_a_device_goes_with_sizes_and_not_with_tensors():
    with pytest.raises(UsageError, match="device='h200' with sizes"):
        tg.explain(torch.ones(4, 4), torch.ones(4, 4), device="h200")


@pytest.mark.parametrize("dtype", [torch.float32, "float32", "torch.float32", "fp32"], ids=str)
def test_a_dtype_may_be_torchs(dtype):
    found = tg.explain(512, 512, 512, dtype=dtype, device="h200")
    assert found == tg.explain(512, 512, 512, dtype="fp32", device="h200")
    assert found.problem.precision == "fp16x3"


def test_a_measured_choice_is_told_from_estimates():
    text = str(tg.explain(PROBLEM, device="h200"))
    assert "by estimate; the chosen one is by measurement:" in text
    assert "by estimate:" in str(tg.explain(777, 333, 555, device="h200"))


def test_options_go_with_sizes_only():
    with pytest.raises(UsageError, match="layout with the sizes"):
        tg.explain(PROBLEM, layout="nn")
    with pytest.raises(ProblemError, match="layout"):
        tg.explain(64, 64, 64, layout="nx", device="h200")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_a_device_must_be_named():
    with pytest.raises(DeviceError, match="no CUDA device"):
        tg.explain(64, 64, 64)


@pytest.mark.parametrize("name, slug", [
    ("h200", "nvidia-h200"), ("H200", "nvidia-h200"), ("h100", "nvidia-h100-80gb-hbm3"),
    ("nvidia-l40s", "nvidia-l40s"), ("a100-sxm4", "nvidia-a100-sxm4-80gb"),
    ("NVIDIA H200", "nvidia-h200"), ("NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3")])
def test_a_part_of_a_device_s_name_is_enough(name, slug):
    assert device_named(name).slug == slug


@pytest.mark.parametrize("name, says", [
    ("nvidia", "could be .*nvidia-h200"), ("h20", "not in configs/devices; known: .*nvidia-h200"),
    ("", "not in configs/devices"), ("-", "not in configs/devices")])
def test_a_part_of_several_names_or_of_none_is_refused(name, says):
    with pytest.raises(DeviceError, match=says):
        device_named(name)


@pytest.mark.parametrize("sizes", [(0, 4096, 4096), (4096, 0, 1), (4096, 4096, 0)], ids=str)
def test_nothing_to_multiply_is_torchs(sizes):
    found = tg.explain(*sizes, device="h200")
    assert found.config is None and found.source == "torch" and "extent is 0" in str(found)


@pytest.mark.parametrize(("dtype", "interpret", "says"), [
    (torch.bfloat16, False, "operands are on cpu"),
    (torch.float64, True, "dtypes are torch.float64 and torch.float64"),
    (torch.int64, True, "dtypes are torch.int64 and torch.int64")], ids=str)
def test_tensors_that_no_kernel_takes_are_torchs(dtype, interpret, says):
    a, b = torch.zeros(4, 8, dtype=dtype), torch.zeros(8, 6, dtype=dtype)
    with settings.override(interpret=interpret):
        found = tg.explain(a, b)
    name = str(dtype).removeprefix("torch.")
    assert str(found).splitlines() == [
        f"operands   {name} [4, 8] on cpu and {name} [8, 6] on cpu", f"kernel     torch: {says}"]
    assert (found.source, found.config, found.tiles, found.problem) == ("torch", None, None, None)
    assert f"torch: {says}" in Cells(found._repr_html_()).texts


def test_a_disabled_package_is_told_of_tensors():
    with settings.override(interpret=True, disable=True):
        assert "TRITONGEMM_DISABLE" in tg.explain(torch.ones(4, 8), torch.ones(8, 4)).note


@pytest.mark.parametrize(("a", "b", "says"), [
    (torch.ones(4, 8), torch.ones(7, 4), "reduction dim"), (torch.tensor(1.0), torch.ones(4), "0D"),
    (torch.ones(4, 8), torch.ones(8, 4).double(), "dtypes are torch.float32 and torch.float64"),
    (torch.ones(4, 8), torch.ones(8, 4, device="meta"), "devices are cpu and meta")],
    ids=["shapes", "ranks", "dtypes", "devices"])
@pytest.mark.parametrize("interpret", [False, True])
def test_tensors_that_torch_refuses_are_refused(a, b, says, interpret):
    with settings.override(interpret=interpret), pytest.raises(UnsupportedError, match=says):
        tg.explain(a, b)


def test_sizes_beyond_any_memory_are_told_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = tg.explain(2 * 10**9, 2 * 10**9, 2 * 10**9, device="h200")
    assert found.config is None and "a grid has at most" in found.note


@pytest.mark.parametrize(("precision", "policy", "name", "bound"), [
    (None, "own", "split", (4096 + 4) * 2.0**-23), ("ieee", "own", "ieee", 4096 * 2.0**-24),
    ("tf32", "own", "tf32", 2.0**-10 + 4096 * 2.0**-23), ("ieee", "auto", "torch", None)], ids=str)
def test_the_float32_path_is_named_with_its_bound_and_its_switch(precision, policy, name, bound):
    with settings.override(policy=policy):
        found = tg.explain(4096, 4096, 4096, dtype="fp32", precision=precision, device="h100")
    assert found.float32.name == name and found.float32.bound == bound
    fields = dict(found.fields())
    assert fields["float32"].startswith(f"{name}: ")
    assert {"split": "TRITONGEMM_FP32=ieee", "ieee": "TRITONGEMM_FP32=split",
            "tf32": "fp32_precision", "torch": "TRITONGEMM_POLICY=own"}[name] in fields["switch"]
    assert ("error" in fields) == (bound is not None)


def test_the_bound_of_tf32_names_the_elements_that_it_does_not_hold_for():
    with settings.override(policy="own"):
        copied, loaded = (str(tg.explain(m, 4096, 4096, dtype="fp32", precision="tf32",
                                         layout="nt", device="h200")) for m in (4096, 64))
    assert "scaled_product" in copied and "keep fewer bits" in copied
    assert "scaled_product" not in loaded and "keep fewer bits" not in loaded


def test_a_kernel_of_cuda_cores_is_no_path_of_tf32():
    problem = GemmProblem.contiguous(4, 4096, 4096, dtype="fp32", precision="tf32", layout="nt")
    device = device_named("nvidia-h200")
    path = float32_path(problem, SPECS["gemv"].default(problem, device), device)
    assert path.name == "ieee" and path.bound == 4096 * 2.0**-24 and "no TF32" in path.switch


def test_the_switch_of_complex64_names_what_it_does():
    def switch():
        return dict(tg.explain(512, 512, 512, dtype="c64", device="h200").fields())["switch"]

    assert switch().endswith("torch's kernel")
    with settings.override(fp32="ieee"):
        assert switch().startswith("TRITONGEMM_FP32=split")


def test_on_a_gpu_that_was_never_measured_no_times_are_compared():
    found = tg.explain(64, 64, 64, device="a100-sxm4")
    fields = dict(found.fields())
    assert "calibrate --quick" in fields["call"] and "takes torch's" not in str(found)
    assert found.source == "rule" and found.config is not None


def test_float32_that_is_not_split_runs_as_ieee():
    """On a device without the split product, and where the setting says so."""
    with settings.override(policy="own"):
        assert tg.explain(512, 512, 512, dtype="fp32", device="a100-sxm4").float32.name == "ieee"
    with settings.override(policy="own", fp32="ieee"):
        found = tg.explain(4096, 4096, 4096, dtype="fp32", device="h100")
    assert found.float32.name == "ieee" and found.problem.precision == "ieee"
    assert tg.explain(PROBLEM, device="h200").float32 is None


def test_the_error_limit_is_that_of_the_check():
    from tritongemm.measure.numerics import floor

    checked = floor(torch.float32, 4096, 1.0, COMPUTES["fp16x3"])
    with settings.override(policy="own"):
        found = tg.explain(4096, 4096, 4096, dtype="fp32", device="h100").float32
    assert found.limit == (checked.maximum, checked.rms)


def test_explain_has_html_for_notebooks():
    found = tg.explain(PROBLEM, device="h200")
    cells = Cells(found._repr_html_())
    assert cells.tags["table"] == 2 and found.config.config_id in cells.texts
    assert all(config.config_id in cells.texts for config in found.alternatives)
    assert str(found).count("\n") + 1 >= len(found.fields())


def test_an_override_s_report_has_html_for_notebooks():
    report = OverrideReport(("mm",), (Calls("mm", 5, {"a <b> reason": 2, "another": 7}),))
    cells = Cells(report._repr_html_())
    assert ["aten::mm", "5", "9", "7 x another; 2 x a <b> reason"] == cells.texts[-4:]
    assert cells.tags["b"] == 0


def test_tune_s_report_has_html_for_notebooks():
    won = ProblemReport(PROBLEM, tg.explain(PROBLEM, device="h200").config, 171.25, 1.034)
    lost = ProblemReport(GemmProblem(1, 1, 1), note="nothing ran")
    report = SweepReport("run", Path("j"), "nvidia-h200", (won, lost), PruneReport(), 12, 0, {},
                         3.0, 1.0, 1.0, 1.0)
    cells = Cells(report._repr_html_())
    assert str(won.problem) in cells.texts and "171.25" in cells.texts and "1.034" in cells.texts
    assert "nothing ran" in cells.texts


def test_a_cell_s_text_stays_text():
    tags = Cells(table(("<i>",), [("<script>",)], "<u>")).tags
    assert not tags.keys() & {"i", "script", "u"}
