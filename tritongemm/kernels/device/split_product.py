"""Hopper: float32 products by fp16 tensor-core products of operands that ``split_fp32`` has split.

    C = 2^-(ea_i + eb_j) (A_hi B_hi + (A_hi B_lo + A_lo B_hi) / 2048)

A producer warp loads the four tiles of a step of 64 along K by the copy engine; each consumer
warpgroup multiplies 64 rows by BLOCK_N columns. The tensor core truncates its float32 sums, so
products of one step are summed there, from 0, and added to a sum in registers, rounded to nearest.
What is left out, A_lo B_lo / 2^22, is at most 2^-22 of |A| |B|, and what the parts leave of an
element 2^-23 each of A's and B's.

With SEPARATE the small products have sums of their own in the tensor core for all of K, at 2^-11 of
the truncation, and the main sum is moved while they are computed. Else the two take turns with one
set of registers, which leaves room for wider tiles: while a consumer adds, another's products run.
With PARTS 1, A_hi B_hi alone has the accuracy of TF32.

Rows and columns that the split pass has flagged are not stored (``ieee_guard``).
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
from tritongemm.kernels.device.order import gluon_tile_of
from tritongemm.kernels.device.split_steps import multiply
from tritongemm.kernels.device.split_store import store
from tritongemm.kernels.device.symbol import symbol

#: Room for barriers behind the stages: ready and empty of each.
MOST_BARRIERS = gl.constexpr(32)
#: Steps of hi parts alone that are summed in the tensor core: at TF32's accuracy 512 of K add
#: nothing to its error.
CHAIN = gl.constexpr(8)


@dataclass(frozen=True)
class SplitConstants:
    """The kernel's constants and what follows from them, as ``tile_constants.Constants``."""

    a_t: gl.constexpr
    b_t: gl.constexpr
    batched_a: gl.constexpr
    batched_b: gl.constexpr
    parts: gl.constexpr
    separate: gl.constexpr
    block_m: gl.constexpr
    block_n: gl.constexpr
    group_m: gl.constexpr
    split_k: gl.constexpr
    stages: gl.constexpr
    pairs: gl.constexpr
    addend: gl.constexpr
    activation: gl.constexpr
    release: gl.constexpr
    symbol: gl.constexpr

    @property
    def consumers(self):
        return self.block_m // 64

    @property
    def rows_b(self):
        """Rows of 128 bytes that a part of B takes: stored across K in pieces of 64 columns."""
        return self.block_n if self.b_t else -(-self.block_n // 64) * 64

    @property
    def start_of_b(self):
        """Rows of a stage before B's."""
        return self.block_m * self.parts

    @property
    def stage_bytes(self):
        return 128 * self.parts * (self.block_m + self.rows_b)

    @property
    def readies(self):
        """The first barrier, of eight bytes each."""
        return self.stages * self.stage_bytes // 8

    @property
    def empties(self):
        return self.readies + self.stages

    @property
    def finished(self):
        """Columns that are finished and stored together."""
        n = self.block_n.value
        return gl.constexpr(min(n & -n, 32))

    # What ``barriers.init`` asks for.
    @property
    def empty_arrivals(self):
        return 4 * self.consumers

    @property
    def pingpong(self):
        return False

    @property
    def cluster_k(self):
        return 1

    def mangle(self):
        return "_".join(str(getattr(self, field.name).value) for field in fields(self))


@gluon.constexpr_function
def constants_of(*constants):
    return SplitConstants(*map(gl.constexpr, constants))


@gluon.jit
def place_of(unit, M, N, batches, S: gl.constexpr):
    """Unit number -> (part of K, batch, first row, first column)."""
    num_m, num_n = gl.cdiv(M, S.block_m), gl.cdiv(N, S.block_n)
    part, batch, tile = 0, 0, unit
    if S.split_k > 1:
        part = tile // (num_m * num_n * batches)
        tile = tile % (num_m * num_n * batches)
    if S.batched_a or S.batched_b:
        batch = tile // (num_m * num_n)
        tile = tile % (num_m * num_n)
    tile_m, tile_n = gluon_tile_of(tile, num_m, num_n, S.group_m)
    return part, batch, tile_m * S.block_m, tile_n * S.block_n


@gluon.jit
def steps_of(part, K, S: gl.constexpr):
    """The first step of a part of K, and the step behind its last."""
    steps = gl.cdiv(K, 64)
    steps_a_part = gl.cdiv(steps, S.split_k)
    first = gl.minimum(part * steps_a_part, steps)
    return first, gl.minimum(first + steps_a_part, steps)


@gluon.jit
def load_part(map_, place, barrier, matrix, row, k, ROWS: gl.constexpr, ACROSS: gl.constexpr):
    """Starts the copies of the hi or lo tile of an operand to byte ``place`` of shared memory."""
    if ACROSS:
        for piece in gl.static_range(ROWS // 64):
            multicast.copy_box(map_, place + 8192 * piece, barrier, 0, False, matrix, k,
                           row + 64 * piece, True)
    else:
        multicast.copy_box(map_, place, barrier, 0, False, matrix, row, k, True)


@gluon.jit
def producer(ready, sizes, S: gl.constexpr):
    """Fills stage after stage, as soon as its consumers have let go of it."""
    M, N, K, batches = sizes
    a_map = multicast.tensor_map_address(S.symbol, 0)
    b_map = multicast.tensor_map_address(S.symbol, 7)
    units = gl.cdiv(M, S.block_m) * gl.cdiv(N, S.block_n) * batches * S.split_k
    matrices_a, matrices_b = batches, batches
    if not S.batched_a:
        matrices_a = 1
    if not S.batched_b:
        matrices_b = 1
    it = 0
    start = gl.program_id(0)
    _, batch, row, col = place_of(start, M, N, batches, S)
    gluon_wait_after(batch | row | col)
    for unit in range(start, units, gl.num_programs(0)):
        # Not carried from one unit to the next: a loop's bounds would be those of the first one
        # (Triton 3.6 and 3.7).
        part, _, _, _ = place_of(unit, M, N, batches, S)
        first, last = steps_of(part, K, S)
        batch_a, batch_b = batch, batch
        if not S.batched_a:
            batch_a = 0
        if not S.batched_b:
            batch_b = 0
        for step in range(first, last):
            stage = it % S.stages
            mbarrier.wait(ready.index(S.empties + stage), ((it // S.stages) & 1) ^ 1)
            barrier = 8 * (S.readies + stage)
            barriers.expect(barrier, S.stage_bytes)
            at = S.stage_bytes * stage
            for lo in gl.static_range(S.parts):
                load_part(a_map, at + 128 * S.block_m * lo, barrier, batch_a + matrices_a * lo,
                          row, 64 * step, S.block_m, S.a_t)
                load_part(b_map, at + 128 * (S.start_of_b + S.rows_b * lo), barrier,
                          batch_b + matrices_b * lo, col, 64 * step, S.rows_b, not S.b_t)
            it += 1
        _, batch, row, col = place_of(unit + gl.num_programs(0), M, N, batches, S)
    if S.release == 1:
        gluon_release()


@gluon.jit
def await_stage(it, S: gl.constexpr, WHICH: gl.constexpr):
    """Waits until a stage is there: the descriptors of this consumer's rows of A and of B, of
    their hi parts."""
    stage = it % S.stages
    at = S.stage_bytes * stage
    a = wgmma.matrix_descriptor(at + 8192 * WHICH, S.a_t)
    b = wgmma.matrix_descriptor(at + 128 * S.start_of_b, not S.b_t)
    barriers.wait(8 * (S.readies + stage), (it // S.stages) & 1)
    return a, b


@gluon.jit
def sum_of_parts(it, first, last, S: gl.constexpr, WHICH: gl.constexpr):
    """The sums of three products a step, each moved out of the tensor core at once."""
    sums = wgmma.zeros(S.block_n // 8 * (2 if S.separate else 1))
    for _ in range(first, last):
        a, b = await_stage(it, S, WHICH)
        sums = multiply(sums, a, b, S)
        barriers.arrive(8 * (S.empties + it % S.stages), 1)
        it += 1
    return sums, it


@gluon.jit
def sum_of_hi(it, first, last, S: gl.constexpr, WHICH: gl.constexpr):
    """The sum of one product a step, moved out of the tensor core every CHAIN steps. A stage is
    released while the next one is multiplied."""
    N8: gl.constexpr = S.block_n // 8
    sums = wgmma.zeros(N8)
    for start in range(first, last, CHAIN):
        part = wgmma.zeros(N8)
        for step in range(start, gl.minimum(start + CHAIN, last)):
            a, b = await_stage(it, S, WHICH)
            part = wgmma.mma(part, a, b, N8, 1, S.a_t, S.b_t, "f16")
            barriers.arrive(8 * (S.empties + (it + S.stages - 1) % S.stages), step - first)
            it += 1
        part = wgmma.wait_all(part, N8)
        moved = ()
        for i in gl.static_range(N8):
            moved = moved + (sums[i] + part[i],)
        sums = moved
    barriers.arrive(8 * (S.empties + (it + S.stages - 1) % S.stages), last - first)
    return sums, it


@gluon.jit
def consumer(c, strides, scales, epilogue, sizes, S: gl.constexpr, WHICH: gl.constexpr):
    """Multiplies stage after stage and stores a tile's rows."""
    M, N, K, batches = sizes
    gluon_wait()
    units = gl.cdiv(M, S.block_m) * gl.cdiv(N, S.block_n) * batches * S.split_k
    it = 0
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        part, batch, row, col = place_of(unit, M, N, batches, S)
        first, last = steps_of(part, K, S)
        if S.parts == 1:
            sums, it = sum_of_hi(it, first, last, S, WHICH)
        else:
            sums, it = sum_of_parts(it, first, last, S, WHICH)
        store(sums, c, strides, scales, epilogue, (part, batch, row + 64 * WHICH, col), M, N, S)
    if S.release == 2:
        gluon_release()


@gluon.jit(repr=symbol)
def split_product(a_desc, b_desc, c, a_exponents, b_exponents, M, N, K, batches, stride_cb,
                  stride_cm, stride_cn, stride_cs, d, alpha, beta, stride_db, stride_dm, stride_dn,
                  A_T: gl.constexpr, B_T: gl.constexpr, BATCHED_A: gl.constexpr,
                  BATCHED_B: gl.constexpr, PARTS: gl.constexpr, SEPARATE: gl.constexpr,
                  BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP_M: gl.constexpr,
                  SPLIT_K: gl.constexpr, STAGES: gl.constexpr, PAIRS: gl.constexpr,
                  CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
                  ADDEND: gl.constexpr, ACTIVATION: gl.constexpr, RELEASE: gl.constexpr,
                  SYMBOL: gl.constexpr):
    """C[batch, M, N] = A @ B and its epilogue. A's parts are [PARTS * batch, M, K] fp16, or, with
    A_T, [PARTS * batch, K, M], B's [PARTS * batch, K, N] or, with B_T, [PARTS * batch, N, K]; all
    hi parts come first. An operand that is not BATCHED is the same for all. With SPLIT_K > 1, C is
    [SPLIT_K, batch, M, N] float32. PAIRS: two neighbours of a row of C may be stored at once."""
    S: gl.constexpr = constants_of(
        A_T, B_T, BATCHED_A, BATCHED_B, PARTS, SEPARATE, BLOCK_M, BLOCK_N, GROUP_M, SPLIT_K, STAGES,
        PAIRS, ADDEND, ACTIVATION, RELEASE, SYMBOL)
    # Places of eight bytes, each of which may be a barrier; the rest is written by address.
    ready = gl.allocate_shared_memory(gl.int64, [S.readies + MOST_BARRIERS, 1],
                                      mbarrier.MBarrierLayout())
    barriers.init(8 * S.readies, S)
    fence_async_shared()
    sizes = M, N, K, batches
    strides = stride_cb, stride_cm, stride_cn, stride_cs
    scales = a_exponents, b_exponents
    epilogue = d, alpha, beta, stride_db, stride_dm, stride_dn
    if S.consumers == 1:
        gl.warp_specialize([
            (consumer, (c, strides, scales, epilogue, sizes, S, gl.constexpr(0))),
            (producer, (ready, sizes, S)),
        ], [1], [PRODUCER_REGISTERS])
    elif S.consumers == 2:
        gl.warp_specialize([
            (consumer, (c, strides, scales, epilogue, sizes, S, gl.constexpr(0))),
            (consumer, (c, strides, scales, epilogue, sizes, S, gl.constexpr(1))),
            (producer, (ready, sizes, S)),
        ], [4, 1], [CONSUMER_REGISTERS, PRODUCER_REGISTERS])
    else:
        gl.warp_specialize([
            (consumer, (c, strides, scales, epilogue, sizes, S, gl.constexpr(0))),
            (consumer, (c, strides, scales, epilogue, sizes, S, gl.constexpr(1))),
            (consumer, (c, strides, scales, epilogue, sizes, S, gl.constexpr(2))),
            (producer, (ready, sizes, S)),
        ], [4, 4, 1], [CONSUMER_REGISTERS, CONSUMER_REGISTERS, PRODUCER_REGISTERS])
