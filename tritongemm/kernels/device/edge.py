"""What a tile loads past the edge of an operand, so that its loads along M and N need no mask."""

import triton
import triton.language as tl


@triton.jit
def mask_of(size, VEC: tl.constexpr):
    """For ``within``: the largest power of two that is at most ``size`` (1 to 2^31 - 1), less one,
    or 0 where the operand does not lie along this axis: VEC is 0 there, else what a load takes of
    it at once."""
    if VEC == 0:
        mask = 0
    else:
        ones = size | (size >> 1)
        ones |= ones >> 2
        ones |= ones >> 4
        ones |= ones >> 8
        ones |= ones >> 16
        mask = ones >> 1
    return mask


@triton.jit
def within(index, size, mask, VEC: tl.constexpr):
    """``index``, and where that is past the ``size`` another within it: loaded, and not used.

    Along the axis that an operand lies along, neighbours past the edge are neighbours within: with
    one for all, of which a warp copies the same few bytes into shared memory many times,
    906x132x4143 tn took 3.8 times as long (perf/results/nvidia-h200/exploratory/edge-columns.txt).
    Along another the first serves all, whose lines are at hand. A remainder would do for both, with
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
