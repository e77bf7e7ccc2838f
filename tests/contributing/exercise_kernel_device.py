"""One program a tile of C."""

import triton
import triton.language as tl

from tritongemm.kernels.device.dot import dot_over_k
from tritongemm.kernels.device.epilogue import finish, load_d
from tritongemm.kernels.device.operand_types import require_operands
from tritongemm.kernels.device.order import tile_of
from tritongemm.kernels.device.symbol import symbol


@triton.jit(repr=symbol)
def exercise(a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
             d, alpha, beta, stride_db, stride_dm, stride_dn,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
             GROUP_M: tl.constexpr, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr,
             ADDEND: tl.constexpr, ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr,
             SYMBOL: tl.constexpr):
    """C[M, N] = A[M, K] @ B[K, N] and its epilogue."""
    require_operands(a.dtype.element_ty, b.dtype.element_ty, "bf16, fp16, fp32")
    tile_m, tile_n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a + (rows % M)[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b + ks[:, None] * stride_bk + (cols % N)[None, :] * stride_bn
    acc = dot_over_k(a_ptrs, b_ptrs, ks, 0, tl.cdiv(K, BLOCK_K), K, stride_ak, stride_bk, BLOCK_M,
                     BLOCK_N, BLOCK_K, False, PRECISION, INTERPRETED)
    value = load_d(d, 0, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND)
    acc = finish(acc, value, alpha, beta, ADDEND, ACTIVATION)
    tl.store(c + rows[:, None] * stride_cm + cols[None, :] * stride_cn,
             acc.to(c.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))
