"""A product with few rows: weights go from memory straight into the tensor instruction's registers.

C[M, N] = A[M, K] @ B[K, N] for a small M takes as long as loading B, stored along K. What a tiled
kernel has between the two is left out: a pipeline through shared memory, barriers of all warps in
every step, a second launch for the splits of K. A program owns BLOCK_N columns of C, and its warps
take ranges of WARP_K of K round robin. A thread loads 16 bytes of a column of B, which are its
registers of two fragments of 16 along K, with K permuted; it loads A in the same permutation. Each
warp has STAGES steps of B in flight and waits for no other; after the loop the warps' sums are
added once. Triton packs loop-carried fragments element by element, so the instructions are PTX, on
tensors with one element a thread.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.dependent_launch import gluon_release, gluon_wait
from tritongemm.kernels.device.epilogue import gluon_finish, gluon_load_d
from tritongemm.kernels.device.operand_types import gluon_require_operands, ptx_name
from tritongemm.kernels.device.prefetch import prefetch_columns
from tritongemm.kernels.device.symbol import symbol


@gluon.constexpr_function
def _words(count, kind):
    return (kind,) * count


@gluon.constexpr_function
def _mma(element):
    return (f"mma.sync.aligned.m16n8k16.row.col.f32.{element}.{element}.f32 {{$0, $1, $2, $3}}, "
            "{$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};")


@gluon.constexpr_function
def _load(hint):
    return ("{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; "
            f"mov.b32 $3, 0; @p ld.global{hint}.v4.b32 {{$0, $1, $2, $3}}, [$4]; }}")


@gluon.jit
def load(ptrs, inside, HINT: gl.constexpr):
    """16 bytes a thread as four words; zeros where not ``inside``."""
    return gl.inline_asm_elementwise(
        _load(HINT), "=&r,=&r,=&r,=&r,l,r", (ptrs, inside.to(gl.int32)),
        dtype=_words(4, gl.int32), is_pure=False, pack=1)


@gluon.jit
def loads(ptrs, by, inside, ks, left, wanted, ROWS: gl.constexpr, LOADS: gl.constexpr,
          EVEN_K: gl.constexpr, HINT: gl.constexpr):
    """LOADS times 16 bytes of each of the ROWS that ``ptrs`` point into, ``by`` elements further
    along K; ``left``: elements of K from ``ptrs`` on; ``wanted``: whether the step exists."""
    found = ()
    for i in gl.static_range(ROWS):
        for j in gl.static_range(LOADS):
            here = inside[i] & wanted
            if not EVEN_K:
                here &= ks + 32 * j < left - by
            found += load(ptrs[i] + (by + 32 * j), here, HINT)
    return found


@gluon.jit
def advanced(ptrs, by, ROWS: gl.constexpr):
    found = ()
    for i in gl.static_range(ROWS):
        found += (ptrs[i] + by,)
    return found


@gluon.constexpr_function
def _word(row, k, loads):
    """The first word of a row's fragment ``k``, each of two words, among those of all rows."""
    return 4 * loads * row + 2 * k


@gluon.jit
def multiply(accs, b, a, LOADS: gl.constexpr, A_ROWS: gl.constexpr, B_ROWS: gl.constexpr,
             ELEMENT: gl.constexpr):
    """Adds the products of a step: each load is two fragments along K. One instruction takes 16
    columns of B, of which the last eight are the next row of fragments, 8 rows of A, and 16 along
    K."""
    for k in gl.static_range(2 * LOADS):
        found = ()
        for i in gl.static_range(B_ROWS // 2):
            for j in gl.static_range(A_ROWS):
                found += gl.inline_asm_elementwise(
                    _mma(ELEMENT), "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3",
                    (b[_word(2 * i, k, LOADS)], b[_word(2 * i + 1, k, LOADS)],
                     b[_word(2 * i, k, LOADS) + 1], b[_word(2 * i + 1, k, LOADS) + 1],
                     a[_word(j, k, LOADS)], a[_word(j, k, LOADS) + 1])
                    + accs[4 * (A_ROWS * i + j):4 * (A_ROWS * i + j + 1)],
                    dtype=_words(4, gl.float32), is_pure=True, pack=1)
        accs = found
    return accs


@gluon.jit
def join_all(tensors, COUNT: gl.constexpr):
    """COUNT tensors as one, in new last axes of 2, the last for the lowest bit."""
    if COUNT == 1:
        return tensors[0]
    else:
        return gl.join(join_all(tensors[::2], COUNT // 2), join_all(tensors[1::2], COUNT // 2))


@gluon.jit(repr=symbol)
def skinny(a, b, c, M, N, K, stride_ab, stride_am, stride_bb, stride_bn, stride_cb, stride_cm,
           stride_cn, stride_cs, d, alpha, beta, stride_db, stride_dm, stride_dn,
           BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, WARPS: gl.constexpr, WARP_K: gl.constexpr,
           SPLIT_K: gl.constexpr, STAGES: gl.constexpr, EVEN_K: gl.constexpr,
           PREFETCHERS: gl.constexpr, ADDEND: gl.constexpr, ACTIVATION: gl.constexpr,
           RELEASE: gl.constexpr, SYMBOL: gl.constexpr):
    """C[batch, M, N] = A[batch, M, K] @ B[batch, K, N] and its epilogue, M at most BLOCK_M, both
    operands contiguous along K; with SPLIT_K > 1, C is [SPLIT_K, batch, M, N] float32."""
    gluon_require_operands(a.dtype.element_ty, b.dtype.element_ty, "bf16, fp16")
    threads: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    ELEMENT: gl.constexpr = ptx_name(a.dtype.element_ty)
    STEP: gl.constexpr = WARPS * WARP_K
    LOADS: gl.constexpr = WARP_K // 32
    A_ROWS: gl.constexpr = BLOCK_M // 8
    B_ROWS: gl.constexpr = BLOCK_N // 8
    SUMS: gl.constexpr = BLOCK_M * BLOCK_N // 32
    STREAM: gl.constexpr = ".L1::evict_first.L2::128B"  # B is read once, A by all programs
    prefetch_columns(b, N, K, stride_bb, stride_bn, BLOCK_N, STEP, SPLIT_K, PREFETCHERS)
    gluon_wait()
    num_n = gl.cdiv(N, BLOCK_N)
    program = gl.program_id(0)
    batch = (program // num_n).to(gl.int64)
    split = gl.program_id(1)
    first_col = (program % num_n) * BLOCK_N
    steps = gl.cdiv(K, STEP)
    steps_a_split = gl.cdiv(steps, SPLIT_K)
    first = split * steps_a_split
    last = gl.minimum(first + steps_a_split, steps)

    thread = gl.arange(0, 32 * WARPS, layout=threads)
    row = thread % 32 // 4  # of a fragment
    ks = thread // 32 * WARP_K + thread % 4 * 8
    left = K - first * STEP
    start = first.to(gl.int64) * STEP + ks.to(gl.int64)
    a_ptrs, a_inside = (), ()
    for j in gl.static_range(A_ROWS):
        at = 8 * j + row
        a_ptrs += (a + batch * stride_ab + (at.to(gl.int64) * stride_am + start),)
        a_inside += (at < M,)
    b_ptrs, b_inside = (), ()
    for i in gl.static_range(B_ROWS):
        at = gl.minimum(first_col + 8 * i + row, N - 1)  # past the edge it is not stored
        b_ptrs += (b + batch * stride_bb + (at.to(gl.int64) * stride_bn + start),)
        b_inside += (thread >= 0,)

    accs = ()
    for _ in gl.static_range(SUMS):
        accs += (gl.zeros([32 * WARPS], gl.float32, layout=threads),)
    a_tiles, b_tiles = (), ()
    for s in gl.static_range(STAGES):
        by = s * STEP  # a value: Triton compiles a function anew for each constant
        wanted = first + s < last
        b_tiles += (loads(b_ptrs, by, b_inside, ks, left, wanted, B_ROWS, LOADS, EVEN_K, STREAM),)
        a_tiles += (loads(a_ptrs, by, a_inside, ks, left, wanted, A_ROWS, LOADS, EVEN_K, ""),)
    for step in range(first, last, STAGES):
        a_ptrs = advanced(a_ptrs, STAGES * STEP, A_ROWS)
        b_ptrs = advanced(b_ptrs, STAGES * STEP, B_ROWS)
        left -= STAGES * STEP
        a_next, b_next = (), ()
        for s in gl.static_range(STAGES):
            accs = multiply(accs, b_tiles[s], a_tiles[s], LOADS, A_ROWS, B_ROWS, ELEMENT)
            by = s * STEP
            wanted = step + s + STAGES < last
            b_next += (loads(b_ptrs, by, b_inside, ks, left, wanted, B_ROWS, LOADS, EVEN_K,
                             STREAM),)
            a_next += (loads(a_ptrs, by, a_inside, ks, left, wanted, A_ROWS, LOADS, EVEN_K, ""),)
        a_tiles, b_tiles = a_next, b_next
    if RELEASE:
        gluon_release()

    # [warp, lane // 4, lane % 4, 16 columns, 8 rows, half of the 16, element] (PTX ISA, the
    # fragments of mma.m16n8k16, with columns of B as its 16 rows) -> [warp, row, column].
    sums = join_all(accs, SUMS).reshape([WARPS, 8, 4, BLOCK_N // 16, BLOCK_M // 8, 2, 2])
    sums = sums.permute((0, 4, 2, 6, 3, 5, 1)).reshape([WARPS, BLOCK_M, BLOCK_N])
    warp_sums = gl.allocate_shared_memory(
        gl.float32, [WARPS, BLOCK_M, BLOCK_N], gl.SwizzledSharedLayout(1, 1, 1, order=[2, 1, 0]))
    warp_sums.store(sums)
    LANES: gl.constexpr = min(BLOCK_N, 32)
    reduce_layout: gl.constexpr = gl.BlockedLayout([WARPS, 1, 1], [1, 32 // LANES, LANES],
                                                   [1, WARPS, 1], [2, 1, 0])
    total = gl.sum(warp_sums.load(reduce_layout), 0)
    tile_layout: gl.constexpr = gl.SliceLayout(0, reduce_layout)
    rows = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, tile_layout)).to(gl.int64)
    cols = first_col + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, tile_layout)).to(gl.int64)
    value = gluon_load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND)
    total = gluon_finish(total, value, alpha, beta, ADDEND, ACTIVATION)
    c_ptrs = (c + batch * stride_cb + split.to(gl.int64) * stride_cs
              + (rows[:, None] * stride_cm + cols[None, :] * stride_cn))
    gl.store(c_ptrs, total.to(c.dtype.element_ty), mask=(rows[:, None] < M) & (cols[None, :] < N))
