"""What one launch of one kernel is, said as data: arguments, constants, grid, resources.

A spec derives it; ``compile.py`` makes a cubin from its static part, ``driver.py`` packs and
launches it, ``interpret.py`` runs it on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.device import LINE_BYTES, DeviceSpec
from tritongemm.errors import LaunchError
from tritongemm.formats import format_of
from tritongemm.problem import EPILOGUES, FULL_ALIGNMENT, GemmProblem, divisor_of


class View(NamedTuple):
    """How an operand lies in memory: its strides in elements, outermost first, and the bytes, a
    power of two up to 16, that divide its base address."""

    strides: tuple[int, ...]
    align: int = FULL_ALIGNMENT


@dataclass(frozen=True)
class Geometry:
    """Strides of the operands, in elements: A[batch, M, K], B[batch, K, N], C and D[batch, M, N].

    D's are 0 where it is broadcast (a bias [N] is (0, 0, its stride)) and where there is none.
    Of a gated product, which has no batch, ``bb`` and ``db`` are the strides from the gate's half
    of B, and of a bias, to the other one; ``bb`` is negative where the other half is a matrix of
    its own that begins before the gate.
    ``align_d``: bytes, a power of two up to 16 that divides D's base address, and where D is a
    matrix its outer strides in bytes. ``others``: the views of what else a call brings (scales,
    offsets), by name and in the order of their names. ``conjugated``: whether A and B stand for the
    complex conjugates of what is in memory. ``stored_a``: the format of A in memory, where a kernel
    converts it to the problem's; empty: it is the problem's.

    Of a problem with ``two_strides``, matrix ``i`` of the batch begins at ``i // inner *
    outer_a + i % inner * ab`` in A, and so on. ``inner`` is 0 where every operand has one stride.
    """

    ab: int
    am: int
    ak: int
    bb: int
    bk: int
    bn: int
    cb: int
    cm: int
    cn: int
    db: int = 0
    dm: int = 0
    dn: int = 0
    align_d: int = FULL_ALIGNMENT
    others: tuple[tuple[str, View], ...] = ()
    conjugated: tuple[bool, bool] = (False, False)
    stored_a: str = ""
    inner: int = 0
    outer_a: int = 0
    outer_b: int = 0
    outer_c: int = 0

    def view(self, operand: str) -> View:
        """How one of ``others`` lies in memory. Raises :class:`LaunchError` where it is not
        brought."""
        for name, view in self.others:
            if name == operand:
                return view
        brought = ", ".join(name for name, _ in self.others) or "nothing"
        raise LaunchError(f"the kernel reads {operand!r}; beside A, B, C and D this call brings "
                          f"{brought}")

    @classmethod
    def contiguous(cls, problem: GemmProblem) -> Geometry:
        """The strides of gapless operands of the problem's layout.

        Where the problem's alignment is below what the extents give, rows are as they are: only
        a base may be off, which strides do not show. A single matrix has batch strides of 0, as
        a call has: a binary must not depend on a stride that nobody walks. Factors have the shape
        of their operand, with one element for each block: see :func:`_factors`.
        """
        m, n, k, columns = problem.m, problem.n, problem.k, problem.columns
        walked, epilogue = int(problem.batch > 1), EPILOGUES[problem.epilogue]
        am, ak = (k, 1) if problem.layout[0] == "n" else (1, m)
        bk, bn = (n, 1) if problem.layout[1] == "n" else (1, k)
        bb, db, dm, dn = walked * k * n, 0, 0, 0
        if epilogue.d_is_matrix:
            db, dm, dn = walked * m * columns, columns, 1
        elif epilogue.has_vector:
            db, dn = columns * problem.gated, 1
        if problem.gated:
            bb = columns * bn
        return cls(walked * m * k, am, ak, bb, bk, bn, walked * m * columns, columns, 1, db, dm, dn,
                   divisor_of(problem.c.format.bytes_of(dm)),
                   _of_epilogue(problem) if problem.plain else _factors(problem))

    def max_offset(self, problem: GemmProblem) -> int:
        """The largest element offset inside one matrix of the batch, or of both halves of a gated
        product's B."""
        m, n, k = problem.m - 1, problem.columns - 1, problem.k - 1
        other_half = problem.gated * abs(self.bb)
        beside = max((n * abs(view.strides[-1]) for name, view in self.others if name == "bias"),
                     default=0)
        return max(beside, m * self.am + k * self.ak, k * self.bk + n * self.bn + other_half,
                   m * self.cm + n * self.cn, m * self.dm + n * self.dn, 0)


def _of_epilogue(problem: GemmProblem) -> tuple[tuple[str, View], ...]:
    """``aux`` [batch, M, N], of a gated product [2, M, N / 2], which lies in memory as [M, N]; and
    the ``bias`` [N] of an epilogue that has a residual as well."""
    epilogue, m, n = EPILOGUES[problem.epilogue], problem.m, problem.n
    if epilogue.aux:
        first = n // 2 if problem.gated else m * n * (problem.batch > 1)
        return (("aux", View((first, n, 1))),)
    return (("bias", View((1,))),) if epilogue.residual and epilogue.addend == "bias" else ()


def _factors(problem: GemmProblem) -> tuple[tuple[str, View], ...]:
    """``scale_a`` [batch, blocks of rows, blocks of K] and ``scale_b`` [batch, blocks of K, blocks
    of columns], without gaps and without the batch where there is one matrix: a factor a row of A
    is [M, 1], a factor a tensor [1, 1]."""
    found = []
    for name, scale, extent in (("scale_a", problem.a.scale, problem.m),
                                ("scale_b", problem.b.scale, problem.n)):
        if scale is None:
            continue
        along_k = scale.count(1, problem.k)
        across = scale.count(extent, 1)
        inner = along_k if name == "scale_a" else across
        strides = (along_k * across, inner, 1) if problem.batch > 1 else (inner, 1)
        found.append((name, View(strides)))
    return tuple(found)


#: The operand that a plan allocates for its launches.
SCRATCH = "scratch"


@dataclass(frozen=True)
class Pointer:
    """The base address of an operand plus ``offset`` bytes. Operands have names: ``a, b, c, d``,
    others that a kernel reads (``scale_a``), and ``scratch``, which the plan brings."""

    name: str
    operand: str
    dtype: str
    align: int
    offset: int = 0


def in_memory(name: str, operand: str, dtype: str, align: int, geometry: Geometry) -> Pointer:
    """The pointer to A or B in the format that it has in memory. ``align``: bytes that divide its
    address were it of ``dtype``; of a narrower format they cover as many elements."""
    stored = format_of(operand == "a" and geometry.stored_a or dtype)
    return Pointer(name, operand, stored.name,
                   max(1, align * stored.bits // format_of(dtype).bits))


@dataclass(frozen=True)
class Descriptor:
    """A tensor map over an operand as stored: shape and strides in elements, outermost first.

    ``gluon``: the type names the shared layout of the box, as Gluon kernels want it. ``offset``:
    bytes from the operand's base. ``loaded``: the box that the map has, where it is another one
    than the type's. ``rounds``: float32 is rounded to TF32 as it is loaded.
    """

    name: str
    operand: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    gluon: bool = False
    offset: int = 0
    loaded: tuple[int, ...] | None = None
    rounds: bool = False


@dataclass(frozen=True)
class Scalar:
    """An integer argument.

    ``divisor`` is what the compiler may assume divides it (a power of two up to 16); ``fold``:
    a value of 1 becomes a constant, as for the inner stride of an operand; ``wide``: 64 bits
    although the value needs fewer, because products with it need them.
    """

    name: str
    value: int
    divisor: int = 1
    fold: bool = False
    wide: bool = False

    @property
    def type(self) -> str:
        """``i32``, or ``i64`` where the value needs it."""
        return "i32" if -2**31 <= self.value < 2**31 and not self.wide else "i64"

    @property
    def folded(self) -> bool:
        """Whether it is a constant of the binary."""
        return self.fold and self.value == 1


@dataclass(frozen=True)
class Number:
    """A float32 argument, such as ``alpha`` or ``beta``, that each call gives anew."""

    name: str


Argument = Pointer | Descriptor | Scalar | Number


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        module, function: where the device code is.
        arguments: in the order of the kernel's parameters, constants left out.
        constants: the kernel's constexpr parameters.
        grid: programs along x, y, z.
        cluster: of these, neighbours along x that run together and reach each other's memory.
        symbol: the name that profilers show.
        waits: its code waits for its predecessor in the stream before it touches memory.
        dependent: it is launched before its predecessor ends (programmatic dependent launch),
            which only a kernel that waits may be.
        release: when it lets its successor start: ``KernelConfig.dependent_launch``.
        first_shared: bytes of shared memory that must be the first, because device code takes
            their address from that; 0: none.
        scratch_bytes: what ``scratch`` must hold.
    """

    module: str
    function: str
    arguments: tuple[Argument, ...]
    constants: tuple[tuple[str, object], ...]
    grid: tuple[int, int, int]
    num_warps: int
    num_stages: int
    symbol: str
    num_ctas: int = 1
    cluster: int = 1
    maxnreg: int | None = None
    gluon: bool = False
    waits: bool = False
    dependent: bool = False
    release: int = 0
    first_shared: int = 0
    scratch_bytes: int = field(default=0, compare=False)

    def operands(self) -> tuple[str, ...]:
        """The names of what a call must bring: addresses of operands and numbers, in the order of
        the arguments; ``scratch`` is not among them."""
        read = (x.name if isinstance(x, Number) else x.operand for x in self.arguments
                if not isinstance(x, Scalar))
        return tuple(name for name in dict.fromkeys(read) if name != SCRATCH)

    def all_constants(self) -> tuple[tuple[str, object], ...]:
        """The constexpr parameters, the symbol and the folded scalars among them."""
        folded = tuple((x.name, 1) for x in self.arguments if isinstance(x, Scalar) and x.folded)
        named = (("RELEASE", self.release), ("SYMBOL", self.symbol)) if self.gluon else (
            ("DEPENDENT", int(self.waits) + int(self.release > 0)), ("SYMBOL", self.symbol))
        return (*self.constants, *named, *folded)

    def static_key(self) -> dict[str, object]:
        """Everything that the binary depends on, as JSON: two launches with equal keys share it."""
        arguments: list[object] = []
        for x in self.arguments:
            if isinstance(x, Pointer):
                arguments.append([x.name, "*" + format_of(x.dtype).triton_name, x.align])
            elif isinstance(x, Descriptor):
                arguments.append([x.name, descriptor_type(x)])
            elif isinstance(x, Number):
                arguments.append([x.name, "fp32"])
            elif not x.folded:
                arguments.append([x.name, x.type, x.divisor])
        return {"module": self.module, "function": self.function, "arguments": arguments,
                "constants": [list(c) for c in self.all_constants()], "num_warps": self.num_warps,
                "num_stages": self.num_stages, "num_ctas": self.num_ctas,
                "maxnreg": self.maxnreg, "gluon": self.gluon}


def descriptor_type(x: Descriptor, layout: str = "") -> str:
    """Triton's name of a descriptor's type; ``layout`` is a Gluon layout's constructor call."""
    inner = f"{format_of(x.dtype).triton_name}[{', '.join(map(str, x.box))}]"
    return f"tensordesc<{inner},{layout}>" if layout else f"tensordesc<{inner}>"


#: The constants of a pointer kernel whose operands have one stride along the batch.
ONE_STRIDE = tuple((name, None) for name in ("inner", "outer_a", "outer_b", "outer_c"))


def two_batch_strides(problem: GemmProblem, geometry: Geometry, align_a: int, align_b: int,
                      align_c: int) -> tuple[tuple[Scalar, ...], tuple[tuple[str, object], ...]]:
    """The arguments and constants of the batch that a pointer kernel takes, to follow its own
    (``device/batch.py``): the inner extent, and the outer stride of each operand that has two.
    What a launch does not need is a constant, so that one without them compiles as before.
    ``align_*``: elements that divide every address of the operand."""
    if problem.two_strides == "none":
        return (), ONE_STRIDE
    g = geometry
    arguments = [Scalar("inner", g.inner or problem.batch)]
    arguments += [Scalar(f"outer_{x}", outer, divisor_of(outer, align)) for x, outer, align in (
        ("a", g.outer_a, align_a), ("b", g.outer_b, align_b), ("c", g.outer_c, align_c))
        if x in problem.two_strides]
    given = {x.name for x in arguments}
    return tuple(arguments), tuple(x for x in ONE_STRIDE if x[0] not in given)


def as_dot_multiplies(problem: GemmProblem) -> GemmProblem:
    """The problem at the precision at which ``tl.dot`` multiplies it, so that all that it serves in
    the same way share their binaries: ``fp16x3`` at ``ieee``."""
    precision = problem.compute.input_precision
    return problem if problem.precision == precision else replace(problem, precision=precision)


def stage_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """A step's tiles of A and of B in shared memory, each in its own format."""
    return (problem.a.format.bytes_of(config.block_m * config.block_k)
            + problem.b.format.bytes_of(config.block_n * config.block_k))


def elements_of_line(problem: GemmProblem) -> int:
    """Elements along K of a line of the caches, of the wider operand: the usual step of K."""
    return LINE_BYTES * 8 // max(problem.a.format.bits, problem.b.format.bits)


def dependence(config: KernelConfig, device: DeviceSpec) -> dict[str, Any]:
    """``waits``, ``dependent`` and ``release`` of a config's launches: only from sm_90 on."""
    waits = device.arch >= 90
    return {"waits": waits, "dependent": waits, "release": config.dependent_launch * waits}


def edge_mask(extent: int) -> int:
    """Of an extent of M or N: the largest power of two that is at most it, less one. What a tile
    has past the edge is loaded from within by it (``device/edge.py``)."""
    return (1 << max(1, extent).bit_length() - 1) - 1


def operand_strides(g: Geometry, block_k: int, align_a: int, align_b: int) -> tuple[Scalar, ...]:
    """The strides of A and B as a pointer kernel takes them; ``align_*``: elements that divide
    every address of the operand.

    What a step along K moves by must not overflow, though the stride alone fits 32 bits.
    """
    return (
        Scalar("stride_ab", g.ab, divisor_of(g.ab, align_a)),
        Scalar("stride_am", g.am, divisor_of(g.am, align_a), fold=True),
        Scalar("stride_ak", g.ak, divisor_of(g.ak, align_a), fold=True,
               wide=block_k * g.ak >= 2**31),
        Scalar("stride_bb", g.bb, divisor_of(g.bb, align_b)),
        Scalar("stride_bk", g.bk, divisor_of(g.bk, align_b), fold=True,
               wide=block_k * g.bk >= 2**31),
        Scalar("stride_bn", g.bn, divisor_of(g.bn, align_b), fold=True))
