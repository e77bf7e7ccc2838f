"""What a tile loads past the edge of an operand, so that its loads along M and N need no mask."""

import triton
import triton.language as tl


@triton.jit
def within(index, size, mask, VEC: tl.constexpr):
    """``index``, and where that is past the ``size`` another within it: loaded, and not used.

    ``mask`` is the largest power of two that is at most the size, less one: neighbours past the
    edge are neighbours within. One for all would be slow: a warp copies the same few bytes into
    shared memory many times, and all programs at the edge, as it looks, ask the L2 for the same
    lines (perf/results/nvidia-h200/exploratory/edge-columns.txt). A remainder would do too, with
    divisions before the first load.

    This hides the contiguity from the compiler, so it is said again: VEC, a power of two, divides
    the size, so that no vector crosses the edge, and then also the power of two behind ``mask``.
    """
    # Not compared as for the store: what both ask is kept through the loop, in registers that fp32
    # has none to spare of.
    found = tl.where(index > size - 1, index & mask, index)
    if VEC > 1:
        found = tl.max_contiguous(tl.multiple_of(found, VEC), VEC)
    return found
