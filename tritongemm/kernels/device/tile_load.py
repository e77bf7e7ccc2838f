"""How the Hopper kernel's producer fills a stage: TMA loads of A's and B's boxes; in a cluster that
shares operands, each program its share, multicast to its peers (``multicast``).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import tma_load
from tritongemm.kernels.device.multicast import copy_box


@gluon.jit
def load_box(desc, batch, row, k, barrier, buffer, ACROSS: gl.constexpr, S: gl.constexpr):
    """Starts the copy of one box. An operand stored ACROSS K has its rows along the inner axis; the
    batch is the outermost axis of the tensor map, or the two outermost ones."""
    if ACROSS:
        outer, inner = k, row
    else:
        outer, inner = row, k
    if S.batch_axes == 2:
        tma_load(desc, [batch[0], batch[1], outer, inner], barrier, buffer)
    elif S.batch_axes == 1:
        tma_load(desc, [batch, outer, inner], barrier, buffer)
    else:
        tma_load(desc, [outer, inner], barrier, buffer)


@gluon.jit
def load_stage(a_desc, b_desc, a_bufs, b_bufs, barrier, batch, row, col, k, stage,
               S: gl.constexpr):
    """Starts the copies of a stage into Gluon's buffers."""
    for box in gl.static_range(S.a_boxes):
        load_box(a_desc, batch, row + box * S.rows, k, barrier,
                 a_bufs.index(S.a_boxes * stage + box), S.a_t, S)
    load_box(b_desc, batch, col, k, barrier, b_bufs.index(stage), not S.b_t, S)


@gluon.jit
def peers_of(rank, S: gl.constexpr):
    """The programs of the cluster, a bit each, that need the same rows of A as ``rank``, and those
    that need the same columns of B."""
    ALONG_N: gl.constexpr = ((1 << S.programs) - 1) // ((1 << S.cluster_m) - 1)
    ALONG_M: gl.constexpr = (1 << S.cluster_m) - 1
    return ALONG_N << rank % S.cluster_m, ALONG_M << rank // S.cluster_m * S.cluster_m


@gluon.jit
def load_stage_shared(a_map, b_map, batch, row, col, k, stage, rank, S: gl.constexpr):
    """Starts the copies of a stage into the one buffer; of what a cluster shares, this program's
    share."""
    a_peers, b_peers = peers_of(rank, S)
    load_share(a_map, batch, row, k, stage, rank // S.cluster_m % S.cluster_n, a_peers, 0,
               S.block_m, S.cluster_n, S.a_box, S.a_t, S.block_k, S.batch_axes, S)
    if S.gated:  # each half in a matrix of its own; in shared memory the gate's is the first
        for half in gl.static_range(2):
            load_share(b_map, batch + (1 - half if S.gate_last else half), col, k, stage,
                       rank % S.cluster_m, b_peers, S.block_m + half * (S.b_rows // 2),
                       S.b_rows // 2, S.cluster_m, S.b_box, not S.b_t, S.block_k, 1, S)
    else:
        load_share(b_map, batch, col, k, stage, rank % S.cluster_m, b_peers, S.block_m, S.b_rows,
                   S.cluster_m, S.b_box, not S.b_t, S.block_k, S.batch_axes, S)


@gluon.jit
def load_share(map_, batch, first, k, stage, share, peers, BEFORE: gl.constexpr,
               ROWS: gl.constexpr, SHARES: gl.constexpr, BOX: gl.constexpr, ACROSS: gl.constexpr,
               ATOM: gl.constexpr, AXES: gl.constexpr, S: gl.constexpr):
    """Starts the copies of one of the SHARES of an operand's ROWS rows (of B: columns), which begin
    at ``first``, to the programs ``peers``. BEFORE: rows of a stage before the operand's. AXES: the
    axes of the tensor map that are the batch.

    A share is one box of BOX rows; or, of an operand stored ACROSS K, which lies in swizzle atoms
    of ATOM rows (128 bytes), whole atoms where BOX is that, else BOX elements along K of every
    atom."""
    WHOLE: gl.constexpr = not ACROSS or BOX == ATOM
    SHARE_ROWS: gl.constexpr = ROWS // SHARES if WHOLE else ROWS
    SHARE_K: gl.constexpr = 0 if WHOLE else BOX
    BOX_ROWS: gl.constexpr = ATOM if ACROSS else BOX
    for box in gl.static_range(SHARE_ROWS // BOX_ROWS):
        at = box * BOX_ROWS
        if WHOLE:
            at += share * SHARE_ROWS
        offset = S.stage_bytes * stage + 128 * (BEFORE + at + share * SHARE_K)
        barrier = 8 * (S.full_barriers + stage)
        if ACROSS:
            copy_box(map_, offset, barrier, peers, SHARES > 1, batch, k + share * SHARE_K,
                     first + at, AXES)
        else:
            copy_box(map_, offset, barrier, peers, SHARES > 1, batch, first + at, k, AXES)
