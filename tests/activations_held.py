"""Activations and their derivatives on the device, element by element, against float64; in the
interpreter and on a GPU, where the exponential is the unit's."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from tritongemm.activations import BY_NAME
from tritongemm.kernels.device.epilogue import finish, times_derivative
from tritongemm.measure.torch_epilogue import ACTIVATIONS

#: Elements of a test: what is between -40 and 40, and these.
SIZE = tl.constexpr(2**15)
SPECIAL = [0.0, -0.0, math.nan, 1e-30, -1e-30, 1e4, -1e4, 1e10, -1e10, 1e14, -1e14, 3e38, -3e38,
           87.3, -87.3, 87.4, -87.4, 88.5, -88.5, 100.0, -100.0]


@triton.jit
def apply(x, y, ACTIVATION: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(y + i, finish(tl.load(x + i), 0.0, 1.0, 1.0, "none", ACTIVATION))


@triton.jit
def differentiate(x, y, DERIVATIVE: tl.constexpr):
    i = tl.arange(0, SIZE)
    one = tl.full((SIZE,), 1.0, tl.float32)
    tl.store(y + i, times_derivative(one, tl.load(x + i), DERIVATIVE))


def elements(device, *more: float) -> torch.Tensor:
    special = torch.tensor([*SPECIAL, *more])
    return torch.cat([torch.linspace(-40, 40, SIZE.value - len(special)), special]).to(device)


def check_activation(activation: str, device: str, limit: float) -> None:
    """An error of at most ``limit`` times the argument; NaN and infinity where float64 has them."""
    x = elements(device, math.inf, -math.inf)
    y = torch.empty_like(x)
    apply[(1,)](x, y, activation)
    truth = ACTIVATIONS[activation](x.double())
    both = truth.isfinite()
    error = (y.double() - truth).abs()[both]
    assert (error <= limit * x.double().abs()[both]).all()
    assert torch.equal(y[~both], truth[~both].float()) or y[~both].isnan().equal(
        truth[~both].isnan())


def check_derivative(activation: str, device: str, limit: float) -> None:
    """An error of at most ``limit``."""
    x = elements(device)
    y = torch.empty_like(x)
    differentiate[(1,)](x, y, f"d{activation}")
    truth = BY_NAME[activation].derivative(x.double())
    assert torch.allclose(y.double(), truth, rtol=0, atol=limit, equal_nan=True)
