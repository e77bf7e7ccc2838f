"""Activations and their derivatives by the instructions of a real GPU, against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from activations_held import check_activation, check_derivative  # noqa: E402

from tritongemm.measure.torch_epilogue import ACTIVATIONS  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_right_to_two_or_three_roundings_everywhere(activation):
    check_activation(activation, "cuda", 2.5e-7)


@pytest.mark.parametrize("activation", [x for x in ACTIVATIONS if x != "none"])
def test_derivatives_are_within_4_ulps_of_1_of_float64(activation):
    check_derivative(activation, "cuda", 5e-7)
