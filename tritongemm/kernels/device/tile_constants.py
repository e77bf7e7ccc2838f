"""The Hopper kernel's constants as one object for its partitions. What they say of shared memory is
derived on the host (``kernels.warp_tile``), once.
"""

from dataclasses import dataclass, fields

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@dataclass(frozen=True)
class Constants:
    """Constants of the kernel ``warp_specialized``, each a ``gl.constexpr``: in one object, since a
    list of partitions is written out for each number of them."""

    a_t: gl.constexpr
    b_t: gl.constexpr
    batched: gl.constexpr
    two_strides: gl.constexpr
    transposed: gl.constexpr
    tma_store: gl.constexpr
    evict_first: gl.constexpr
    vector: gl.constexpr
    row_columns: gl.constexpr
    subtile: gl.constexpr
    block_m: gl.constexpr
    block_n: gl.constexpr
    block_k: gl.constexpr
    rows: gl.constexpr
    fragment_n: gl.constexpr
    epilogue_n: gl.constexpr
    store_buffers: gl.constexpr
    group_m: gl.constexpr
    split_k: gl.constexpr
    scaled: gl.constexpr
    batched_a: gl.constexpr
    batched_b: gl.constexpr
    stages: gl.constexpr
    consumers: gl.constexpr
    pingpong: gl.constexpr
    cluster_k: gl.constexpr
    cluster_m: gl.constexpr
    cluster_n: gl.constexpr
    chunks_per_stage: gl.constexpr
    one_buffer: gl.constexpr
    stage_bytes: gl.constexpr
    a_box: gl.constexpr
    b_box: gl.constexpr
    partials_offset: gl.constexpr
    store_offset: gl.constexpr
    store_bytes: gl.constexpr
    barriers_offset: gl.constexpr
    early_fragments: gl.constexpr
    paired_c: gl.constexpr
    paired_d: gl.constexpr
    addend: gl.constexpr
    activation: gl.constexpr
    gated: gl.constexpr
    gate_last: gl.constexpr
    residual: gl.constexpr
    extra: gl.constexpr
    release: gl.constexpr
    symbol: gl.constexpr

    @property
    def a_boxes(self):
        """Boxes of A in a stage: one for each consumer's rows."""
        return self.block_m // self.rows

    @property
    def b_rows(self):
        """Rows of 128 bytes that B has in a stage."""
        return self.stage_bytes // 128 - self.block_m

    @property
    def accumulators(self):
        """Accumulators of 64 rows of a consumer, in one buffer."""
        return self.rows // 64

    @property
    def separate(self):
        """Whether small products have sums of their own, as in ``split_product``."""
        return False

    @property
    def tile_n(self):
        """Columns of C of a tile: of a gated product half as many as of B."""
        return self.block_n // 2 if self.gated else self.block_n

    @property
    def columns(self):
        """Columns of C that a program stores."""
        return self.tile_n // self.cluster_k

    @property
    def plain(self):
        """Whether the epilogue is an addend and an activation."""
        return not self.gated and not self.residual and self.extra.value == "none"

    @property
    def loads_d(self):
        """Whether fragments are given D, or the pair that further epilogues take."""
        return not self.plain or (self.addend != "none" and self.addend != "scale")

    @property
    def outputs(self):
        """Matrices that are stored: C, and with an auxiliary output the halves of a gated product's
        or the one of another."""
        if self.extra.value != "aux":
            return 1
        return 3 if self.gated else 2

    @property
    def fragments(self):
        """Fragments of FRAGMENT_N columns of one accumulator that a consumer finishes, one after
        the other."""
        return self.accumulators * self.columns // self.fragment_n

    @property
    def programs(self):
        """Programs of a cluster."""
        return self.cluster_k * self.cluster_m * self.cluster_n

    @property
    def multicasts(self):
        """Whether the programs of a cluster share operands."""
        return self.cluster_m * self.cluster_n > 1

    @property
    def batch_axes(self):
        """Axes of the tensor maps of A and B that are the batch."""
        return 2 if self.two_strides else 1 if self.batched else 0

    @property
    def aux_batched(self):
        """Whether the auxiliary output's tensor map holds several matrices."""
        return self.gated if self.gated else self.batched

    @property
    def map_of_b(self):
        """The parameter that is B's tensor map: A's is 0, followed by its extents and strides."""
        return 5 + 2 * self.batch_axes

    @property
    def map_of_c(self):
        """The parameter that is C's tensor map."""
        return self.map_of_b + (7 if self.gated else 5 + 2 * self.batch_axes)

    @property
    def map_of_aux(self):
        """The parameter that is the auxiliary output's tensor map."""
        return self.map_of_c + (7 if self.batched else 5)

    @property
    def full_barriers(self):
        """Number of the first barrier of full stages, in units of 8 bytes of the one buffer."""
        return self.barriers_offset // 8

    @property
    def empty_barriers(self):
        """Number of the first barrier of empty stages; several buffers have an array for each."""
        return self.full_barriers + self.stages if self.one_buffer else 0

    @property
    def turn_barriers(self):
        """Number of the first ping-pong barrier in one buffer."""
        return self.empty_barriers + self.stages

    @property
    def received_barriers(self):
        """Number of the first barrier of partial sums received; a cluster that shares K has no
        ping-pong."""
        return self.empty_barriers + self.stages

    @property
    def summed_barriers(self):
        """Number of the first barrier of partial sums that their receivers have read."""
        return self.received_barriers + self.consumers

    @property
    def empty_arrivals(self):
        """Arrivals that empty a stage: of each consumer; in one buffer of each of its warps; in a
        cluster of those of each program that loads into it or is loaded into by it."""
        if self.multicasts:
            return 4 * self.consumers * (self.cluster_m + self.cluster_n - 1)
        return (4 if self.one_buffer else 1) * (1 if self.pingpong else self.consumers)

    def mangle(self):
        return "_".join(str(getattr(self, field.name).value) for field in fields(self))


@gluon.constexpr_function
def constants_of(*constants):
    return Constants(*map(gl.constexpr, constants))
