"""What tiles load past the edge of an operand: what is within it, and not one address for all."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from tritongemm.kernels.device.edge import mask_of, within

pytestmark = pytest.mark.interpreter
BLOCK = 256


@triton.jit
def loaded(out, first, size, VEC: tl.constexpr, LENGTH: tl.constexpr):
    """Writes what ``within`` makes of LENGTH indices from ``first`` on."""
    places = tl.arange(0, LENGTH)
    tl.store(out + places, within(first + places, size, mask_of(size, VEC), VEC))


@given(st.sampled_from((0, 1, 2, 4, 8)), st.integers(1, 2**27), st.integers(0, BLOCK - 1))
def test_past_the_edge_neighbours_within_are_loaded_and_vectors_stay_whole(vec, vectors, before):
    at_once = max(1, vec)
    size = at_once * vectors
    first = max(0, at_once * ((size - before) // at_once))
    found = torch.full((BLOCK,), -1, dtype=torch.int32)
    loaded[(1,)](found, first, size, vec, BLOCK)
    held = size - first
    assert found[:held].tolist() == list(range(first, min(size, first + BLOCK)))
    assert 0 <= int(found.min()) and int(found.max()) < size
    steps = found.view(-1, at_once) - found.view(-1, at_once)[:, :1]
    assert torch.equal(steps, torch.arange(at_once, dtype=torch.int32).expand_as(steps))
    assert not (found[::at_once] % at_once).any()
    past = found[held:]
    if vec == 0:
        assert not past.any(), "the first is at hand for all"
    else:
        assert past.unique().numel() >= min(past.numel(), size) // 2
