"""torch's own samples of every product are answered natively when they are repeated."""

from __future__ import annotations

import pytest
import torch
from opinfo_held import DOORS, WITHOUT_MATRICES, held

pytestmark = pytest.mark.thorough
#: Of whose functions a gradient may be a product times alpha, which Python launches every time.
SCALED = ("addmm", "baddbmm")


@pytest.mark.parametrize("aspect", ("values", "noncontiguous", "gradients"))
@pytest.mark.parametrize(("name", "door"), [
    x for x in DOORS if x.values[1] == "functions" or x.values[0] not in WITHOUT_MATRICES])
def test_a_repeated_sample_is_answered_natively(driver, name, door, aspect):
    taken = held(name, door, aspect, "cpu", torch.float32)
    if door == "override":
        assert taken == driver.by_python + driver.by_native
    if aspect == "gradients" and door == "functions" and name in SCALED:
        assert driver.by_native > 0
    else:  # what Python launched the first time is launched natively the second time
        assert driver.by_native >= driver.by_python > 0
