"""Hopper: a producer warp that loads by the copy engine, consumer warpgroups that multiply.

Persistent: each program walks over units (a tile of C, and with SPLIT_K > 1 a part of K). The
producer runs ahead by up to STAGES buffers, across units too, so the loads of the next unit are
under way while this one is stored. Sizes that powers of two miss fill the last wave: three
CONSUMERS share 192 rows, and a tile has any multiple of 16 columns (``any_width``), stored in parts
of PART, the power of two that divides it. With PINGPONG two consumers take units in turn: one
multiplies while the other stores. A barrier keeps the turns in order: a group that waited for a
stage two rounds ahead would take the parity of the wrong round. The programs of a cluster share a
tile, CLUSTER_K of them a part of its K each, and do that one alone (``cluster``); or they do tiles
below and beside each other, CLUSTER_M by CLUSTER_N, and share what these have in common
(``multicast``).
"""

from dataclasses import dataclass, fields

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import any_width, cluster, multicast
from tritongemm.kernels.device.dependent_launch import gluon_release, gluon_wait
from tritongemm.kernels.device.hopper import (
    fence_async_shared,
    matrix_of,
    mbarrier,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tritongemm.kernels.device.symbol import symbol
from tritongemm.kernels.device.tile_load import load_a, load_b, sharers
from tritongemm.kernels.device.tile_store import addend, write


@dataclass(frozen=True)
class Constants:
    """What a partition must know of the kernel's constants, each a ``gl.constexpr``: in one object,
    since a list of partitions is written out for each number of them."""

    a_t: gl.constexpr
    b_t: gl.constexpr
    batched: gl.constexpr
    turned: gl.constexpr
    tma_store: gl.constexpr
    vector: gl.constexpr
    stored: gl.constexpr
    subtile: gl.constexpr
    block_m: gl.constexpr
    block_n: gl.constexpr
    part: gl.constexpr
    box: gl.constexpr
    block_k: gl.constexpr
    group_m: gl.constexpr
    split_k: gl.constexpr
    stages: gl.constexpr
    consumers: gl.constexpr
    pingpong: gl.constexpr
    cluster_k: gl.constexpr
    cluster_m: gl.constexpr
    cluster_n: gl.constexpr
    room: gl.constexpr
    early: gl.constexpr
    addend: gl.constexpr
    activation: gl.constexpr
    release: gl.constexpr
    symbol: gl.constexpr

    @property
    def rows(self):
        """Rows of a consumer, and of a piece of A."""
        return self.block_m if self.pingpong else self.block_m // self.consumers

    @property
    def pieces(self):
        return self.block_m // self.rows

    @property
    def boxes(self):
        return -(-self.block_n // self.box)

    @property
    def rows_b(self):
        """Columns of B that a stage has room for: whole boxes."""
        return self.boxes * self.box

    @property
    def columns(self):
        """Columns of C that a program stores."""
        return self.block_n // self.cluster_k

    @property
    def parts(self):
        return self.columns // self.part

    @property
    def one_buffer(self):
        return self.part < self.block_n or self.programs > 1 or self.turned

    @property
    def programs(self):
        """Of a cluster: they share a tile's K, or operands."""
        return self.cluster_k * self.cluster_m * self.cluster_n

    @property
    def shares(self):
        """Whether the programs of a cluster share operands."""
        return self.cluster_m * self.cluster_n > 1

    @property
    def map_of_b(self):
        """The parameter that is B's tensor map: A's is 0, followed by its extents and strides."""
        return 7 if self.batched else 5

    @property
    def barriers(self):
        """The byte where a cluster's barriers begin, if it shares operands: behind the stages."""
        return self.stages * self.stage_bytes

    @property
    def stage_bytes(self):
        """Bytes from one stage's operands to the next one's: rows of 128."""
        return 128 * (self.block_m + self.rows_b)

    @property
    def empties(self):
        """Where the barriers of empty stages begin: in a cluster all barriers are in one place."""
        return self.stages if self.programs > 1 else 0

    def mangle(self):
        return "_".join(str(getattr(self, field.name).value) for field in fields(self))


@gluon.constexpr_function
def constants_of(*constants):
    return Constants(*map(gl.constexpr, constants))


@gluon.jit
def locate(unit, rank, M, N, K, batches, S: gl.constexpr):
    """Unit number, and place in the cluster -> (batch, part, first row, first column, first step,
    last step).

    The parts of K are the outermost, so that programs of one moment share operands in the L2;
    within a part tiles go in the grouped order of ``order.tile_of``.
    """
    num_m = gl.cdiv(M, S.block_m * S.cluster_m)
    num_n = gl.cdiv(N, S.block_n * S.cluster_n)
    tiles = num_m * num_n
    part = unit // (tiles * batches)
    batch = (unit // tiles) % batches
    tile = unit % tiles
    width = S.group_m * num_n
    first_m = (tile // width) * S.group_m
    size_m = gl.minimum(num_m - first_m, S.group_m)
    row = (first_m + (tile % width) % size_m) * (S.block_m * S.cluster_m)
    col = ((tile % width) // size_m) * (S.block_n * S.cluster_n)
    if S.cluster_m > 1:
        row += rank % S.cluster_m * S.block_m
    if S.cluster_n > 1:
        col += rank // S.cluster_m * S.block_n
    steps = gl.cdiv(K, S.block_k)
    steps_a_part = gl.cdiv(steps, S.split_k * S.cluster_k)
    first = gl.minimum((part * S.cluster_k + rank % S.cluster_k) * steps_a_part, steps)
    return batch, part, row, col, first, gl.minimum(first + steps_a_part, steps)


@gluon.jit
def units_of(M, N, batches, S: gl.constexpr):
    """Units of work: of a cluster's programs, those that they do together count once."""
    return (gl.cdiv(M, S.block_m * S.cluster_m) * gl.cdiv(N, S.block_n * S.cluster_n)
            * batches * S.split_k)


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
    units = units_of(M, N, batches, S)
    it = 0
    for unit in range(gl.program_id(0) // S.programs, units, gl.num_programs(0) // S.programs):
        batch, part, row, col, first, last = locate(unit, rank, M, N, K, batches, S)
        for step in range(first, last):
            k = step * S.block_k
            stage = it % S.stages
            mbarrier.wait(empty.index(S.empties + stage), ((it // S.stages) & 1) ^ 1)
            barrier = ready.index(stage)
            mbarrier.expect(barrier, S.stage_bytes)
            load_a(a_desc, a_bufs, barrier, batch, row, k, stage, rank, S)
            load_b(b_desc, b_bufs, barrier, batch, col, k, stage, rank, S)
            it += 1
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
def release(empty, stage, wanted, others, S: gl.constexpr):
    """This consumer lets go of a stage, if ``wanted``: of its program's, or, where operands are
    shared, of that of ``others``."""
    if S.shares:
        multicast.arrive(S.barriers + 8 * (S.empties + stage), others * wanted.to(gl.int32))
    else:
        mbarrier.arrive(empty.index(S.empties + stage), count=1, pred=wanted)


@gluon.jit
def exchanged(acc, barriers, rank, S: gl.constexpr, WHICH: gl.constexpr):
    """A consumer's accumulator summed over the cluster: this program's columns of it. What the
    others send comes to a place behind the operands' stages."""
    N8: gl.constexpr = S.block_n // 8
    FULL: gl.constexpr = 2 * S.stages + WHICH
    COME: gl.constexpr = FULL + S.consumers
    PLACE: gl.constexpr = S.stages * S.stage_bytes + 2048 * N8 * WHICH
    BARRIERS: gl.constexpr = S.stages * S.stage_bytes + 2048 * N8 * S.consumers
    mbarrier.expect(barriers.index(FULL), 2048 * N8 // S.cluster_k * (S.cluster_k - 1))
    cluster.meet()  # as late as can be: the others' barriers are there
    cluster.give(acc, PLACE, BARRIERS + 8 * FULL, rank, N8, S.stage_bytes, S.room, S.cluster_k,
                 WHICH)
    mbarrier.wait(barriers.index(FULL), 0)
    cluster.arrive_at_all(BARRIERS + 8 * COME, S.cluster_k)
    return cluster.take(acc[0], PLACE, N8, S.cluster_k)


@gluon.jit
def corner(row, col, part, M, N, S: gl.constexpr):
    """Where a part of a consumer's tile begins in C, and C's extents."""
    if S.turned:
        return col + part * S.part, row, N, M
    else:
        return row, col + part * S.part, M, N


@gluon.jit
def addend_of(epilogue, batch, row, col, part, M, N, S: gl.constexpr):
    """D of a part."""
    like = gl.zeros((64, S.part), gl.float32, layout=any_width.layout_of(S.part))
    if S.turned:
        like = like.permute((1, 0))
    row, col, M, N = corner(row, col, part, M, N, S)
    return addend(like, epilogue, batch, row, col, M, N, S.addend)


@gluon.jit
def consumer(a_desc, result, buffers, sizes, S: gl.constexpr, WHICH: gl.constexpr):
    """Multiplies stage after stage; a stage is released while the next one is multiplied."""
    a_bufs, b_bufs, c_bufs, ready, empty, turns = buffers
    M, N, K, batches = sizes
    c_desc, c, strides, epilogue = result
    PIECE: gl.constexpr = 0 if S.pingpong else WHICH
    N8: gl.constexpr = S.block_n // 8
    ELEMENT: gl.constexpr = "bf16" if a_desc.dtype == gl.bfloat16 else "f16"
    layout: gl.constexpr = any_width.layout_of(S.part)
    if S.programs > 1:
        cluster.come()
    rank = gl.program_id(0) % S.programs
    others = rank
    if S.shares:
        cluster.meet()
        beside, below = sharers(rank, S)
        others = beside | below
    units = units_of(M, N, batches, S)
    it = 0
    turn = 0
    for unit in range(gl.program_id(0) // S.programs, units, gl.num_programs(0) // S.programs):
        batch, part_of_k, row, col, first, last = locate(unit, rank, M, N, K, batches, S)
        mine = True
        if S.pingpong:
            mine = turn % 2 == WHICH
        if mine:
            if S.one_buffer:
                acc = any_width.zeros(N8)
            else:
                acc = gl.zeros((S.rows, S.block_n), gl.float32, layout=layout)
            if S.pingpong:
                mbarrier.wait(turns.index(WHICH),
                              ((turn // 2) & 1) ^ (1 - WHICH))
            for step in range(first, last):
                stage = it % S.stages
                mbarrier.wait(ready.index(stage), (it // S.stages) & 1)
                if S.one_buffer:
                    at = S.stage_bytes * stage
                    acc = any_width.multiply(acc, at + 128 * S.rows * PIECE,
                                             at + 128 * S.block_m, N8, S.a_t, S.b_t, ELEMENT)
                else:
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
                release(empty, (it + S.stages - 1) % S.stages, step > first, others, S)
                it += 1
            c_row, c_col = row + PIECE * S.rows, col + rank % S.cluster_k * S.columns
            # D is on its way while the last products are summed.
            if S.one_buffer:
                values = ()
                for part in gl.static_range(S.early):
                    values = values + (addend_of(epilogue, batch, c_row, c_col, part, M, N, S),)
                acc = any_width.settle(acc, N8)
            else:
                value = addend(acc, epilogue, batch, c_row, c_col, M, N, S.addend)
                acc = warpgroup_mma_wait(0, deps=(acc,))
            release(empty, (it + S.stages - 1) % S.stages, last > first, others, S)
            if S.pingpong:
                mbarrier.arrive(turns.index(1 - WHICH), count=1)
            if S.one_buffer:
                if S.cluster_k > 1:
                    acc = exchanged(acc, ready, rank, S, WHICH)
                for part in gl.static_range(S.parts):
                    if part + S.early < S.parts:
                        values = values + (addend_of(epilogue, batch, c_row, c_col,
                                                     part + S.early, M, N, S),)
                    piece = any_width.columns_of(acc, part * S.part, S.part)
                    if S.turned:
                        piece = piece.permute((1, 0))
                    at_row, at_col, rows, cols = corner(c_row, c_col, part, M, N, S)
                    buffer = c_bufs.index(WHICH if S.subtile > 1 else WHICH * S.parts + part)
                    write(c_desc, c, buffer, piece, values[part], epilogue, batch, part_of_k,
                          at_row, at_col, rows, cols, strides, 1, S.subtile > 1 or part == 0, S)
            else:
                write(c_desc, c, c_bufs.index(WHICH), acc, value, epilogue, batch, part_of_k,
                      c_row, c_col, M, N, strides, S.subtile, True, S)
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
        mbarrier.wait(ready.index(2 * S.stages + S.consumers + WHICH), 0)
    if S.tma_store:
        tma_store_wait(0)


@gluon.jit(repr=symbol)
def warp_specialized(a_desc, b_desc, c_desc, c, M, N, K, batches, stride_cb, stride_cm,
                     stride_cn, stride_cs, d, alpha, beta, stride_db, stride_dm,
                     stride_dn, A_T: gl.constexpr, B_T: gl.constexpr, BATCHED: gl.constexpr,
                     TURNED: gl.constexpr, TMA_STORE: gl.constexpr,
                     VECTOR: gl.constexpr, STORED: gl.constexpr,
                     SUBTILE: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                     PART: gl.constexpr, BOX: gl.constexpr, BLOCK_K: gl.constexpr,
                     GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr, STAGES: gl.constexpr,
                     CONSUMERS: gl.constexpr, PINGPONG: gl.constexpr, CLUSTER_K: gl.constexpr,
                     CLUSTER_M: gl.constexpr, CLUSTER_N: gl.constexpr, ROOM: gl.constexpr,
                     EARLY: gl.constexpr, ADDEND: gl.constexpr, ACTIVATION: gl.constexpr,
                     CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
                     RELEASE: gl.constexpr, SYMBOL: gl.constexpr):
    """C[batch, M, N] = A @ B and its epilogue. A is stored [M, K] or, with A_T, [K, M]; B [K, N]
    or, with B_T, [N, K]. With SPLIT_K > 1, C is [SPLIT_K, batch, M, N] float32. With TURNED, C, its
    strides and D's are those of the transposed product: tiles are turned before they are stored.

    VECTOR elements are stored at once along rows of C that the copy engine cannot store, STORED
    columns a piece; 0: those that a thread has. BOX columns of B are loaded at once. EARLY parts of
    a tile's D are asked for before its last products are summed. Where PART, the width of C's
    boxes, is less than BLOCK_N, in clusters and with TURNED the operands share one buffer, a
    stage's rows of A before those of B, so that their addresses are known; in a cluster the parts
    that are exchanged and the barriers lie behind them."""
    S: gl.constexpr = constants_of(
        A_T, B_T, BATCHED, TURNED, TMA_STORE, VECTOR, STORED, SUBTILE, BLOCK_M, BLOCK_N, PART,
        BOX, BLOCK_K, GROUP_M, SPLIT_K, STAGES, CONSUMERS, PINGPONG, CLUSTER_K, CLUSTER_M,
        CLUSTER_N, ROOM, EARLY, ADDEND, ACTIVATION, RELEASE, SYMBOL)
    if S.one_buffer:
        EXCHANGED: gl.constexpr = CONSUMERS * BLOCK_N // 8 if CLUSTER_K > 1 else 0
        UNITS: gl.constexpr = STAGES * (BLOCK_M + S.rows_b) // 16 + EXCHANGED
        rows_of_16: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128,
                                                        element_bitwidth=16, rank=2)
        a_bufs = gl.allocate_shared_memory(a_desc.dtype, [UNITS + (S.programs > 1), 16, BLOCK_K],
                                           rows_of_16)
        b_bufs = a_bufs
    else:
        a_bufs = gl.allocate_shared_memory(
            a_desc.dtype, [S.pieces * STAGES] + a_desc.block_type.shape, a_desc.layout)
        b_bufs = gl.allocate_shared_memory(b_desc.dtype, [STAGES] + b_desc.block_type.shape,
                                           b_desc.layout)
    # A stage is ready; a stage is empty, and in a cluster, in the same place, a consumer's parts
    # have come, and each program's four warps know; a consumer's turn.
    if S.programs > 1:
        ready = a_bufs.index(UNITS)._reinterpret(gl.int64, [2 * STAGES + 2 * CONSUMERS, 1],
                                                 mbarrier.MBarrierLayout())
        empty = ready
    else:
        ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    if PINGPONG:
        turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    else:
        turns = ready  # never touched
    if TMA_STORE:
        BUFFERS: gl.constexpr = CONSUMERS * (S.parts if SUBTILE == 1 else 1)
        c_bufs = gl.allocate_shared_memory(c_desc.dtype, [BUFFERS] + c_desc.block_type.shape,
                                           c_desc.layout)
    else:
        c_bufs = b_bufs  # never touched
    # Triton 3.6 makes all warps meet between two of one allocation: those of several in turn.
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        if S.shares:
            mbarrier.init(empty.index(S.empties + i),
                          count=4 * CONSUMERS * (CLUSTER_M + CLUSTER_N - 1))
        else:
            mbarrier.init(empty.index(S.empties + i), count=1 if PINGPONG else CONSUMERS)
        if PINGPONG and i < 2:  # there are two stages at least
            mbarrier.init(turns.index(i), count=1)
    if CLUSTER_K > 1:
        for i in gl.static_range(CONSUMERS):
            mbarrier.init(ready.index(2 * STAGES + i), count=1)
            mbarrier.init(ready.index(2 * STAGES + CONSUMERS + i), count=4 * CLUSTER_K)
    if S.programs > 1:
        cluster.announce()
    fence_async_shared()
    gluon_wait()
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
