"""Split products that read an A of 16 bits as it is: by the bits of the widened A's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tritongemm as tg
from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.formats import format_of_dtype
from tritongemm.kernels import split_fp32
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


@pytest.mark.parametrize("narrow", (torch.bfloat16, torch.float16), ids=str)
def test_public_calls_are_those_of_the_widened_operand(narrow):
    a, w, bias = torch.randn(2, 9, 40).to(narrow), torch.randn(17, 40), torch.randn(17)
    assert torch.equal(tg.linear(a, w, bias, mixed=True, activation="relu", strict=True),
                       tg.linear(a.float(), w, bias, activation="relu", strict=True))
    assert torch.equal(tg.mm(a[0], w.mT, mixed=True, strict=True),
                       tg.mm(a[0].float(), w.mT, strict=True))
