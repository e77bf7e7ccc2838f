"""The gradients of a product and of an activation, in terms of any ``multiply``.

C = alpha A B + beta D has dA = alpha dC B^H, dB = alpha A^H dC, dD = beta dC (Giles, "An extended
collection of matrix derivative results", 2008, 2.2; of complex matrices in torch's convention, for
real alpha and beta). ``multiply(x, y)`` computes alpha times the product of two operands by
``matmul``'s rules: a kernel, a registered op, or torch in float64 where tests check the formulas.
Transposed operands are strided views, not copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tritongemm.activations import BY_NAME

Multiply = Callable[[Tensor, Tensor], Tensor]


class OperandForm(NamedTuple):
    """What the gradient of an operand needs to know of it.

    Attributes:
        shape: its own, before it broadcast.
        columns_first: a matrix whose columns lie in memory one behind the other, as in the
            transpose of a weight. Its gradient is made in that order too, as torch's is: in the
            other order, whoever adds it to the weight's gradient would transpose it in memory.
    """

    shape: torch.Size
    columns_first: bool

    @classmethod
    def of(cls, x: Tensor) -> OperandForm:
        """The form of an operand. A symbolic stride counts as rows first, so that a compiler adds
        no guard."""
        if x.dim() != 2:
            return cls(x.shape, False)
        row, column = x.stride()
        return cls(x.shape, type(column) is int and column != 1 and type(row) is int and row == 1)


def grad_a(multiply: Multiply, grad: Tensor, b: Tensor, form: OperandForm) -> Tensor:
    """dC @ B^H, summed to A's shape where A broadcast."""
    product = multiply(b.conj(), grad.mT).mT if form.columns_first else multiply(grad, b.mH)
    return product.sum_to_size(form.shape)


def grad_b(multiply: Multiply, a: Tensor, grad: Tensor, form: OperandForm) -> Tensor:
    """A^H @ dC, summed to B's shape where B broadcast; with the conjugates of (dC, A) as arguments,
    its transpose. If B is a matrix and A a batch, the rows of all of A's matrices are summed over:
    they are folded into the inner extent."""
    if len(form.shape) == 2 < a.dim():
        rows = math.prod(a.shape[:-1])  # -1 would be ambiguous where N is 0
        a, grad = a.reshape(rows, a.shape[-1]), grad.reshape(rows, grad.shape[-1])
    product = multiply(grad.mT, a.conj()).mT if form.columns_first else multiply(a.mH, grad)
    return product.sum_to_size(form.shape)


def grad_d(grad: Tensor, shape: torch.Size, beta: float = 1.0) -> Tensor:
    """beta * dC, summed to the shape that D had before it broadcast."""
    return scaled(grad, beta).sum_to_size(shape)


def scaled(x: Tensor, factor: float) -> Tensor:
    """``x`` times a number, usually 1. (As a scalar: ``x * factor`` has float64 tangents if ``x``
    is 0-dimensional.)"""
    return x if factor == 1 else torch.ops.aten.mul.Scalar(x, factor)


def grad_activation(name: str, grad: Tensor, result: Tensor, total: Callable[[], Tensor]) -> Tensor:
    """The gradient of an activation's argument.

    Args:
        result: the activation's result, used if its gradient is a function of the result.
        total: computes the activation's argument, called only if the gradient needs it.
    """
    one = BY_NAME[name]
    return one.gradient(grad, result if one.of_result else total())


def multiplied(product: Tensor, d: Tensor, gradient_of: str) -> Tensor:
    """``product`` times D, or times the derivative of the activation ``gradient_of`` at D, which
    broadcasts; by torch."""
    if gradient_of == "none":
        return product * d
    return BY_NAME[gradient_of].gradient(product, d.expand(product.shape))


def grad_gated(name: str, grad: Tensor, total: Tensor) -> Tensor:
    """The gradient of the columns [gate, other] of ``total`` [..., 2 N], of which activation(gate)
    * other was made: grad * other * activation'(gate) and grad * activation(gate)."""
    one = BY_NAME[name]
    gate, other = total.chunk(2, -1)
    active = one.op()(gate)
    return torch.cat((one.gradient(grad * other, active if one.of_result else gate),
                      grad * active), -1)
