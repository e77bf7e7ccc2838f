"""The gradients' formulas in float64 over torch's own inner product, and what they run and keep."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.errors import UnsupportedError  # noqa: E402
from tritongemm.ops import autograd, execute  # noqa: E402

F = torch.nn.functional
ADDMM, BMM, LINEAR, MATMUL = (execute.ADDMM["none"], execute.BADDBMM, execute.LINEAR["none"],
                              execute.MATMUL)


def randn(*shape: int, dtype=torch.float64, leaf: bool = True) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(
        sum(shape) + len(shape))).requires_grad_(leaf)


@pytest.fixture
def reference(monkeypatch):
    """torch's products in the place of the kernels, in float64; counted by (op, A, B)."""
    ran: list[tuple] = []

    @torch.no_grad()  # a kernel's result has no graph
    def product(op, a, b, alpha=1.0):
        ran.append((op.rule.name, tuple(a.shape), tuple(b.shape)))
        return alpha * torch.matmul(a, b.mT if op.rule.flipped else b)

    @torch.no_grad()
    def fused(op, d, a, b, beta=1.0, alpha=1.0):
        result = product(op, a, b, alpha)
        return result if beta == 0 else beta * d + result

    monkeypatch.setattr(autograd, "run_product", product)
    monkeypatch.setattr(autograd, "run_fused", fused)
    return ran


@dataclass(frozen=True)
class Case:
    name: str
    ours: Callable
    theirs: Callable
    shapes: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return self.name

    def tensors(self, **options) -> tuple[torch.Tensor, ...]:
        return tuple(randn(*shape, **options) for shape in self.shapes)


def product(name: str, op, *shapes, theirs=torch.matmul, alpha: float = 1.0) -> Case:
    return Case(name, lambda a, b: autograd.product(op, a, b, alpha),
                lambda a, b: alpha * theirs(a, b), shapes)


def fused(name: str, op, theirs, *shapes, beta: float = 1.0, alpha: float = 1.0) -> Case:
    return Case(name, lambda d, a, b: autograd.fused(op, d, a, b, beta, alpha),
                lambda d, a, b: theirs(d, a, b, beta, alpha), shapes)


def added(d, a, b, beta, alpha):
    return beta * d + alpha * torch.matmul(a, b)


CASES = (
    product("mm", MATMUL, (3, 4), (4, 2)), product("scaled", MATMUL, (3, 4), (4, 2), alpha=-1.5),
    product("bmm", MATMUL, (2, 3, 4), (2, 4, 2)), product("folded", MATMUL, (2, 3, 4), (4, 2)),
    product("matrix-batch", MATMUL, (3, 4), (2, 4, 2)),
    product("broadcast", MATMUL, (2, 1, 3, 4), (3, 4, 2)),
    product("one-row", MATMUL, (1, 4), (4, 1)),
    product("vector-matrix", MATMUL.forced, (4,), (4, 2)),
    product("matrix-vector", MATMUL.forced, (3, 4), (4,)),
    product("vectors", MATMUL.forced, (4,), (4,)),
    product("linear", LINEAR, (3, 4), (2, 4), theirs=F.linear),
    product("linear-batch", LINEAR, (2, 3, 4), (2, 4), theirs=F.linear),
    fused("addmm", ADDMM, added, (3, 2), (3, 4), (4, 2), beta=0.5, alpha=2.0),
    fused("addmm-bias", ADDMM, added, (2,), (3, 4), (4, 2)),
    fused("addmm-column", ADDMM, added, (3, 1), (3, 4), (4, 2), beta=-1.0),
    fused("addmm-unread", ADDMM, added, (2,), (3, 4), (4, 2), beta=0.0),
    fused("baddbmm", BMM, added, (2, 3, 2), (2, 3, 4), (2, 4, 2), alpha=0.5),
    fused("baddbmm-bias", BMM, added, (2,), (2, 3, 4), (2, 4, 2)),
    fused("linear-bias", LINEAR, lambda d, a, b, *_: F.linear(a, b, d), (2,), (2, 3, 4), (2, 4)),
    fused("linear-gelu", execute.LINEAR["gelu"], lambda d, a, b, *_: F.gelu(F.linear(a, b, d)),
          (2,), (3, 4), (2, 4)),
    fused("linear-silu", execute.LINEAR["silu"], lambda d, a, b, *_: F.silu(F.linear(a, b, d)),
          (2,), (3, 4), (2, 4)),
)
each = pytest.mark.parametrize("case", CASES, ids=str)


@each
def test_first_order_reverse_and_forward(case, reference):
    assert gradcheck(case.ours, case.tensors(), check_forward_ad=True, check_batched_grad=True,
                     check_batched_forward_grad=True)


@each
def test_second_order(case, reference):
    assert gradgradcheck(case.ours, case.tensors(), check_fwd_over_rev=True,
                         check_rev_over_rev=True)


def close(found, expected) -> None:
    if isinstance(expected, torch.Tensor):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)
    else:
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            close(one, other)


TRANSFORMS: dict[str, Callable] = {
    "grad": lambda f, x: torch.func.grad(lambda *y: f(*y).pow(2).sum(),
                                         argnums=tuple(range(len(x))))(*x),
    "jvp": lambda f, x: torch.func.jvp(f, x, tuple(y + 1 for y in x)),
    "vjp": lambda f, x: torch.func.vjp(f, *x)[1](f(*x)),
    "jacrev": lambda f, x: torch.func.jacrev(f, argnums=tuple(range(len(x))))(*x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f, argnums=len(x) - 1)(*x),
    "hessian": lambda f, x: torch.func.hessian(lambda y: f(*x[:-1], y).pow(3).sum())(x[-1]),
}


@each
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_agree_with_torchs(case, transform, reference):
    tensors = case.tensors(leaf=False)
    close(transform(case.ours, tensors), transform(case.theirs, tensors))


@each
@pytest.mark.parametrize("axis", [0, -1])
def test_any_operands_may_be_mapped_over(case, axis, reference):
    tensors = case.tensors(leaf=False)
    for mapped in range(1, 2**len(tensors)):
        axes = tuple(axis if mapped >> i & 1 else None for i in range(len(tensors)))
        samples = tuple(x if at is None else torch.stack([x, 2 * x, x - 1], at)
                        for x, at in zip(tensors, axes))
        close(torch.func.vmap(case.ours, axes)(*samples),
              torch.func.vmap(case.theirs, axes)(*samples))
        gradient = partial(TRANSFORMS["grad"], case.ours)
        expected = partial(TRANSFORMS["grad"], case.theirs)
        close(torch.func.vmap(lambda *x, f=gradient: f(x), axes)(*samples),
              torch.func.vmap(lambda *x, f=expected: f(x), axes)(*samples))


@each
def test_two_axes_may_be_mapped_each_over_other_operands(case, reference):
    tensors = case.tensors(leaf=False)
    choices = range(1, 2**len(tensors))
    for inner, outer in itertools.product(choices, choices):
        axes = [[0 if mapped >> i & 1 else None for i in range(len(tensors))]
                for mapped in (inner, outer)]
        samples = list(tensors)
        for way in axes:  # equal extents: a wrong axis would broadcast rather than fail
            samples = [x if at is None else torch.stack([x, 2 * x]) for x, at in zip(samples, way)]
        found, expected = (torch.func.vmap(torch.func.vmap(f, tuple(axes[0])), tuple(axes[1]))(
            *samples) for f in (case.ours, case.theirs))
        close(found, expected)


@pytest.mark.parametrize("axes", [(None, 0, None), (0, 0, None), (None, 0, 0), (None, None, 0)],
                         ids=str)
def test_a_linear_of_a_vector_may_be_mapped_over(axes, reference):
    """Not forced, it is torch's: what becomes of it is no matter of the samples."""
    x, w, b = randn(4, leaf=False), randn(2, 4, leaf=False), randn(2, leaf=False)
    samples = [t if at is None else torch.stack([t, 2 * t, t - 1])
               for t, at in zip((x, w, b), axes)]
    with settings.override(interpret=True):
        for function in (tg.linear, partial(tg.linear, activation="silu")):
            expected = [function(*(t if at is None else t[i] for t, at in zip(samples, axes)))
                        for i in range(3)]
            close(torch.func.vmap(function, axes)(*samples), torch.stack(expected))


@pytest.mark.parametrize("axes", [(0, None, None), (0, 0, None)], ids=str)
def test_a_mapped_input_is_not_read_where_beta_is_0(axes, reference):
    d, a, b = torch.full((3, 2), float("nan")), randn(3, 4, leaf=False), randn(4, 2, leaf=False)
    samples = [x if at is None else torch.stack([x, x]) for x, at in zip((d, a, b), axes)]

    def call(d, a, b):
        return autograd.fused(execute.ADDMM["none"], d, a, b, 0.0, 2.0)

    close(torch.func.vmap(call, axes)(*samples), torch.stack([2 * (a @ b)] * 2))


def test_a_mapped_result_may_be_changed_in_place(reference):
    """Each sample's result has memory of its own where only the unread input is mapped."""
    d, a, b = randn(3, 2, leaf=False), randn(5, 4, leaf=False), randn(4, 2, leaf=False)
    found, expected = (torch.func.vmap(lambda d, f=f: f(d).mul_(d))(d) for f in (
        lambda d: autograd.fused(execute.ADDMM["none"], d, a, b, 0.0, 1.0),
        lambda d: torch.addmm(d, a, b, beta=0)))
    close(found, expected)


def test_tangents_of_a_gradient_of_one_number_keep_its_dtype(reference):
    d, a, b = torch.randn(()), torch.randn(3, 4), torch.randn(4, 2)

    def gradient(call):
        return torch.func.grad(lambda d: call(d).sin().sum())

    for ours, theirs in zip(*(torch.func.jvp(gradient(call), (d,), (d,)) for call in (
            lambda d: autograd.fused(execute.ADDMM["none"], d, a, b, 0.5, 1.0),
            lambda d: torch.addmm(d, a, b, beta=0.5)))):
        assert ours.dtype is theirs.dtype is torch.float32
        close(ours, theirs)


def test_mapping_over_samples_is_one_product(reference):
    a, b = randn(3, 4, leaf=False), randn(4, 2, leaf=False)
    torch.func.vmap(case_mm := CASES[0].ours, (0, None))(torch.stack([a] * 5), b)
    assert reference == [("matmul", (5, 3, 4), (4, 2))]
    reference.clear()
    torch.func.vmap(torch.func.vmap(case_mm, (0, None)), (0, 0))(
        a.expand(2, 5, 3, 4), b.expand(2, 4, 2))
    assert reference == [("matmul", (2, 5, 3, 4), (2, 1, 4, 2))]


def test_only_the_gradients_that_are_needed_are_computed_and_kept_for(reference):
    a, b = randn(3, 4), randn(4, 2, leaf=False)
    result = autograd.product(MATMUL, a, b)
    assert [x is None for x in result.grad_fn.saved_tensors] == [True, False]
    reference.clear()
    result.sum().backward()
    assert reference == [("matmul", (3, 2), (2, 4))]
    reference.clear()
    bias = randn(2)
    result = autograd.fused(ADDMM, bias, a.detach(), b)
    assert [x is None for x in result.grad_fn.saved_tensors] == [True, True]
    reference.clear()
    result.sum().backward()
    assert not reference and torch.equal(bias.grad, torch.full((2,), 3.0, dtype=torch.float64))


def test_gradients_are_transposed_problems_of_views(reference, monkeypatch):
    a, b = randn(5, 3, 4), randn(2, 4)
    seen = []
    real = autograd.run_product

    def product(op, x, y, alpha=1.0):
        seen.extend((x, y))
        return real(op, x, y, alpha)

    result = autograd.product(LINEAR, a, b)
    monkeypatch.setattr(autograd, "run_product", product)
    result.backward(torch.ones_like(result))
    assert seen[1].data_ptr() == b.data_ptr() and seen[3].data_ptr() == a.data_ptr()


def test_a_checkpoint_computes_the_forward_again(reference):
    a, b = randn(3, 4), randn(4, 2)
    checkpoint(lambda x, y: autograd.product(MATMUL, x, y).relu(), a, b,
               use_reentrant=False).sum().backward()
    gradients = a.grad, b.grad
    assert reference.count(("matmul", (3, 4), (4, 2))) == 2
    close(gradients, torch.autograd.grad(torch.matmul(a, b).relu().sum(), (a, b)))


def test_a_changed_operand_is_refused_in_backward(reference):
    a, b = randn(3, 4), randn(4, 2)
    result = autograd.product(MATMUL, a, b * 1)
    other = b * 1
    late = autograd.product(MATMUL, a, other)
    other.mul_(2)
    result.sum().backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.sum().backward()


def test_lazy_zeros_and_negatives_are_made_solid(reference):
    a, b = randn(3, 4, leaf=False), randn(4, 2, leaf=False)
    zero = torch._efficientzerotensor((3, 4), dtype=torch.float64)
    assert torch.equal(autograd.multiply(MATMUL, zero, b), torch.zeros(3, 2, dtype=torch.float64))
    close(autograd.multiply(MATMUL, torch._neg_view(a), b), -a @ b)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a, b.sum() * torch.ones_like(a))
        tangent = forward_ad.unpack_dual(autograd.product(MATMUL, dual, b)).tangent
    close(tangent, b.sum() * torch.ones_like(a) @ b)


# -- through the public functions, by (fake) kernels -----------------------------------------------

PUBLIC: dict[str, tuple[Callable, Callable, tuple]] = {
    "matmul": (tg.matmul, torch.matmul, ((5, 7), (7, 3))),
    "matmul-batch": (tg.matmul, torch.matmul, ((2, 1, 5, 7), (3, 7, 4))),
    "mm": (tg.mm, torch.mm, ((5, 7), (7, 3))), "bmm": (tg.bmm, torch.bmm, ((2, 5, 7), (2, 7, 3))),
    "mv": (tg.mv, torch.mv, ((5, 7), (7,))), "dot": (tg.dot, torch.dot, ((7,), (7,))),
    "addmm": (partial(tg.addmm, beta=0.5, alpha=2), partial(torch.addmm, beta=0.5, alpha=2),
              ((3,), (5, 7), (7, 3))),
    "baddbmm": (tg.baddbmm, torch.baddbmm, ((5, 1), (2, 5, 7), (2, 7, 3))),
    "linear": (tg.linear, F.linear, ((2, 5, 7), (3, 7))),
    "linear-vector": (lambda d, x, w, **o: tg.linear(x, w, d, **o),
                      lambda d, x, w: F.linear(x, w, d), ((3,), (7,), (3, 7))),
    "linear-silu": (lambda d, x, w, **o: tg.linear(x, w, d, activation="silu", **o),
                    lambda d, x, w: F.silu(F.linear(x, w, d)), ((3,), (5, 7), (3, 7))),
}


@pytest.mark.parametrize("call", PUBLIC.values(), ids=PUBLIC)
@pytest.mark.parametrize("strict", [True, False])
def test_public_functions_have_torchs_gradients(call, strict, plans):
    ours, theirs, shapes = call
    tensors = [randn(*shape, dtype=torch.float32) for shape in shapes]
    found, expected = ours(*tensors, strict=strict), theirs(*tensors)
    assert found.requires_grad
    for one, other in zip(torch.autograd.grad(found.pow(2).sum(), tensors),
                          torch.autograd.grad(expected.pow(2).sum(), tensors)):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    # What of the three or more products is not a kernel's is a vector's, and torch's by choice.
    assert len(plans.made) >= 2 or not strict or 1 in {len(shape) for shape in shapes}


def test_a_gradient_that_a_kernel_refuses_is_torchs(plans, monkeypatch):
    a, b = randn(5, 7, dtype=torch.float32), randn(7, 3, dtype=torch.float32)
    result = tg.matmul(a, b, strict=True)
    plans.error = tg.TritonGemmError("no more")
    found = torch.autograd.grad(result.sum(), (a, b))
    for one, other in zip(found, torch.autograd.grad((a @ b).sum(), (a, b))):
        torch.testing.assert_close(one, other)


def test_a_gradient_that_would_be_torchs_is_refused_under_the_strict_setting(plans):
    a, b = randn(5, 7, dtype=torch.float32), randn(7, 3, dtype=torch.float32)
    with settings.override(strict=True):
        result = tg.matmul(a, b)
        plans.error = tg.TritonGemmError("no more")
        with pytest.raises(UnsupportedError, match="a gradient of matmul .*: no more"):
            result.sum().backward()


def test_a_dispatch_mode_sees_the_gradients_products(plans):
    from torch.utils.flop_counter import FlopCounterMode

    a, b = randn(4, 5, dtype=torch.float32), randn(5, 6, dtype=torch.float32)
    total = tg.matmul(a, b).sum()
    with FlopCounterMode(display=False) as counter:
        total.backward()
    assert counter.get_total_flops() == 2 * 2 * 4 * 5 * 6 and len(plans.made) == 1


def test_what_no_kernel_takes_has_torchs_graph(plans):
    a, b = randn(5, 7), randn(7, 3)
    assert type(tg.matmul(a, b).grad_fn).__name__ == "MmBackward0" and not plans.made


def test_a_parameter_and_no_grad(plans):
    layer = torch.nn.Linear(7, 3)
    x = randn(5, 7, dtype=torch.float32, leaf=False)
    assert tg.linear(x, layer.weight, layer.bias, strict=True).requires_grad
    with torch.no_grad():
        assert not tg.linear(x, layer.weight, layer.bias, strict=True).requires_grad
    with torch.inference_mode():
        assert tg.linear(x, layer.weight, layer.bias, strict=True).is_inference()
    with torch.inference_mode(), torch.enable_grad():
        for result in (tg.linear(x, layer.weight, layer.bias, strict=True),
                       tg.matmul(x, layer.weight.T, strict=True)):
            assert result.is_inference() and not result.requires_grad


def test_transforms_of_the_public_functions(plans):
    a, b = randn(5, 7, dtype=torch.float32, leaf=False), randn(7, 3, dtype=torch.float32,
                                                               leaf=False)
    samples = torch.stack([a, 2 * a])
    for ours, theirs in ((tg.matmul, torch.matmul), (tg.mm, torch.mm)):
        ours = partial(ours, strict=True)
        close(torch.func.vmap(ours, (0, None))(samples, b),
              torch.func.vmap(theirs, (0, None))(samples, b))
        close(torch.func.jvp(ours, (a, b), (a, b)), torch.func.jvp(theirs, (a, b), (a, b)))
        gradient = torch.func.vmap(torch.func.grad(lambda x, y, f=ours: f(x, y).sum()), (0, None))
        close(gradient(samples, b), b.sum(1).expand(2, 5, 7))
    wide = a.double(), b.double()
    close(torch.func.jvp(tg.matmul, wide, wide), torch.func.jvp(torch.matmul, wide, wide))


def test_a_vector_is_refused_as_the_matrix_of_a_sum_also_where_it_needs_a_gradient():
    d, a, b = (randn(*shape, dtype=torch.float32) for shape in ((3,), (7,), (7, 3)))
    with pytest.raises(RuntimeError, match="must be a matrix"):
        tg.addmm(d, a, b)
    with pytest.raises(UnsupportedError, match="ranks are 1 and 2"):
        tg.addmm(d, a, b, strict=True)


@pytest.mark.parametrize("shape", [(), (3,), (4, 1)], ids=str)
def test_a_broadcast_input_is_scaled_before_it_is_summed(shape):
    # An infinite beta makes inf - inf of gradients of both signs, which a sum would hide.
    grad = torch.tensor([[1.0, -2.0, 3.0]]).expand(4, 3) * torch.tensor([[1.0], [-1], [1], [1]])

    def gradient(function):
        d = torch.ones(shape, requires_grad=True)
        a, b = randn(4, 5, dtype=torch.float32), randn(5, 3, dtype=torch.float32)
        return torch.autograd.grad(function(d, a, b, beta=float("inf")), d, grad)[0]

    wanted = gradient(torch.addmm)
    for function in (tg.addmm, torch.ops.tritongemm.addmm):
        torch.testing.assert_close(gradient(function), wanted, equal_nan=True)
    assert torch.equal(autograd.formulas.grad_d(grad, torch.Size(shape), float("inf")).isnan(),
                       wanted.isnan())
