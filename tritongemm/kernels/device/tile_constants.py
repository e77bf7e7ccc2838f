"""The Hopper kernel's constants, and what follows from them: rows, columns, where things lie in the
one buffer. What the host counts of the same is ``warp_tile``.
"""

from dataclasses import dataclass, fields

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

#: Room for barriers in one buffer: 13 stages, ready and empty, and two for each of three consumers.
MOST_BARRIERS = gl.constexpr(32)


@dataclass(frozen=True)
class Constants:
    """What a partition must know of the kernel's constants, each a ``gl.constexpr``: in one object,
    since a list of partitions is written out for each number of them."""

    a_t: gl.constexpr
    b_t: gl.constexpr
    batched: gl.constexpr
    turned: gl.constexpr
    tma_store: gl.constexpr
    streams: gl.constexpr
    vector: gl.constexpr
    stored: gl.constexpr
    subtile: gl.constexpr
    block_m: gl.constexpr
    block_n: gl.constexpr
    part: gl.constexpr
    panel: gl.constexpr
    places: gl.constexpr
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
    pairs: gl.constexpr
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
    def accumulators(self):
        """Accumulators of 64 rows of a consumer, in one buffer."""
        return self.rows // 64

    @property
    def rows_b(self):
        """Columns of B that a stage has room for: those stored across K come in whole rows of
        64."""
        if not self.one_buffer or self.b_t:
            return self.block_n
        return -(-self.block_n // 64) * 64

    @property
    def columns(self):
        """Columns of C that a program stores."""
        return self.block_n // self.cluster_k

    @property
    def parts(self):
        """Parts that a consumer finishes, of all its rows."""
        return self.accumulators * self.columns // self.part

    @property
    def one_buffer(self):
        return self.block_n & (self.block_n - 1) != 0 or self.programs > 1 or self.turned

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
    def map_of_c(self):
        return 2 * self.map_of_b

    @property
    def exchanged(self):
        """Bytes, behind the stages, of what the programs of a cluster that share K send."""
        return 256 * self.block_n * self.consumers if self.cluster_k > 1 else 0

    @property
    def staged(self):
        """The byte where the one buffer's panels of C begin, behind what is exchanged."""
        return self.stages * self.stage_bytes + self.exchanged

    @property
    def staged_bytes(self):
        """Bytes of a consumer's panels: of all its columns, or of those that have a place."""
        if self.subtile == 1:
            return 128 * self.columns * self.accumulators
        return 128 * self.panel * self.places

    @property
    def readies(self):
        """The first barrier, of stages that are ready: in one buffer they lie behind the panels."""
        if not self.one_buffer:
            return 0
        return (self.staged + (self.consumers * self.staged_bytes if self.tma_store else 0)) // 8

    @property
    def empties(self):
        """The first barrier of stages that are empty: in one buffer all barriers are in one
        place."""
        return self.readies + self.stages if self.one_buffer else 0

    @property
    def others(self):
        """Behind these in one buffer: a consumer's turn, or what a cluster exchanges."""
        return self.empties + self.stages if self.one_buffer else 0

    @property
    def stage_bytes(self):
        """Bytes from one stage's operands to the next one's: rows of 128."""
        return 128 * (self.block_m + self.rows_b)

    @property
    def releases(self):
        """Arrivals that empty a stage: of each consumer; in one buffer of its warps; in a cluster
        of those of each program that loads into it or is loaded into by it."""
        if self.shares:
            return 4 * self.consumers * (self.cluster_m + self.cluster_n - 1)
        return (4 if self.one_buffer else 1) * (1 if self.pingpong else self.consumers)

    def mangle(self):
        return "_".join(str(getattr(self, field.name).value) for field in fields(self))


@gluon.constexpr_function
def constants_of(*constants):
    return Constants(*map(gl.constexpr, constants))
