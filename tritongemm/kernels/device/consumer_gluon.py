"""A consumer of the Hopper kernel on Gluon's own buffers, barriers and products.

For tiles whose sides are powers of two, without clusters and transposed stores; all else is
``consumer_ptx``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.dependent_launch import gluon_release, gluon_wait
from tritongemm.kernels.device.hopper import (
    matrix_of,
    mbarrier,
    tma_store_wait,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tritongemm.kernels.device.tile_scheduler import k_range_of, origin_of, units_of
from tritongemm.kernels.device.tile_store import load_addend, store_tile
from tritongemm.kernels.device.wgmma import accumulator_layout


@gluon.jit
def operand(buffer, ROWS: gl.constexpr, COLUMNS: gl.constexpr, TRANSPOSED: gl.constexpr,
            BATCHED: gl.constexpr):
    """The [ROWS, COLUMNS] operand in a buffer that holds it, or with TRANSPOSED its transpose; the
    buffer of a batch has a leading axis of 1."""
    if TRANSPOSED:
        if BATCHED:
            buffer = matrix_of(buffer, COLUMNS, ROWS)
        return buffer.permute((1, 0))
    else:
        if BATCHED:
            buffer = matrix_of(buffer, ROWS, COLUMNS)
        return buffer


@gluon.jit
def release(empty, stage, step, first, S: gl.constexpr):
    """Releases the stage of the step before ``step``, if there is one."""
    mbarrier.arrive(empty.index(stage), count=1, pred=step > first)


@gluon.jit
def compute_unit(result, buffers, sizes, unit, it, turn, S: gl.constexpr, CONSUMER: gl.constexpr):
    """Multiplies stage after stage of one unit, releases each while the next one is multiplied, and
    stores this consumer's rows of the tile. Returns the number of stages used so far.

    A function of its own, because Triton visits the body of a loop twice, first to find the values
    that the loop carries."""
    a_bufs, b_bufs, c_bufs, full, empty, turns = buffers
    M, N, K, batches = sizes
    c_desc, c, strides, epilogue, _, _ = result
    BOX: gl.constexpr = 0 if S.pingpong else CONSUMER  # this consumer's rows of A
    layout: gl.constexpr = accumulator_layout(S.block_n)
    batch, row, col = origin_of(unit, 0, M, N, batches, S)
    split, first, last = k_range_of(unit, 0, M, N, K, batches, S)
    own_turn = True
    if S.pingpong:
        own_turn = turn % 2 == CONSUMER
    if own_turn:
        acc = gl.zeros((S.rows, S.block_n), gl.float32, layout=layout)
        if S.pingpong:
            mbarrier.wait(turns.index(CONSUMER), ((turn // 2) & 1) ^ (1 - CONSUMER))
        for step in range(first, last):
            stage = it % S.stages
            mbarrier.wait(full.index(stage), (it // S.stages) & 1)
            a = operand(a_bufs.index(S.a_boxes * stage + BOX), S.rows, S.block_k, S.a_t, S.batched)
            b = operand(b_bufs.index(stage), S.block_k, S.block_n, S.b_t, S.batched)
            token = warpgroup_mma(a, b, acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(token,))
            release(empty, (it + S.stages - 1) % S.stages, step, first, S)
            it += 1
        row += BOX * S.rows
        # D is loaded while the last product is computed.
        value = load_addend(acc, epilogue, batch, row, col, M, N, False, S)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        release(empty, (it + S.stages - 1) % S.stages, last, first, S)
        if S.pingpong:
            mbarrier.arrive(turns.index(1 - CONSUMER), count=1)
        store_tile(c_desc, c, c_bufs.index(CONSUMER), acc, value, epilogue, batch, split, row, col,
                   M, N, strides, S.subtile, S)
    else:
        it += last - first
    return it


@gluon.jit
def consumer(result, buffers, sizes, S: gl.constexpr, CONSUMER: gl.constexpr):
    """Computes and stores this consumer's rows of each unit's tile, or every other tile."""
    M, N, K, batches = sizes
    gluon_wait()
    units = units_of(M, N, batches, S)
    it = 0
    turn = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        it = compute_unit(result, buffers, sizes, unit, it, turn, S, CONSUMER)
        turn += 1
    if S.release == 2:
        last_turn = True
        if S.pingpong:
            last_turn = (turn + 1) % 2 == CONSUMER
        if last_turn:
            gluon_release()
    if S.tma_store:
        tma_store_wait(0)
