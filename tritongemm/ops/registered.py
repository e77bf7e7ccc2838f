"""The products as ops that a compiler records: ``torch.ops.tritongemm.mm, bmm, addmm, baddbmm``.

Schemas are aten's, and ``addmm`` has an activation. Eagerly an op runs a kernel of this package and
calls aten for what is declined; shapes, errors and strides of its fake are aten's, symbolic ones
included. Gradients are products by the same ops, in forward order: they can be differentiated
again. Forward mode and ``torch.func`` are for ``tritongemm.matmul`` and its kin: torch's
registration of gradients knows neither (PyTorch issue 179652).

Defined with ``torch.library.Library``: a call costs a seventh of one through
``torch.library.custom_op`` (1.3 and 11.4 us on the CPU), 5.4 us with its gradient registered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tritongemm import settings
from tritongemm.activations import BY_NAME
from tritongemm.errors import UnsupportedError, UsageError
from tritongemm.ops import execute, formulas, fused_linear
from tritongemm.ops.execute import Declined
from tritongemm.ops.fused_linear import Layer
from tritongemm.ops.untraced import untraced

aten = torch.ops.aten

SCHEMAS = {
    "mm": "(Tensor self, Tensor mat2) -> Tensor",
    "bmm": "(Tensor self, Tensor mat2) -> Tensor",
    "addmm": "(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, "
             'str activation="none") -> Tensor',
    "baddbmm": "(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) "
               "-> Tensor",
}
#: Linear layers of :mod:`tritongemm.ops.fused_linear`, which aten does not have.
LAYER_SCHEMAS = {
    "gated_linear": "(Tensor input, Tensor weight, Tensor? bias, str activation, bool interleaved) "
                    "-> Tensor",
    "gated_linear_aux": "(Tensor input, Tensor weight, Tensor? bias, str activation, "
                        "bool interleaved) -> (Tensor, Tensor)",
    "linear_aux": "(Tensor input, Tensor weight, Tensor? bias, str activation) "
                  "-> (Tensor, Tensor)",
    "linear_residual": "(Tensor input, Tensor weight, Tensor? bias, Tensor residual, "
                       "str activation) -> Tensor",
}
_ACTIVATE = {name: one.op() for name, one in BY_NAME.items()}


@untraced
def _mm(self: Tensor, mat2: Tensor) -> Tensor:
    result = execute.product(execute.MM, self, mat2)
    if not isinstance(result, Declined):
        return result
    return _declined(result, execute.MM, lambda op: execute.product(op, self, mat2),
                     lambda: aten.mm(self, mat2))


@untraced
def _bmm(self: Tensor, mat2: Tensor) -> Tensor:
    result = execute.product(execute.BMM, self, mat2)
    if not isinstance(result, Declined):
        return result
    return _declined(result, execute.BMM, lambda op: execute.product(op, self, mat2),
                     lambda: aten.bmm(self, mat2))


@untraced
def _addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1,
           activation: str = "none") -> Tensor:
    activate = _activation(activation)
    op = execute.ADDMM[activation]
    result = execute.fused(op, self, mat1, mat2, beta, alpha)
    if not isinstance(result, Declined):
        return result
    return _declined(result, op, lambda op: execute.fused(op, self, mat1, mat2, beta, alpha),
                     lambda: activate(aten.addmm(self, mat1, mat2, beta=beta, alpha=alpha)))


@untraced
def _baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1,
             alpha: float = 1) -> Tensor:
    result = execute.fused(execute.BADDBMM, self, batch1, batch2, beta, alpha)
    if not isinstance(result, Declined):
        return result
    return _declined(result, execute.BADDBMM,
                     lambda op: execute.fused(op, self, batch1, batch2, beta, alpha),
                     lambda: aten.baddbmm(self, batch1, batch2, beta=beta, alpha=alpha))


def _declined(reason: Declined, op: execute.Op,
              ours: Callable[[execute.Op], Tensor | Declined],
              theirs: Callable[[], Tensor]) -> Tensor:
    """A call that ``op`` declined: theirs, or under TRITONGEMM_STRICT=1 ours where only a choice
    spoke against it. Raises UnsupportedError under that setting otherwise."""
    if not settings.current().strict:
        return theirs()
    if reason.by_choice:
        result = ours(op.forced)
        if not isinstance(result, Declined):
            return result
        reason = result
    raise UnsupportedError(f"torch.ops.tritongemm.{op.rule.name} would call torch: {reason}")


def _fake_addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1,
                activation: str = "none") -> Tensor:
    _activation(activation)
    return aten.addmm(self, mat1, mat2, beta=beta, alpha=alpha)


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    try:
        return _ACTIVATE[name]
    except KeyError:
        raise UsageError(f"activation={name!r} is not known; use one of "
                         f"{', '.join(BY_NAME)}") from None


def _layer(layer: Layer, x: Tensor, w: Tensor, bias: Tensor | None,
           residual: Tensor | None = None) -> tuple[Tensor, ...]:
    """The results of a linear layer by one launch, else by aten."""
    activate = _activation(layer.activation)
    result = fused_linear.run(layer, x, w, bias, residual)
    if isinstance(result, Declined) and settings.current().strict:
        if result.by_choice:
            result = fused_linear.run(layer._replace(forced=True), x, w, bias, residual)
        if isinstance(result, Declined):
            raise UnsupportedError(f"a linear layer would call torch: {result}")
    if not isinstance(result, Declined):
        return result
    total = _product_of_layer(x, w, bias)
    if layer.gated:
        done = fused_linear.gate(activate, total, layer.interleaved)
        if layer.interleaved and layer.aux:
            total = torch.cat(fused_linear.halves(total, True), -1)
    else:
        done = activate(total)
        if done is total and layer.aux:
            done = total.clone()  # results of an op do not share memory
    if residual is not None:
        done = done + residual
    return (done, total) if layer.aux else (done,)


def _product_of_layer(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x @ w.T + bias by the ops of this file."""
    ops = torch.ops.tritongemm
    return ops.mm(x, w.t()) if bias is None else ops.addmm(bias, x, w.t())


@untraced
def _gated_linear(x: Tensor, w: Tensor, bias: Tensor | None, activation: str,
                  interleaved: bool) -> Tensor:
    return _layer(Layer(activation, True, interleaved), x, w, bias)[0]


@untraced
def _gated_linear_aux(x: Tensor, w: Tensor, bias: Tensor | None, activation: str,
                      interleaved: bool) -> tuple[Tensor, ...]:
    return _layer(Layer(activation, True, interleaved, True), x, w, bias)


@untraced
def _linear_aux(x: Tensor, w: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, ...]:
    return _layer(Layer(activation, aux=True), x, w, bias)


@untraced
def _linear_residual(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor,
                     activation: str) -> Tensor:
    return _layer(Layer(activation), x, w, bias, residual)[0]


def _fake_layer(layer: Layer, x: Tensor, w: Tensor,
                bias: Tensor | None) -> tuple[Tensor, Tensor]:
    _activation(layer.activation)
    total = aten.mm(x, w.t()) if bias is None else aten.addmm(bias, x, w.t())
    if layer.gated:
        return total.new_empty((total.shape[0], total.shape[1] // 2)), total
    return torch.empty_like(total), total


def _fake_gated_linear(x: Tensor, w: Tensor, bias: Tensor | None, activation: str,
                       interleaved: bool) -> Tensor:
    return _fake_layer(Layer(activation, True, interleaved), x, w, bias)[0]


def _fake_gated_linear_aux(x: Tensor, w: Tensor, bias: Tensor | None, activation: str,
                           interleaved: bool) -> tuple[Tensor, Tensor]:
    return _fake_layer(Layer(activation, True, interleaved), x, w, bias)


def _fake_linear_aux(x: Tensor, w: Tensor, bias: Tensor | None,
                     activation: str) -> tuple[Tensor, Tensor]:
    return _fake_layer(Layer(activation), x, w, bias)


def _fake_linear_residual(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor,
                          activation: str) -> Tensor:
    return _fake_layer(Layer(activation), x, w, bias)[0]


def _keep_pair(ctx: Any, inputs: tuple, *more: Tensor) -> None:
    """Keeps A and B, the last inputs, each where the gradient of the other one needs it."""
    # While an op runs, torch's own bookkeeping is one more input behind these.
    need_a, need_b = ctx.needs_input_grad[len(inputs) - 2:len(inputs)]
    a, b = inputs[-2:]
    ctx.shapes = a.shape, b.shape
    ctx.save_for_backward(a if need_b else None, b if need_a else None, *more)


def _pair_gradients(ctx: Any, multiply: formulas.Multiply, a: Tensor | None, b: Tensor | None,
                    grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """dA and dB, where what they need was kept."""
    shape_a, shape_b = ctx.shapes
    return (None if b is None else formulas.grad_a(multiply, grad, b, shape_a),
            None if a is None else formulas.grad_b(multiply, a, grad, shape_b))


def _register_product(name: str) -> None:
    """The gradient of ``mm`` or ``bmm``."""
    def setup(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _keep_pair(ctx, inputs)

    def backward(ctx: Any, grad: Tensor) -> tuple:
        a, b = ctx.saved_tensors
        return _pair_gradients(ctx, getattr(torch.ops.tritongemm, name), a, b, grad)

    torch.library.register_autograd(f"tritongemm::{name}", backward, setup_context=setup,
                                    lib=_library)


def _register_sum(name: str, product: str) -> None:
    """The gradient of ``addmm`` or ``baddbmm``, whose own products are by ``product``."""
    def setup(ctx: Any, inputs: tuple, keyword_only_inputs: dict, output: Tensor) -> None:
        d, a, b = inputs
        ctx.shape_d, ctx.beta = d.shape, keyword_only_inputs["beta"]
        ctx.alpha = keyword_only_inputs["alpha"]
        ctx.activation = keyword_only_inputs.get("activation", "none")
        if ctx.activation == "none":
            _keep_pair(ctx, inputs)
        elif BY_NAME[ctx.activation].of_result:
            _keep_pair(ctx, inputs, output)
        else:  # the sum is made again in backward: the kernel does not write it out
            ctx.shapes = a.shape, b.shape
            ctx.save_for_backward(a, b, d)

    def backward(ctx: Any, grad: Tensor) -> tuple:
        a, b, *more = ctx.saved_tensors
        ops = torch.ops.tritongemm
        if more:
            grad = formulas.grad_activation(
                ctx.activation, grad, more[0],
                lambda: ops.addmm(more[0], a, b, beta=ctx.beta, alpha=ctx.alpha))
        need_d, need_a, need_b = ctx.needs_input_grad

        def multiply(x: Tensor, y: Tensor) -> Tensor:
            return formulas.scaled(getattr(ops, product)(x, y), ctx.alpha)

        return (formulas.grad_d(grad, ctx.shape_d, ctx.beta) if need_d else None,
                *_pair_gradients(ctx, multiply, a if need_b else None, b if need_a else None,
                                 grad))

    torch.library.register_autograd(f"tritongemm::{name}", backward, setup_context=setup,
                                    lib=_library)


def _register_layer(name: str, layer: Layer, residual: bool = False) -> None:
    """The gradient of a linear layer. Without the argument of the activation among its results the
    backward computes that again."""
    def setup(ctx: Any, inputs: tuple, output: Any) -> None:
        x, w, bias = inputs[:3]
        words = inputs[4 if residual else 3:]
        ctx.layer = layer._replace(activation=words[0], interleaved=layer.gated and words[1])
        ctx.save_for_backward(x, w, bias, output[1] if layer.aux else None)

    def backward(ctx: Any, grad: Tensor | None, grad_total: Tensor | None = None) -> tuple:
        x, w, bias, total = ctx.saved_tensors
        one = BY_NAME[ctx.layer.activation]
        if total is None and ctx.layer.activation != "none":
            total = _product_of_layer(x, w, bias)
            if ctx.layer.interleaved:
                total = torch.cat(fused_linear.halves(total, True), -1)
        of = total
        if one.of_result and not ctx.layer.gated and ctx.layer.activation != "none":
            of = one.op()(total)
        result = grad
        grad = fused_linear.grad_of_total(ctx.layer, grad, grad_total, of)
        assert grad is not None  # one of the results has a gradient
        need = ctx.needs_input_grad
        ops = torch.ops.tritongemm
        gradients = (ops.mm(grad, w) if need[0] else None, ops.mm(grad.t(), x) if need[1] else None,
                     grad.sum(0) if bias is not None and need[2] else None)
        if residual:
            return (*gradients, result if need[3] else None, None)
        return (*gradients, None, None) if layer.gated else (*gradients, None)

    torch.library.register_autograd(f"tritongemm::{name}", backward, setup_context=setup,
                                    lib=_library)


#: Lives as long as the process: torch drops an op with the library that defined it.
_library = torch.library.Library("tritongemm", "FRAGMENT")


@untraced
def _register() -> None:
    bodies = {"mm": (_mm, aten.mm), "bmm": (_bmm, aten.bmm), "addmm": (_addmm, _fake_addmm),
              "baddbmm": (_baddbmm, aten.baddbmm),
              "gated_linear": (_gated_linear, _fake_gated_linear),
              "gated_linear_aux": (_gated_linear_aux, _fake_gated_linear_aux),
              "linear_aux": (_linear_aux, _fake_linear_aux),
              "linear_residual": (_linear_residual, _fake_linear_residual)}
    for name, schema in {**SCHEMAS, **LAYER_SCHEMAS}.items():
        body, fake = bodies[name]
        _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(name, body, "CompositeExplicitAutograd")
        torch.library.register_fake(f"tritongemm::{name}", fake, lib=_library)
    for name in ("mm", "bmm"):
        _register_product(name)
    _register_sum("addmm", "mm")
    _register_sum("baddbmm", "bmm")
    _register_layer("gated_linear", Layer(gated=True))
    _register_layer("gated_linear_aux", Layer(gated=True, aux=True))
    _register_layer("linear_aux", Layer(aux=True))
    _register_layer("linear_residual", Layer(), residual=True)


_register()
