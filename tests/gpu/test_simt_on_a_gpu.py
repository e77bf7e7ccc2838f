"""float32 on CUDA cores by ``simt``, on a real device, against float64 and against ``tiled``."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from test_float32_on_a_gpu import aligned, assert_near, operands  # noqa: E402

from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.kernels import spec_named, violation  # noqa: E402
from tritongemm.ops.plan import bind_config  # noqa: E402
from tritongemm.problem import LAYOUTS, GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu
LARGE = KernelConfig("simt", 64, 128, 32, num_warps=4, num_stages=2, thread_m=8, thread_n=8)
SMALL = KernelConfig("simt", 32, 32, 16, num_warps=2, num_stages=3, thread_m=4, thread_n=4)
CONFIGS = (LARGE, SMALL, replace(LARGE, block_k=16, num_stages=3, split_k=3),
           replace(LARGE, block_m=128, num_warps=4, thread_m=16, block_k=16),
           replace(SMALL, block_m=16, block_k=32, num_warps=1, split_k=2))

#: What an element of C may be off, of (|A| |B|): a chain of 4,100 rounded additions.
LIMIT = 2e-6


def problem_of(m: int, n: int, k: int, layout: str = "nt", **more) -> GemmProblem:
    return GemmProblem.contiguous(m, n, k, dtype="fp32", layout=layout, **more)


def legal(problem: GemmProblem) -> list[KernelConfig]:
    device = current_device()
    found = [config for config in (*CONFIGS, spec_named("simt").default(problem, device))
             if violation(problem, config, device) is None]
    assert found
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "batch", "gap"), (
    ((256, 512, 128), 1, 0), ((300, 333, 417), 1, 0), ((100, 520, 1000), 1, 4),
    ((57, 129, 4100), 1, 3), ((130, 200, 300), 3, 0), ((16, 4096, 2000), 1, 0)))
def test_products_are_right(shape, batch, gap, layout):
    problem = aligned(problem_of(*shape, layout, batch=batch), gap)
    for config in legal(problem):
        a, b, out = operands(problem, gap)
        bind_config(problem, config, current_device())(a, b, out)
        assert_near(out, a, b, LIMIT)


def test_operands_without_a_unit_stride_are_right():
    problem = replace(problem_of(130, 200, 264, "nn"), align_a=4, align_b=4)
    a = torch.randn(130, 528, device="cuda")[:, ::2]
    b = torch.randn(264, 400, device="cuda")[:, ::2]
    for config in legal(problem):
        out = torch.full((130, 200), float("nan"), device="cuda")
        bind_config(problem, config, current_device())(a, b, out)
        assert_near(out, a, b, LIMIT)


@pytest.mark.parametrize("k", (1, 2, 30, 33, 66, 1001))
def test_a_tail_of_k_is_right_where_rows_are_aligned(k):
    """Rows begin at multiples of 16 bytes, and K ends within a copy; splits may have no steps."""
    problem = replace(problem_of(100, 96, k, "nt"), align_a=16, align_b=16)
    for config in legal(problem):
        a, b, out = operands(problem, -k % 4)
        bind_config(problem, config, current_device())(a, b, out)
        assert_near(out, a, b, LIMIT)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "split"), (
    ((513, 255, 1000), 1), ((256, 256, 4096), 1), ((130, 512, 3000), 2)))
def test_sums_are_those_of_tiled_bit_for_bit(shape, split, layout):
    """Both add one product after another, so batch invariance may take either."""
    problem, device = problem_of(*shape, layout), current_device()
    a, b, out = operands(problem)
    other = torch.empty_like(out)
    tiled = KernelConfig("tiled", 64, 64, 32, num_warps=4, num_stages=2, split_k=split)
    bind_config(problem, tiled, device)(a, b, other)
    for config in (LARGE, replace(SMALL, block_k=32)):
        config = replace(config, split_k=split)
        assert spec_named("simt").sum_order(problem, config, device) == spec_named(
            "tiled").sum_order(problem, tiled, device)
        bind_config(problem, config, device)(a, b, out)
        assert torch.equal(out, other)
