"""Float32 products that read an A of 16 bits as it is: by the bits of the widened A's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tritongemm as tg
from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device, representative
from tritongemm.formats import format_of_dtype
from tritongemm.kernels import split_fp32
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.interpret import interpret
from tritongemm.kernels.reduce import target_of
from tritongemm.kernels.split_fp32 import guard_launch, split_launch, split_operands
from tritongemm.ops.plan import geometry_of
from tritongemm.problem import GemmProblem

pytestmark = pytest.mark.interpreter
CONFIG = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)
THOROUGH = pytest.mark.thorough


def passes(a: torch.Tensor, b: torch.Tensor, layout: str, *, guard: bool):
    """(scratch, C) after the split pass, and the guard; 7 where neither has written."""
    problem = GemmProblem(a.shape[-2], b.shape[-1], a.shape[-1], 1, "fp32", "fp32", "fp32", layout,
                          4, 4, 4, precision="fp16x3")
    c = torch.full((a.shape[-2], b.shape[-1]), 7.0)
    geometry = geometry_of(a, b, c)
    if a.dtype is not torch.float32:
        geometry = replace(geometry, stored_a=format_of_dtype(a.dtype).name)
    split = split_operands(problem, CONFIG, geometry)
    scratch = torch.full((-(-split.scratch_bytes // 4),), 7.0)
    device = interpreter_device()
    operands = {"a": a, "b": b, "c": c, "scratch": scratch}
    interpret(split_launch(problem, CONFIG, geometry, device, split), operands)
    if guard:
        interpret(guard_launch(problem, CONFIG, geometry, device, split,
                               target_of(problem, CONFIG, geometry)), operands)
    return scratch, c


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize(("layout", "whole", "guard"), (
    ("nt", True, True), ("nn", False, False), pytest.param("tn", True, False, marks=THOROUGH),
    pytest.param("tt", False, False, marks=THOROUGH)))
def test_split_and_guard_are_those_of_the_widened_operand(layout, whole, guard, narrow,
                                                          monkeypatch):
    if not whole:  # rows are longer than a block, and are read twice
        for name, value in (("_PER_THREAD", 1), ("_ROW_WARPS", 2), ("_SHORT_ROW_WARPS", 2),
                            ("_PER_THREAD_OF_STRIP", 4), ("_NARROW_STRIP_WARPS", 4)):
            monkeypatch.setattr(split_fp32, name, value)
    m, n, k = 5, 7, 100
    generator = torch.Generator().manual_seed(k)
    a = torch.randn(m, k, generator=generator).to(narrow)
    b = torch.randn(k, n, generator=generator)
    a[1, 3], a[2, 4], b[0, 1] = float("inf"), float("nan"), 2.0**-140
    if layout[0] == "t":
        a = a.t().contiguous().t()
    if layout[1] == "t":
        b = b.t().contiguous().t()
    found = passes(a, b, layout, guard=guard)
    expected = passes(a.float(), b, layout, guard=guard)
    for one, other in zip(found, expected):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
    assert (found[1] == 7.0).any() and bool((found[1] != 7.0).any()) is guard


FEW_ROWS = (
    KernelConfig("gemv", 4, 16, 64, num_warps=1),
    KernelConfig("gemv", 4, 16, 64, num_warps=1, num_stages=3, split_k=2),
    KernelConfig("tiled_bf16x6", 16, 16, 32, num_warps=1, num_stages=2),
    KernelConfig("tiled_bf16x6", 16, 16, 32, num_warps=1, num_stages=2, split_k=3),
)


def few_rows(config, a: torch.Tensor, b: torch.Tensor, layout: str, align: int) -> torch.Tensor:
    problem = GemmProblem(a.shape[0], b.shape[1], a.shape[1], 1, "fp32", "fp32", "fp32", layout,
                          align, align, 16, precision="fp16x3")
    c = torch.empty(a.shape[0], b.shape[1])
    geometry = geometry_of(a, b, c)
    if a.dtype is not torch.float32:
        geometry = replace(geometry, stored_a=format_of_dtype(a.dtype).name)
    scratch = torch.empty(4096)
    for launch in launches_of(problem, config, representative(90), geometry):
        interpret(launch, {"a": a, "b": b, "c": c, "scratch": scratch})
    return c


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("layout", ("nt", "tt"))
@pytest.mark.parametrize("config", FEW_ROWS, ids=lambda x: x.config_id)
def test_kernels_for_few_rows_give_the_bits_of_the_widened_operand(config, layout, narrow):
    k = 100 if narrow is torch.float16 else 128
    generator = torch.Generator().manual_seed(k)
    a = torch.randn(3, k, generator=generator).to(narrow)
    b = torch.randn(k, 20, generator=generator)
    a[1, 5], b[7, 2] = float("inf"), 2.0**-140
    b = b.t().contiguous().t()
    if layout == "tt":
        a = a.t().contiguous().t()
    align = 4 if layout == "tt" else 16
    found, expected = (few_rows(config, x, b, layout, align) for x in (a, a.float()))
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))
    exact = a.double() @ b.double()
    finite = exact.isfinite()
    assert torch.equal(found.isfinite(), finite) and not finite.all()
    size = a.double().abs() @ b.double().abs()
    assert ((found.double() - exact).abs() / size)[finite].max() < 1e-6


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16), ids=str)
def test_few_columns_stream_a_of_16_bits(narrow):
    """With the sides swapped the A of 16 bits is the operand that is streamed."""
    config = KernelConfig("gemv", 2, 16, 64, num_warps=1, swap_ab=1)
    a, b = torch.randn(40, 128).to(narrow), torch.randn(2, 128).t()
    found, expected = (few_rows(config, x, b, "nt", 16) for x in (a, a.float()))
    assert torch.equal(found, expected)
    assert torch.allclose(found.double(), a.double() @ b.double(), atol=1e-4)


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16), ids=str)
def test_public_calls_are_those_of_the_widened_operand(narrow):
    """On a CPU, where A is converted first."""
    a, w, bias = torch.randn(2, 9, 40).to(narrow), torch.randn(17, 40), torch.randn(17)
    assert torch.equal(tg.linear(a, w, bias, mixed=True, activation="relu", strict=True),
                       tg.linear(a.float(), w, bias, activation="relu", strict=True))
    assert torch.equal(tg.mm(a[0], w.mT, mixed=True, strict=True),
                       tg.mm(a[0].float(), w.mT, strict=True))
