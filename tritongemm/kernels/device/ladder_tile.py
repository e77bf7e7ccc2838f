"""What the ladder's looping kernels share: one tile's sum over some steps of K, and its store."""

import triton
import triton.language as tl

from tritongemm.kernels.device.dot import dot_over_k
from tritongemm.kernels.device.operand_types import require_operands


@triton.jit
def tile_sum(a, b, tile_m, tile_n, first, last, M, N, K, stride_am, stride_ak, stride_bk,
             stride_bn, VEC_M: tl.constexpr, VEC_N: tl.constexpr, BLOCK_M: tl.constexpr,
             BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
             INDEX64: tl.constexpr, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """Sum of A @ B over steps ``first`` to ``last`` of K, for one tile: [BLOCK_M, BLOCK_N]."""
    require_operands(a.dtype.element_ty, b.dtype.element_ty, "bf16, fp16, fp32")
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    if VEC_M > 1:
        rows = tl.max_contiguous(tl.multiple_of(rows, VEC_M), VEC_M)
    if VEC_N > 1:
        cols = tl.max_contiguous(tl.multiple_of(cols, VEC_N), VEC_N)
    ks = tl.arange(0, BLOCK_K)
    start = first * BLOCK_K
    if INDEX64:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        start = start.to(tl.int64)
    a_ptrs = a + start * stride_ak + (rows[:, None] * stride_am + ks[None, :] * stride_ak)
    b_ptrs = b + start * stride_bk + (ks[:, None] * stride_bk + cols[None, :] * stride_bn)
    return dot_over_k(a_ptrs, b_ptrs, ks, first, last, K, stride_ak, stride_bk, BLOCK_M, BLOCK_N,
                      BLOCK_K, EVEN_K, PRECISION, INTERPRETED)


@triton.jit
def store_sum(c, acc, tile_m, tile_n, M, N, stride_cm, stride_cn, BLOCK_M: tl.constexpr,
              BLOCK_N: tl.constexpr, INDEX64: tl.constexpr):
    """Writes what of the tile lies inside C."""
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    if INDEX64:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
    tl.store(c + (rows[:, None] * stride_cm + cols[None, :] * stride_cn),
             acc.to(c.dtype.element_ty), mask=inside)
