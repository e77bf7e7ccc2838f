"""Compositions of up to three of torch.func's transforms give torch's values."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch.func import grad, jacfwd, jacrev, jvp, vmap  # noqa: E402

import tritongemm as tg  # noqa: E402

TRANSFORMS: dict[str, Callable] = {
    "grad": lambda f: grad(lambda x: f(x).sum()),
    "jacfwd": jacfwd,
    "jacrev": jacrev,
    "jvp": lambda f: lambda x: jvp(f, (x,), (torch.ones_like(x),))[1],
    "vmap": lambda f: lambda x: vmap(f)(torch.stack([x, 2 * x])),
}
X = torch.tensor([[0.3, -0.8], [1.1, 0.4]])
Y = torch.tensor([[0.7, 0.2], [-0.5, 1.3]])


def products(library) -> dict[str, Callable]:
    linear = torch.nn.functional.linear if library is torch else library.linear
    return {"matmul": lambda x: library.matmul(library.matmul(x, Y), x).sin(),
            "addmm": lambda x: library.addmm(x, x, x).sin(),
            "linear": lambda x: linear(linear(x, Y, Y[0]), x).sin()}


@pytest.mark.parametrize("product", [
    name if name == "addmm" else pytest.param(name, marks=pytest.mark.thorough)
    for name in products(torch)])
@pytest.mark.parametrize("outer", TRANSFORMS)
def test_nested_transforms_give_torchs_values(outer, product, plans):
    for inner in itertools.chain.from_iterable(
            itertools.product(TRANSFORMS, repeat=depth) for depth in range(3)):
        ours, theirs = products(tg)[product], products(torch)[product]
        for name in (*reversed(inner), outer):
            ours, theirs = TRANSFORMS[name](ours), TRANSFORMS[name](theirs)
        expected = theirs(X)
        torch.testing.assert_close(ours(X), expected, rtol=1e-4,
                                   atol=1e-5 * max(1.0, float(expected.abs().max())))
