"""A consumer of the Hopper kernel on one buffer, with its barriers, products and stores in PTX.

For tiles of any width, clusters and transposed stores. The buffer is the first in shared memory, so
that addresses are known. It holds STAGES times A's rows and B's, then the partial sums that the
programs of a cluster exchange, the store buffers of C, and the barriers (``kernels.warp_tile``).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import barriers, store_buffer, wgmma
from tritongemm.kernels.device.cluster import (
    arrive_at_all,
    cluster_arrive,
    cluster_wait,
    send_partials,
    sum_partials,
)
from tritongemm.kernels.device.dependent_launch import gluon_release, gluon_wait
from tritongemm.kernels.device.epilogue import gluon_finish
from tritongemm.kernels.device.hopper import mbarrier, thread_barrier, tma_store_wait
from tritongemm.kernels.device.multicast import arrive_remote, lane_id, tensor_map_address
from tritongemm.kernels.device.operand_types import ptx_name
from tritongemm.kernels.device.tile_load import peers_of
from tritongemm.kernels.device.tile_scheduler import k_range_of, origin_of, units_of
from tritongemm.kernels.device.tile_store import load_addend, store_tile


@gluon.jit
def release(stage, step, first, peer, S: gl.constexpr):
    """Releases the stage of the step before ``step``, if there is one. In a cluster that shares
    operands, each lane whose program loads into the stage or is loaded into by it arrives there:
    ``peer`` is (lane, whether it is one).

    The condition is written as a difference: for a comparison LLVM would peel the first step off
    the loop."""
    if S.multicasts:
        lane, is_peer = peer
        arrive_remote(8 * (S.empty_barriers + stage), lane, is_peer * (step - first))
    else:
        barriers.arrive(8 * (S.empty_barriers + stage), step - first)


@gluon.jit
def reduce_in_cluster(acc, shared, rank, S: gl.constexpr, CONSUMER: gl.constexpr):
    """A consumer's accumulator, partial sums over the program's range of K -> this program's
    columns of it, summed over the cluster."""
    N8: gl.constexpr = S.block_n // 8
    RECEIVED: gl.constexpr = S.received_barriers + CONSUMER
    RECEIVE: gl.constexpr = S.partials_offset + 2048 * N8 * CONSUMER
    mbarrier.expect(shared.index(RECEIVED), 2048 * N8 // S.cluster_k * (S.cluster_k - 1))
    thread_barrier()  # no warp reads the operands any more, whose buffers stage what is sent
    cluster_wait()  # as late as possible: the others have initialised their barriers
    send_partials(acc, RECEIVE, 8 * RECEIVED, rank, N8, S.stage_bytes, S.chunks_per_stage,
                  S.cluster_k, CONSUMER)
    mbarrier.wait(shared.index(RECEIVED), 0)
    arrive_at_all(8 * (S.summed_barriers + CONSUMER), S.cluster_k)
    return sum_partials(acc[0], RECEIVE, N8, S.cluster_k)


@gluon.constexpr_function
def accumulator_of(fragment, S):
    """The accumulator, of 64 of a consumer's rows, that a fragment is of."""
    return fragment // (S.fragments.value // S.accumulators.value)


@gluon.constexpr_function
def column_of(fragment, S):
    """The first column of a fragment, of those that the program stores."""
    return fragment * S.fragment_n.value % S.columns.value


@gluon.jit
def origin_in_c(row, col, START: gl.constexpr, M, N, S: gl.constexpr):
    """Where a consumer's columns from START on begin in C, and C's extents."""
    if S.transposed:
        return col + START, row, N, M
    else:
        return row, col + START, M, N


@gluon.jit
def load_fragment_of_d(epilogue, batch, row, col, FRAGMENT: gl.constexpr, M, N, S: gl.constexpr):
    """D at the elements of a fragment."""
    like = gl.zeros((64, S.fragment_n), gl.float32,
                    layout=wgmma.accumulator_layout(S.fragment_n))
    if S.transposed:
        like = like.permute((1, 0))
    row, col, M, N = origin_in_c(row + 64 * accumulator_of(FRAGMENT, S), col,
                                 column_of(FRAGMENT, S), M, N, S)
    return load_addend(like, epilogue, batch, row, col, M, N, S.tma_store, S)


@gluon.jit
def store_fragment(result, c_map, acc, value, batch, split, row, col, M, N,
                   FRAGMENT: gl.constexpr, S: gl.constexpr, CONSUMER: gl.constexpr):
    """Finishes a fragment of a consumer's tile and stores it: by TMA as soon as its
    epilogue tile is complete, or from registers."""
    c_desc, c, strides, epilogue = result
    ACCUMULATOR: gl.constexpr = accumulator_of(FRAGMENT, S)
    START: gl.constexpr = column_of(FRAGMENT, S)
    row += 64 * ACCUMULATOR
    fragment = wgmma.columns_of(acc, S.block_n // S.cluster_k * ACCUMULATOR + START, S.fragment_n)
    if S.transposed:
        fragment = fragment.permute((1, 0))
    c_row, c_col, rows, cols = origin_in_c(row, col, START, M, N, S)
    if S.tma_store:
        COLUMN: gl.constexpr = FRAGMENT * S.fragment_n  # of all accumulators' side by side
        TILE: gl.constexpr = COLUMN // S.epilogue_n
        IN_TILE: gl.constexpr = COLUMN % S.epilogue_n
        BUFFER: gl.constexpr = (S.store_offset + S.store_bytes * CONSUMER
                                + store_buffer.offset_of(COLUMN, S))
        d, alpha, beta, stride_db, stride_dm, stride_dn = epilogue
        if IN_TILE == 0:
            store_buffer.wait_free(TILE, S)
        fragment = gluon_finish(fragment, value, alpha, beta, S.addend, S.activation)
        store_buffer.write(fragment.to(c_desc.dtype), BUFFER, IN_TILE, S.fragment_n, S)
        if IN_TILE + S.fragment_n == S.epilogue_n:
            c_row, c_col, _, _ = origin_in_c(row, col, START - IN_TILE, M, N, S)
            store_buffer.store(c_map, BUFFER, batch, c_row, c_col, S)
    else:
        store_tile(c_desc, c, 0, fragment, value, epilogue, batch, split, c_row, c_col, rows, cols,
                   strides, 1, S)


@gluon.jit
def consumer(a_desc, result, shared, sizes, S: gl.constexpr, CONSUMER: gl.constexpr):
    """Multiplies stage after stage of each unit, releases each while the next one is multiplied,
    and stores its rows of the tile."""
    M, N, K, batches = sizes
    c_desc, c, strides, epilogue = result
    FIRST_ROW: gl.constexpr = 0 if S.pingpong else CONSUMER * S.rows
    N8: gl.constexpr = S.block_n // 8
    ELEMENT: gl.constexpr = ptx_name(a_desc.dtype)
    if S.programs > 1:
        cluster_arrive()
    gluon_wait()
    rank = gl.program_id(0) % S.programs
    peer = rank, rank  # never used
    if S.multicasts:
        cluster_wait()
        a_peers, b_peers = peers_of(rank, S)
        lane = lane_id()
        peer = lane, (a_peers | b_peers) >> lane & 1
    c_map = rank  # never used
    if S.tma_store:
        c_map = tensor_map_address(S.symbol, S.map_of_c)
    units = units_of(M, N, batches, S)
    it = 0
    turn = 0
    for unit in range(gl.program_id(0) // S.programs, units, gl.num_programs(0) // S.programs):
        batch, row, col = origin_of(unit, rank, M, N, batches, S)
        split, first, last = k_range_of(unit, rank, M, N, K, batches, S)
        own_turn = True
        if S.pingpong:
            own_turn = turn % 2 == CONSUMER
        if own_turn:
            acc = wgmma.zeros(N8 * S.accumulators)
            if S.pingpong:
                barriers.wait(8 * (S.turn_barriers + CONSUMER), ((turn // 2) & 1) ^ (1 - CONSUMER))
            for step in range(first, last):
                stage = it % S.stages
                offset = S.stage_bytes * stage
                a = wgmma.matrix_descriptor(offset + 128 * FIRST_ROW, S.a_t)
                b = wgmma.matrix_descriptor(offset + 128 * S.block_m, not S.b_t)
                barriers.wait(8 * (S.full_barriers + stage), (it // S.stages) & 1)
                acc = wgmma.mma(acc, a, b, N8, S.accumulators, S.a_t, S.b_t, ELEMENT)
                release((it + S.stages - 1) % S.stages, step, first, peer, S)
                it += 1
            row += FIRST_ROW
            col += rank % S.cluster_k * S.columns
            # Some of D is loaded while the last product is computed.
            values = ()
            for fragment in gl.static_range(S.early_fragments):
                values += (load_fragment_of_d(epilogue, batch, row, col, fragment, M, N, S),)
            acc = wgmma.wait_all(acc, N8 * S.accumulators)
            release((it + S.stages - 1) % S.stages, last, first, peer, S)
            if S.pingpong:
                barriers.arrive(8 * (S.turn_barriers + 1 - CONSUMER), 1)
            if S.cluster_k > 1:
                acc = reduce_in_cluster(acc, shared, rank, S, CONSUMER)
            for fragment in gl.static_range(S.fragments):
                if fragment + S.early_fragments < S.fragments:
                    values += (load_fragment_of_d(epilogue, batch, row, col,
                                                  fragment + S.early_fragments, M, N, S),)
                store_fragment(result, c_map, acc, values[fragment], batch, split, row, col, M, N,
                               fragment, S, CONSUMER)
        else:
            it += last - first
        turn += 1
    if S.release == 2:
        last_turn = True
        if S.pingpong:
            last_turn = (turn + 1) % 2 == CONSUMER
        if last_turn:
            gluon_release()
    if S.cluster_k > 1:  # the program's memory must stay until the others have read what it sent
        mbarrier.wait(shared.index(S.summed_barriers + CONSUMER), 0)
    if S.tma_store:
        tma_store_wait(0)
