"""The passes beside the product, in the interpreter: aligned copies, and the sum of split parts."""

from __future__ import annotations

import pytest
import torch

from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.kernels.interpret import interpret
from tritongemm.kernels.launch import Geometry
from tritongemm.kernels.padding import pad_operands
from tritongemm.kernels.reduce import partials_bytes, reduce_launch
from tritongemm.ops.plan import geometry_of
from tritongemm.problem import LAYOUTS, GemmProblem, torch_dtype

pytestmark = pytest.mark.interpreter
CONFIG = KernelConfig("warp_specialized", 64, 64, 64, num_stages=4, pad_operands=1)


def operand(rows: int, cols: int, letter: str, batch: int, dtype: str, gap: int = 0,
            step: int = 1) -> torch.Tensor:
    """Random [batch, rows, cols], or [rows, cols] for no batch, with gaps, stored by ``letter``
    from element ``gap`` of its memory on."""
    outer, inner = (rows, cols) if letter == "n" else (cols, rows)
    torch.manual_seed(rows * cols)
    memory = torch.randn(gap + batch * outer * (inner * step + gap)).to(torch_dtype(dtype))
    whole = memory[gap:].view(batch, outer, inner * step + gap)
    matrix = whole[:, :, :inner * step:step]
    matrix = matrix if letter == "n" else matrix.mT
    return matrix if batch > 1 else matrix[0]


def copied(scratch: torch.Tensor, offset: int, x: torch.Tensor, strides) -> torch.Tensor:
    """What scratch holds of ``x``'s copy, in the shape of ``x``."""
    flat = scratch.view(torch.uint8)[offset:].view(x.dtype)
    return flat.as_strided(x.shape, strides if x.dim() == 3 else strides[1:])


PADDED = [pytest.param(m, n, k, batch, dtype, layout,
                       marks=pytest.mark.thorough if k > 1000 or m > 500 or layout[0] != layout[1]
                       else ())
          for layout in LAYOUTS
          for m, n, k, batch, dtype in ((5, 7, 3, 1, "bf16"), (9, 300, 257, 1, "fp16"),
                                        (17, 33, 41, 3, "bf16"), (1, 1, 1, 1, "fp16"),
                                        (17, 9, 1100, 2, "fp16"), (529, 1101, 8, 1, "bf16"))]


@pytest.mark.parametrize(("m", "n", "k", "batch", "dtype", "layout"), PADDED)
@pytest.mark.parametrize(("gap", "step", "aligned"), (
    (0, 1, ""), (1, 2, "b"), pytest.param(3, 1, "a", marks=pytest.mark.thorough)))
def test_a_copy_holds_the_operand_and_nothing_else_is_written(m, n, k, batch, dtype, layout, gap,
                                                              step, aligned):
    a = operand(m, k, layout[0], batch, dtype, gap, step)
    b = operand(k, n, layout[1], batch, dtype, gap, step)
    c = torch.full((batch, m, n) if batch > 1 else (m, n), float("nan"), dtype=a.dtype)
    problem = GemmProblem(m, n, k, batch, dtype, dtype, dtype, layout,
                          16 if aligned == "a" else 2, 16 if aligned == "b" else 2)
    padding = pad_operands(problem, CONFIG, geometry_of(a, b, c), interpreter_device(), 200)
    guard = 64
    scratch = torch.full((-(-padding.scratch_bytes // 4) + guard,), float("nan"))
    before = scratch.clone()
    interpret(padding.launch, {"a": a, "b": b, "c": c, "scratch": scratch})
    g, touched = padding.geometry, torch.zeros(4 * scratch.numel(), dtype=torch.bool)
    assert sorted(padding.offsets) == [x for x in "ab" if x != aligned]
    for name, x, strides in (("a", a, (g.ab, g.am, g.ak)), ("b", b, (g.bb, g.bk, g.bn))):
        if name in padding.offsets:
            offset = padding.offsets[name]
            copy = copied(scratch, offset, x, strides)
            assert torch.equal(copy, x)
            last = (sum((e - 1) * s for e, s in zip(copy.shape, copy.stride(), strict=True)) + 1)
            touched[offset:offset + -(-last * x.element_size() // 4) * 4] = True  # whole words
    same = scratch.view(torch.uint8) == before.view(torch.uint8)
    assert bool(same[~touched].all()), "written outside the copies"
    assert bool(c.isnan().all())


@pytest.mark.parametrize("split", (2, 7))
@pytest.mark.parametrize(("m", "n", "batch"), ((1, 1, 1), (5, 300, 1), (33, 65, 3)))
@pytest.mark.parametrize("dtype", ("bf16", "fp32"))
@pytest.mark.parametrize("step", (1, 2))
def test_parts_are_added_in_order_into_any_strides(split, m, n, batch, dtype, step):
    problem = GemmProblem.contiguous(m, n, 64, batch=batch, dtype=dtype)
    torch.manual_seed(split)
    parts = torch.randn(split, batch, m, n)
    whole = torch.full((batch, m, n * step + 3), float("nan")).to(torch_dtype(dtype))
    c = whole[:, :, :n * step:step]
    geometry = Geometry(0, 0, 0, 0, 0, 0, c.stride(0), c.stride(1), c.stride(2))
    config = KernelConfig("tiled", 16, 16, 32, split_k=split)
    launch = reduce_launch(problem, config, geometry, interpreter_device())
    assert partials_bytes(problem, split) == parts.numel() * 4
    interpret(launch, {"a": c, "b": c, "c": c, "scratch": parts.flatten()})
    expected = parts[0].clone()
    for part in parts[1:]:
        expected += part
    # The interpreter cuts off bits where the GPU rounds to bf16.
    error = 2.0**-7 if dtype == "bf16" else 0.0
    torch.testing.assert_close(c, expected.to(c.dtype), rtol=error, atol=0.0)
    assert int(whole.isnan().sum()) == whole.numel() - c.numel()
