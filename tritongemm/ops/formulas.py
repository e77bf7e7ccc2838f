"""The gradients of a product and of an activation, over any inner product.

C = alpha A B + beta D has dA = alpha dC B^T, dB = alpha A^T dC, dD = beta dC (Giles, "An extended
collection of matrix derivative results", 2008, 2.2). ``multiply(x, y)`` is whatever makes alpha
times the product of two operands as ``matmul`` does: a kernel, a registered op, or torch in float64
where the formulas themselves are on trial. Transposed operands are strided views, not copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from tritongemm.activations import BY_NAME

Multiply = Callable[[Tensor, Tensor], Tensor]


def grad_a(multiply: Multiply, grad: Tensor, b: Tensor, shape: torch.Size) -> Tensor:
    """dC @ B^T, summed to A's shape where A broadcast."""
    return multiply(grad, b.mT).sum_to_size(shape)


def grad_b(multiply: Multiply, a: Tensor, grad: Tensor, shape: torch.Size) -> Tensor:
    """A^T @ dC, summed to B's shape where B broadcast; of (dC, A) the transpose of that. A matrix B
    saw every row of a batch of A: together they are the inner extent of its gradient."""
    if len(shape) == 2 < a.dim():
        rows = math.prod(a.shape[:-1])  # -1 would be ambiguous where N is 0
        a, grad = a.reshape(rows, a.shape[-1]), grad.reshape(rows, grad.shape[-1])
    return multiply(a.mT, grad).sum_to_size(shape)


def grad_d(grad: Tensor, shape: torch.Size, beta: float = 1.0) -> Tensor:
    """beta * dC, summed to the shape that D had before it broadcast."""
    return scaled(grad.sum_to_size(shape), beta)


def scaled(x: Tensor, factor: float) -> Tensor:
    """``x`` times a number, which mostly is 1. (As a scalar: ``x * factor`` has tangents of float64
    where ``x`` has no axis.)"""
    return x if factor == 1 else torch.ops.aten.mul.Scalar(x, factor)


def grad_activation(name: str, grad: Tensor, result: Tensor, total: Callable[[], Tensor]) -> Tensor:
    """The gradient of an activation's argument.

    Args:
        result: what the activation gave, where its gradient is of that.
        total: makes the argument itself, where the gradient cannot do without.
    """
    one = BY_NAME[name]
    return one.gradient(grad, result if one.of_result else total())


def grad_gated(name: str, grad: Tensor, total: Tensor) -> Tensor:
    """The gradient of the columns [gate, other] of ``total`` [..., 2 N], of which activation(gate)
    * other was made: grad * other * activation'(gate) and grad * activation(gate)."""
    one = BY_NAME[name]
    gate, other = total.chunk(2, -1)
    active = one.op()(gate)
    return torch.cat((one.gradient(grad * other, active if one.of_result else gate),
                      grad * active), -1)
