"""Stream-K: the steps of all tiles in one line, cut into equal shares, and the fix-up.

A share may begin and end in the middle of a tile. Whole tiles are stored to C; of a tile that
several programs share, each stores its partial sums in scratch, and a second launch adds them in
the order of the programs, so that results repeat bit for bit. After Osama et al., "Stream-K:
work-centric parallel decomposition for dense matrix-matrix multiplication on the GPU", PPoPP 2023.
"""

import triton
import triton.language as tl

from tritongemm.kernels.device.ladder_tile import store_sum, tile_sum
from tritongemm.kernels.device.operand_types import require_type
from tritongemm.kernels.device.order import tile_of
from tritongemm.kernels.device.symbol import symbol


@triton.jit(repr=symbol)
def stream_k(a, b, c, partials, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
             stride_cn, share, VEC_M: tl.constexpr, VEC_N: tl.constexpr, BLOCK_M: tl.constexpr,
             BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
             EVEN_K: tl.constexpr, INDEX64: tl.constexpr, PRECISION: tl.constexpr,
             INTERPRETED: tl.constexpr, DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """Steps [program * share, (program + 1) * share) of C[M, N] = A[M, K] @ B[K, N].

    partials: float32 [programs, 2, BLOCK_M, BLOCK_N]: partial sums of a tile that another program
    began (0), and of one that another program ends (1).
    """
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    program = tl.program_id(0)
    at = program * share
    end = min(at + share, num_m * num_n * steps)
    inner = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    while at < end:
        tile = at // steps
        first = at - tile * steps
        last = min(steps, first + end - at)
        tile_m, tile_n = tile_of(tile, num_m, num_n, GROUP_M)
        acc = tile_sum(a, b, tile_m, tile_n, first, last, M, N, K, stride_am, stride_ak,
                       stride_bk, stride_bn, VEC_M, VEC_N, BLOCK_M, BLOCK_N, BLOCK_K, EVEN_K,
                       INDEX64, PRECISION, INTERPRETED)
        if last - first == steps:
            store_sum(c, acc, tile_m, tile_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N,
                      INDEX64)
        else:
            slot = program * 2 + tl.where(first == 0, 1, 0)
            tl.store(partials + slot * (BLOCK_M * BLOCK_N) + inner, acc)
        at += last - first


@triton.jit(repr=symbol)
def fix_up(partials, c, M, N, K, stride_cm, stride_cn, share, BLOCK_M: tl.constexpr,
           BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
           INDEX64: tl.constexpr, DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """One program a tile: adds the partial sums of a tile that several programs shared; the others
    are complete."""
    require_type("partials", partials.dtype.element_ty, "fp32")
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    tile = tl.program_id(0)
    begin = tile * steps
    first = begin // share
    last = (begin + steps - 1) // share
    if first < last:
        inner = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        acc = tl.load(partials + (first * 2 + 1) * (BLOCK_M * BLOCK_N) + inner)
        for program in range(first + 1, last + 1):
            acc += tl.load(partials + program * 2 * (BLOCK_M * BLOCK_N) + inner)
        tile_m, tile_n = tile_of(tile, num_m, num_n, GROUP_M)
        store_sum(c, acc, tile_m, tile_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N, INDEX64)
