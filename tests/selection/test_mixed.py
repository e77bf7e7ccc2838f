"""Which kernel reads an A of 16 bits, and when torch's product of a converted one is as good."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import GemmProblem
from tritongemm.selection import Choice, choose, estimate, mixed, torch_wins
from tritongemm.selection.hosttime import GRAPH
from tritongemm.selection.mixed import CONVERSION_US, reading, torch_wins_converting

H200 = device_named("nvidia-h200")


def problem(m: int, n: int, k: int) -> GemmProblem:
    return GemmProblem.contiguous(m, n, k, dtype="fp32", layout="nt", precision="fp16x3")


def stored(one: GemmProblem) -> Geometry:
    return replace(Geometry.contiguous(one), stored_a="bf16")


@pytest.mark.parametrize("m", (1, 2, 8, 16, 64))
@pytest.mark.parametrize(("n", "k"), ((8, 4096), (64, 2048), (128, 768), (256, 7168), (4096, 4096)))
def test_routers_and_layers_of_few_rows_are_read_as_they_are(m, n, k):
    one = problem(m, n, k)
    choice = reading(one, choose(one, H200), stored(one), H200)
    assert choice is not None and launches_of(one, choice.config, H200, stored(one))
    assert torch_wins_converting(one, choice, H200, GRAPH) is None


def test_a_choice_that_reads_a_is_kept():
    one = problem(16, 4096, 4096)
    choice = choose(one, H200)
    assert reading(one, choice, stored(one), H200) is choice


def test_another_kernel_reads_a_where_that_takes_no_longer_than_a_conversion():
    one = problem(32, 512, 2048)
    config = KernelConfig("tiled", 32, 32, 32, num_warps=4, num_stages=3)  # does not read bf16
    given = Choice(config, "model", predicted_us=estimate(one, config, H200).total_us,
                   evidence=2.0, expected=3.0)
    found = reading(one, given, stored(one), H200)
    assert found is not None and found.config.kernel != "tiled" and found.source == "model"
    assert found.predicted_us <= given.predicted_us + CONVERSION_US
    ratio = given.predicted_us / found.predicted_us
    assert found.evidence == pytest.approx(2.0 * ratio)
    assert found.expected == pytest.approx(3.0 * ratio) and found.of_sibling is None
    assert "reads A as bf16" in found.note


def test_a_is_converted_where_every_kernel_that_reads_it_takes_longer(monkeypatch):
    one = problem(32, 512, 2048)
    given = Choice(KernelConfig("tiled", 32, 32, 32, num_warps=4, num_stages=3), "exact")
    slow = estimate(one, given.config, H200)
    monkeypatch.setattr(mixed, "estimate", lambda _, config, device: (
        slow if config == given.config else slow._replace(
            launch_us=slow.launch_us + CONVERSION_US + 1.0)))
    assert reading(one, given, stored(one), H200) is None


def test_torchs_side_converts_a_first():
    one = problem(1, 8, 4096)
    choice = choose(one, H200)
    assert torch_wins(one, choice, H200, GRAPH) is not None
    assert torch_wins_converting(one, choice, H200, GRAPH) is None
    large = Choice(KernelConfig("tiled", 64, 64, 32), "model", predicted_us=500.0, evidence=0.5,
                   expected=0.5)
    assert torch_wins_converting(problem(4096, 4096, 4096), large, H200, GRAPH) is not None
