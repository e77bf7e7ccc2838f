"""Copies operands to rows of whole lines, so that TMA can read them."""

import triton
import triton.language as tl

from tritongemm.kernels.device.dependent_launch import release, wait_after
from tritongemm.kernels.device.operand_types import require_operands
from tritongemm.kernels.device.symbol import symbol


@triton.jit
def copy_longs(source_ptrs, copy_ptrs, first_col, BLOCK_COLS: tl.constexpr):
    """Copies rows of a block that lies inside, of contiguous elements of two bytes, 64 bits at a
    time: a warp reads and writes whole lines wherever a row begins."""
    long = first_col // 4 + tl.arange(0, BLOCK_COLS // 4)[None, :]
    start = source_ptrs.to(tl.uint64)
    shift = ((start & 7) * 8)[:, None]
    at = (start - (start & 7)).to(tl.pointer_type(tl.uint64))[:, None] + long
    low, high = tl.load(at), tl.load(at + 1)
    # high << (64 - shift) in two steps, since shift may be 0 and a shift by 64 has no meaning.
    tl.store(copy_ptrs.to(tl.pointer_type(tl.uint64))[:, None] + long,
             (low >> shift) | ((high << 1) << (63 - shift)))


@triton.jit
def copy_words(source_ptrs, copy_ptrs, inside, cols, first_col, BLOCK_COLS: tl.constexpr):
    """Copies rows of a block at the edge, 32 bits at a time. No word is read that holds no element
    of the row."""
    word = first_col // 2 + tl.arange(0, BLOCK_COLS // 2)[None, :]
    start = source_ptrs.to(tl.uint64)
    odd = ((start & 2) >> 1).to(tl.int32)[:, None]
    at = (start - (start & 2)).to(tl.pointer_type(tl.uint32))[:, None] + word
    left = cols - 2 * word  # elements of the row from this word of the copy on
    low = tl.load(at, mask=inside & (left > 1 - odd), other=0)
    high = tl.load(at + 1, mask=inside & (left > 2) & (odd > 0), other=0)
    end = word - ((cols - 1 - odd) >> 1)  # 0 where half a word is left, words side by side
    last = source_ptrs.to(tl.pointer_type(tl.uint16))[:, None] + (cols - 1 + end)
    high |= tl.load(last, mask=inside & (left == 1 + odd), other=0).to(tl.uint32)
    value = tl.where(odd > 0, (low >> 16) | (high << 16), low | high)
    tl.store(copy_ptrs.to(tl.pointer_type(tl.uint32))[:, None] + word, value,
             mask=inside & (left > 0))


@triton.jit
def copy_block(source, copy, rows, cols, stride_batch, stride_outer, stride_inner, lead, batches,
               block, BATCHED: tl.constexpr, DENSE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
               BLOCK_COLS: tl.constexpr, DEPENDENT: tl.constexpr):
    """Copies block ``block`` of [batches * rows, cols] to rows of ``lead`` elements, once the
    previous kernel has ended."""
    across = tl.cdiv(cols, BLOCK_COLS)
    first_row, first_col = (block // across) * BLOCK_ROWS, (block % across) * BLOCK_COLS
    if DEPENDENT:
        wait_after(first_row | first_col)
    if DEPENDENT > 1:
        release()
    row = first_row + tl.arange(0, BLOCK_ROWS)
    inside = (row < rows * batches)[:, None]
    if BATCHED:
        source_ptrs = source + ((row // rows).to(tl.int64) * stride_batch
                                + (row % rows).to(tl.int64) * stride_outer)
    else:
        source_ptrs = source + row.to(tl.int64) * stride_outer
    copy_ptrs = copy + row.to(tl.int64) * lead
    if DENSE:
        if (first_row + BLOCK_ROWS <= rows * batches) & (first_col + BLOCK_COLS + 3 < cols):
            copy_longs(source_ptrs, copy_ptrs, first_col, BLOCK_COLS)
        else:
            copy_words(source_ptrs, copy_ptrs, inside, cols, first_col, BLOCK_COLS)
    else:
        col = first_col + tl.arange(0, BLOCK_COLS)[None, :]
        value = tl.load(source_ptrs[:, None] + col * stride_inner, mask=inside & (col < cols))
        tl.store(copy_ptrs[:, None] + col, value, mask=inside & (col < cols))


@triton.jit(repr=symbol)
def pad_operands(a, a_copy, rows_a, cols_a, batch_a, outer_a, inner_a, lead_a,
                 b, b_copy, rows_b, cols_b, batch_b, outer_b, inner_b, lead_b,
                 blocks_a, batches, COPY_A: tl.constexpr, COPY_B: tl.constexpr,
                 BATCHED: tl.constexpr, DENSE_A: tl.constexpr, DENSE_B: tl.constexpr,
                 BLOCK_ROWS: tl.constexpr, BLOCK_COLS: tl.constexpr, DEPENDENT: tl.constexpr,
                 SYMBOL: tl.constexpr):
    """One launch for both: the first ``blocks_a`` programs copy A, the others B."""
    require_operands(a.dtype.element_ty, b.dtype.element_ty, "bf16, fp16")
    block = tl.program_id(0)
    if COPY_A and COPY_B:
        if block < blocks_a:
            copy_block(a, a_copy, rows_a, cols_a, batch_a, outer_a, inner_a, lead_a, batches,
                       block, BATCHED, DENSE_A, BLOCK_ROWS, BLOCK_COLS, DEPENDENT)
        else:
            copy_block(b, b_copy, rows_b, cols_b, batch_b, outer_b, inner_b, lead_b, batches,
                       block - blocks_a, BATCHED, DENSE_B, BLOCK_ROWS, BLOCK_COLS, DEPENDENT)
    elif COPY_A:
        copy_block(a, a_copy, rows_a, cols_a, batch_a, outer_a, inner_a, lead_a, batches, block,
                   BATCHED, DENSE_A, BLOCK_ROWS, BLOCK_COLS, DEPENDENT)
    else:
        copy_block(b, b_copy, rows_b, cols_b, batch_b, outer_b, inner_b, lead_b, batches, block,
                   BATCHED, DENSE_B, BLOCK_ROWS, BLOCK_COLS, DEPENDENT)
