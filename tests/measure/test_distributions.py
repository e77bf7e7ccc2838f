"""What each distribution of the accuracy study promises."""

from __future__ import annotations

import pytest
import torch

from tritongemm.measure.distributions import DISTRIBUTIONS, EXACT, SCALE, draw


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_seed_gives_finite_operands_again(name):
    a, b = draw(name, 5, 7, 33, 1, "cpu")
    assert a.shape == (5, 33) and b.shape == (33, 7)
    assert a.dtype == b.dtype == torch.float32
    assert a.isfinite().all() and b.isfinite().all()
    again = draw(name, 5, 7, 33, 1, "cpu")
    assert torch.equal(a, again[0]) and torch.equal(b, again[1])


@pytest.mark.parametrize("k", [32, 1024, 65536])
def test_integer_products_are_exact_in_float32(k):
    a, b = draw("integers", 3, 4, k, 0, "cpu")
    assert k * float(a.abs().max() * b.abs().max()) <= EXACT
    assert torch.equal((a @ b).double(), a.double() @ b.double())


def test_scaled_rows_span_their_range():
    a, _ = draw("scaled_rows_columns", 256, 1, 64, 0, "cpu")
    largest = a.abs().amax(1).log2()
    assert largest.max() - largest.min() > SCALE


def test_cancelling_sums_are_small_beside_their_terms():
    a, b = draw("cancelling", 8, 8, 4096, 0, "cpu")
    assert ((a @ b).abs() < 0.02 * (a.abs() @ b.abs())).all()
