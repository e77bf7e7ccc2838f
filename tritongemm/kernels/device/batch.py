"""Where a matrix of the batch begins."""

import triton
import triton.language as tl


@triton.jit
def start_of(batch, inner, stride, outer):
    """The offset of matrix number ``batch`` (64-bit, below 2^31) of an operand. One with two
    strides along the batch has ``inner`` matrices ``stride`` apart, and as many again ``outer``
    further on; ``outer`` is None for one with one stride."""
    if outer is None:
        return batch * stride
    number = batch.to(tl.int32)  # a division in 64 bits takes more instructions
    return (number // inner).to(tl.int64) * outer + (number % inner).to(tl.int64) * stride
