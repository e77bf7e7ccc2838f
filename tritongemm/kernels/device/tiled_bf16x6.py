"""float32 in one launch: as ``tiled``, a program a tile of C, whose products run on tensor cores
as those of three bf16 parts of each operand (``bf16x6``).

For products whose operands are too small, or whose rows are too few, for a pass that splits them
(``split_product``): every program splits again what it loads, so that large products lose.
"""

import triton
import triton.language as tl

from tritongemm.kernels.device.bf16x6 import parts_over_k
from tritongemm.kernels.device.dependent_launch import release, wait_after
from tritongemm.kernels.device.edge import within
from tritongemm.kernels.device.epilogue import finish, load_d
from tritongemm.kernels.device.operand_types import require_type
from tritongemm.kernels.device.order import tile_of
from tritongemm.kernels.device.symbol import symbol


@triton.jit(repr=symbol)
def tiled_bf16x6(a, b, c, M, N, K, mask_m, mask_n, stride_ab, stride_am, stride_ak, stride_bb,
                 stride_bk, stride_bn, stride_cb, stride_cm, stride_cn, stride_cs, d, alpha, beta,
                 stride_db, stride_dm, stride_dn, VEC_M: tl.constexpr, VEC_N: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr,
                 INDEX64: tl.constexpr, INTERPRETED: tl.constexpr, ADDEND: tl.constexpr,
                 ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """C[batch, M, N] = A[batch, M, K] @ B[batch, K, N] and its epilogue; with SPLIT_K > 1, C is
    [SPLIT_K, batch, M, N] float32 and each split holds the sum over its steps of K. A may have 16
    bits."""
    require_type("a", a.dtype.element_ty, "bf16, fp16, fp32")
    require_type("b", b.dtype.element_ty, "fp32")
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    batch = (program // (num_m * num_n)).to(tl.int64)
    tile_m, tile_n = tile_of(program % (num_m * num_n), num_m, num_n, GROUP_M)
    split = tl.program_id(1)
    if DEPENDENT:
        wait_after(tile_m | tile_n)

    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rows_a = within(rows, M, mask_m, VEC_M)
    cols_b = within(cols, N, mask_n, VEC_N)
    if INDEX64:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        rows_a = rows_a.to(tl.int64)
        cols_b = cols_b.to(tl.int64)

    steps_a_split = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K)
    first = split * steps_a_split
    last = min(first + steps_a_split, tl.cdiv(K, BLOCK_K))
    start = first.to(tl.int64) * BLOCK_K
    acc = parts_over_k(a + batch * stride_ab + start * stride_ak + rows_a * stride_am,
                       b + batch * stride_bb + start * stride_bk + cols_b * stride_bn,
                       None, None, first, last, K, stride_ak, stride_bk, BLOCK_M, BLOCK_N, BLOCK_K,
                       EVEN_K, False, INTERPRETED)

    value = load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND)
    if DEPENDENT > 1:
        release()
    acc = finish(acc, value, alpha, beta, ADDEND, ACTIVATION)
    c_ptrs = (c + batch * stride_cb + split.to(tl.int64) * stride_cs
              + (rows[:, None] * stride_cm + cols[None, :] * stride_cn))
    inside = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(c_ptrs, acc.to(c.dtype.element_ty), mask=inside)
