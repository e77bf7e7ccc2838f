"""complex64 products as one float32 product of arranged operands: its problem and its launches.

With A = Ar + i Ai and B = Br + i Bi, the real numbers of C = A B, in the order in which they lie in
memory, are one real product:

    [Cr Ci]_mn = [Ar Ai]_mk [ Br  Bi]
                            [-Bi  Br]_kn

of M by 2 N by 2 K. Its left operand is A as it lies in memory, where that is contiguous along K,
and its result is C, so only B is arranged, into scratch of twice its size; an A with another
stride along K is copied. Conjugation is a sign in the arranged B:

    [ Br  Bi]   conj(A) B: [Br  Bi]   A conj(B): [Br -Bi]   conj(A) conj(B): [ Br -Bi]
    [-Bi  Br]              [Bi -Br]              [Bi  Br]                    [-Bi -Br]

The float32 product is any config of any kernel: splitting, guard and epilogue are its own, and so
is the error bound, |C - exact| <= bound * |A| |B| of the arranged operands, for either part. The
four real products of an element are those that cuBLAS adds, so that infinities and NaN come out
as they do there: inf * 0 in one of the four is NaN, other than in C's Annex G.
"""

from __future__ import annotations

from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import LINE_BYTES, DeviceSpec
from tritongemm.errors import UnsupportedError
from tritongemm.kernels import spec_named
from tritongemm.kernels.launch import (
    SCRATCH,
    Argument,
    Descriptor,
    Geometry,
    Launch,
    Pointer,
    Scalar,
    dependence,
)
from tritongemm.problem import FULL_ALIGNMENT, MAX_EXTENT, GemmProblem, epilogue_of

#: Bytes of an element, and elements of a line.
_SIZE = 8
_PER_LINE = LINE_BYTES // _SIZE
#: What a program arranges.
_BLOCK_ROWS, _BLOCK_COLS = 32, 64
#: Microseconds that a launch adds to those behind it.
_LAUNCH_US = 2.0


def float32_problem(problem: GemmProblem) -> GemmProblem:
    """The float32 problem of a complex64 one: M by 2 N by 2 K.

    Raises:
        UnsupportedError: other formats beside complex64, an activation, an extent or an address
            that the arranged operands cannot have.
    """
    dtypes = {problem.dtype_a, problem.dtype_b, problem.dtype_out}
    if dtypes != {"c64"} or not problem.plain or problem.two_strides != "none":
        raise UnsupportedError(f"{problem}: complex64 is multiplied by complex64 only, into "
                               "complex64, without scales and groups, with one stride along the "
                               "batch")
    epilogue = epilogue_of(problem.epilogue)
    if epilogue.activation != "none" or epilogue.multiplies or not epilogue.plain:
        raise UnsupportedError(f"{problem}: complex64 has the epilogues scale, bias and add alone")
    if max(2 * problem.n, 2 * problem.k) > MAX_EXTENT:
        raise UnsupportedError(f"{problem}: twice an extent does not fit 32 bits")
    if min(problem.align_a, problem.align_b) < _SIZE:
        raise UnsupportedError(f"{problem}: an operand begins at no multiple of {_SIZE} bytes")
    return GemmProblem(
        problem.m, 2 * problem.n, 2 * problem.k, problem.batch, "fp32", "fp32", "fp32",
        "n" + problem.layout[1], problem.align_a if problem.layout[0] == "n" else FULL_ALIGNMENT,
        FULL_ALIGNMENT, problem.align_c, problem.epilogue, problem.precision)


def arranging_us(problem: GemmProblem, device: DeviceSpec) -> float:
    """An estimate of the time that arranging takes, microseconds: B is read and written twice as
    large, a transposed A is copied, and the float32 product reads them again."""
    size = 3 * _SIZE * problem.k * problem.n * problem.batch
    if problem.layout[0] == "t":
        size += 2 * _SIZE * problem.m * problem.k * problem.batch
    return _LAUNCH_US + (size / (1e3 * device.memory_gbps) if device.memory_gbps else 0.0)


def complex_launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
                     g: Geometry) -> tuple[Launch, ...]:
    """The launches that arrange B, and A where it must be, and those of the float32 product.

    Raises:
        UnsupportedError: as :func:`float32_problem`; a result, or a D, whose rows have gaps.
        ConstraintError: a config that is illegal for the float32 product.
    """
    real = float32_problem(problem)
    addend = epilogue_of(problem.epilogue)
    for what, stride, read in (("the result", g.cn, True), ("the input", g.dn, addend.reads_d)):
        if read and stride != 1 and problem.n > 1:
            raise UnsupportedError(f"{problem}: rows of {what} have gaps")
    flip_a, flip_b = (-1 if x else 1 for x in g.conjugated)
    along_n = problem.layout[1] == "n"
    # (r, i) becomes (r, first i) and (second i, third r): the rows of the arranged matrix above,
    # or its columns where B is stored along K.
    first, second, third = ((flip_b, -flip_a * flip_b, flip_a) if along_n else
                            (-flip_a * flip_b, flip_b, flip_a))
    signs = (first < 0) | (second < 0) << 1 | (third < 0) << 2
    rows, cols = (problem.k, problem.n) if along_n else (problem.n, problem.k)
    strides = (g.bb, g.bk, g.bn) if along_n else (g.bb, g.bn, g.bk)
    moves = [_Move("b", rows, cols, 1 if g.bb == 0 else problem.batch, strides, signs, True)]
    in_place = problem.layout[0] == "n" and (g.ak == 1 or problem.k == 1)
    if not in_place:
        moves.append(_Move("a", problem.m, problem.k, 1 if g.ab == 0 else problem.batch,
                           (g.ab, g.am, g.ak), 0, False))
    b = moves[0]
    along, across = (2 * b.lead, 1) if along_n else (1, 2 * b.lead)
    left = (2 * g.ab, 2 * g.am, 1) if in_place else (2 * moves[1].step, 2 * moves[1].lead, 1)
    g = replace(g, ab=left[0], am=left[1], ak=1, bb=2 * b.step, bk=along, bn=across, cb=2 * g.cb,
                cm=2 * g.cm, cn=1, db=2 * g.db, dm=2 * g.dm, dn=int(addend.reads_d),
                conjugated=(False, False))
    spec = spec_named(config.kernel)
    spec.require(real, config, device)
    launches = spec.launches(real, config, device, g)
    at, offsets = max(launch.scratch_bytes for launch in launches), {}
    for move in moves:
        offsets[move.operand] = at = -(-at // LINE_BYTES) * LINE_BYTES
        at += move.bytes
    arranging = tuple(move.launch(config, device, offsets[move.operand], getattr(
        problem, f"align_{move.operand}")) for move in moves)
    product = tuple(replace(launch, arguments=tuple(_moved(x, offsets) for x in launch.arguments))
                    for launch in launches)
    return tuple(replace(launch, scratch_bytes=at) for launch in (*arranging, *product))


def _moved(x: Argument, offsets: dict[str, int]) -> Argument:
    """An argument of the float32 product; one that reads an arranged operand finds it in
    scratch."""
    if not isinstance(x, (Pointer, Descriptor)) or x.operand not in offsets:
        return x
    return replace(x, operand=SCRATCH, offset=x.offset + offsets[x.operand])


class _Move:
    """One operand's copy in scratch: ``rows`` by ``cols`` of complex elements, ``paired`` two rows
    for each. ``lead`` and ``step``: elements from one row, and from one matrix, to the next."""

    def __init__(self, operand: str, rows: int, cols: int, batches: int,
                 strides: tuple[int, int, int], signs: int, paired: bool) -> None:
        self.operand, self.rows, self.cols, self.batches = operand, rows, cols, batches
        self.strides, self.signs, self.paired = strides, signs, paired
        self.lead = -(-cols // _PER_LINE) * _PER_LINE
        matrix = self.lead * rows * (1 + paired)
        self.step = matrix if batches > 1 else 0
        self.bytes = _SIZE * matrix * batches

    def launch(self, config: KernelConfig, device: DeviceSpec, offset: int, align: int) -> Launch:
        """The launch that fills it."""
        batch, row, col = self.strides
        blocks = -(-self.rows // _BLOCK_ROWS) * -(-self.cols // _BLOCK_COLS) * self.batches
        return Launch(
            "tritongemm.kernels.device.arrange_complex", "arrange_complex",
            (Pointer("x", self.operand, "fp32", align),
             Pointer("target", SCRATCH, "fp32", FULL_ALIGNMENT, offset),
             Scalar("rows", self.rows), Scalar("cols", self.cols), Scalar("stride_batch", batch),
             Scalar("stride_row", row, fold=True),
             Scalar("stride_col", col, fold=True, wide=self.cols * col >= 2**31),
             Scalar("lead", self.lead, 16), Scalar("matrix", self.step),
             Scalar("signs", self.signs)),
            (("PAIRED", self.paired), ("BLOCK_ROWS", _BLOCK_ROWS), ("BLOCK_COLS", _BLOCK_COLS)),
            (blocks, 1, 1), 4, 1, "tritongemm_arrange_complex", **dependence(config, device))
