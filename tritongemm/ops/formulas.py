"""The gradients of a product and of an activation, in terms of any ``multiply``.

C = alpha A B + beta D has dA = alpha dC B^T, dB = alpha A^T dC, dD = beta dC (Giles, "An extended
collection of matrix derivative results", 2008, 2.2). ``multiply(x, y)`` computes alpha times the
product of two operands by ``matmul``'s rules: a kernel, a registered op, or torch in float64 where
tests check the formulas. Transposed operands are strided views, not copies.
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
    """A^T @ dC, summed to B's shape where B broadcast; with (dC, A) as arguments, its transpose. If
    B is a matrix and A a batch, the rows of all of A's matrices are summed over: they are folded
    into the inner extent."""
    if len(shape) == 2 < a.dim():
        rows = math.prod(a.shape[:-1])  # -1 would be ambiguous where N is 0
        a, grad = a.reshape(rows, a.shape[-1]), grad.reshape(rows, grad.shape[-1])
    return multiply(a.mT, grad).sum_to_size(shape)


def grad_d(grad: Tensor, shape: torch.Size, beta: float = 1.0) -> Tensor:
    """beta * dC, summed to the shape that D had before it broadcast."""
    return scaled(grad.sum_to_size(shape), beta)


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
