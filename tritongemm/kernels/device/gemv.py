"""A product with at most eight rows: the weights stream through registers once, no tensor cores.

C[M, N] = A[M, K] @ B[K, N] for an M of 1 to 8 takes as long as loading B. A program owns
BLOCK_N columns and a split of K. A step loads a tile of B, each thread 16 bytes or more of it at a
time, along K or along N, whichever is contiguous; multiplies it with each row of A in float32; and
adds each thread's products to that thread's own sums. Sums are added across threads once, after the
loop: nothing in it waits for another thread.
"""

import triton
import triton.language as tl

from tritongemm.kernels.device.batch import start_of
from tritongemm.kernels.device.dependent_launch import release, wait_after
from tritongemm.kernels.device.edge import within
from tritongemm.kernels.device.epilogue import finish, load_d
from tritongemm.kernels.device.operand_types import require_type
from tritongemm.kernels.device.symbol import symbol


@triton.jit
def by_thread(tile, ROWS: tl.constexpr, LANES: tl.constexpr, VEC_K: tl.constexpr):
    """[N, LANES * VEC_K] -> float32 [N / ROWS, ROWS, LANES, VEC_K]: ROWS and LANES are the axes
    along which threads lie; each thread holds all of the other two."""
    if tile.dtype == tl.bfloat16:  # one instruction an element; a conversion becomes two
        wide = (tile.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        wide = tile.to(tl.float32)
    return tl.reshape(wide, (tile.shape[0] // ROWS, ROWS, LANES, VEC_K))


@triton.jit
def stream(b, offsets, stride_bk, ks, left, wanted, CHUNKS: tl.constexpr, EVEN_K: tl.constexpr,
           AHEAD: tl.constexpr):
    """B's tile of one step, in CHUNKS along K, of which ``left`` elements are in K. AHEAD: the step
    may not exist, and is 0 if not ``wanted``."""
    WIDTH: tl.constexpr = ks.shape[1]
    tiles = ()
    for chunk in tl.static_range(CHUNKS):
        ptrs = b + chunk * WIDTH * stride_bk + offsets
        if EVEN_K and not AHEAD:
            tiles += (tl.load(ptrs, eviction_policy="evict_first"),)
        else:
            inside = tl.full((1, WIDTH), wanted, tl.int1) if EVEN_K else (
                (chunk * WIDTH + ks < left) & wanted)
            tiles += (tl.load(ptrs, mask=inside, other=0.0, eviction_policy="evict_first"),)
    return tiles


@triton.jit(repr=symbol)
def gemv(a, b, c, M, N, K, mask_n, stride_ab, stride_am, stride_ak, stride_bb, stride_bk,
         stride_bn, stride_cb, stride_cm, stride_cn, stride_cs, inner, outer_a, outer_b, outer_c,
         d, alpha, beta, stride_db, stride_dm, stride_dn, VEC_N: tl.constexpr,
         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ROWS: tl.constexpr,
         LANES: tl.constexpr, VEC_K: tl.constexpr, SPLIT_K: tl.constexpr, STAGES: tl.constexpr,
         EVEN_K: tl.constexpr, INDEX64: tl.constexpr, ADDEND: tl.constexpr,
         ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """C[batch, M, N] = A[batch, M, K] @ B[batch, K, N] and its epilogue, M at most BLOCK_M; with
    SPLIT_K > 1, C is [SPLIT_K, batch, M, N] float32 and each split holds the sum over its steps of
    K. BLOCK_K is a multiple of LANES * VEC_K, what the threads load at a time. ``inner``,
    ``outer_*``: the batch of operands that have two strides along it (``batch``), else None.

    STAGES: 1 loads a step's tile of B and uses it; 2 loads that of the next step before it uses
    this one's, so that ptxas cannot put a load off to save registers; from 3 on B goes through
    STAGES - 1 buffers in shared memory, asynchronously.
    """
    require_type("a", a.dtype.element_ty, "bf16, fp16, fp32")
    require_type("b", b.dtype.element_ty, "bf16, fp16, fp32")
    num_n = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    batch = (program // num_n).to(tl.int64)
    split = tl.program_id(1)
    if DEPENDENT:
        wait_after(program % num_n)
    cols = (program % num_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    cols_b = within(cols, N, mask_n, VEC_N)
    if INDEX64:
        cols = cols.to(tl.int64)
        cols_b = cols_b.to(tl.int64)

    steps = tl.cdiv(K, BLOCK_K)
    steps_a_split = tl.cdiv(steps, SPLIT_K)
    first = split * steps_a_split
    last = min(first + steps_a_split, steps)
    WIDTH: tl.constexpr = LANES * VEC_K
    CHUNKS: tl.constexpr = BLOCK_K // WIDTH
    ks = tl.arange(0, WIDTH)[None, :]
    start = first.to(tl.int64) * BLOCK_K
    a += start_of(batch, inner, stride_ab, outer_a) + start * stride_ak
    b += start_of(batch, inner, stride_bb, outer_b) + start * stride_bk
    # A's vector is repeated for each row of threads, so that it has the layout of B's tile.
    a_offsets = tl.zeros((ROWS, 1), tl.int32) + ks * stride_ak
    b_offsets = cols_b[:, None] * stride_bn + ks * stride_bk
    sums = (tl.zeros((BLOCK_N // ROWS, ROWS, LANES), tl.float32),) * BLOCK_M
    if STAGES == 2:
        following = stream(b, b_offsets, stride_bk, ks, K - first * BLOCK_K, first < last, CHUNKS,
                           EVEN_K, True)
    for step in tl.range(first, last, num_stages=STAGES if STAGES > 2 else 1):
        left = K - step * BLOCK_K
        # A first: of two layouts in one operation Triton keeps that of the later load, and B's must
        # not be converted through shared memory where A's rows cannot be loaded as wide.
        vectors = ()
        for chunk in tl.static_range(CHUNKS):
            for row in tl.static_range(BLOCK_M):
                at = min(row, M - 1)
                if INDEX64:
                    at = at.to(tl.int64)
                a_ptrs = a + at * stride_am + chunk * WIDTH * stride_ak + a_offsets
                if EVEN_K:
                    vectors += (tl.load(a_ptrs),)
                else:
                    vectors += (tl.load(a_ptrs, mask=chunk * WIDTH + ks < left, other=0.0),)
        if STAGES == 2:
            tiles = following
            following = stream(b + BLOCK_K * stride_bk, b_offsets, stride_bk, ks, left - BLOCK_K,
                               step + 1 < last, CHUNKS, EVEN_K, True)
        else:
            tiles = stream(b, b_offsets, stride_bk, ks, left, True, CHUNKS, EVEN_K, False)
        for chunk in tl.static_range(CHUNKS):
            weights = by_thread(tiles[chunk], ROWS, LANES, VEC_K)
            added = ()
            for row in tl.static_range(BLOCK_M):
                x = by_thread(vectors[chunk * BLOCK_M + row], ROWS, LANES, VEC_K)
                added += (sums[row] + tl.sum(x * weights, 3),)
            sums = added
        a += BLOCK_K * stride_ak
        b += BLOCK_K * stride_bk

    if DEPENDENT > 1:
        release()
    for row in tl.static_range(BLOCK_M):
        total = tl.reshape(tl.sum(sums[row], 2), (1, BLOCK_N))
        rows = row + tl.zeros((1,), tl.int64 if INDEX64 else tl.int32)
        value = load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND)
        total = finish(total, value, alpha, beta, ADDEND, ACTIVATION)
        c_ptrs = (c + start_of(batch, inner, stride_cb, outer_c) + split.to(tl.int64) * stride_cs
                  + (rows[:, None] * stride_cm + cols[None, :] * stride_cn))
        tl.store(c_ptrs, total.to(c.dtype.element_ty),
                 mask=(rows[:, None] < M) & (cols[None, :] < N))
