"""The tile product, and the one thing that Triton's interpreter does otherwise."""

import triton
import triton.language as tl


@triton.jit
def dot(x, y, acc, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """acc + x @ y in float32. The interpreter holds bf16 as integers and would multiply those:
    there the operands are widened first, which is exact."""
    if INTERPRETED:
        x = x.to(tl.float32)
        y = y.to(tl.float32)
    return tl.dot(x, y, acc, input_precision=PRECISION)
