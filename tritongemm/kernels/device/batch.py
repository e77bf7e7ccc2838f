"""Where a matrix of the batch begins."""

import triton
import triton.language as tl
from triton.experimental import gluon


@triton.jit
def start_of(batch, inner, stride, outer):
    """The offset of matrix number ``batch`` (64-bit, below 2^31) of an operand. One with two
    strides along the batch has ``inner`` matrices ``stride`` apart, and as many again ``outer``
    further on; ``outer`` is None for one with one stride."""
    if outer is None:
        return batch * stride
    else:
        number = batch.to(tl.int32)  # a division in 64 bits takes more instructions
        return (number // inner).to(tl.int64) * outer + (number % inner).to(tl.int64) * stride


gluon_start_of = gluon.jit(start_of.fn)


@gluon.jit
def position_of(batch, inner):
    """Matrix number ``batch`` along a tensor map's axes of the batch: the number itself, or of two
    axes, the second of ``inner`` matrices, the pair of both."""
    if inner is None:
        return batch
    else:
        return batch // inner, batch % inner
