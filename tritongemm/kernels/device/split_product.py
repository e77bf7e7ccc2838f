"""Hopper: float32 products by fp16 tensor-core products of operands that ``split_fp32`` has split.

    C = 2^-(ea_i + eb_j) (A_hi B_hi + (A_hi B_lo + A_lo B_hi) / 2048)

A producer warp loads the four tiles of a step of 64 along K by TMA; each consumer warpgroup
multiplies 64 rows by BLOCK_N columns. The tensor core truncates its float32 sums. The product
A_hi B_hi of one step is therefore accumulated there from 0, and then added, rounded to nearest, to
a float32 accumulator in registers. The term that is left out, A_lo B_lo / 2^22, is at most 2^-22 of
|A| |B|; the part of an element that hi and lo do not represent is at most 2^-23 of it, for A and
for B.

With SEPARATE the small products A_hi B_lo + A_lo B_hi have an accumulator of their own in the
tensor core for all of K, where truncation weighs 2^-11 as much; the main sum is added while they
are computed. Without it, both use one set of registers, which leaves room for wider tiles: while
one consumer adds, the products of another run. With PARTS 1, A_hi B_hi alone has the accuracy of
TF32.

Rows and columns that the split pass flagged are not stored (the ``guard`` computes them).
"""

from dataclasses import dataclass, fields

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import barriers, multicast, wgmma
from tritongemm.kernels.device.dependent_launch import (
    gluon_release,
    gluon_wait,
    gluon_wait_after,
)
from tritongemm.kernels.device.hopper import fence_async_shared, mbarrier
from tritongemm.kernels.device.operand_types import gluon_require_operands
from tritongemm.kernels.device.split_steps import multiply
from tritongemm.kernels.device.split_store import load_early, store
from tritongemm.kernels.device.symbol import symbol
from tritongemm.kernels.device.tile_scheduler import k_range_of, origin_of, units_of

#: Barriers that fit behind the stages: a full and an empty one for each.
MAX_BARRIERS = gl.constexpr(32)
#: With PARTS 1, steps that the tensor core accumulates before the sum moves to registers: 512 of K,
#: over which truncation adds nothing to the error of TF32.
STEPS_PER_SUM = gl.constexpr(8)


@dataclass(frozen=True)
class SplitConstants:
    """The kernel's constants and what follows from them, as ``tile_constants.Constants``."""

    a_t: gl.constexpr
    b_t: gl.constexpr
    batched: gl.constexpr
    batched_a: gl.constexpr
    batched_b: gl.constexpr
    parts: gl.constexpr
    separate: gl.constexpr
    block_m: gl.constexpr
    block_n: gl.constexpr
    b_rows: gl.constexpr
    stage_bytes: gl.constexpr
    group_m: gl.constexpr
    split_k: gl.constexpr
    stages: gl.constexpr
    paired_c: gl.constexpr
    addend: gl.constexpr
    activation: gl.constexpr
    release: gl.constexpr
    symbol: gl.constexpr

    @property
    def consumers(self):
        """Consumer warpgroups, 64 rows of the tile each."""
        return self.block_m // 64

    @property
    def b_offset(self):
        """Rows of 128 bytes of a stage before B's: the parts of A."""
        return self.block_m * self.parts

    @property
    def full_barriers(self):
        """Number of the first barrier of full stages, in units of 8 bytes of shared memory."""
        return self.stages * self.stage_bytes // 8

    @property
    def empty_barriers(self):
        """Number of the first barrier of empty stages."""
        return self.full_barriers + self.stages

    @property
    def fragment_n(self):
        """Columns that are finished and stored together."""
        n = self.block_n.value
        return gl.constexpr(min(n & -n, 32))

    # What ``split_store`` reads.
    @property
    def accumulators(self):
        return gl.constexpr(1)

    @property
    def early_fragments(self):
        return gl.constexpr(0)

    # What ``barriers.init`` reads.
    @property
    def empty_arrivals(self):
        return 4 * self.consumers

    @property
    def pingpong(self):
        return False

    # What ``tile_scheduler`` reads.
    @property
    def tile_n(self):
        return self.block_n

    @property
    def block_k(self):
        return gl.constexpr(64)

    @property
    def cluster_k(self):
        return gl.constexpr(1)

    @property
    def cluster_m(self):
        return gl.constexpr(1)

    @property
    def cluster_n(self):
        return gl.constexpr(1)

    def mangle(self):
        return "_".join(str(getattr(self, field.name).value) for field in fields(self))


@gluon.constexpr_function
def constants_of(*constants):
    return SplitConstants(*map(gl.constexpr, constants))


@gluon.jit
def matrix_of(batch, BATCHED: gl.constexpr):
    """The matrix of an operand that a batch multiplies: 0 where one serves all of them."""
    if BATCHED:
        return batch
    else:
        return 0


@gluon.jit
def load_tile(map_, offset, barrier, matrix, row, k, ROWS: gl.constexpr, ACROSS: gl.constexpr):
    """Starts the copies of a tile of one part of an operand to byte ``offset`` of shared memory: a
    box, or, stored ACROSS K, one for each swizzle atom of 64 rows."""
    if ACROSS:
        for atom in gl.static_range(ROWS // 64):
            multicast.copy_box(map_, offset + 8192 * atom, barrier, 0, False, matrix, k,
                               row + 64 * atom, 1)
    else:
        multicast.copy_box(map_, offset, barrier, 0, False, matrix, row, k, 1)


@gluon.jit
def producer(shared, sizes, S: gl.constexpr):
    """Loads stage after stage of each unit, each as soon as its consumers have released it."""
    M, N, K, batches = sizes
    a_map = multicast.tensor_map_address(S.symbol, 0)
    b_map = multicast.tensor_map_address(S.symbol, 7)
    units = units_of(M, N, batches, S)
    matrices_a, matrices_b = batches, batches
    if not S.batched_a:
        matrices_a = 1
    if not S.batched_b:
        matrices_b = 1
    it = 0
    start = gl.program_id(0)
    batch, row, col = origin_of(start, 0, M, N, batches, S)
    gluon_wait_after(batch | row | col)
    for unit in range(start, units, gl.num_programs(0)):
        # Not carried from one unit to the next: a loop's bounds would be those of the first one
        # (Triton 3.6 and 3.7).
        _, first, last = k_range_of(unit, 0, M, N, K, batches, S)
        matrix_a, matrix_b = matrix_of(batch, S.batched_a), matrix_of(batch, S.batched_b)
        for step in range(first, last):
            stage = it % S.stages
            mbarrier.wait(shared.index(S.empty_barriers + stage), ((it // S.stages) & 1) ^ 1)
            barrier = 8 * (S.full_barriers + stage)
            barriers.expect(barrier, S.stage_bytes)
            offset = S.stage_bytes * stage
            for part in gl.static_range(S.parts):
                load_tile(a_map, offset + 128 * S.block_m * part, barrier,
                          matrix_a + matrices_a * part, row, 64 * step, S.block_m, S.a_t)
                load_tile(b_map, offset + 128 * (S.b_offset + S.b_rows * part), barrier,
                          matrix_b + matrices_b * part, col, 64 * step, S.b_rows, not S.b_t)
            it += 1
        batch, row, col = origin_of(unit + gl.num_programs(0), 0, M, N, batches, S)
    if S.release == 1:
        gluon_release()


@gluon.jit
def wait_full(it, S: gl.constexpr, CONSUMER: gl.constexpr):
    """Waits until a stage is full. Returns the matrix descriptors of the hi parts: of this
    consumer's rows of A, and of B."""
    stage = it % S.stages
    offset = S.stage_bytes * stage
    a = wgmma.matrix_descriptor(offset + 8192 * CONSUMER, S.a_t)
    b = wgmma.matrix_descriptor(offset + 128 * S.b_offset, not S.b_t)
    barriers.wait(8 * (S.full_barriers + stage), (it // S.stages) & 1)
    return a, b


@gluon.jit
def sum_three_products(it, first, last, S: gl.constexpr, CONSUMER: gl.constexpr):
    """The sum over steps ``first`` to ``last`` of the three products of hi and lo parts."""
    accs = wgmma.zeros(S.block_n // 8 * (2 if S.separate else 1))
    for _ in range(first, last):
        a, b = wait_full(it, S, CONSUMER)
        accs = multiply(accs, a, b, S)
        barriers.arrive(8 * (S.empty_barriers + it % S.stages), 1)
        it += 1
    return accs, it


@gluon.jit
def sum_hi_products(it, first, last, S: gl.constexpr, CONSUMER: gl.constexpr):
    """The sum over steps ``first`` to ``last`` of the product of the hi parts, which moves from the
    tensor core to registers every STEPS_PER_SUM steps. A stage is released while the next one is
    multiplied."""
    N8: gl.constexpr = S.block_n // 8
    sums = wgmma.zeros(N8)
    for start in range(first, last, STEPS_PER_SUM):
        acc = wgmma.zeros(N8)
        for step in range(start, gl.minimum(start + STEPS_PER_SUM, last)):
            a, b = wait_full(it, S, CONSUMER)
            acc = wgmma.mma(acc, a, b, N8, 1, S.a_t, S.b_t, "f16")
            barriers.arrive(8 * (S.empty_barriers + (it + S.stages - 1) % S.stages), step - first)
            it += 1
        acc = wgmma.wait_all(acc, N8)
        added = ()
        for i in gl.static_range(N8):
            added = added + (sums[i] + acc[i],)
        sums = added
    barriers.arrive(8 * (S.empty_barriers + (it + S.stages - 1) % S.stages), last - first)
    return sums, it


@gluon.jit
def consumer(c, strides, exponents, epilogue, sizes, S: gl.constexpr, CONSUMER: gl.constexpr):
    """Multiplies stage after stage of each unit and stores its 64 rows of the tile."""
    M, N, K, batches = sizes
    gluon_wait()
    units = units_of(M, N, batches, S)
    it = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        batch, row, col = origin_of(unit, 0, M, N, batches, S)
        split, first, last = k_range_of(unit, 0, M, N, K, batches, S)
        if S.parts == 1:
            accs, it = sum_hi_products(it, first, last, S, CONSUMER)
        else:
            accs, it = sum_three_products(it, first, last, S, CONSUMER)
        row += 64 * CONSUMER
        early = load_early(exponents, batch, row, col, M, N, S)
        store(accs, c, strides, exponents, early, epilogue, split, batch, row, col, M, N, S)
    if S.release == 2:
        gluon_release()


@gluon.jit(repr=symbol)
def split_product(a_desc, b_desc, c, a_exponents, b_exponents, M, N, K, batches, stride_cb,
                  stride_cm, stride_cn, stride_cs, d, alpha, beta, stride_db, stride_dm, stride_dn,
                  A_T: gl.constexpr, B_T: gl.constexpr, BATCHED: gl.constexpr,
                  BATCHED_A: gl.constexpr, BATCHED_B: gl.constexpr, PARTS: gl.constexpr,
                  SEPARATE: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                  B_ROWS: gl.constexpr, STAGE_BYTES: gl.constexpr, GROUP_M: gl.constexpr,
                  SPLIT_K: gl.constexpr, STAGES: gl.constexpr, PAIRED_C: gl.constexpr,
                  CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
                  ADDEND: gl.constexpr, ACTIVATION: gl.constexpr, RELEASE: gl.constexpr,
                  SYMBOL: gl.constexpr):
    """C[batch, M, N] = A @ B and its epilogue. A's parts are [PARTS * batch, M, K] fp16, or, with
    A_T, [PARTS * batch, K, M], B's [PARTS * batch, K, N] or, with B_T, [PARTS * batch, N, K]; all
    hi parts come first. BATCHED: C has several matrices; an operand that is not BATCHED_A or
    BATCHED_B has one for all of them. The exponents are float32, [batch or 1, M] and
    [batch or 1, N]. With SPLIT_K > 1, C is [SPLIT_K, batch, M, N] float32. B_ROWS: rows of 128
    bytes of one part of B in a stage, which has STAGE_BYTES. PAIRED_C: two neighbours of a row of C
    may be stored at once."""
    S: gl.constexpr = constants_of(
        A_T, B_T, BATCHED, BATCHED_A, BATCHED_B, PARTS, SEPARATE, BLOCK_M, BLOCK_N, B_ROWS,
        STAGE_BYTES, GROUP_M, SPLIT_K, STAGES, PAIRED_C, ADDEND, ACTIVATION, RELEASE, SYMBOL)
    gluon_require_operands(a_desc.dtype, b_desc.dtype, "fp16")
    # Elements of eight bytes, each of which may be a barrier; the rest is reached by address.
    shared = gl.allocate_shared_memory(gl.int64, [S.full_barriers + MAX_BARRIERS, 1],
                                       mbarrier.MBarrierLayout())
    barriers.init(8 * S.full_barriers, S)
    fence_async_shared()
    sizes = M, N, K, batches
    strides = stride_cb, stride_cm, stride_cn, stride_cs
    exponents = a_exponents, b_exponents
    epilogue = d, alpha, beta, stride_db, stride_dm, stride_dn
    if S.consumers == 1:
        gl.warp_specialize([
            (consumer, (c, strides, exponents, epilogue, sizes, S, gl.constexpr(0))),
            (producer, (shared, sizes, S)),
        ], [1], [PRODUCER_REGISTERS])
    elif S.consumers == 2:
        gl.warp_specialize([
            (consumer, (c, strides, exponents, epilogue, sizes, S, gl.constexpr(0))),
            (consumer, (c, strides, exponents, epilogue, sizes, S, gl.constexpr(1))),
            (producer, (shared, sizes, S)),
        ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
    else:
        gl.warp_specialize([
            (consumer, (c, strides, exponents, epilogue, sizes, S, gl.constexpr(0))),
            (consumer, (c, strides, exponents, epilogue, sizes, S, gl.constexpr(1))),
            (consumer, (c, strides, exponents, epilogue, sizes, S, gl.constexpr(2))),
            (producer, (shared, sizes, S)),
        ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS])
