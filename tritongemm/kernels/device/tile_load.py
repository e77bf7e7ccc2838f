"""How a stage of operands comes to the Hopper kernel's shared memory: by the copy engine, in boxes;
where a cluster shares operands, each program's part for all that need it (``multicast``).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import multicast
from tritongemm.kernels.device.hopper import tma_load


@gluon.jit
def load(desc, batch, row, k, barrier, buffer, ACROSS: gl.constexpr, BATCHED: gl.constexpr):
    """Starts the copy of one box; a side stored ACROSS K has its rows along the inner axis, and a
    batch is the outermost axis of the tensor map."""
    if ACROSS:
        outer, inner = k, row
    else:
        outer, inner = row, k
    if BATCHED:
        tma_load(desc, [batch, outer, inner], barrier, buffer)
    else:
        tma_load(desc, [outer, inner], barrier, buffer)


@gluon.jit
def sharers(rank, S: gl.constexpr):
    """The programs of the cluster, a bit each, that need this one's rows of A, and those that need
    its columns of B."""
    BESIDE: gl.constexpr = ((1 << S.programs) - 1) // ((1 << S.cluster_m) - 1)
    BELOW: gl.constexpr = (1 << S.cluster_m) - 1
    return BESIDE << rank % S.cluster_m, BELOW << rank // S.cluster_m * S.cluster_m


@gluon.jit
def load_a(desc, bufs, barrier, batch, row, k, stage, S: gl.constexpr):
    """Starts the copies of A's rows of a stage."""
    for piece in gl.static_range(S.pieces):
        load(desc, batch, row + piece * S.rows, k, barrier, bufs.index(S.pieces * stage + piece),
             S.a_t, S.batched)


@gluon.jit
def load_b(desc, bufs, barrier, batch, col, k, stage, S: gl.constexpr):
    """The same of B's columns."""
    load(desc, batch, col, k, barrier, bufs.index(stage), not S.b_t, S.batched)


@gluon.jit
def write_loads(a_map, b_map, batch, row, col, k, stage, rank, S: gl.constexpr):
    """Starts the copies of a stage into the one buffer; of this program's part of what a cluster
    shares."""
    beside, below = sharers(rank, S)
    load_part(a_map, batch, row, k, stage, rank // S.cluster_m % S.cluster_n, beside, 0, S.block_m,
              S.cluster_n, S.a_t, S)
    load_part(b_map, batch, col, k, stage, rank % S.cluster_m, below, S.block_m, S.rows_b,
              S.cluster_m, not S.b_t, S)


@gluon.jit
def load_part(map_, batch, first, k, stage, part, to, BEFORE: gl.constexpr, ROWS: gl.constexpr,
              PARTS: gl.constexpr, ACROSS: gl.constexpr, S: gl.constexpr):
    """Starts the copies of one of the PARTS of an operand's ROWS rows (of B: columns), which begin
    at ``first``, to the programs ``to``. BEFORE: rows of a stage before the operand's.

    A side stored ACROSS K lies in pieces of 64; where these do not divide, their steps of K do."""
    WHOLE: gl.constexpr = not ACROSS or ROWS // 64 % PARTS == 0
    SHARE: gl.constexpr = ROWS // PARTS if WHOLE else ROWS
    BOX: gl.constexpr = 64 if ACROSS else SHARE
    STEPS: gl.constexpr = 0 if WHOLE else 64 // PARTS
    for box in gl.static_range(SHARE // BOX):
        at = box * BOX
        if WHOLE:
            at += part * SHARE
        place = S.stage_bytes * stage + 128 * (BEFORE + at + part * STEPS)
        barrier = 8 * (S.readies + stage)
        if ACROSS:
            multicast.load(map_, place, barrier, to, PARTS > 1, batch, k + part * STEPS, first + at,
                           S.batched)
        else:
            multicast.load(map_, place, barrier, to, PARTS > 1, batch, first + at, k, S.batched)
