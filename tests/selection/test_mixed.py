"""When an A of 16 bits is read as it is, and when torch's product of a converted one is faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tritongemm.bench.providers import auto
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import GemmProblem
from tritongemm.selection import Choice, choose, torch_wins
from tritongemm.selection.hosttime import GRAPH
from tritongemm.selection.mixed import conversion_us, torch_wins_converting, why_converted

H200 = device_named("nvidia-h200")
TILED = KernelConfig("tiled", 64, 64, 32)  # does not read 16 bits as float32


def problem(m: int, n: int, k: int) -> GemmProblem:
    return GemmProblem.contiguous(m, n, k, dtype="fp32", layout="nt", precision="fp16x3")


def why(one: GemmProblem, choice: Choice) -> str | None:
    return why_converted(one, choice, replace(Geometry.contiguous(one), stored_a="bf16"), H200,
                         GRAPH)


@pytest.mark.parametrize("m", (1, 2, 8, 16, 64))
@pytest.mark.parametrize(("n", "k"), ((8, 4096), (64, 2048), (128, 768), (256, 7168), (4096, 4096)))
def test_inputs_of_routers_and_of_layers_of_few_rows_are_read_as_they_are(m, n, k):
    one = problem(m, n, k)
    assert why(one, choose(one, H200)) is None


def test_a_kernel_that_does_not_read_16_bits_says_so():
    one = problem(64, 512, 2048)
    assert why(one, Choice(TILED, "model", evidence=9.0)) == "tiled reads A in fp32, not in bf16"


def test_the_time_of_a_conversion_counts_on_torchs_side():
    one = problem(1, 8, 4096)
    choice = choose(one, H200)
    assert torch_wins(one, choice, H200, GRAPH) is not None
    assert torch_wins_converting(one, choice, H200, GRAPH) is None
    # torch takes 7.9 us of ours, and 2.2 more to convert A.
    of_ten = replace(choice, predicted_us=10.0, evidence=0.79, expected=0.79, of_sibling=None,
                     row=None, source="model")
    assert torch_wins_converting(one, replace(of_ten, evidence=0.82, expected=0.82), H200,
                                 GRAPH) is None
    assert "converts A" in (torch_wins_converting(one, of_ten, H200, GRAPH) or "")


def test_a_conversion_takes_a_launch_or_the_time_of_its_bytes():
    assert conversion_us(problem(64, 64, 4096), H200) == 2.2
    large = problem(8192, 64, 8192)
    assert conversion_us(large, H200) == pytest.approx(6 * 2**26 / (1e3 * H200.memory_gbps))
    assert conversion_us(large, replace(H200, memory_gbps=None)) == 2.2


def test_the_provider_auto_names_what_a_mixed_call_runs():
    mixed = GemmProblem.contiguous(1, 8, 4096, dtype="bf16", dtype_b="fp32", dtype_out="fp32",
                                   layout="nt")
    choice, faster = auto._decided(mixed, H200)
    assert choice.config.kernel == "gemv" and faster is None
    choice, faster = auto._decided(problem(1, 8, 4096), H200)
    assert choice.config.kernel == "gemv" and faster is not None
