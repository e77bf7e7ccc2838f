"""The second half of ``C = alpha * A @ B + beta * C``, one for all Triton rungs.

A rung shows how a product is computed, so alpha and beta are kept out of it: with alpha = 1 and
beta = 0, as rungs are timed, the rung alone runs. Otherwise it leaves its product in float32 and
this pass finishes C, which is rounded once.
"""

import triton
import triton.language as tl

from tritongemm.kernels.device.operand_types import require_type
from tritongemm.kernels.device.symbol import symbol


@triton.jit(repr=symbol)
def scale(product, c, scalars, M, N, stride_cm, stride_cn, BLOCK: tl.constexpr,
          READ_C: tl.constexpr, INDEX64: tl.constexpr, DEPENDENT: tl.constexpr,
          SYMBOL: tl.constexpr):
    """C[M, N] = scalars[0] * product[M, N] + scalars[1] * C, the product gapless float32.

    Without READ_C (beta = 0) what is in C is not read: it may be NaN.
    """
    require_type("product", product.dtype.element_ty, "fp32")
    require_type("c", c.dtype.element_ty, "bf16, fp16, fp32")
    row = tl.program_id(0)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < N
    if INDEX64:
        row = row.to(tl.int64)
        col = col.to(tl.int64)
    c_ptrs = c + row * stride_cm + col * stride_cn
    value = tl.load(scalars) * tl.load(product + row * N + col, mask=inside)
    if READ_C:
        value += tl.load(scalars + 1) * tl.load(c_ptrs, mask=inside).to(tl.float32)
    tl.store(c_ptrs, value.to(c.dtype.element_ty), mask=inside)
