"""One program an SM: each walks over tiles, ``num_programs`` apart, loading through pointers."""

import triton
import triton.language as tl

from tritongemm.kernels.device.ladder_tile import store_sum, tile_sum
from tritongemm.kernels.device.order import tile_of
from tritongemm.kernels.device.symbol import symbol


@triton.jit(repr=symbol)
def persistent(a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
               stride_cn, VEC_M: tl.constexpr, VEC_N: tl.constexpr, BLOCK_M: tl.constexpr,
               BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
               EVEN_K: tl.constexpr, INDEX64: tl.constexpr, PRECISION: tl.constexpr,
               INTERPRETED: tl.constexpr, DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """C[M, N] = A[M, K] @ B[K, N]."""
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    for tile in range(tl.program_id(0), num_m * num_n, tl.num_programs(0)):
        tile_m, tile_n = tile_of(tile, num_m, num_n, GROUP_M)
        # steps * 0 and not 0, which would be a constant of the compiler and have no type.
        acc = tile_sum(a, b, tile_m, tile_n, steps * 0, steps, M, N, K, stride_am, stride_ak,
                       stride_bk, stride_bn, VEC_M, VEC_N, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K,
                       INDEX64, PRECISION, INTERPRETED)
        store_sum(c, acc, tile_m, tile_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N, INDEX64)
