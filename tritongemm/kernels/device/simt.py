"""float32 on CUDA cores: one program a tile of C, whose threads hold THREAD_M by THREAD_N results.

An SM multiplies 128 pairs of numbers a clock and reads 32 from shared memory, so what counts is the
results of a thread: of 8 by 8, sixteen numbers serve 64 products, which keeps both busy. Operands
are read four numbers at a time, along whichever side they are stored: rows of K hold four steps of
one row of A (or column of B), rows across K four neighbours of one step. Triton's own ``tl.dot``
on CUDA cores reads an operand stored along K one number at a time, with bank conflicts.

The copies to shared memory are asynchronous, STAGES - 1 steps ahead, and need no alignment beyond
that of a float32.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere.async_copy import commit_group, wait_group

from tritongemm.kernels.device.batch import gluon_start_of
from tritongemm.kernels.device.dependent_launch import gluon_release, gluon_wait_after
from tritongemm.kernels.device.edge import gluon_within
from tritongemm.kernels.device.epilogue import gluon_finish, gluon_load_d
from tritongemm.kernels.device.hopper import copy_async
from tritongemm.kernels.device.operand_types import gluon_require_type
from tritongemm.kernels.device.order import gluon_tile_of
from tritongemm.kernels.device.symbol import symbol


@gluon.constexpr_function
def result_layout(block, thread, warps, across):
    """The layout of a tile of C, [M, N]. ``thread``: results of a thread along each side.
    ``across``: whether A and B are stored across K; what is stored along K is read row by row, so
    that neighbouring threads take neighbouring rows, and their reads meet no bank twice.

    The order of the sides is that in which ptxas finds more operands to use again: the other one
    takes up to 6 % longer at 4096 cubed on an H200."""
    threads_m, threads_n = block[0] // thread[0], block[1] // thread[1]
    lanes_m = max(min(8, threads_m), 32 // threads_n)
    lanes_n = 32 // lanes_m
    warps_m = threads_m // lanes_m
    vector = [4 if side else 1 for side in across]
    order = [0, 1] if across[1] else [1, 0]
    return gl.BlockedLayout(vector, [lanes_m, lanes_n], [warps_m, warps // warps_m], order)


@gluon.constexpr_function
def copy_layout(rows, block_k, vector, warps, across, k_axis):
    """Which thread copies what of an operand's step: ``vector`` numbers at a time along the side
    that it is stored along. ``k_axis``: the axis of the step that is K, 1 of A and 0 of B.

    Along K, a thread's copies of one row differ by constants: the fewer lanes are along K, the
    fewer rows a thread has, each of which takes a pointer. Eight lanes read whole sectors."""
    lanes = min(32, rows // vector) if across else min(8, block_k // vector)
    # Along [rows, K], as of A.
    size, threads, of_warps, order = (
        ([vector, 1], [lanes, 32 // lanes], [1, warps], [0, 1]) if across else
        ([1, vector], [32 // lanes, lanes], [warps, 1], [1, 0]))
    if k_axis == 0:
        size, threads, of_warps = size[::-1], threads[::-1], of_warps[::-1]
        order = [1 - axis for axis in order]
    return gl.BlockedLayout(size, threads, of_warps, order)


@gluon.constexpr_function
def stage_layout(block_k, across, k_axis):
    """How a step of an operand lies in shared memory: as in memory; rows along K with their
    vectors exchanged so that eight neighbouring rows have the same K in different banks."""
    inner = 1 - k_axis if across else k_axis
    if across:
        return gl.SwizzledSharedLayout(1, 1, 1, [inner, 1 - inner])
    return gl.SwizzledSharedLayout(4, max(1, 32 // block_k), min(8, block_k // 4),
                                   [inner, 1 - inner])


@gluon.jit
def copy_step(buffer, ptrs, ks, step, last, K, EVEN_K: gl.constexpr, K_AXIS: gl.constexpr):
    """Starts the copy of a step of an operand; zeros from K on, or nothing from step ``last`` on.
    ``ks``: of the step's elements along K, 0 to BLOCK_K."""
    if EVEN_K:
        copy_async(buffer, ptrs, step < last)
    else:
        inside = ks < K - step * buffer.shape[K_AXIS]
        copy_async(buffer, ptrs, gl.expand_dims(inside, 1 - K_AXIS))


@gluon.jit(repr=symbol)
def simt(a, b, c, M, N, K, mask_m, mask_n, stride_ab, stride_am, stride_ak, stride_bb,
         stride_bk, stride_bn, stride_cb, stride_cm, stride_cn, stride_cs, inner, outer_a, outer_b,
         outer_c, d, alpha, beta, stride_db, stride_dm, stride_dn, VEC_M: gl.constexpr,
         VEC_N: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
         GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr, EVEN_K: gl.constexpr,
         INDEX64: gl.constexpr, THREAD_M: gl.constexpr, THREAD_N: gl.constexpr,
         WARPS: gl.constexpr, STAGES: gl.constexpr, A_ACROSS: gl.constexpr,
         B_ACROSS: gl.constexpr, COPY_A: gl.constexpr, COPY_B: gl.constexpr,
         ADDEND: gl.constexpr, ACTIVATION: gl.constexpr, WAITS: gl.constexpr,
         RELEASE: gl.constexpr, SYMBOL: gl.constexpr):
    """C[batch, M, N] = A[batch, M, K] @ B[batch, K, N] and its epilogue; with SPLIT_K > 1, C is
    [SPLIT_K, batch, M, N] and each split holds the sum over its steps of K. ``inner``,
    ``outer_*``: as of ``tiled``. A_ACROSS, B_ACROSS: whether the operand is stored across K.
    COPY_*: elements that are copied at once, of 4 bytes or more. A may have 16 bits."""
    gluon_require_type("a", a.dtype.element_ty, "bf16, fp16, fp32")
    gluon_require_type("b", b.dtype.element_ty, "fp32")
    OF_C: gl.constexpr = result_layout([BLOCK_M, BLOCK_N], [THREAD_M, THREAD_N], WARPS,
                                       [A_ACROSS, B_ACROSS])
    OF_A: gl.constexpr = copy_layout(BLOCK_M, BLOCK_K, COPY_A, WARPS, A_ACROSS, 1)
    OF_B: gl.constexpr = copy_layout(BLOCK_N, BLOCK_K, COPY_B, WARPS, B_ACROSS, 0)
    a_stages = gl.allocate_shared_memory(a.dtype.element_ty, [STAGES, BLOCK_M, BLOCK_K],
                                         stage_layout(BLOCK_K, A_ACROSS, 1))
    b_stages = gl.allocate_shared_memory(gl.float32, [STAGES, BLOCK_K, BLOCK_N],
                                         stage_layout(BLOCK_K, B_ACROSS, 0))
    num_m = gl.cdiv(M, BLOCK_M)
    num_n = gl.cdiv(N, BLOCK_N)
    program = gl.program_id(0)
    batch = (program // (num_m * num_n)).to(gl.int64)
    tile_m, tile_n = gluon_tile_of(program % (num_m * num_n), num_m, num_n, GROUP_M)
    split = gl.program_id(1)
    if WAITS:
        gluon_wait_after(tile_m | tile_n)

    rows_a = gluon_within(tile_m * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, OF_A)), M,
                          mask_m, VEC_M)
    cols_b = gluon_within(tile_n * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, OF_B)), N,
                          mask_n, VEC_N)
    if INDEX64:
        rows_a = rows_a.to(gl.int64)
        cols_b = cols_b.to(gl.int64)
    ks_a = gl.arange(0, BLOCK_K, gl.SliceLayout(0, OF_A))
    ks_b = gl.arange(0, BLOCK_K, gl.SliceLayout(1, OF_B))
    steps = gl.cdiv(K, BLOCK_K)
    steps_a_split = gl.cdiv(steps, SPLIT_K)
    first = split * steps_a_split
    last = gl.minimum(first + steps_a_split, steps)
    start = first.to(gl.int64) * BLOCK_K
    a += gluon_start_of(batch, inner, stride_ab, outer_a) + start * stride_ak
    b += gluon_start_of(batch, inner, stride_bb, outer_b) + start * stride_bk
    # A pointer for each row, so that those along K differ from it by constants.
    a_ptrs = gl.expand_dims(a + rows_a * stride_am, 1) + gl.expand_dims(ks_a * stride_ak, 0)
    b_ptrs = gl.expand_dims(b + cols_b * stride_bn, 0) + gl.expand_dims(ks_b * stride_bk, 1)
    for stage in gl.static_range(STAGES - 1):
        copy_step(a_stages.index(stage), a_ptrs, ks_a, first + stage, last, K, EVEN_K, 1)
        copy_step(b_stages.index(stage), b_ptrs, ks_b, first + stage, last, K, EVEN_K, 0)
        commit_group()
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk

    acc = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, OF_C)
    stage = 0
    for step in range(first, last):
        wait_group(STAGES - 2)
        free = stage + STAGES - 1
        free = gl.where(free < STAGES, free, free - STAGES)
        copy_step(a_stages.index(free), a_ptrs, ks_a, step + STAGES - 1, last, K, EVEN_K, 1)
        copy_step(b_stages.index(free), b_ptrs, ks_b, step + STAGES - 1, last, K, EVEN_K, 0)
        commit_group()
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
        x = a_stages.index(stage).load(gl.DotOperandLayout(0, OF_C, 0))
        y = b_stages.index(stage).load(gl.DotOperandLayout(1, OF_C, 0))
        acc = gl.dot_fma(x.to(gl.float32), y, acc)
        stage = gl.where(stage + 1 < STAGES, stage + 1, 0)
    wait_group(0)
    if RELEASE > 0:
        gluon_release()

    if not B_ACROSS:  # neighbouring threads hold neighbouring columns, each one at a time
        acc = gl.convert_layout(acc, copy_layout(BLOCK_M, BLOCK_N, 4, WARPS, False, 1))
    STORED: gl.constexpr = acc.type.layout
    rows = tile_m * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, STORED))
    cols = tile_n * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, STORED))
    if INDEX64:
        rows = rows.to(gl.int64)
        cols = cols.to(gl.int64)
    value = gluon_load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND)
    acc = gluon_finish(acc, value, alpha, beta, ADDEND, ACTIVATION)
    c += gluon_start_of(batch, inner, stride_cb, outer_c) + split.to(gl.int64) * stride_cs
    c_ptrs = c + (gl.expand_dims(rows * stride_cm, 1) + gl.expand_dims(cols * stride_cn, 0))
    inside = gl.expand_dims(rows < M, 1) & gl.expand_dims(cols < N, 0)
    gl.store(c_ptrs, acc, mask=inside)
