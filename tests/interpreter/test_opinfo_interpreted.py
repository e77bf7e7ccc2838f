"""A part of torch's own samples of every product, by kernels in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from opinfo_held import ASPECTS, DOORS, WITHOUT_MATRICES, held

pytestmark = pytest.mark.interpreter
#: What `make test` runs of the aspects; `make test-all` runs all.
QUICK = ("values",)


@pytest.mark.parametrize("aspect", [
    aspect if aspect in QUICK else pytest.param(aspect, marks=pytest.mark.thorough)
    for aspect in ASPECTS])
@pytest.mark.parametrize(("name", "door"), DOORS)
def test_samples_are_held_against_float64(name, door, aspect):
    taken = held(name, door, aspect, "cpu", torch.float32, limit=4)
    if door == "override" and name not in WITHOUT_MATRICES:
        assert taken > 0
