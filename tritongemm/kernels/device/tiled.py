"""One program a tile of C: pointers and masks, a software-pipelined K loop, optional split-K.

For rows and columns past the edge others are loaded (``edge``), so the loads of the K loop need no
mask along M and N; the store is masked. K is masked only where it is not a multiple of the step.

Of a gated product (``Epilogue.gated``) the left half of a tile's columns are the gate's, the right
half the others: the tile of C has BLOCK_N / 2 columns.
"""

import triton
import triton.language as tl

from tritongemm.kernels.device.batch import start_of
from tritongemm.kernels.device.dependent_launch import release, wait_after
from tritongemm.kernels.device.dot import dot_over_k
from tritongemm.kernels.device.edge import within
from tritongemm.kernels.device.epilogue import (
    activate,
    finish,
    finish_residual,
    left_and_right,
    linear_part,
    load_d,
)
from tritongemm.kernels.device.operand_types import require_operands
from tritongemm.kernels.device.order import tile_of
from tritongemm.kernels.device.symbol import symbol


@triton.jit(repr=symbol)
def tiled(a, b, c, M, N, K, mask_m, mask_n, stride_ab, stride_am, stride_ak, stride_bb,
          stride_bk, stride_bn, stride_cb, stride_cm, stride_cn, stride_cs, inner, outer_a, outer_b,
          outer_c, d, alpha, beta, stride_db, stride_dm, stride_dn, x, stride_xb, stride_xm,
          stride_xn, VEC_M: tl.constexpr, VEC_N: tl.constexpr,
          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
          GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr,
          INDEX64: tl.constexpr, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr,
          ADDEND: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr,
          RESIDUAL: tl.constexpr, EXTRA: tl.constexpr, DEPENDENT: tl.constexpr,
          SYMBOL: tl.constexpr):
    """C[batch, M, N] = A[batch, M, K] @ B[batch, K, N] and its epilogue; with SPLIT_K > 1, C is
    [SPLIT_K, batch, M, N] float32 and each split holds the sum over its steps of K. ``inner``,
    ``outer_*``: the batch of operands that have two strides along it (``batch``), else None. GATED:
    N counts columns of C, and the batch strides of B and D are those between their halves. ``x``
    and EXTRA: ``kernels.epilogue``."""
    require_operands(a.dtype.element_ty, b.dtype.element_ty, "bf16, fp16, fp32")
    num_m = tl.cdiv(M, BLOCK_M)
    COLUMNS: tl.constexpr = BLOCK_N // 2 if GATED else BLOCK_N  # of C
    num_n = tl.cdiv(N, COLUMNS)
    program = tl.program_id(0)
    batch = (program // (num_m * num_n)).to(tl.int64)
    tile_m, tile_n = tile_of(program % (num_m * num_n), num_m, num_n, GROUP_M)
    split = tl.program_id(1)
    if DEPENDENT:
        wait_after(tile_m | tile_n)

    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * COLUMNS + tl.arange(0, COLUMNS)
    rows_a = within(rows, M, mask_m, VEC_M)
    if GATED:
        half = tl.arange(0, BLOCK_N) // COLUMNS
        cols_b = within(tile_n * COLUMNS + tl.arange(0, BLOCK_N) % COLUMNS, N, mask_n, VEC_N)
    else:
        cols_b = within(cols, N, mask_n, VEC_N)
    if INDEX64:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        rows_a = rows_a.to(tl.int64)
        cols_b = cols_b.to(tl.int64)
        if GATED:
            half = half.to(tl.int64)

    steps = tl.cdiv(K, BLOCK_K)
    steps_a_split = tl.cdiv(steps, SPLIT_K)
    first = split * steps_a_split
    last = min(first + steps_a_split, steps)
    ks = tl.arange(0, BLOCK_K)
    start = first.to(tl.int64) * BLOCK_K
    a_ptrs = (a + start_of(batch, inner, stride_ab, outer_a) + start * stride_ak
              + (rows_a[:, None] * stride_am + ks[None, :] * stride_ak))
    if GATED:
        b_ptrs = (b + start * stride_bk + (ks[:, None] * stride_bk + cols_b[None, :] * stride_bn)
                  + half[None, :] * stride_bb)
    else:
        b_ptrs = (b + start_of(batch, inner, stride_bb, outer_b) + start * stride_bk
                  + (ks[:, None] * stride_bk + cols_b[None, :] * stride_bn))
    acc = dot_over_k(a_ptrs, b_ptrs, ks, first, last, K, stride_ak, stride_bk, BLOCK_M, BLOCK_N,
                     BLOCK_K, EVEN_K, PRECISION, INTERPRETED)

    value = load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND)
    if DEPENDENT > 1:
        release()
    if EXTRA == "aux":
        x_ptrs = (x + batch * stride_xb
                  + (rows.to(tl.int64)[:, None] * stride_xm + cols[None, :] * stride_xn))
        within_c = (rows[:, None] < M) & (cols[None, :] < N)
    if GATED:
        gate, other = left_and_right(acc)
        right = load_d(d, batch + 1, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND)
        gate = linear_part(gate, value, alpha, beta, ADDEND)
        other = linear_part(other, right, alpha, beta, ADDEND)
        if EXTRA == "aux":
            tl.store(x_ptrs, gate.to(x.dtype.element_ty), mask=within_c)
            tl.store(x_ptrs + stride_xb, other.to(x.dtype.element_ty), mask=within_c)
        acc = activate(gate, ACTIVATION) * other
    elif EXTRA == "aux":
        acc = linear_part(acc, value, alpha, beta, ADDEND)
        tl.store(x_ptrs, acc.to(x.dtype.element_ty), mask=within_c)
        acc = activate(acc, ACTIVATION)
    elif RESIDUAL:
        bias = load_d(x, batch, rows, cols, M, N, 0, 0, stride_xn, EXTRA)
        acc = finish_residual(acc, value, bias, alpha, beta, ACTIVATION, EXTRA)
    else:
        acc = finish(acc, value, alpha, beta, ADDEND, ACTIVATION)
    c_ptrs = (c + start_of(batch, inner, stride_cb, outer_c) + split.to(tl.int64) * stride_cs
              + (rows[:, None] * stride_cm + cols[None, :] * stride_cn))
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptrs, acc.to(c.dtype.element_ty), mask=inside)
