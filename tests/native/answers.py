"""Operands, products of them, and a call made twice: by the Python path, then natively."""

from __future__ import annotations

import torch


def drawn(*shape: int, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def twice(driver, call):
    """The results of a call by the Python path and by the native one."""
    first = call()
    assert (driver.by_python, driver.by_native) == (1, 0)
    second = call()
    assert (driver.by_python, driver.by_native) == (1, 1)
    return first, second


def pair(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((x, 2 * x))


#: By the functions of ``f``, tritongemm or torch; in place only by torch under override.
PRODUCTS = {
    "mm": lambda f, a, b, d: f.mm(a, b),
    "mm.out": lambda f, a, b, d: f.mm(a, b, out=torch.empty_like(d)),
    "addmm": lambda f, a, b, d: f.addmm(d, a, b, beta=0.5, alpha=-2),
    "addmm of a bias": lambda f, a, b, d: f.addmm(d[0], a, b),
    "addmm.out": lambda f, a, b, d: f.addmm(d, a, b, out=torch.empty_like(d)),
    "addmm_": lambda f, a, b, d: d.clone().addmm_(a, b),
    "bmm": lambda f, a, b, d: f.bmm(pair(a), b.expand(2, *b.shape)),
    "bmm.out": lambda f, a, b, d: f.bmm(pair(a), pair(b), out=torch.empty_like(pair(d))),
    "baddbmm": lambda f, a, b, d: f.baddbmm(d[None], pair(a), pair(b), beta=3),
    "baddbmm_": lambda f, a, b, d: pair(d).baddbmm_(pair(a), pair(b)),
    "matmul": lambda f, a, b, d: f.matmul(pair(a), b),
    "linear": lambda f, a, b, d: (torch.nn.functional if f is torch else f).linear(a, b.T, d[0]),
}
