"""Computes what a product of split operands left out: rows and columns that are flagged.

The split pass (``split_fp32``) flags rows of A and columns of B whose fp16 parts would not
represent them. This kernel runs behind the product, looks at the flags, and normally ends. Where a
tile has a flagged row or column it computes the tile from three bf16 parts of each number, or from
numbers rounded to TF32, which have float32's range of exponents (``bf16x6``). Rows and columns
below 2^50 are scaled up first, to be far from the lower end of that range. What is left to float32
multiply-adds, for the whole tile, are infinities, NaN, ranges of more than 2^159, and sums that
overflow, as products of a scaled row and of numbers above 2^78 do.

It stores the elements of flagged rows and columns: exactly those that the product has not stored.
So each element of C is written once, and D may be C.
"""

import triton
import triton.language as tl

from tritongemm.kernels.device.bf16x6 import parts_over_k
from tritongemm.kernels.device.dependent_launch import release, wait
from tritongemm.kernels.device.edge import within
from tritongemm.kernels.device.epilogue import finish, load_d
from tritongemm.kernels.device.operand_types import require_type
from tritongemm.kernels.device.split_fp32 import FLAG, FLAGGED, power_of_two
from tritongemm.kernels.device.symbol import symbol

#: Added to the exponents that scale a row's largest magnitude to 2^14: sums of products of numbers
#: below 2^50 do not overflow, and 2^-110 is as far below as it can be.
_HIGHER = tl.constexpr(35.0)


@triton.jit
def largest_flag(exponents, batch, first, extent, BLOCK: tl.constexpr):
    """The largest exponents of the tiles that begin at ``first`` in a ``batch``: not below FLAGGED
    where one of a tile's rows is flagged."""
    at = first[:, None] + tl.arange(0, BLOCK)[None, :]
    return tl.max(tl.load(exponents + batch[:, None] * extent + at, mask=at < extent, other=0.0),
                  axis=1)


@triton.jit
def scales_of(exponents, flagged):
    """Powers of two from 1 to 2^126 for rows of these ``exponents``."""
    e = exponents - tl.where(flagged, FLAG, 0.0) + _HIGHER
    return power_of_two(tl.minimum(tl.maximum(e, 0.0), 126.0).to(tl.int32))


@triton.jit
def flagged_of_tile(a, b, c, a_exponents, b_exponents, batch, row, col, M, N, K, mask_m, mask_n,
                    strides, epilogue, VEC_M: tl.constexpr, VEC_N: tl.constexpr,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                    SPLIT_K: tl.constexpr, BATCHED_A: tl.constexpr, BATCHED_B: tl.constexpr,
                    TF32: tl.constexpr, INTERPRETED: tl.constexpr, ADDEND: tl.constexpr,
                    ACTIVATION: tl.constexpr):
    """The tile at (row, col) of a batch, of which flagged rows and columns are stored; with SPLIT_K
    > 1 as the first part, the others 0."""
    (stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm,
     stride_cn, stride_cs) = strides
    d, alpha, beta, stride_db, stride_dm, stride_dn = epilogue
    rows, cols = row + tl.arange(0, BLOCK_M), col + tl.arange(0, BLOCK_N)
    rows_a = within(rows, M, mask_m, VEC_M).to(tl.int64)
    cols_b = within(cols, N, mask_n, VEC_N).to(tl.int64)
    batch_a, batch_b = batch, batch
    if not BATCHED_A:
        batch_a = batch * 0
    if not BATCHED_B:
        batch_b = batch * 0
    of_rows = tl.load(a_exponents + batch_a * M + rows_a)
    of_cols = tl.load(b_exponents + batch_b * N + cols_b)
    flag_m, flag_n = of_rows >= FLAGGED, of_cols >= FLAGGED
    acc = parts_over_k(a + batch * stride_ab + rows_a * stride_am,
                       b + batch * stride_bb + cols_b * stride_bn, scales_of(of_rows, flag_m),
                       scales_of(of_cols, flag_n), 0, tl.cdiv(K, BLOCK_K), K, stride_ak, stride_bk,
                       BLOCK_M, BLOCK_N, BLOCK_K, False, TF32, INTERPRETED)
    rows, cols = rows.to(tl.int64), cols.to(tl.int64)
    value = load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND)
    acc = finish(acc, value, alpha, beta, ADDEND, ACTIVATION)
    inside = ((rows < M)[:, None] & (cols < N)[None, :]
              & (flag_m[:, None] | flag_n[None, :]))
    c_ptrs = (c + batch * stride_cb + (rows[:, None] * stride_cm + cols[None, :] * stride_cn))
    tl.store(c_ptrs, acc.to(c.dtype.element_ty), mask=inside)
    for part in range(1, SPLIT_K):
        tl.store(c_ptrs + tl.cast(part, tl.int64) * stride_cs,
                 tl.zeros((BLOCK_M, BLOCK_N), c.dtype.element_ty), mask=inside)


@triton.jit(repr=symbol)
def guard(a, b, c, a_exponents, b_exponents, M, N, K, batches, mask_m, mask_n, stride_ab,
          stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
          stride_cs, d, alpha, beta, stride_db, stride_dm, stride_dn, VEC_M: tl.constexpr,
          VEC_N: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
          BLOCK_K: tl.constexpr, LOOK: tl.constexpr, SPLIT_K: tl.constexpr,
          BATCHED_A: tl.constexpr, BATCHED_B: tl.constexpr, TF32: tl.constexpr,
          INTERPRETED: tl.constexpr, ADDEND: tl.constexpr, ACTIVATION: tl.constexpr,
          DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """The elements of C[batch, M, N] = A @ B and its epilogue that lie in flagged rows of A or
    columns of B. A program looks at LOOK tiles at a time, each a grid away from the one before."""
    require_type("a", a.dtype.element_ty, "fp32, bf16, fp16")
    require_type("b", b.dtype.element_ty, "fp32")
    num_m, num_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    tiles = num_m * num_n * batches
    programs = tl.num_programs(0)
    if DEPENDENT:
        wait()
    if DEPENDENT > 1:
        release()
    for start in range(tl.program_id(0), tiles, programs * LOOK):
        tile = start + programs * tl.arange(0, LOOK)
        tile = tl.where(tile < tiles, tile, start)
        batch = (tile // (num_m * num_n)).to(tl.int64)
        at_m, at_n = tile // num_n % num_m * BLOCK_M, tile % num_n * BLOCK_N
        batch_a, batch_b = batch, batch
        if not BATCHED_A:
            batch_a = batch * 0
        if not BATCHED_B:
            batch_b = batch * 0
        flag = tl.maximum(largest_flag(a_exponents, batch_a, at_m, M, BLOCK_M),
                          largest_flag(b_exponents, batch_b, at_n, N, BLOCK_N))
        flagged = tl.max(flag, axis=0)
        if flagged >= FLAGGED:
            for i in range(LOOK):
                one = start + programs * i
                mine = tl.max(tl.where(tl.arange(0, LOOK) == i, flag, 0.0), axis=0)
                if (one < tiles) & (mine >= FLAGGED):
                    flagged_of_tile(
                        a, b, c, a_exponents, b_exponents, tl.cast(one // (num_m * num_n),
                                                                   tl.int64),
                        one // num_n % num_m * BLOCK_M, one % num_n * BLOCK_N, M, N, K, mask_m,
                        mask_n, (stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn,
                                 stride_cb, stride_cm, stride_cn, stride_cs),
                        (d, alpha, beta, stride_db, stride_dm, stride_dn), VEC_M, VEC_N, BLOCK_M,
                        BLOCK_N, BLOCK_K, SPLIT_K, BATCHED_A, BATCHED_B, TF32, INTERPRETED, ADDEND,
                        ACTIVATION)
