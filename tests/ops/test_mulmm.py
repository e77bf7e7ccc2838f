"""``mulmm``: products with a factor, or with an activation's derivative as one."""

from __future__ import annotations

import faked
import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm.activations import BY_NAME  # noqa: E402
from tritongemm.errors import UnsupportedError, UsageError  # noqa: E402

plans = faked.plans  # a fixture
GENERATOR = torch.Generator().manual_seed(44)
A, B = (torch.randn(*shape, generator=GENERATOR) for shape in ((6, 8), (8, 5)))
SHAPES = ((6, 5), (5,), (1, 5), (6, 1), (1, 1), ())
close = torch.testing.assert_close


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


def composed(d, a, b, alpha=1.0, gradient_of="none"):
    product = alpha * (a @ b)
    if gradient_of == "none":
        return product * d
    return product * BY_NAME[gradient_of].derivative(d.expand(product.shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", BY_NAME)
def test_a_factor_is_multiplied_by_one_kernel(shape, name, plans):
    d = drawn(*shape)
    close(tg.mulmm(d, A, B, alpha=0.5, gradient_of=name), composed(d, A, B, 0.5, name))
    (problem, _), = plans.made
    word = "gain" if shape in ((5,), (1, 5)) else "mul"
    assert problem.epilogue == (word if name == "none" else f"d{name}")


@pytest.mark.parametrize("name", BY_NAME)
def test_with_a_gradient_the_product_is_ours_and_the_factor_torchs(name, plans):
    tensors = [x.double().requires_grad_() for x in (drawn(6, 5), A, B)]
    assert torch.autograd.gradcheck(lambda *x: tg.mulmm(*x, gradient_of=name), tensors)
    floats = [x.detach().float().requires_grad_() for x in tensors]
    tg.mulmm(*floats, gradient_of=name).sum().backward()
    assert {problem.epilogue for problem, _ in plans.made} == {"none"}


@pytest.mark.parametrize("alpha", (True, 3, torch.tensor(2.0), torch.tensor(2.0).requires_grad_()))
@pytest.mark.parametrize("compiled", (False, True))
def test_any_number_or_tensor_scales_the_product(alpha, compiled, plans):
    d = drawn(6, 5)

    def call(d):
        return tg.mulmm(d, A, B, alpha=alpha)

    torch._dynamo.reset()
    run = torch.compile(call, backend="eager", fullgraph=True) if compiled else call
    close(run(d), composed(d, A, B, float(alpha)))
    assert plans.made


def test_transforms_compose_it(plans):
    d = drawn(6, 5)
    close(torch.func.vmap(lambda a: tg.mulmm(d, a, B))(A[None]), composed(d, A, B)[None])
    _, tangent = torch.func.jvp(lambda a: tg.mulmm(d, a, B), (A,), (A,))
    close(tangent, composed(d, A, B))


@pytest.mark.parametrize("name", ("none", "silu"))
def test_a_compiler_records_it(name, plans):
    torch._dynamo.reset()
    d = drawn(6, 5)
    run = torch.compile(lambda d: tg.mulmm(d, A, B, gradient_of=name), backend="eager",
                        fullgraph=True)
    close(run(d), composed(d, A, B, gradient_of=name))
    assert [problem.epilogue for problem, _ in plans.made] == ["mul" if name == "none" else "dsilu"]
    close(run(d.requires_grad_()), composed(d, A, B, gradient_of=name))


def test_under_autocast_the_factor_is_not_cast(plans):
    d = drawn(6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = (A @ B) * d
        found = tg.mulmm(d, A, B)
        fused = tg.mulmm(d.bfloat16(), A, B)
    assert found.dtype == wanted.dtype == torch.float32 and fused.dtype == torch.bfloat16
    close(found, wanted, rtol=1e-2, atol=1e-1)
    assert {problem.epilogue for problem, _ in plans.made} == {"none", "mul"}


def test_other_dtypes_are_torchs():
    d, a, b = (x.to(torch.complex64) for x in (drawn(6, 5), A, B))
    close(tg.mulmm(d, a, b), composed(d, a, b))
    close(tg.mulmm(drawn(6, 5).double(), A.double(), B.double()).shape, torch.Size((6, 5)))
    close(tg.mulmm(torch.ones(0, 5), A[:0], B), torch.empty(0, 5))


@pytest.mark.parametrize(("call", "says"), [
    (lambda: tg.mulmm(drawn(6, 5), A, B, gradient_of="swish"), "gradient_of='swish' is not known"),
    (lambda: tg.mulmm(drawn(5), A, B, alpha=1j), "alpha=1j is complex, the operands are"),
    (lambda: tg.mulmm(drawn(6), A, B), r"input is of shape \(6,\);.* of shape \(6, 5\)"),
    (lambda: tg.mulmm(drawn(2, 6, 5), A, B), r"input is of shape \(2, 6, 5\)"),
], ids=lambda x: x if isinstance(x, str) else "call")
def test_wrong_calls_name_what_is_wrong(call, says):
    with pytest.raises(UsageError, match=says):
        call()


def test_a_number_is_multiplied_by_torch_and_a_tracer_records_both(plans):
    close(tg.mulmm(2.0, A, B), 2.0 * (A @ B))

    class Model(torch.nn.Module):
        def forward(self, d, a, b):
            return tg.mulmm(d, a, b, gradient_of="gelu")

    d = drawn(6, 5)
    close(torch.fx.symbolic_trace(Model())(d, A, B), composed(d, A, B, gradient_of="gelu"))


@pytest.mark.parametrize(("dtype", "shape", "alpha"), (
    (torch.float64, (6, 5), 1), (torch.float32, (2, 6, 5), 1), (torch.float32, (6, 5), 1j)))
def test_the_op_says_what_torch_makes_of_operands_that_no_kernel_takes(dtype, shape, alpha):
    from torch._subclasses.fake_tensor import FakeTensorMode

    op, tensors = torch.ops.tritongemm.mulmm, (drawn(*shape).to(dtype), A, B)
    found = op(*tensors, alpha=alpha)
    with FakeTensorMode() as mode:
        fake = op(*(mode.from_tensor(x) for x in tensors), alpha=alpha)
    assert (fake.shape, fake.dtype, fake.stride()) == (found.shape, found.dtype, found.stride())


def test_the_gradient_of_a_weight_has_the_weights_order():
    w = drawn(5, 8).requires_grad_()
    d = drawn(6, 5)
    grad, = torch.autograd.grad(torch.ops.tritongemm.mulmm(d, A, w.t()).sum(), w)
    assert grad.is_contiguous()
    close(grad, d.t() @ A)


def test_strict_calls_say_why_they_would_be_torchs(plans):
    for call, says in ((lambda: tg.mulmm(drawn(5).double(), A, B, strict=True),
                        "the input is torch.float64, the product torch.float32"),
                       (lambda: tg.mulmm(drawn(5), A, B, alpha=torch.tensor(2.0), strict=True),
                        "alpha is no number")):
        with pytest.raises(UnsupportedError, match=says):
            call()


def test_strict_calls_where_no_kernel_runs_say_so():
    with pytest.raises(UnsupportedError, match="operands are on cpu"):
        tg.mulmm(drawn(5), A, B, strict=True)
