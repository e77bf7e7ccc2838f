"""Arranges complex operands for a float32 product (``kernels/complex_product.py``)."""

import triton
import triton.language as tl

from tritongemm.kernels.device.dependent_launch import release, wait_after
from tritongemm.kernels.device.operand_types import require_type
from tritongemm.kernels.device.symbol import symbol


@triton.jit(repr=symbol)
def arrange_complex(x, target, rows, cols, stride_batch, stride_row, stride_col, lead, matrix,
                    signs, PAIRED: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                    BLOCK_COLS: tl.constexpr, DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """Copies a block of complex64 [batch, rows, cols] to rows of ``lead`` elements, which are
    pairs of float32; ``matrix``: elements from one matrix of the target to the next.

    PAIRED: a row (r, i) becomes two, (r, +-i) and (+-i, +-r). ``signs``: bits 0 to 2 negate the
    three in this order. An element is moved as 64 bits, so that any NaN keeps its bits.
    """
    require_type("x", x.dtype.element_ty, "fp32")
    block = tl.program_id(0)
    if DEPENDENT:
        wait_after(block)
    if DEPENDENT > 1:
        release()
    across, down = tl.cdiv(cols, BLOCK_COLS), tl.cdiv(rows, BLOCK_ROWS)
    batch = (block // (across * down)).to(tl.int64)
    row = block // across % down * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    col = block % across * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    inside = (row < rows)[:, None] & (col < cols)[None, :]
    row = row.to(tl.int64)
    source = x.to(tl.pointer_type(tl.uint64)) + batch * stride_batch
    value = tl.load(source + (row[:, None] * stride_row + col[None, :] * stride_col), mask=inside,
                    other=0)
    first = (signs & 1).to(tl.uint64) << 63
    to = target.to(tl.pointer_type(tl.uint64)) + batch * matrix + col[None, :]
    if PAIRED:
        to += (2 * row * lead)[:, None]
        second = ((signs & 2).to(tl.uint64) << 30) | ((signs & 4).to(tl.uint64) << 61)
        tl.store(to + lead, ((value >> 32) | (value << 32)) ^ second, mask=inside)
    else:
        to += (row * lead)[:, None]
    tl.store(to, value ^ first, mask=inside)
