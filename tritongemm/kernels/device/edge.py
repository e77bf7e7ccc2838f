"""Indices past the edge of an operand, replaced so that loads along M and N need no mask."""

import triton
import triton.language as tl
from triton.experimental import gluon


@triton.jit
def within(index, size, mask, VEC: tl.constexpr):
    """``index``, or where that is past the ``size`` another one within it, whose value is not used.

    ``mask`` is the largest power of two that is at most the size, less one: neighbours past the
    edge are neighbours within. One index for all would be slow: a warp copies the same few bytes
    into shared memory many times, and probably all programs at the edge read the same lines of the
    L2 (perf/results/nvidia-h200/exploratory/edge-columns.txt). A remainder would do too, with
    divisions before the first load.

    This hides the contiguity from the compiler, so it is stated again: VEC, a power of two, divides
    the size, so that no vector crosses the edge; then it divides the power of two in ``mask`` too.
    """
    # Compared otherwise than for the store: a common comparison would be kept through the loop, in
    # registers that fp32 has none to spare of.
    found = tl.where(index > size - 1, index & mask, index)
    if VEC > 1:
        found = tl.max_contiguous(tl.multiple_of(found, VEC), VEC)
    return found


gluon_within = gluon.jit(within.fn)
