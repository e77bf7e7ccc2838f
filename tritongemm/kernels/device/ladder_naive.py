"""The first rung: a small tile a program, a broadcast product and a sum, no ``tl.dot``."""

import triton
import triton.language as tl

from tritongemm.kernels.device.operand_types import require_operands
from tritongemm.kernels.device.symbol import symbol


@triton.jit(repr=symbol)
def naive(a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
          INDEX64: tl.constexpr, DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """C[M, N] = A[M, K] @ B[K, N]: every product of a step is written out, then summed.

    The compiler sees no matrix product, so nothing goes to shared memory or tensor cores.
    """
    require_operands(a.dtype.element_ty, b.dtype.element_ty, "bf16, fp16, fp32")
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    row_inside = rows < M
    col_inside = cols < N
    if INDEX64:
        rows = rows.to(tl.int64)
        cols = cols.to(tl.int64)
        ks = ks.to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + ks
        x = tl.load(a + rows[:, None] * stride_am + k[None, :] * stride_ak,
                    mask=row_inside[:, None] & (k[None, :] < K), other=0.0).to(tl.float32)
        y = tl.load(b + k[None, :] * stride_bk + cols[:, None] * stride_bn,
                    mask=(k[None, :] < K) & col_inside[:, None], other=0.0).to(tl.float32)
        # B transposed and summed along the last axis: a sum along the middle one Triton itself
        # turns into a matrix product.
        acc += tl.sum(x[:, None, :] * y[None, :, :], axis=2)
    tl.store(c + rows[:, None] * stride_cm + cols[None, :] * stride_cn,
             acc.to(c.dtype.element_ty), mask=row_inside[:, None] & col_inside[None, :])
