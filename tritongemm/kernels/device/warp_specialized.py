"""Hopper: a producer warp that loads by the copy engine, consumer warpgroups that multiply.

Persistent: each program walks over units (a tile of C, and with SPLIT_K > 1 a part of K). The
producer runs ahead by up to STAGES buffers, across units too, so the loads of the next unit are
under way while this one is stored. Sizes that powers of two miss fill the last wave: three
CONSUMERS share 192 rows, and a tile has any multiple of 8 columns (``any_width``), finished in
parts of PART and stored in panels of PANEL (``panels``). With PINGPONG two consumers take units in
turn: one multiplies while the other stores. A barrier keeps the turns in order: a group that waited
for a stage two rounds ahead would take the parity of the wrong round. The programs of a cluster
share a tile, CLUSTER_K of them a part of its K each, and do that one alone (``cluster``); or they
do tiles below and beside each other, CLUSTER_M by CLUSTER_N, and share what these have in common
(``multicast``).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import any_width, barriers, cluster, multicast, panels
from tritongemm.kernels.device.dependent_launch import (
    gluon_release,
    gluon_wait,
    gluon_wait_after,
)
from tritongemm.kernels.device.epilogue import gluon_finish
from tritongemm.kernels.device.hopper import (
    fence_async_shared,
    matrix_of,
    mbarrier,
    thread_barrier,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tritongemm.kernels.device.symbol import symbol
from tritongemm.kernels.device.tile_constants import MOST_BARRIERS, constants_of
from tritongemm.kernels.device.tile_load import load_a, load_b, sharers, write_loads
from tritongemm.kernels.device.tile_store import addend, write


@gluon.jit
def tiles_of(M, N, S: gl.constexpr):
    """Tiles along M and along N: of a cluster's programs, those that they do together count
    once."""
    return gl.cdiv(M, S.block_m * S.cluster_m), gl.cdiv(N, S.block_n * S.cluster_n)


@gluon.jit
def place_of(unit, rank, M, N, batches, S: gl.constexpr):
    """Unit number, and place in the cluster -> (batch, first row, first column).

    The parts of K are the outermost, so that programs of one moment share operands in the L2;
    within a part tiles go in the grouped order of ``order.tile_of``. Each division takes some 100
    instructions, so that none is made for a split or a batch that there is not.
    """
    num_m, num_n = tiles_of(M, N, S)
    batch, tile = 0, unit
    if S.split_k > 1:
        tile = tile % (num_m * num_n * batches)
    if S.batched:
        batch = tile // (num_m * num_n)
        tile = tile % (num_m * num_n)
    width = S.group_m * num_n
    first_m = (tile // width) * S.group_m
    size_m = gl.minimum(num_m - first_m, S.group_m)
    row = (first_m + (tile % width) % size_m) * (S.block_m * S.cluster_m)
    col = ((tile % width) // size_m) * (S.block_n * S.cluster_n)
    if S.cluster_m > 1:
        row += rank % S.cluster_m * S.block_m
    if S.cluster_n > 1:
        col += rank // S.cluster_m * S.block_n
    return batch, row, col


@gluon.jit
def steps_of(unit, rank, M, N, K, batches, S: gl.constexpr):
    """The same -> (part of K, its first step, the step behind its last)."""
    part = 0
    if S.split_k > 1:
        num_m, num_n = tiles_of(M, N, S)
        part = unit // (num_m * num_n * batches)
    steps = gl.cdiv(K, S.block_k)
    steps_a_part = gl.cdiv(steps, S.split_k * S.cluster_k)
    first = gl.minimum((part * S.cluster_k + rank % S.cluster_k) * steps_a_part, steps)
    return part, first, gl.minimum(first + steps_a_part, steps)


@gluon.jit
def units_of(M, N, batches, S: gl.constexpr):
    """Units of work: tiles, and with SPLIT_K > 1 parts of them."""
    num_m, num_n = tiles_of(M, N, S)
    return num_m * num_n * batches * S.split_k


@gluon.jit
def producer(a_desc, b_desc, buffers, sizes, S: gl.constexpr):
    """Fills stage after stage, as soon as its consumers have let go of it."""
    a_bufs, b_bufs, c_bufs, ready, empty, turns = buffers
    M, N, K, batches = sizes
    if S.programs > 1:
        cluster.come()
    if S.shares:
        cluster.meet()  # the others' barriers are there
    rank = gl.program_id(0) % S.programs
    a_map, b_map = rank, rank  # never used
    if S.one_buffer:
        a_map = multicast.tensor_map(S.symbol, 0)
        b_map = multicast.tensor_map(S.symbol, S.map_of_b)
    units = units_of(M, N, batches, S)
    it = 0
    start, stride = gl.program_id(0) // S.programs, gl.num_programs(0) // S.programs
    # A place's divisions take as long as a load from the L2: they are made ahead, the first ones
    # while the kernel before this one ends. Not so the steps: bounds of a loop that were carried
    # into it from one unit to the next are those of the first (Triton 3.6 and 3.7).
    batch, row, col = place_of(start, rank, M, N, batches, S)
    gluon_wait_after(batch | row | col)
    for unit in range(start, units, stride):
        _, first, last = steps_of(unit, rank, M, N, K, batches, S)
        for step in range(first, last):
            k = step * S.block_k
            stage = it % S.stages
            # Gluon's own wait: who touched nothing of the one buffer would not have it kept.
            mbarrier.wait(empty.index(S.empties + stage), ((it // S.stages) & 1) ^ 1)
            if S.one_buffer:
                barriers.expect(8 * (S.readies + stage), S.stage_bytes)
                write_loads(a_map, b_map, batch, row, col, k, stage, rank, S)
            else:
                barrier = ready.index(stage)
                mbarrier.expect(barrier, S.stage_bytes)
                load_a(a_desc, a_bufs, barrier, batch, row, k, stage, S)
                load_b(b_desc, b_bufs, barrier, batch, col, k, stage, S)
            it += 1
        if S.cluster_k == 1:  # else this unit is the only one
            if unit + stride < units:
                batch, row, col = place_of(unit + stride, rank, M, N, batches, S)
    if S.release == 1:
        gluon_release()
    if S.cluster_k > 1:
        cluster.meet()
    if S.shares:  # every arrival from the cluster has come, and all that was sent: then it may go
        for _ in range(S.stages):
            mbarrier.wait(empty.index(S.empties + it % S.stages), ((it // S.stages) & 1) ^ 1)
            it += 1


@gluon.jit
def bystander():
    """Warps that are there without a task, to fill a group of four: a cluster waits for all threads
    of its programs."""
    cluster.come()
    cluster.meet()


@gluon.jit
def flat(buffer, OUTER: gl.constexpr, INNER: gl.constexpr, BATCHED: gl.constexpr):
    """A [1, OUTER, INNER] buffer as [OUTER, INNER]."""
    if BATCHED:
        return matrix_of(buffer, OUTER, INNER)
    else:
        return buffer


@gluon.jit
def release(empty, stage, done, first, told, S: gl.constexpr):
    """This consumer lets go of a stage, if the step ``done`` is beyond the ``first``; in a cluster
    that shares operands it tells the programs that load into the stage or are loaded into by it:
    ``told``, by lane.

    Written out, the condition is a difference: for a comparison LLVM would take the first step out
    of the loop."""
    if S.shares:
        lane, telling = told
        multicast.arrive(8 * (S.empties + stage), lane, telling * (done - first))
    elif S.one_buffer:
        barriers.arrive(8 * (S.empties + stage), done - first)
    else:
        mbarrier.arrive(empty.index(stage), count=1, pred=done > first)


@gluon.jit
def await_phase(of, which, parity, S: gl.constexpr):
    """A consumer waits for a phase of one of these barriers."""
    if S.one_buffer:
        barriers.wait(8 * which, parity)
    else:
        mbarrier.wait(of.index(which), parity)


@gluon.jit
def exchanged(acc, ready, rank, S: gl.constexpr, WHICH: gl.constexpr):
    """A consumer's accumulator summed over the cluster: this program's columns of it. What the
    others send comes to a place behind the operands' stages."""
    N8: gl.constexpr = S.block_n // 8
    FULL: gl.constexpr = S.others + WHICH
    COME: gl.constexpr = FULL + S.consumers
    PLACE: gl.constexpr = S.stages * S.stage_bytes + 2048 * N8 * WHICH
    mbarrier.expect(ready.index(FULL), 2048 * N8 // S.cluster_k * (S.cluster_k - 1))
    thread_barrier()  # no warp reads the operands any more, in whose place it puts what it gives
    cluster.meet()  # as late as can be: the others' barriers are there
    cluster.give(acc, PLACE, 8 * FULL, rank, N8, S.stage_bytes, S.room, S.cluster_k,
                 WHICH)
    mbarrier.wait(ready.index(FULL), 0)
    cluster.arrive_at_all(8 * COME, S.cluster_k)
    return cluster.take(acc[0], PLACE, N8, S.cluster_k)


@gluon.constexpr_function
def accumulator_of(S, part):
    """Which accumulator, of 64 of a consumer's rows, a part is of."""
    return part // (S.parts.value // S.accumulators.value)


@gluon.constexpr_function
def start_of(S, part):
    """The first column of a part."""
    return part * S.part.value % S.columns.value


@gluon.jit
def corner(row, col, START: gl.constexpr, M, N, S: gl.constexpr):
    """Where a consumer's columns from START begin in C, and C's extents."""
    if S.turned:
        return col + START, row, N, M
    else:
        return row, col + START, M, N


@gluon.jit
def addend_of(epilogue, batch, row, col, part: gl.constexpr, M, N, S: gl.constexpr):
    """D of a part."""
    like = gl.zeros((64, S.part), gl.float32, layout=any_width.layout_of(S.part))
    if S.turned:
        like = like.permute((1, 0))
    row, col, M, N = corner(row + 64 * accumulator_of(S, part), col, start_of(S, part), M, N, S)
    return addend(like, epilogue, batch, row, col, M, N, S.tma_store, S)


@gluon.jit
def store_part(result, c_map, acc, value, place, M, N, PART: gl.constexpr, S: gl.constexpr,
               WHICH: gl.constexpr):
    """Finishes a part of a consumer's tile and stores it: by the copy engine, as soon as its panel
    is complete; with SUBTILE 2 from PLACES places in turn."""
    c_desc, c, strides, epilogue = result
    batch, part_of_k, row, col = place
    WHOSE: gl.constexpr = accumulator_of(S, PART)
    START: gl.constexpr = start_of(S, PART)
    row += 64 * WHOSE
    piece = any_width.columns_of(acc, S.block_n // S.cluster_k * WHOSE + START, S.part)
    if S.turned:
        piece = piece.permute((1, 0))
    at_row, at_col, rows, cols = corner(row, col, START, M, N, S)
    if S.tma_store:
        IN_PANEL: gl.constexpr = PART * S.part % S.panel
        PLACE: gl.constexpr = (S.staged + S.staged_bytes * WHICH
                               + panels.place_of(PART * S.part, S))
        d, alpha, beta, stride_db, stride_dm, stride_dn = epilogue
        if IN_PANEL == 0:
            panels.free(PART * S.part // S.panel, S)
        piece = gluon_finish(piece, value, alpha, beta, S.addend, S.activation)
        panels.put(piece.to(c_desc.dtype), PLACE, IN_PANEL, S.part, S)
        if IN_PANEL + S.part == S.panel:
            at_row, at_col, _, _ = corner(row, col, START - IN_PANEL, M, N, S)
            panels.store(c_map, PLACE, batch, at_row, at_col, S)
    else:
        write(c_desc, c, 0, piece, value, epilogue, batch, part_of_k, at_row, at_col, rows, cols,
              strides, 1, S)


@gluon.jit
def consumer(a_desc, result, buffers, sizes, S: gl.constexpr, WHICH: gl.constexpr):
    """Multiplies stage after stage; a stage is released while the next one is multiplied."""
    a_bufs, b_bufs, c_bufs, ready, empty, turns = buffers
    M, N, K, batches = sizes
    c_desc, c, strides, epilogue = result
    PIECE: gl.constexpr = 0 if S.pingpong else WHICH
    N8: gl.constexpr = S.block_n // 8
    ELEMENT: gl.constexpr = "bf16" if a_desc.dtype == gl.bfloat16 else "f16"
    layout: gl.constexpr = any_width.layout_of(S.block_n)
    if S.programs > 1:
        cluster.come()
    gluon_wait()
    rank = gl.program_id(0) % S.programs
    told = rank, rank  # never used
    if S.shares:
        cluster.meet()
        beside, below = sharers(rank, S)
        lane = multicast.lane()
        told = lane, (beside | below) >> lane & 1
    c_map = rank  # never used
    if S.one_buffer and S.tma_store:
        c_map = multicast.tensor_map(S.symbol, S.map_of_c)
    units = units_of(M, N, batches, S)
    it = 0
    turn = 0
    for unit in range(gl.program_id(0) // S.programs, units, gl.num_programs(0) // S.programs):
        batch, row, col = place_of(unit, rank, M, N, batches, S)
        part_of_k, first, last = steps_of(unit, rank, M, N, K, batches, S)
        mine = True
        if S.pingpong:
            mine = turn % 2 == WHICH
        if mine:
            if S.one_buffer:
                acc = any_width.zeros(N8 * S.accumulators)
            else:
                acc = gl.zeros((S.rows, S.block_n), gl.float32, layout=layout)
            if S.pingpong:
                await_phase(turns, S.others + WHICH, ((turn // 2) & 1) ^ (1 - WHICH), S)
            for step in range(first, last):
                stage = it % S.stages
                if S.one_buffer:
                    at = S.stage_bytes * stage
                    a = any_width.descriptor(at + 128 * S.rows * PIECE, S.a_t)
                    b = any_width.descriptor(at + 128 * S.block_m, not S.b_t)
                    await_phase(ready, S.readies + stage, (it // S.stages) & 1, S)
                    acc = any_width.multiply(acc, a, b, N8, S.accumulators, S.a_t, S.b_t, ELEMENT)
                else:
                    await_phase(ready, stage, (it // S.stages) & 1, S)
                    a, b = a_bufs.index(S.pieces * stage + PIECE), b_bufs.index(stage)
                    if S.a_t:
                        a = flat(a, S.block_k, S.rows, S.batched).permute((1, 0))
                    else:
                        a = flat(a, S.rows, S.block_k, S.batched)
                    if S.b_t:
                        b = flat(b, S.block_n, S.block_k, S.batched).permute((1, 0))
                    else:
                        b = flat(b, S.block_k, S.block_n, S.batched)
                    token = warpgroup_mma(a, b, acc, is_async=True)
                    acc = warpgroup_mma_wait(1, deps=(token,))
                release(empty, (it + S.stages - 1) % S.stages, step, first, told, S)
                it += 1
            c_row, c_col = row + PIECE * S.rows, col + rank % S.cluster_k * S.columns
            # D is on its way while the last products are summed.
            if S.one_buffer:
                values = ()
                for part in gl.static_range(S.early):
                    values = values + (addend_of(epilogue, batch, c_row, c_col, part, M, N, S),)
                acc = any_width.settle(acc, N8 * S.accumulators)
            else:
                value = addend(acc, epilogue, batch, c_row, c_col, M, N, False, S)
                acc = warpgroup_mma_wait(0, deps=(acc,))
            release(empty, (it + S.stages - 1) % S.stages, last, first, told, S)
            if S.pingpong:
                if S.one_buffer:
                    barriers.arrive(8 * (S.others + 1 - WHICH), 1)
                else:
                    mbarrier.arrive(turns.index(1 - WHICH), count=1)
            if S.one_buffer:
                if S.cluster_k > 1:
                    acc = exchanged(acc, ready, rank, S, WHICH)
                for part in gl.static_range(S.parts):
                    if part + S.early < S.parts:
                        values = values + (addend_of(epilogue, batch, c_row, c_col,
                                                     part + S.early, M, N, S),)
                    store_part(result, c_map, acc, values[part], (batch, part_of_k, c_row, c_col),
                               M, N, part, S, WHICH)
            else:
                write(c_desc, c, c_bufs.index(WHICH), acc, value, epilogue, batch, part_of_k,
                      c_row, c_col, M, N, strides, S.subtile, S)
        else:
            it += last - first
        turn += 1
    if S.release == 2:
        last_turn = True
        if S.pingpong:
            last_turn = (turn + 1) % 2 == WHICH
        if last_turn:
            gluon_release()
    if S.cluster_k > 1:  # what it sent is read from its memory until it has come: then it may go
        mbarrier.wait(ready.index(S.others + S.consumers + WHICH), 0)
    if S.tma_store:
        tma_store_wait(0)


@gluon.jit(repr=symbol)
def warp_specialized(a_desc, b_desc, c_desc, c, M, N, K, batches, stride_cb, stride_cm,
                     stride_cn, stride_cs, d, alpha, beta, stride_db, stride_dm,
                     stride_dn, A_T: gl.constexpr, B_T: gl.constexpr, BATCHED: gl.constexpr,
                     TURNED: gl.constexpr, TMA_STORE: gl.constexpr,
                     STREAMS: gl.constexpr, VECTOR: gl.constexpr, STORED: gl.constexpr,
                     SUBTILE: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                     PART: gl.constexpr, PANEL: gl.constexpr, PLACES: gl.constexpr,
                     BLOCK_K: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
                     STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PINGPONG: gl.constexpr,
                     CLUSTER_K: gl.constexpr, CLUSTER_M: gl.constexpr, CLUSTER_N: gl.constexpr,
                     ROOM: gl.constexpr, EARLY: gl.constexpr, PAIRS: gl.constexpr,
                     ADDEND: gl.constexpr, ACTIVATION: gl.constexpr,
                     CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
                     RELEASE: gl.constexpr, SYMBOL: gl.constexpr):
    """C[batch, M, N] = A @ B and its epilogue. A is stored [M, K] or, with A_T, [K, M]; B [K, N]
    or, with B_T, [N, K]. With SPLIT_K > 1, C is [SPLIT_K, batch, M, N] float32. With TURNED, C, its
    strides and D's are those of the transposed product: tiles are turned before they are stored.

    With STREAMS, C leaves the L2 before what else is there (``panels``).
    VECTOR elements are stored at once along rows of C that the copy engine cannot store, STORED
    columns a piece; 0: those that a thread has. EARLY parts of a tile's D are asked for before its
    last products are summed, with PAIRS two values of a row at once. Where BLOCK_N is no power of
    two, in clusters and with TURNED the operands share one buffer, a stage's rows of A before those
    of B, so that their addresses are known; behind them lie what a cluster exchanges, the panels of
    C and the barriers."""
    S: gl.constexpr = constants_of(
        A_T, B_T, BATCHED, TURNED, TMA_STORE, STREAMS, VECTOR, STORED, SUBTILE, BLOCK_M, BLOCK_N,
        PART, PANEL, PLACES, BLOCK_K, GROUP_M, SPLIT_K, STAGES, CONSUMERS, PINGPONG, CLUSTER_K,
        CLUSTER_M, CLUSTER_N, ROOM, EARLY, PAIRS, ADDEND, ACTIVATION, RELEASE, SYMBOL)
    if S.one_buffer:
        # Places of eight bytes, each of which may be a barrier; the rest is written by address.
        a_bufs = gl.allocate_shared_memory(gl.int64, [S.readies + MOST_BARRIERS, 1],
                                           mbarrier.MBarrierLayout())
        b_bufs, c_bufs, ready, empty, turns = a_bufs, a_bufs, a_bufs, a_bufs, a_bufs
        barriers.make(8 * S.readies, S)
    else:
        a_bufs = gl.allocate_shared_memory(
            a_desc.dtype, [S.pieces * STAGES] + a_desc.block_type.shape, a_desc.layout)
        b_bufs = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape,
                                           b_desc.layout)
        # A stage is ready; a stage is empty; a consumer's turn.
        ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        if PINGPONG:
            turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        else:
            turns = ready  # never touched
        if TMA_STORE:
            c_bufs = gl.allocate_shared_memory(c_desc.dtype, [CONSUMERS] + c_desc.block_type.shape,
                                               c_desc.layout)
        else:
            c_bufs = b_bufs  # never touched
        # Triton 3.6 makes all warps meet between two of one allocation: those of several in turn.
        for i in gl.static_range(STAGES):
            mbarrier.init(ready.index(i), count=1)
            mbarrier.init(empty.index(i), count=S.releases)
            if PINGPONG and i < 2:  # there are two stages at least
                mbarrier.init(turns.index(i), count=1)
    if S.programs > 1:
        cluster.announce()
    fence_async_shared()
    buffers = (a_bufs, b_bufs, c_bufs, ready, empty, turns)
    sizes = (M, N, K, batches)
    result = (c_desc, c, (stride_cb, stride_cm, stride_cn, stride_cs),
              (d, alpha, beta, stride_db, stride_dm, stride_dn))
    # A list in a variable would turn constants into values: each is written out.
    if S.programs == 1:
        if CONSUMERS == 1:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (producer, (a_desc, b_desc, buffers, sizes, S)),
            ], [1], [PRODUCER_REGISTERS])
        elif CONSUMERS == 2:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(1))),
                (producer, (a_desc, b_desc, buffers, sizes, S)),
            ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
        else:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(1))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(2))),
                (producer, (a_desc, b_desc, buffers, sizes, S)),
            ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS])
    else:
        if CONSUMERS == 1:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (producer, (a_desc, b_desc, buffers, sizes, S)),
                (bystander, ()), (bystander, ()),
            ], [1, 1, 2], [PRODUCER_REGISTERS] * 3)
        elif CONSUMERS == 2:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(1))),
                (producer, (a_desc, b_desc, buffers, sizes, S)),
                (bystander, ()), (bystander, ()),
            ], [4, 1, 1, 2], [CONSUMER_REGISTERS] + [PRODUCER_REGISTERS] * 3)
        else:
            gl.warp_specialize([
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(0))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(1))),
                (consumer, (a_desc, result, buffers, sizes, S, gl.constexpr(2))),
                (producer, (a_desc, b_desc, buffers, sizes, S)),
                (bystander, ()), (bystander, ()),
            ], [4, 4, 1, 1, 2], [CONSUMER_REGISTERS] * 2 + [PRODUCER_REGISTERS] * 3)
