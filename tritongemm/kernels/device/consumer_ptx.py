"""A consumer of the Hopper kernel on one buffer, with its barriers, products and stores in PTX.

For tiles of any width, clusters and transposed stores. The buffer is the first in shared memory, so
that addresses are known. It holds STAGES times A's rows and B's, then the partial sums that the
programs of a cluster exchange, the store buffers of C, and the barriers (``kernels.warp_tile``).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import (
    barriers,
    split_store,
    store_buffer,
    wgmma,
    wgmma_across,
)
from tritongemm.kernels.device.cluster import (
    arrive_at_all,
    cluster_arrive,
    cluster_wait,
    send_partials,
    sum_partials,
)
from tritongemm.kernels.device.dependent_launch import gluon_release, gluon_wait
from tritongemm.kernels.device.epilogue import (
    gluon_activate,
    gluon_finish,
    gluon_finish_residual,
    gluon_linear_part,
)
from tritongemm.kernels.device.hopper import mbarrier, thread_barrier, tma_store_wait
from tritongemm.kernels.device.multicast import arrive_remote, lane_id, tensor_map_address
from tritongemm.kernels.device.operand_types import ptx_name
from tritongemm.kernels.device.tile_load import peers_of
from tritongemm.kernels.device.tile_scheduler import k_range_of, origin_of, units_of
from tritongemm.kernels.device.tile_store import (
    load_addend,
    load_operand,
    store_finished,
    store_tile,
)


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
def row_of(fragment, S):
    """The first row of a fragment among its consumer's."""
    return 64 * accumulator_of(fragment, S)


@gluon.constexpr_function
def column_of(fragment, S):
    """The first column of a fragment, of those that the program stores."""
    return fragment * S.fragment_n.value % S.columns.value


@gluon.constexpr_function
def first_part(fragment, S):
    """The index of a fragment's first tensor of eight columns in the accumulator."""
    return (S.block_n.value // S.cluster_k.value * accumulator_of(fragment, S)
            + column_of(fragment, S)) // 8


@gluon.constexpr_function
def end_part(fragment, S):
    """The index after the fragment's last tensor."""
    return first_part(fragment, S) + S.fragment_n.value // 8


@gluon.constexpr_function
def column_in_tile(fragment, S):
    """The first column of a fragment within its epilogue tile; 0 where TMA does not store. Epilogue
    tiles cut all accumulators' columns, side by side."""
    return fragment * S.fragment_n.value % S.epilogue_n.value if S.tma_store.value else 0


@gluon.jit
def origin_in_c(row, col, M, N, S: gl.constexpr):
    """Where the product's row and column lie in C, and C's extents."""
    if S.transposed:
        return col, row, N, M
    else:
        return row, col, M, N


@gluon.jit
def load_fragment_of_d(epilogue, further, batch, row, col, M, N, S: gl.constexpr):
    """D at the elements of the fragment at (row, col): of a gated product's both halves, or with a
    residual and the bias, as a pair."""
    like = gl.zeros((64, S.fragment_n), gl.float32,
                    layout=wgmma.accumulator_layout(S.fragment_n))
    if S.transposed:
        like = like.permute((1, 0))
    row, col, M, N = origin_in_c(row, col, M, N, S)
    value = load_addend(like, epilogue, batch, row, col, M, N, S.tma_store, S)
    if S.gated:
        return value, load_addend(like, epilogue, batch + 1, row, col, M, N, S.tma_store, S)
    elif S.residual:
        x, stride_xm, stride_xn = further
        return value, load_operand(like, x, (0, stride_xm, stride_xn), batch, row, col, M, N,
                                   S.tma_store, False, S.extra)
    else:
        return value


@gluon.jit
def finish_further(fragment, other, value, epilogue, S: gl.constexpr):
    """A fragment's results by an epilogue that is not plain: of C, then what the auxiliary output
    takes. ``other``: the same columns of a gated product's second half."""
    d, alpha, beta, stride_db, stride_dm, stride_dn = epilogue
    if S.gated:
        left, right = value
        fragment = gluon_linear_part(fragment, left, alpha, beta, S.addend)
        other = gluon_linear_part(other, right, alpha, beta, S.addend)
        return gluon_activate(fragment, S.activation) * other, fragment, other
    elif S.residual:
        value, bias = value
        fragment = gluon_finish_residual(fragment, value, bias, alpha, beta, S.activation, S.extra)
        return fragment, fragment, fragment
    else:
        fragment = gluon_linear_part(fragment, value, alpha, beta, S.addend)
        return gluon_activate(fragment, S.activation), fragment, fragment


@gluon.jit
def store_output(fragment, map_, buffer, batch, row, col, first_col, IN_TILE: gl.constexpr,
                 OUTPUT: gl.constexpr, BATCHED: gl.constexpr, M, N, S: gl.constexpr):
    """Writes a finished 16-bit fragment, the columns from IN_TILE on of its epilogue tile, into the
    store buffer of the tile, which TMA stores as soon as it is complete. OUTPUT: number of the
    result; ``buffer``: byte offset of the first result's."""
    buffer += store_buffer.bytes_of(S) * OUTPUT
    store_buffer.write(fragment, buffer, IN_TILE, S.fragment_n, S)
    if IN_TILE + S.fragment_n == S.epilogue_n:
        c_row, c_col, _, _ = origin_in_c(row, col + (first_col - IN_TILE), M, N, S)
        store_buffer.store(map_, buffer, batch, c_row, c_col, BATCHED, S)


@gluon.jit
def store_fragment(result, maps, parts, value, buffer, batch, split, row, col, first_row, first_col,
                   M, N, IN_TILE: gl.constexpr, S: gl.constexpr):
    """Finishes a fragment of a consumer's tile and stores it: by TMA as soon as its epilogue tile
    is complete, or from registers. ``parts``: the accumulator's tensors of its columns; for a gated
    product followed by those of the same columns of the second half. ``buffer``, IN_TILE:
    ``store_output``.

    What differs from fragment to fragment is a value where it can be one: Triton compiles a
    function anew for each constant."""
    c_desc, c, strides, epilogue, further, _ = result
    c_map, aux_map = maps
    PARTS: gl.constexpr = S.fragment_n // 8
    row += first_row
    fragment = wgmma.join_columns(parts[:PARTS], S.fragment_n)
    if S.transposed:
        fragment = fragment.permute((1, 0))
    other = fragment
    if S.gated:
        other = wgmma.join_columns(parts[PARTS:], S.fragment_n)
    if S.tma_store:
        d, alpha, beta, stride_db, stride_dm, stride_dn = epilogue
        if S.plain:
            fragment = gluon_finish(fragment, value, alpha, beta, S.addend, S.activation)
        else:
            fragment, first, second = finish_further(fragment, other, value, epilogue, S)
            if S.outputs > 1:
                store_output(first.to(c_desc.dtype), aux_map, buffer, batch, row, col, first_col,
                             IN_TILE, 1, S.aux_batched, M, N, S)
            if S.outputs > 2:
                store_output(second.to(c_desc.dtype), aux_map, buffer, batch + 1, row, col,
                             first_col, IN_TILE, 2, True, M, N, S)
        store_output(fragment.to(c_desc.dtype), c_map, buffer, batch, row, col, first_col, IN_TILE,
                     0, S.batched, M, N, S)
    else:
        c_row, c_col, rows, cols = origin_in_c(row, col + first_col, M, N, S)
        if S.plain:
            store_tile(c_desc, c, 0, fragment, value, epilogue, batch, split, c_row, c_col, rows,
                       cols, strides, 1, S)
        else:
            fragment, _, _ = finish_further(fragment, other, value, epilogue, S)
            store_finished(c_desc, c, 0, fragment, batch, split, c_row, c_col, rows, cols, strides,
                           S)


@gluon.jit
def multiply(acc, first, last, it, rows, peer, ELEMENT: gl.constexpr, S: gl.constexpr):
    """(acc + the products of the steps of a unit, of which the last is not complete; stages used so
    far). Releases each stage while the next one is multiplied. ``rows``: byte offset of the
    consumer's rows of A in a stage."""
    for step in range(first, last):
        stage = it % S.stages
        offset = S.stage_bytes * stage
        a = wgmma.matrix_descriptor(offset + rows, S.a_t)
        b = wgmma.matrix_descriptor(offset + 128 * S.block_m, not S.b_t)
        barriers.wait(8 * (S.full_barriers + stage), (it // S.stages) & 1)
        acc = wgmma.mma(acc, a, b, S.block_n // 8, S.accumulators, S.a_t, S.b_t, ELEMENT)
        release((it + S.stages - 1) % S.stages, step, first, peer, S)
        it += 1
    return acc, it


@gluon.jit
def multiply_across(acc, first, last, it, rows, peer, S: gl.constexpr):
    """The same of TF32 with A stored across K, whose elements are loaded a step ahead; every
    product is complete and every stage released."""
    N8: gl.constexpr = S.block_n // 8
    if first < last:  # a split of K may be empty
        barriers.wait(8 * (S.full_barriers + it % S.stages), (it // S.stages) & 1)
    acc, a = wgmma_across.load(acc, S.stage_bytes * (it % S.stages) + rows, N8, S.accumulators)
    for step in range(first, last):
        stage = it % S.stages
        b = wgmma.matrix_descriptor(S.stage_bytes * stage + 128 * S.block_m, not S.b_t)
        acc = wgmma_across.multiply(acc, a, b, N8, S.accumulators)
        # After the last step its own stage once more: a consumer knows of none behind it.
        ahead = it + (step + 1 < last).to(gl.int32)
        barriers.wait(8 * (S.full_barriers + ahead % S.stages), (ahead // S.stages) & 1)
        acc, a = wgmma_across.load(acc, S.stage_bytes * (ahead % S.stages) + rows, N8,
                                   S.accumulators)
        release(stage, 1, 0, peer, S)
        it += 1
    return acc, it


@gluon.jit
def compute_unit(result, maps, shared, sizes, unit, it, turn, rank, peer, ELEMENT: gl.constexpr,
                 S: gl.constexpr, CONSUMER: gl.constexpr):
    """Multiplies stage after stage of one unit, releases each while the next one is multiplied, and
    stores this consumer's rows of the tile. Returns the number of stages used so far.

    A function of its own, because Triton visits the body of a loop twice, first to find the values
    that the loop carries."""
    M, N, K, batches = sizes
    c_desc, c, strides, epilogue, further, exponents = result
    FIRST_ROW: gl.constexpr = 0 if S.pingpong else CONSUMER * S.rows
    N8: gl.constexpr = S.block_n // 8
    SECOND_HALF: gl.constexpr = S.columns // 8  # in a gated product's accumulator
    A_IN_REGISTERS: gl.constexpr = S.a_t and ELEMENT == "tf32"
    batch, row, col = origin_of(unit, rank, M, N, batches, S)
    split, first, last = k_range_of(unit, rank, M, N, K, batches, S)
    own_turn = True
    if S.pingpong:
        own_turn = turn % 2 == CONSUMER
    if own_turn:
        acc = wgmma.zeros(N8 * S.accumulators)
        if S.pingpong:
            barriers.wait(8 * (S.turn_barriers + CONSUMER), ((turn // 2) & 1) ^ (1 - CONSUMER))
        if A_IN_REGISTERS:
            acc, it = multiply_across(acc, first, last, it, 128 * FIRST_ROW, peer, S)
        else:
            acc, it = multiply(acc, first, last, it, 128 * FIRST_ROW, peer, ELEMENT, S)
        row += FIRST_ROW
        col += rank % S.cluster_k * S.columns
        # Some of what the epilogue reads is loaded while the last product is computed.
        values = ()
        if S.scaled:
            values = split_store.load_early(exponents, batch, row, col, M, N, S)
        else:
            for fragment in gl.static_range(S.early_fragments):
                values += (load_fragment_of_d(epilogue, further, batch, row + row_of(fragment, S),
                                              col + column_of(fragment, S), M, N, S),)
        acc = wgmma.wait_all(acc, N8 * S.accumulators)
        if not A_IN_REGISTERS:
            release((it + S.stages - 1) % S.stages, last, first, peer, S)
        if S.pingpong:
            barriers.arrive(8 * (S.turn_barriers + 1 - CONSUMER), 1)
        if S.cluster_k > 1:
            acc = reduce_in_cluster(acc, shared, rank, S, CONSUMER)
        if S.scaled:
            split_store.store(acc, c, strides, exponents, values, epilogue, split, batch, row, col,
                              M, N, S)
        else:
            for fragment in gl.static_range(S.fragments):
                if S.loads_d and fragment + S.early_fragments < S.fragments:
                    values += (load_fragment_of_d(
                        epilogue, further, batch, row + row_of(fragment + S.early_fragments, S),
                        col + column_of(fragment + S.early_fragments, S), M, N, S),)
                if S.tma_store:
                    store_buffer.wait_free(store_buffer.stores_left(fragment, S), S)
                # Bounds of slices are written out: one in a variable would be no constant.
                parts = acc[first_part(fragment, S):end_part(fragment, S)]
                if S.gated:
                    parts += acc[SECOND_HALF + first_part(fragment, S):
                                 SECOND_HALF + end_part(fragment, S)]
                buffer = store_buffer.offset_of(fragment, CONSUMER, S)
                first_row, first_col = row_of(fragment, S), column_of(fragment, S)
                store_fragment(result, maps, parts, values[fragment] if S.loads_d else 0.0, buffer,
                               batch, split, row, col, first_row, first_col, M, N,
                               column_in_tile(fragment, S), S)
    else:
        it += last - first
    return it


@gluon.jit
def consumer(a_desc, result, shared, sizes, S: gl.constexpr, CONSUMER: gl.constexpr):
    """Computes and stores this consumer's rows of each unit's tile, or every other tile."""
    M, N, K, batches = sizes
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
    c_map, aux_map = rank, rank  # never used
    if S.tma_store:
        c_map = tensor_map_address(S.symbol, S.map_of_c)
        if S.outputs > 1:
            aux_map = tensor_map_address(S.symbol, S.map_of_aux)
    units = units_of(M, N, batches, S)
    it = 0
    turn = 0
    for unit in range(gl.program_id(0) // S.programs, units, gl.num_programs(0) // S.programs):
        it = compute_unit(result, (c_map, aux_map), shared, sizes, unit, it, turn, rank, peer,
                          ptx_name(a_desc.dtype), S, CONSUMER)
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
