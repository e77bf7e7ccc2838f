"""``gated_linear`` and a residual of ``linear``: what is refused, and torch's way of the rest."""

from __future__ import annotations

from functools import partial

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.device import device_named, interpreter_device  # noqa: E402
from tritongemm.errors import LaunchError, UnsupportedError, UsageError  # noqa: E402
from tritongemm.ops.fused_linear import faster_apart  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402

GENERATOR = torch.Generator().manual_seed(44)
X, W, B = (torch.randn(*shape, generator=GENERATOR) for shape in ((3, 5, 8), (12, 8), (12,)))
#: Gradients in float32, whose sums are made in another order than torch's.
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


def composed(x, w, bias=None, interleaved=False):
    total = F.linear(x, w, bias)
    gate, up = (total[..., ::2], total[..., 1::2]) if interleaved else total.chunk(2, -1)
    return F.silu(gate) * up


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("bias", (None, B))
def test_what_no_kernel_takes_is_composed(interleaved, bias):
    torch.testing.assert_close(tg.gated_linear(X, W, bias, interleaved=interleaved),
                               composed(X, W, bias, interleaved))
    vector = X[0, 0]
    torch.testing.assert_close(tg.gated_linear(vector, W), composed(vector, W))


@pytest.mark.parametrize("bias", (None, B))
def test_weights_of_two_tensors_are_composed(bias):
    torch.testing.assert_close(tg.gated_linear(X, W[:6], bias, up=W[6:]), composed(X, W, bias))
    double = [t.double().requires_grad_() for t in (X[0], W[:6], W[6:])]
    assert torch.autograd.gradcheck(lambda x, w, up: tg.gated_linear(x, w, up=up), double)
    torch.testing.assert_close(
        torch.func.vmap(lambda x: tg.gated_linear(x, W[:6], up=W[6:]))(X), composed(X, W))


@pytest.mark.parametrize(("batch", "k", "n"), (
    ((5,), 8, 0), ((3, 5), 8, 0), ((2, 3, 5), 0, 0), ((3, 5), 0, 6), ((0, 5), 8, 0)), ids=str)
def test_layers_without_columns_or_k_are_torchs(batch, k, n):
    x, w, residual = torch.randn(*batch, k), torch.randn(2 * n, k), torch.randn(*batch, 2 * n)
    torch.testing.assert_close(tg.linear(x, w, residual=residual), F.linear(x, w) + residual)
    torch.testing.assert_close(tg.gated_linear(x, w), composed(x, w))


def test_a_residual_is_added_after_the_activation():
    residual = torch.randn(3, 5, 12)
    for activation in ("none", "gelu"):
        act = F.gelu if activation == "gelu" else torch.clone
        torch.testing.assert_close(
            tg.linear(X, W, B, activation=activation, residual=residual),
            act(F.linear(X, W, B)) + residual)


def test_gradients_and_transforms_of_what_is_composed():
    double = [t.double().requires_grad_() for t in (X[0], W, B)]
    assert torch.autograd.gradcheck(tg.gated_linear, double)
    assert torch.autograd.gradcheck(lambda x, w, b: tg.linear(x, w, b, activation="silu",
                                                             residual=x @ w.T), double)
    torch.testing.assert_close(torch.func.vmap(tg.gated_linear, (0, None))(X, W), composed(X, W))
    _, tangent = torch.func.jvp(lambda x: tg.gated_linear(x, W), (X,), (X,))
    assert tangent.shape == (3, 5, 6)


@pytest.mark.parametrize("activation", ("relu", "gelu"))
def test_nested_operands_with_a_gradient_are_torchs(activation):
    x, residual = (torch.nested.nested_tensor([torch.ones(rows, columns) for rows in (2, 3)])
                   for columns in (8, 12))
    weight = W.clone().requires_grad_()
    for more in ({}, {"residual": residual}):
        found = tg.linear(x, weight, B, activation=activation, **more)
        wanted = getattr(F, activation)(F.linear(x, weight, B))
        wanted = wanted + residual if more else wanted
        for one, other in zip(found.unbind(), wanted.unbind()):
            torch.testing.assert_close(one, other)


def test_a_symbolic_trace_records_layers():
    class Model(torch.nn.Module):
        def forward(self, x, weight, residual):
            return tg.gated_linear(tg.linear(x, weight, activation="relu", residual=residual),
                                   weight.t())

    x, weight, residual = X[0], W[:8], torch.randn(5, 8)
    traced = torch.fx.symbolic_trace(Model())
    torch.testing.assert_close(traced(x, weight, residual), Model()(x, weight, residual))


@pytest.mark.parametrize("call, says", [
    (lambda: tg.gated_linear(X, W[:11]), r"\(11, 8\); a gated weight is \[2 N, K\]"),
    (lambda: tg.gated_linear(X, B), r"\(12,\); a gated weight is \[2 N, K\]"),
    (lambda: tg.gated_linear(X, W, activation="none"), "'none' is not one of a gate; use one"),
    (lambda: tg.gated_linear(X, W, activation="swish"), "'swish' is not one of a gate"),
    (lambda: tg.gated_linear(X, W, B[:6]), r"bias is of shape \(6,\); the weight has 12 rows"),
    (lambda: tg.gated_linear(X, W, up=W[:6]), r"up is of shape \(6, 8\); the weight.*\(12, 8\)"),
    (lambda: tg.gated_linear(X, W, up=W, interleaved=True), "interleaved=True is for the rows of"),
    (lambda: tg.gated_linear(X, W, B, up=W), r"bias is of shape \(12,\); both weights have 24"),
    (lambda: tg.gated_linear(X, W, up=[1, 2]), "up is a list, not a tensor"),
    (lambda: tg.linear(X, W, activation="swish"), "'swish' is not known"),
    (lambda: tg.linear(X, W, residual=B), r"\(12,\); the result.* of shape \(3, 5, 12\). Expand"),
    (lambda: tg.linear(X, W, residual=torch.randn(3, 5, 12).half()),
     "residual is torch.float16 on cpu; the result is torch.float32 on cpu. Convert it first"),
    (lambda: tg.linear(X, W, residual=torch.randn(3, 5, 12, device="meta")), "on meta; the result"),
], ids=lambda x: x if isinstance(x, str) else "call")
def test_wrong_calls_name_what_is_wrong(call, says):
    with pytest.raises(UsageError, match=says):
        call()


def test_strict_calls_say_why_they_would_be_torchs():
    for call in (lambda: tg.gated_linear(X, W, strict=True),
                 lambda: tg.linear(X, W, residual=torch.randn(3, 5, 12), strict=True)):
        with pytest.raises(UnsupportedError, match="operands are on cpu|TRITONGEMM_DISABLE"):
            call()


def test_wrong_extents_and_dtypes_are_torchs_errors():
    for x, w in ((X, W[:, :7]), (X, W.double())):
        with pytest.raises(RuntimeError):
            tg.gated_linear(x, w)


def test_rows_without_elements():
    assert tg.gated_linear(X[:0], W).shape == (0, 5, 6)
    assert tg.linear(X[:0], W, residual=torch.empty(0, 5, 12)).shape == (0, 5, 12)


def samples():
    def leaf(*shape):
        return torch.randn(*shape).requires_grad_()

    ops, x, w, b = torch.ops.tritongemm, leaf(3, 4), leaf(6, 4), leaf(6)
    return {
        "gated": (ops.gated_linear, (x, w, b, "silu", False)),
        "gated interleaved": (ops.gated_linear, (x, w, None, "relu", True)),
        "gated aux": (ops.gated_linear_aux, (x, w, b, "gelu", False)),
        "gated aux interleaved": (ops.gated_linear_aux, (x, w, None, "silu", True)),
        "aux": (ops.linear_aux, (x, w, b, "gelu_tanh")),
        "aux of the result": (ops.linear_aux, (x, w, None, "relu")),
        "residual": (ops.linear_residual, (x, w, b, leaf(3, 6), "none")),
        "residual activated": (ops.linear_residual, (x, w, None, leaf(3, 6), "silu")),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", (
    "gated", "gated interleaved", "gated aux", "gated aux interleaved", "aux", "aux of the result",
    "residual", "residual activated"))
def test_the_registered_ops_pass_torchs_checks(name):
    import tritongemm.ops.registered  # noqa: F401 - it defines the ops

    op, arguments = samples()[name]
    torch.library.opcheck(op.default, arguments)


@pytest.mark.parametrize("interleaved", (False, True))
def test_gradients_of_the_registered_ops_are_those_of_the_composed_layer(interleaved):
    import tritongemm.ops.registered  # noqa: F401

    def grads(f):
        leaves = [t.clone().requires_grad_() for t in (X[0], W, B)]
        f(*leaves).square().sum().backward()
        return [t.grad for t in leaves]

    ops = torch.ops.tritongemm
    truth = grads(lambda x, w, b: composed(x, w, b, interleaved))
    for found in (grads(lambda x, w, b: ops.gated_linear(x, w, b, "silu", interleaved)),
                  grads(lambda x, w, b: ops.gated_linear_aux(x, w, b, "silu", interleaved)[0])):
        close(found, truth)
    residual = torch.randn(5, 12)
    truth = grads(lambda x, w, b: F.gelu(F.linear(x, w, b)) + residual)
    close(
        grads(lambda x, w, b: ops.linear_residual(x, w, b, residual, "gelu")), truth)
    close(
        grads(lambda x, w, b: ops.linear_aux(x, w, b, "gelu")[0] + residual), truth)


@pytest.mark.parametrize("interleaved", (False, True))
def test_one_launch_is_asked_for_and_its_gradients_are_kernels(interleaved, plans):
    leaves = [t.clone().requires_grad_() for t in (X, W, B)]
    found = tg.gated_linear(*leaves, interleaved=interleaved, strict=True)
    assert [p.epilogue for p, _ in plans.made] == ["bias+gated_silu+aux"]
    truth = composed(*leaves, interleaved)
    torch.testing.assert_close(found, truth)
    ours = torch.autograd.grad(found.square().sum(), leaves)
    assert [p.epilogue for p, _ in plans.made[1:]] == ["none", "none"]
    close(ours, torch.autograd.grad(truth.square().sum(), leaves))
    plans.made.clear()
    tg.gated_linear(X, W, B, interleaved=interleaved)
    tg.gated_linear(X, W, B, interleaved=interleaved)
    (problem, geometry), = plans.made
    assert problem.epilogue == "bias+gated_silu" and (problem.n, problem.columns) == (12, 6)
    assert (geometry.bb, geometry.bn) == ((8, 16) if interleaved else (48, 8))
    assert (geometry.db, geometry.dn) == ((1, 2) if interleaved else (6, 1))


def test_a_launch_that_the_driver_refuses_is_composed(plans):
    plans.launch_error = LaunchError("no")
    torch.testing.assert_close(tg.gated_linear(X, W), composed(X, W))


def test_a_residual_without_more_is_an_addend_of_every_kernel(plans):
    residual = torch.randn(3, 5, 12)
    tg.linear(X, W, residual=residual)
    tg.linear(X, W, B, residual=residual)
    tg.linear(X, W, activation="gelu", residual=residual)
    assert [p.epilogue for p, _ in plans.made] == ["add", "bias+residual", "gelu+residual"]


@pytest.mark.thorough
def test_few_rows_are_computed_apart_where_that_is_predicted_to_be_faster():
    device = device_named("nvidia-h100-80gb-hbm3")

    def reason(m, epilogue):
        return faster_apart(GemmProblem.contiguous(m, 28672, 4096, layout="nt", epilogue=epilogue),
                            device)

    assert "one launch is predicted to take" in reason(1, "gated_silu")
    assert reason(2048, "gated_silu") is None and reason(2048, "bias+gelu+aux") is None
    assert reason(1, "bias") is None  # every kernel has it
    assert faster_apart(GemmProblem.contiguous(1, 64, 64, epilogue="gated_silu"),
                        interpreter_device()) is None
    with settings.override(batch_invariant=True):  # bits must not depend on the number of rows
        assert all(reason(m, "gated_silu") is None for m in (1, 64, 512, 1024))


@pytest.mark.parametrize("shape", ((3, 5, 8), (8,), (0, 8)), ids=str)
def test_under_autocast_a_residual_has_the_dtype_of_the_result(shape):
    x, residual = torch.ones(shape), torch.ones(*shape[:-1], 12)
    with torch.autocast("cpu", torch.bfloat16):
        assert tg.linear(x, W, B, residual=residual).dtype is torch.bfloat16
        with pytest.raises(UsageError, match=r"bfloat16 on cpu; the result is torch.float64"):
            tg.linear(x.double(), W.double(), residual=residual.bfloat16())


class Conversions(TorchDispatchMode):
    """The shapes of the tensors that are converted to another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default:
            self.shapes.append(tuple(args[0].shape))
        return func(*args, **kwargs or {})


def test_autocast_converts_the_input_of_a_layer_once():
    x, factor = X[0], torch.ones(5, 12, dtype=torch.bfloat16)
    for call in (lambda: tg.linear(x, W, B, residual=factor), lambda: tg.mulmm(factor, x, W.T)):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), Conversions() as seen:
            call()
        assert seen.shapes.count((5, 8)) == 1


def test_a_residual_of_a_device_without_autocast():
    x, residual = X.to("meta"), torch.empty(3, 5, 12, device="meta")
    assert tg.linear(x, W.to("meta"), residual=residual).shape == (3, 5, 12)
