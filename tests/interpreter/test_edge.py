"""What tiles load past the edge of an operand: what is within it, and not one address for all."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from tritongemm.kernels.device.edge import within
from tritongemm.kernels.launch import edge_mask

pytestmark = pytest.mark.interpreter
BLOCK = 256


@triton.jit
def loaded(out, first, size, mask, VEC: tl.constexpr, LENGTH: tl.constexpr):
    """Writes what ``within`` makes of LENGTH indices from ``first`` on."""
    places = tl.arange(0, LENGTH)
    tl.store(out + places, within(first + places, size, mask, VEC))


@given(st.sampled_from((1, 2, 4, 8)), st.integers(1, 2**27), st.integers(0, BLOCK - 1))
def test_past_the_edge_neighbours_within_are_loaded_and_vectors_stay_whole(vec, vectors, before):
    size = vec * vectors
    first = max(0, vec * ((size - before) // vec))
    found = torch.full((BLOCK,), -1, dtype=torch.int32)
    loaded[(1,)](found, first, size, edge_mask(size), vec, BLOCK)
    held = size - first
    assert found[:held].tolist() == list(range(first, min(size, first + BLOCK)))
    assert 0 <= int(found.min()) and int(found.max()) < size
    steps = found.view(-1, vec) - found.view(-1, vec)[:, :1]
    assert torch.equal(steps, torch.arange(vec, dtype=torch.int32).expand_as(steps))
    assert not (found[::vec] % vec).any()
    past = found[held:]
    assert past.unique().numel() >= min(past.numel(), size) // 2


@pytest.mark.parametrize("extent, mask", [(1, 0), (2, 1), (3, 1), (4, 3), (1930, 1023),
                                          (2**31 - 1, 2**30 - 1), (0, 0)])
def test_a_mask_keeps_what_the_largest_power_of_two_within_an_extent_has(extent, mask):
    assert edge_mask(extent) == mask
