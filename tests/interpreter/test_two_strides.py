"""Batches that no single stride walks, read in place by interpreted kernels, against float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tritongemm as tg
from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.errors import UnsupportedError
from tritongemm.ops import calls, execute, plans
from tritongemm.ops.operands import StridedShape, form_of, problem_of_form
from tritongemm.ops.plan import InterpretedPlan

pytestmark = pytest.mark.interpreter
TILED = KernelConfig("tiled", 16, 16, 32, num_warps=1, num_stages=2)
SPLIT = KernelConfig("tiled", 16, 16, 32, num_warps=1, num_stages=2, split_k=2)
GEMV = KernelConfig("gemv", 4, 16, 32, num_warps=1, num_stages=1)
SWAPPED = KernelConfig("gemv", 4, 16, 32, num_warps=1, num_stages=1, swap_ab=1)


def drawn(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def heads(x: torch.Tensor) -> torch.Tensor:
    """[batch, rows, heads, width] as [batch, heads, rows, width]: two strides along the batch."""
    return x.transpose(1, 2)


def operand(letter: str, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """[2, 3, rows, cols] of heads, stored row by row or (``t``) column by column."""
    if letter == "n":
        return heads(drawn(2, rows, 3, cols, dtype=dtype))
    return heads(drawn(2, cols, 3, rows, dtype=dtype)).mT


def near(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Within a few roundings of the product in float64."""
    expected = a.double() @ b.double()
    bound = 4 * torch.finfo(found.dtype).eps * a.shape[-1]**0.5 * max(1., expected.abs().max())
    assert found.shape == expected.shape
    assert (found.double() - expected).abs().max() <= bound


def run(config: KernelConfig, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> str:
    """Multiplies with this config; the operands that had two strides."""
    form = form_of(*(StridedShape(x.shape, x.stride()) for x in (a, b, out)))
    names = (calls.NAMES[a.dtype], calls.NAMES[b.dtype], calls.NAMES[out.dtype])
    problem, geometry = problem_of_form(
        form, (a.data_ptr(), b.data_ptr(), out.data_ptr(), 0), names, "none", "ieee")
    plan = InterpretedPlan(problem, config, interpreter_device(), geometry)
    calls._by_view(form, plan)(a, b, out, None, 1.0, 0.0)
    return problem.two_strides


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize(("config", "m", "n"), [
    (TILED, 19, 16), pytest.param(SPLIT, 9, 16, marks=pytest.mark.thorough),
    pytest.param(GEMV, 3, 9, marks=pytest.mark.thorough),
    pytest.param(SWAPPED, 9, 3, marks=pytest.mark.thorough)], ids=str)
def test_operands_of_heads_in_every_layout(config, m, n, layout):
    dtype = torch.bfloat16 if layout == "nn" else torch.float16
    if config is GEMV and layout[1] == "n" or config is SWAPPED and layout[0] == "t":
        config = replace(config, block_n=32, block_k=8)
    k = 40 if config.kernel == "tiled" else 24
    a, b = operand(layout[0], m, k, dtype), operand(layout[1], k, n, dtype)
    out = torch.full((2, 3, m, n), float("nan"), dtype=dtype)
    assert run(config, a, b, out) == "ab"
    near(out, a, b)


def test_a_result_of_heads_and_what_lies_between_its_rows():
    a, b = drawn(2, 3, 19, 40), drawn(2, 3, 40, 18)
    store = torch.full((2, 19, 3, 25), 7.0, dtype=torch.float16)
    out = heads(store)[..., :18]
    assert run(TILED, a, b, out) == "c"
    near(out, a, b)
    assert (store[..., 18:] == 7.0).all()
    a = operand("n", 19, 40, torch.float16)
    assert run(TILED, a, b, out) == "ac"
    near(out, a, b)


@pytest.mark.parametrize(("shape_a", "shape_b"), [
    ((4, 1, 5, 24), (1, 3, 24, 7)), ((1, 3, 5, 24), (4, 1, 24, 7)), ((2, 1, 5, 24), (3, 24, 7)),
    ((2, 2, 1, 5, 24), (3, 24, 7))], ids=str)
def test_a_broadcast_of_both_operands(shape_a, shape_b):
    a, b = drawn(*shape_a), drawn(*shape_b)
    found = tg.matmul(a, b, strict=True)
    assert found.is_contiguous()
    near(found, a, b)
    out = torch.empty_like(found)
    assert tg.matmul(a, b, out=out, strict=True) is out and torch.equal(out, found)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_attention_of_views_reads_them_in_place(dtype, monkeypatch):
    seen = []

    class Seeing(InterpretedPlan):
        def __call__(self, *tensors, **more):
            seen.append([x.data_ptr() for x in tensors[:2]])
            super().__call__(*tensors, **more)

    monkeypatch.setattr(plans, "make_plan",
                        lambda problem, config, device, geometry, _: Seeing(
                            problem, config, device, geometry))
    q, k = (heads(drawn(2, rows, 3, 8, dtype=dtype)) for rows in (5, 6))
    execute.clear_plans()
    allocated = []
    empty = torch.empty_strided

    def counted(shape, *rest, **more):
        allocated.append(tuple(shape))
        return empty(shape, *rest, **more)

    monkeypatch.setattr(torch, "empty_strided", counted)
    found = tg.matmul(q, k.mT, strict=True)
    near(found, q, k.mT)
    assert len(seen) == 1 and seen[0] == [q.data_ptr(), k.data_ptr()]
    assert allocated == [(2, 3, 5, 6)]  # the result


def test_float32_takes_several_launches_where_few_do():
    small, large = drawn(2, 1, 9, 4).float(), drawn(9, 1, 9, 4).float()
    b = drawn(9, 4, 2).float()
    assert calls.problem_of(small, b).two_strides == "none"
    assert calls.problem_of(large, b).two_strides == "ab"
    near(tg.matmul(large, b, strict=True), large, b)


def test_three_axes_that_stay_three_are_torchs():
    a = drawn(3, 1, 4, 5, 8)
    b = drawn(1, 9, 7, 4, 8).transpose(2, 3).mT
    with pytest.raises(UnsupportedError, match="12 launches, more than 8"):
        tg.matmul(a, b, strict=True)
    near(tg.matmul(a, b), a, b)


@pytest.mark.parametrize(("shape_a", "shape_b"), [((9, 1, 0, 8), (1, 9, 8, 7)),
                                                  ((9, 1, 5, 0), (1, 9, 0, 7)),
                                                  ((0, 1, 5, 8), (1, 9, 8, 7))], ids=str)
def test_empty_extents_are_torchs(shape_a, shape_b):
    a, b = drawn(*shape_a), drawn(*shape_b)
    found, expected = tg.matmul(a, b), torch.matmul(a, b)
    assert found.shape == expected.shape and torch.equal(found, expected)


def test_gradients_are_summed_over_what_broadcast():
    tensors = [x.requires_grad_() for x in (drawn(2, 1, 5, 8), drawn(1, 3, 8, 7))]
    wide = [x.detach().double().requires_grad_() for x in tensors]
    grad = drawn(2, 3, 5, 7)
    found = torch.autograd.grad(tg.matmul(*tensors, strict=True), tensors, grad)
    expected = torch.autograd.grad(torch.matmul(*wide), wide, grad.double())
    for one, other in zip(found, expected):
        torch.testing.assert_close(one.double(), other, rtol=1e-2, atol=2e-2)


def test_under_an_override_the_values_are_right():
    a, b = drawn(2, 1, 5, 24), drawn(1, 3, 24, 7)
    q = heads(drawn(2, 5, 3, 8))
    with tg.override(min_flops=0):
        near(a @ b, a, b)
        near(q @ q.mT, q, q.mT)


def test_fused_products_of_heads():
    x, w, bias = heads(drawn(2, 5, 3, 24)), drawn(7, 24), drawn(7)
    found = tg.linear(x, w, bias, activation="relu", strict=True)
    expected = torch.nn.functional.linear(x.double(), w.double(), bias.double()).relu()
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", (
    torch.float16, pytest.param(torch.float32, marks=pytest.mark.thorough)), ids=str)
def test_batch_invariance_reads_every_batch_by_one_stride(dtype):
    """Kernels for two strides sum in another order, and how many strides there are depends on M."""
    b = drawn(5, 3, 24, 20, dtype=dtype)
    a = heads(drawn(5, 7, 3, 24, dtype=dtype))
    with tg.batch_invariant():
        for rows in (1, 2, 7):
            found = tg.matmul(a[:, :, :rows], b, strict=True)
            assert torch.equal(found, tg.matmul(a, b, strict=True)[:, :, :rows])
        operands = calls.Operands(a, b)
        assert [form.inner for form in calls.forms_of(execute.MATMUL.rule, operands)] == [0]
    assert any(form.inner for form in calls.forms_of(execute.MATMUL.rule, operands))
