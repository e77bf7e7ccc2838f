"""The drop-in functions and their gradients by interpreted kernels, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tritongemm as tg

pytestmark = pytest.mark.interpreter
F = torch.nn.functional

#: name -> (ours, the same in any dtype, shapes)
CALLS: dict[str, tuple[Callable, Callable, tuple]] = {
    "matmul": (tg.matmul, torch.matmul, ((33, 70), (70, 17))),
    "matmul-fold": (tg.matmul, torch.matmul, ((2, 3, 9, 40), (40, 17))),
    "matmul-transposed-batch": (lambda a, b, **o: tg.matmul(a.transpose(0, 1), b, **o),
                                lambda a, b: torch.matmul(a.transpose(0, 1), b),
                                ((18, 3, 40), (40, 17))),
    "matmul-broadcast": (tg.matmul, torch.matmul, ((2, 1, 9, 24), (3, 24, 17))),
    "matmul-left-matrix": (tg.matmul, torch.matmul, ((9, 24), (3, 24, 17))),
    "matmul-vector": (tg.matmul, torch.matmul, ((3, 9, 24), (24,))),
    "mm": (tg.mm, torch.mm, ((16, 64), (64, 32))),
    "bmm": (tg.bmm, torch.bmm, ((3, 9, 24), (3, 24, 17))),
    "mv": (tg.mv, torch.mv, ((33, 70), (70,))), "dot": (tg.dot, torch.dot, ((200,), (200,))),
    "addmm-bias": (tg.addmm, torch.addmm, ((17,), (33, 70), (70, 17))),
    "addmm-column": (tg.addmm, torch.addmm, ((33, 1), (33, 70), (70, 17))),
    "addmm-scaled": (lambda d, a, b, **o: tg.addmm(d, a, b, beta=-0.5, alpha=1.5, **o),
                     lambda d, a, b: torch.addmm(d, a, b, beta=-0.5, alpha=1.5),
                     ((33, 17), (33, 70), (70, 17))),
    "addmm-unread": (lambda d, a, b, **o: tg.addmm(d, a, b, beta=0, alpha=1.5, **o),
                     lambda d, a, b: torch.addmm(d, a, b, beta=0, alpha=1.5),
                     ((33, 17), (33, 70), (70, 17))),
    "baddbmm": (tg.baddbmm, torch.baddbmm, ((3, 9, 17), (3, 9, 24), (3, 24, 17))),
    "baddbmm-row": (tg.baddbmm, torch.baddbmm, ((17,), (3, 9, 24), (3, 24, 17))),
    "linear": (tg.linear, F.linear, ((2, 9, 40), (17, 40))),
    "linear-bias": (lambda d, x, w, **o: tg.linear(x, w, d, **o),
                    lambda d, x, w: F.linear(x, w, d), ((17,), (2, 9, 40), (17, 40))),
    "linear-gelu": (lambda d, x, w, **o: tg.linear(x, w, d, activation="gelu", **o),
                    lambda d, x, w: F.gelu(F.linear(x, w, d)), ((17,), (9, 40), (17, 40))),
    "linear-gelu-tanh": (lambda d, x, w, **o: tg.linear(x, w, d, activation="gelu_tanh", **o),
                         lambda d, x, w: F.gelu(F.linear(x, w, d), approximate="tanh"),
                         ((17,), (9, 40), (17, 40))),
    "linear-silu": (lambda x, w, **o: tg.linear(x, w, activation="silu", **o),
                    lambda x, w: F.silu(F.linear(x, w)), ((9, 40), (17, 40))),
    "linear-relu": (lambda x, w, **o: tg.linear(x, w, activation="relu", **o),
                    lambda x, w: F.relu(F.linear(x, w)), ((9, 40), (17, 40))),
}
#: fp16 is as bf16 here: `make test-all` runs it.
DTYPES = (torch.bfloat16, torch.float32,
          pytest.param(torch.float16, marks=pytest.mark.thorough))


def drawn(shapes, dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shapes) + sum(map(sum, shapes)))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def near(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, inner: int) -> None:
    """Within a few roundings of a result of which each element sums ``inner`` products."""
    assert found.shape == expected.shape and found.dtype == dtype
    bound = 4 * torch.finfo(dtype).eps * inner**0.5 * max(1.0, float(expected.abs().max()))
    assert (found.double() - expected).abs().max() <= bound


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_values_are_those_of_float64(call, dtype):
    ours, theirs, shapes = call
    tensors = drawn(shapes, dtype)
    expected = theirs(*(x.double() for x in tensors))
    near(ours(*tensors, strict=True), expected, dtype, shapes[-1][0])


@pytest.mark.parametrize("dtype", (torch.float32, *(
    pytest.param(x, marks=pytest.mark.thorough) for x in (torch.bfloat16, torch.float16))), ids=str)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_gradients_are_those_of_float64(call, dtype):
    ours, theirs, shapes = call
    tensors = [x.requires_grad_() for x in drawn(shapes, dtype)]
    wide = [x.detach().double().requires_grad_() for x in tensors]
    result, expected = ours(*tensors, strict=True), theirs(*wide)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    for one, other in zip(torch.autograd.grad(result, tensors, grad),
                          torch.autograd.grad(expected, wide, grad.double())):
        near(one, other, dtype, max(max(shape) for shape in shapes))


def test_a_nan_in_the_input_is_not_read_where_beta_is_0():
    d, a, b = drawn(((9,), (5, 7), (7, 9)), torch.float32)
    d.fill_(float("nan"))
    assert tg.addmm(d, a, b, beta=0, strict=True).isfinite().all()
    out = torch.full((5, 9), float("inf"))
    assert tg.addmm(d, a, b, beta=0, alpha=2, out=out, strict=True).isfinite().all()


def test_out_with_gaps_in_both_axes_is_written_and_its_gaps_are_not():
    a, b = drawn(((33, 70), (70, 17)), torch.float32)
    store = torch.full((66, 51), 7.0)
    tg.mm(a, b, out=store[::2, ::3], strict=True)
    near(store[::2, ::3].clone(), a.double() @ b.double(), torch.float32, 70)
    store[::2, ::3] = 7.0
    assert (store == 7.0).all()


def test_an_input_added_in_place_is_right():
    d, a, b = drawn(((33, 17), (33, 70), (70, 17)), torch.float16)
    expected = torch.addmm(d.double(), a.double(), b.double(), beta=0.5)
    near(tg.addmm(d, a, b, beta=0.5, out=d, strict=True), expected, torch.float16, 70)


def test_forward_mode_and_vmap_by_kernels():
    a, b = drawn(((9, 24), (24, 17)), torch.float32)
    found, tangent = torch.func.jvp(lambda x, y: tg.matmul(x, y, strict=True), (a, b), (a, 2 * b))
    near(tangent, 3 * (a.double() @ b.double()), torch.float32, 24)
    samples = torch.stack([a, -a, 2 * a])
    mapped = torch.func.vmap(lambda x: tg.linear(x, b.mT, strict=True))(samples)
    near(mapped, samples.double() @ b.double(), torch.float32, 24)
    near(found, a.double() @ b.double(), torch.float32, 24)
