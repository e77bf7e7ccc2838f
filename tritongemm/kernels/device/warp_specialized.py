"""Hopper: a producer warp that loads by TMA, consumer warpgroups that multiply.

Persistent: each program walks over units of work (``tile_scheduler``). The producer runs ahead by
up to STAGES buffers, across units too, so the loads of the next unit are under way while this one
is stored. CONSUMERS warpgroups share the rows of a tile; with PINGPONG two of them take whole tiles
alternately, so that one multiplies while the other stores. (A barrier keeps their order: a consumer
that waited for a stage two rounds ahead would take the parity of the wrong round.)

The programs of a cluster compute neighbouring tiles, CLUSTER_M by CLUSTER_N, and share the operands
that these have in common (``multicast``); or one tile, each CLUSTER_K-th of its K (``cluster``),
and then one unit a program.

There are two consumers. ``consumer_gluon`` uses Gluon's buffers and instructions, which take tiles
with powers of two for sides. ``consumer_ptx`` takes any multiple of 8 columns, so that tiles fill
the last wave, clusters, tiles that are transposed before they are stored, and float32 operands,
which it multiplies as TF32; it keeps everything in one buffer, whose addresses are known.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import barriers, consumer_gluon, consumer_ptx
from tritongemm.kernels.device.batch import position_of
from tritongemm.kernels.device.cluster import cluster_arrive, cluster_wait, fence_barrier_init
from tritongemm.kernels.device.dependent_launch import gluon_release, gluon_wait_after
from tritongemm.kernels.device.hopper import fence_async_shared, mbarrier
from tritongemm.kernels.device.multicast import tensor_map_address
from tritongemm.kernels.device.operand_types import gluon_require_operands
from tritongemm.kernels.device.symbol import symbol
from tritongemm.kernels.device.tile_constants import constants_of
from tritongemm.kernels.device.tile_load import load_stage, load_stage_shared
from tritongemm.kernels.device.tile_scheduler import k_range_of, origin_of, units_of


@gluon.jit
def producer(a_desc, b_desc, buffers, sizes, inner, S: gl.constexpr):
    """Loads stage after stage of each unit, each as soon as its consumers have released it."""
    a_bufs, b_bufs, c_bufs, full, empty, turns = buffers
    M, N, K, batches = sizes
    if S.programs > 1:
        cluster_arrive()
    if S.multicasts:
        cluster_wait()  # the others have initialised their barriers
    rank = gl.program_id(0) % S.programs
    a_map, b_map = rank, rank  # never used
    if S.one_buffer:
        a_map = tensor_map_address(S.symbol, 0)
        b_map = tensor_map_address(S.symbol, S.map_of_b)
    units = units_of(M, N, batches, S)
    it = 0
    start, stride = gl.program_id(0) // S.programs, gl.num_programs(0) // S.programs
    # The divisions of an origin take as long as a load from the L2: it is computed one unit ahead,
    # the first one while the previous kernel ends. Not so the range of K: loop bounds that were
    # carried from one unit to the next are those of the first (Triton 3.6 and 3.7).
    batch, row, col = origin_of(start, rank, M, N, batches, S)
    gluon_wait_after(batch | row | col)
    for unit in range(start, units, stride):
        _, first, last = k_range_of(unit, rank, M, N, K, batches, S)
        position = position_of(batch, inner)
        for step in range(first, last):
            k = step * S.block_k
            stage = it % S.stages
            # Gluon's wait in one buffer too: a partition that uses nothing of it would not keep it.
            mbarrier.wait(empty.index(S.empty_barriers + stage), ((it // S.stages) & 1) ^ 1)
            if S.one_buffer:
                barriers.expect(8 * (S.full_barriers + stage), S.stage_bytes)
                load_stage_shared(a_map, b_map, position, row, col, k, stage, rank, S)
            else:
                barrier = full.index(stage)
                mbarrier.expect(barrier, S.stage_bytes)
                load_stage(a_desc, b_desc, a_bufs, b_bufs, barrier, position, row, col, k, stage,
                           S)
            it += 1
        if S.cluster_k == 1:  # else this unit is the only one
            if unit + stride < units:
                batch, row, col = origin_of(unit + stride, rank, M, N, batches, S)
    if S.release == 1:
        gluon_release()
    if S.cluster_k > 1:
        cluster_wait()
    if S.multicasts:  # the program's memory must stay until its peers have arrived and loaded
        for _ in range(S.stages):
            mbarrier.wait(empty.index(S.empty_barriers + it % S.stages),
                          ((it // S.stages) & 1) ^ 1)
            it += 1


@gluon.jit
def consumer(a_desc, result, buffers, sizes, S: gl.constexpr, CONSUMER: gl.constexpr):
    """The consumer of this number: of the kind that the buffers are for."""
    if S.one_buffer:
        consumer_ptx.consumer(a_desc, result, buffers[0], sizes, S, CONSUMER)
    else:
        consumer_gluon.consumer(result, buffers, sizes, S, CONSUMER)


@gluon.jit
def idle():
    """Warps without work, which fill up the producer's warpgroup: the cluster barrier waits for all
    threads of its programs."""
    cluster_arrive()
    cluster_wait()


@gluon.jit
def make_buffers(a_desc, b_desc, c_desc, BUFFER_BYTES: gl.constexpr, S: gl.constexpr):
    """(buffers of A, of B, of C, barriers of full stages, of empty stages, of ping-pong turns), the
    barriers initialised. One buffer is all of these."""
    if S.one_buffer:
        # Elements of eight bytes, each of which may be a barrier; the rest is reached by address.
        shared = gl.allocate_shared_memory(gl.int64, [BUFFER_BYTES // 8, 1],
                                           mbarrier.MBarrierLayout())
        barriers.init(S.barriers_offset, S)
        return shared, shared, shared, shared, shared, shared
    else:
        a_bufs = gl.allocate_shared_memory(
            a_desc.dtype, [S.a_boxes * S.stages] + a_desc.block_type.shape, a_desc.layout)
        b_bufs = gl.allocate_shared_memory(b_desc.dtype, [S.stages] + b_desc.block_type.shape,
                                           b_desc.layout)
        full = gl.allocate_shared_memory(gl.int64, [S.stages, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [S.stages, 1], mbarrier.MBarrierLayout())
        turns, c_bufs = full, b_bufs  # never used
        if S.pingpong:
            turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        if S.tma_store:
            c_bufs = gl.allocate_shared_memory(
                c_desc.dtype, [S.consumers] + c_desc.block_type.shape, c_desc.layout)
        # Triton 3.6 synchronises all warps between two inits of one allocation: so by turns.
        for i in gl.static_range(S.stages):
            mbarrier.init(full.index(i), count=1)
            mbarrier.init(empty.index(i), count=S.empty_arrivals)
            if S.pingpong and i < 2:  # there are two stages at least
                mbarrier.init(turns.index(i), count=1)
        return a_bufs, b_bufs, c_bufs, full, empty, turns


@gluon.jit(repr=symbol)
def warp_specialized(a_desc, b_desc, c_desc, aux_desc, c, a_exponents, b_exponents, M, N, K,
                     batches, inner, stride_cb, stride_cm, stride_cn, stride_cs, d, alpha, beta,
                     stride_db, stride_dm, stride_dn, x, stride_xb, stride_xm, stride_xn,
                     A_T: gl.constexpr,
                     B_T: gl.constexpr, BATCHED: gl.constexpr, TWO_STRIDES: gl.constexpr,
                     TRANSPOSED: gl.constexpr, TMA_STORE: gl.constexpr,
                     EVICT_FIRST: gl.constexpr, VECTOR: gl.constexpr, ROW_COLUMNS: gl.constexpr,
                     SUBTILE: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                     BLOCK_K: gl.constexpr, ROWS: gl.constexpr, FRAGMENT_N: gl.constexpr,
                     EPILOGUE_N: gl.constexpr, STORE_BUFFERS: gl.constexpr, GROUP_M: gl.constexpr,
                     SPLIT_K: gl.constexpr, SCALED: gl.constexpr, BATCHED_A: gl.constexpr,
                     BATCHED_B: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
                     PINGPONG: gl.constexpr, CLUSTER_K: gl.constexpr, CLUSTER_M: gl.constexpr,
                     CLUSTER_N: gl.constexpr, CHUNKS_PER_STAGE: gl.constexpr,
                     ONE_BUFFER: gl.constexpr, STAGE_BYTES: gl.constexpr, A_BOX: gl.constexpr,
                     B_BOX: gl.constexpr,
                     PARTIALS_OFFSET: gl.constexpr, STORE_OFFSET: gl.constexpr,
                     STORE_BYTES: gl.constexpr, BARRIERS_OFFSET: gl.constexpr,
                     BUFFER_BYTES: gl.constexpr, EARLY_FRAGMENTS: gl.constexpr,
                     PAIRED_C: gl.constexpr, PAIRED_D: gl.constexpr, ADDEND: gl.constexpr,
                     ACTIVATION: gl.constexpr,
                     GATED: gl.constexpr, GATE_LAST: gl.constexpr, RESIDUAL: gl.constexpr,
                     EXTRA: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
                     PRODUCER_REGISTERS: gl.constexpr, RELEASE: gl.constexpr,
                     SYMBOL: gl.constexpr):
    """C[batch, M, N] = A @ B and its epilogue. A is stored [M, K] or, with A_T, [K, M]; B [K, N]
    or, with B_T, [N, K]. With SPLIT_K > 1, C is [SPLIT_K, batch, M, N] float32. With TRANSPOSED, C,
    its strides and D's are those of the transposed product: tiles are transposed before they are
    stored. With TWO_STRIDES, the batch of A and B is two axes of their tensor maps, of which the
    second has ``inner`` elements.

    SCALED: A and B are copies whose rows and columns are scaled by powers of two; ``split_store``
    undoes that by their exponents, float32 [batch or 1, M] and [batch or 1, N]. Those of an operand
    that is not BATCHED_A or BATCHED_B serve all matrices.

    ROWS: rows of a tile that a consumer multiplies. SUBTILE: epilogue tiles of a consumer's rows;
    in one buffer EPILOGUE_N columns each, all of them staged, or with SUBTILE 2 STORE_BUFFERS of
    them at a time, and finished in fragments of FRAGMENT_N columns. EVICT_FIRST: C leaves the L2
    before its other contents. Rows of C that TMA cannot store are stored from
    registers: VECTOR elements at once, ROW_COLUMNS columns at a time, or with VECTOR 0 in the
    accumulator's layout, with PAIRED_C two float32 values of a row at once. EARLY_FRAGMENTS of D,
    or of scaled columns' exponents, are loaded before the last product is complete, with PAIRED_D
    two values of a row at once. CHUNKS_PER_STAGE: ``cluster.send_partials``.

    GATED: B's tensor map holds two matrices, of which BLOCK_N / 2 columns each make a tile; N
    counts columns of C. GATE_LAST: the gate's is the second. ``x``, EXTRA and RESIDUAL:
    ``kernels.epilogue``; ``aux_desc``: of the auxiliary output.

    ONE_BUFFER: which consumer; then A_BOX and B_BOX are the outer sides of what a program loads at
    once (``tile_load.load_share``), and PARTIALS_OFFSET, STORE_OFFSET (STORE_BYTES a consumer) and
    BARRIERS_OFFSET are bytes from the start of its BUFFER_BYTES. STAGE_BYTES: of both operands.
    """
    gluon_require_operands(a_desc.dtype, b_desc.dtype, "bf16, fp16, fp32")
    S: gl.constexpr = constants_of(
        A_T, B_T, BATCHED, TWO_STRIDES, TRANSPOSED, TMA_STORE, EVICT_FIRST, VECTOR, ROW_COLUMNS,
        SUBTILE, BLOCK_M, BLOCK_N, BLOCK_K, ROWS, FRAGMENT_N, EPILOGUE_N, STORE_BUFFERS, GROUP_M,
        SPLIT_K, SCALED, BATCHED_A, BATCHED_B, STAGES, CONSUMERS, PINGPONG, CLUSTER_K, CLUSTER_M,
        CLUSTER_N, CHUNKS_PER_STAGE, ONE_BUFFER, STAGE_BYTES, A_BOX, B_BOX, PARTIALS_OFFSET,
        STORE_OFFSET, STORE_BYTES, BARRIERS_OFFSET, EARLY_FRAGMENTS, PAIRED_C, PAIRED_D, ADDEND,
        ACTIVATION, GATED, GATE_LAST, RESIDUAL, EXTRA, RELEASE, SYMBOL)
    buffers = make_buffers(a_desc, b_desc, c_desc, BUFFER_BYTES, S)
    if S.programs > 1:
        fence_barrier_init()
    fence_async_shared()
    sizes = (M, N, K, batches)
    result = (c_desc, c, (stride_cb, stride_cm, stride_cn, stride_cs),
              (d, alpha, beta, stride_db, stride_dm, stride_dn),
              (x, stride_xm, stride_xn), (a_exponents, b_exponents))
    # Each list is written out: one in a variable would turn constants into values.
    if S.programs == 1:
        if CONSUMERS == 1:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (producer, (a_desc, b_desc, buffers, sizes, inner, S)),
            ], [1], [PRODUCER_REGISTERS])
        elif CONSUMERS == 2:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(1))),
                (producer, (a_desc, b_desc, buffers, sizes, inner, S)),
            ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
        else:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(1))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(2))),
                (producer, (a_desc, b_desc, buffers, sizes, inner, S)),
            ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS])
    else:
        if CONSUMERS == 1:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (producer, (a_desc, b_desc, buffers, sizes, inner, S)),
                (idle, ()), (idle, ()),
            ], [1, 1, 2], [PRODUCER_REGISTERS] * 3)
        elif CONSUMERS == 2:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(1))),
                (producer, (a_desc, b_desc, buffers, sizes, inner, S)),
                (idle, ()), (idle, ()),
            ], [4, 1, 1, 2], [CONSUMER_REGISTERS] + [PRODUCER_REGISTERS] * 3)
        else:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(1))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(2))),
                (producer, (a_desc, b_desc, buffers, sizes, inner, S)),
                (idle, ()), (idle, ()),
            ], [4, 4, 1, 1, 2], [CONSUMER_REGISTERS] * 2 + [PRODUCER_REGISTERS] * 3)
