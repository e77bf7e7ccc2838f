"""All of torch's own samples of every product, in every dtype, through both doors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from opinfo_held import ASPECTS, DOORS, WITHOUT_MATRICES, held  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32), ids=str)
@pytest.mark.parametrize("aspect", ASPECTS)
@pytest.mark.parametrize(("name", "door"), DOORS)
def test_samples_are_held_against_float64(name, door, aspect, dtype):
    taken = held(name, door, aspect, "cuda", dtype)
    if door == "override" and name not in WITHOUT_MATRICES:
        assert taken > 0
