"""The work of the persistent Hopper kernel: tiles of C, and with SPLIT_K > 1 ranges of their K."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.order import gluon_tile_of


@gluon.jit
def tiles_of(M, N, S: gl.constexpr):
    """Tiles along M and along N; the tiles that a cluster computes together count as one."""
    return gl.cdiv(M, S.block_m * S.cluster_m), gl.cdiv(N, S.tile_n * S.cluster_n)


@gluon.jit
def units_of(M, N, batches, S: gl.constexpr):
    """Units of work: tiles times splits of K."""
    num_m, num_n = tiles_of(M, N, S)
    return num_m * num_n * batches * S.split_k


@gluon.jit
def origin_of(unit, rank, M, N, batches, S: gl.constexpr):
    """Unit number and rank in the cluster -> (batch, first row, first column) of the tile.

    The split of K is the outermost index, so that programs that run at the same time share
    operands in the L2; within a split tiles go in the grouped order. A division takes about 100
    instructions, so none is made for a split or a batch of one.
    """
    num_m, num_n = tiles_of(M, N, S)
    batch, tile = 0, unit
    if S.split_k > 1:
        tile = tile % (num_m * num_n * batches)
    if S.batched:
        batch = tile // (num_m * num_n)
        tile = tile % (num_m * num_n)
    tile_m, tile_n = gluon_tile_of(tile, num_m, num_n, S.group_m)
    row = tile_m * (S.block_m * S.cluster_m)
    col = tile_n * (S.tile_n * S.cluster_n)
    if S.cluster_m > 1:
        row += rank % S.cluster_m * S.block_m
    if S.cluster_n > 1:
        col += rank // S.cluster_m * S.tile_n
    return batch, row, col


@gluon.jit
def k_range_of(unit, rank, M, N, K, batches, S: gl.constexpr):
    """Unit number and rank in the cluster -> (split, first step, end) along K, in steps of
    BLOCK_K; the end is exclusive."""
    split = 0
    if S.split_k > 1:
        num_m, num_n = tiles_of(M, N, S)
        split = unit // (num_m * num_n * batches)
    steps = gl.cdiv(K, S.block_k)
    steps_per_program = gl.cdiv(steps, S.split_k * S.cluster_k)
    first = gl.minimum((split * S.cluster_k + rank % S.cluster_k) * steps_per_program, steps)
    return split, first, gl.minimum(first + steps_per_program, steps)
