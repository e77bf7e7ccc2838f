"""Copies operands to rows of whole lines, so that the copy engine can read them."""

import triton
import triton.language as tl

from tritongemm.kernels.device.dependent_launch import release, wait
from tritongemm.kernels.device.symbol import symbol


@triton.jit
def copy_block(source, copy, rows, cols, stride_batch, stride_outer, stride_inner, lead, batches,
               block, BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr):
    """Copies block ``block`` of [batches * rows, cols]."""
    across = tl.cdiv(cols, BLOCK_COLS)
    row = (block // across) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    col = (block % across) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    inside = (row[:, None] < rows * batches) & (col[None, :] < cols)
    batch = (row // rows).to(tl.int64)
    place = batch * stride_batch + (row % rows).to(tl.int64) * stride_outer
    value = tl.load(source + place[:, None] + col[None, :] * stride_inner, mask=inside)
    tl.store(copy + (row.to(tl.int64) * lead)[:, None] + col[None, :], value, mask=inside)


@triton.jit(repr=symbol)
def pad_operands(a, a_copy, rows_a, cols_a, batch_a, outer_a, inner_a, lead_a,
                 b, b_copy, rows_b, cols_b, batch_b, outer_b, inner_b, lead_b,
                 blocks_a, batches, COPY_A: tl.constexpr, COPY_B: tl.constexpr,
                 BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, DEPENDENT: tl.constexpr,
                 SYMBOL: tl.constexpr):
    """One launch for both: the first ``blocks_a`` programs copy A, the others B."""
    if DEPENDENT:
        wait()
    if DEPENDENT > 1:
        release()
    block = tl.program_id(0)
    if COPY_A and COPY_B:
        if block < blocks_a:
            copy_block(a, a_copy, rows_a, cols_a, batch_a, outer_a, inner_a, lead_a, batches,
                       block, BLOCK_ROWS, BLOCK_COLS)
        else:
            copy_block(b, b_copy, rows_b, cols_b, batch_b, outer_b, inner_b, lead_b, batches,
                       block - blocks_a, BLOCK_ROWS, BLOCK_COLS)
    elif COPY_A:
        copy_block(a, a_copy, rows_a, cols_a, batch_a, outer_a, inner_a, lead_a, batches, block,
                   BLOCK_ROWS, BLOCK_COLS)
    else:
        copy_block(b, b_copy, rows_b, cols_b, batch_b, outer_b, inner_b, lead_b, batches, block,
                   BLOCK_ROWS, BLOCK_COLS)
