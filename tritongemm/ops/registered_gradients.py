"""The gradients of the registered ops (``registered.py``): products by the same ops, so that they
can be differentiated again. Torch's registration of gradients supports neither forward mode nor
``torch.func`` (PyTorch issue 179652).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from tritongemm.activations import BY_NAME
from tritongemm.errors import UnsupportedError
from tritongemm.ops import formulas, fused_linear
from tritongemm.ops.fused_linear import LinearLayer


def product_of_layer(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x @ w.T + bias by registered ops."""
    ops = torch.ops.tritongemm
    return ops.mm(x, w.t()) if bias is None else ops.addmm(bias, x, w.t())


def half_of(bias: Tensor | None, which: int) -> Tensor | None:
    return None if bias is None else bias.chunk(2)[which]


def _keep_pair(ctx: Any, inputs: tuple, *more: Tensor) -> None:
    """Saves A and B, the last inputs, each if the gradient of the other one needs it."""
    # While an op runs, torch passes one more input of its own after these.
    need_a, need_b = ctx.needs_input_grad[len(inputs) - 2:len(inputs)]
    a, b = inputs[-2:]
    ctx.forms = formulas.OperandForm.of(a), formulas.OperandForm.of(b)
    ctx.save_for_backward(a if need_b else None, b if need_a else None, *more)


def _pair_gradients(ctx: Any, multiply: formulas.Multiply, a: Tensor | None, b: Tensor | None,
                    grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """dA and dB; None for one whose operand was not saved. ``matmul`` takes a vector for one row of
    A or one column of B."""
    forms = form_a, form_b = ctx.forms
    if len(form_b.shape) == 1:
        grad, form_b = grad[..., None], formulas.OperandForm(form_b.shape + (1,), False)
        b = b if b is None else b[:, None]
    if len(form_a.shape) == 1:
        grad, form_a = grad[..., None, :], formulas.OperandForm((1,) + form_a.shape, False)
        a = a if a is None else a[None]
    return (None if b is None else
            formulas.grad_a(multiply, grad, b, form_a).reshape(forms[0].shape),
            None if a is None else
            formulas.grad_b(multiply, a, grad, form_b).reshape(forms[1].shape))


def register_product(library: Library, name: str) -> None:
    """Registers the gradient of ``mm``, ``bmm`` or ``matmul``."""
    def setup(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _keep_pair(ctx, inputs)

    def backward(ctx: Any, grad: Tensor) -> tuple:
        a, b = ctx.saved_tensors
        return _pair_gradients(ctx, getattr(torch.ops.tritongemm, name), a, b, grad)

    torch.library.register_autograd(f"tritongemm::{name}", backward, setup_context=setup,
                                    lib=library)


def register_sum(library: Library, name: str, product: str) -> None:
    """Registers the gradient of ``addmm`` or ``baddbmm``, which uses the op ``product``."""
    def setup(ctx: Any, inputs: tuple, keyword_only_inputs: dict, output: Tensor) -> None:
        d, a, b = inputs
        ctx.shape_d, ctx.beta = d.shape, keyword_only_inputs["beta"]
        ctx.alpha = keyword_only_inputs["alpha"]
        ctx.activation = keyword_only_inputs.get("activation", "none")
        if ctx.activation == "none":
            _keep_pair(ctx, inputs)
        elif BY_NAME[ctx.activation].of_result:
            _keep_pair(ctx, inputs, output)
        else:  # backward recomputes the pre-activation: the kernel does not store it
            ctx.forms = formulas.OperandForm.of(a), formulas.OperandForm.of(b)
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
                                    lib=library)


def register_factor(library: Library) -> None:
    """Registers the gradient of ``mulmm``, which computes the product again for that of D."""
    def setup(ctx: Any, inputs: tuple, keyword_only_inputs: dict, output: Tensor) -> None:
        ctx.alpha, ctx.of = keyword_only_inputs["alpha"], keyword_only_inputs["gradient_of"]
        d, a, b = inputs
        if ctx.needs_input_grad[0]:
            ctx.forms = formulas.OperandForm.of(a), formulas.OperandForm.of(b)
            ctx.save_for_backward(a, b, d)
        else:
            _keep_pair(ctx, inputs, d)

    def backward(ctx: Any, grad: Tensor) -> tuple:
        a, b, d = ctx.saved_tensors
        need_d, need_a, need_b = ctx.needs_input_grad
        mm, to_d = torch.ops.tritongemm.mm, None

        def multiply(x: Tensor, y: Tensor) -> Tensor:
            return formulas.scaled(mm(x, y), ctx.alpha)

        if need_d:
            if ctx.of != "none":
                raise UnsupportedError("the op mulmm has no gradient for the argument of "
                                       f"{ctx.of}'s derivative; tritongemm.mulmm has")
            to_d = formulas.grad_d(grad * multiply(a, b).conj(), d.shape)
        return (to_d, *_pair_gradients(ctx, multiply, a if need_b else None, b if need_a else None,
                                       formulas.multiplied(grad, d.conj(), ctx.of)))

    torch.library.register_autograd("tritongemm::mulmm", backward, setup_context=setup,
                                    lib=library)


def register_layer(library: Library, name: str, layer: LinearLayer,
                   residual: bool = False) -> None:
    """Registers the gradient of a linear layer. Without the argument of the activation among its
    results the backward computes that again."""
    def setup(ctx: Any, inputs: tuple, output: Any) -> None:
        x, w, bias = inputs[:3]
        words = inputs[4 if residual else 3:]
        ctx.layer = layer._replace(activation=words[0], interleaved=layer.gated and words[1])
        ctx.save_for_backward(x, w, bias, output[1] if layer.aux else None)

    def backward(ctx: Any, grad: Tensor | None, grad_total: Tensor | None = None) -> tuple:
        x, w, bias, total = ctx.saved_tensors
        one = BY_NAME[ctx.layer.activation]
        if total is None and ctx.layer.activation != "none":
            total = product_of_layer(x, w, bias)
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
        gradients = (ops.mm(grad, w.conj()) if need[0] else None,
                     ops.mm(grad.t(), x.conj()) if need[1] else None,
                     grad.sum(0) if bias is not None and need[2] else None)
        if residual:
            return (*gradients, result if need[3] else None, None)
        return (*gradients, None, None) if layer.gated else (*gradients, None)

    torch.library.register_autograd(f"tritongemm::{name}", backward, setup_context=setup,
                                    lib=library)


def register_pair(library: Library) -> None:
    """Registers the gradient of ``gated_pair``, which computes both products again."""
    def setup(ctx: Any, inputs: tuple, output: Any) -> None:
        *tensors, ctx.activation = inputs
        ctx.save_for_backward(*tensors)

    def backward(ctx: Any, grad: Tensor) -> tuple:
        x, gate, up, bias = ctx.saved_tensors
        need, mm = ctx.needs_input_grad, torch.ops.tritongemm.mm
        total = torch.cat([product_of_layer(x, w, half_of(bias, i))
                           for i, w in enumerate((gate, up))], -1)
        total = formulas.grad_gated(ctx.activation, grad, total)
        first, second = total.chunk(2, -1)
        return (mm(first, gate) + mm(second, up) if need[0] else None,
                mm(first.t(), x) if need[1] else None, mm(second.t(), x) if need[2] else None,
                total.sum(0) if bias is not None and need[3] else None, None)

    torch.library.register_autograd("tritongemm::gated_pair", backward, setup_context=setup,
                                    lib=library)
