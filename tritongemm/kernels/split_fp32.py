"""float32 operands split into fp16 parts in scratch, and the guard that computes what the parts
cannot represent: their launches. What they do is said in ``device/split_fp32.py`` and
``device/guard.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.device import LINE_BYTES, DeviceSpec
from tritongemm.kernels.constraints import Constraint
from tritongemm.kernels.epilogue import NO_EPILOGUE, epilogue_of_launch
from tritongemm.kernels.launch import (
    Descriptor,
    Geometry,
    Launch,
    Pointer,
    Scalar,
    dependence,
    edge_mask,
    in_memory,
    operand_strides,
)
from tritongemm.kernels.reduce import TileTarget, partials_bytes
from tritongemm.kernels.symbol import epilogue_words
from tritongemm.problem import GemmProblem, divisor_of

#: Scratch that a call may take, bytes: the parts of two operands of 16,384 squared, and the partial
#: sums of a split K.
MAX_SPLIT_SCRATCH_BYTES = 2**32
#: The least exponent of a flagged row (``device/split_fp32.py``).
FLAGGED = 32768.0
#: Elements of fp16 in a line: rows of the parts begin on lines.
_LEAD = 64
#: Elements of a block that a thread has: of rows whose K is contiguous, and of strips, blocks of
#: rows that are contiguous themselves (with more, a program's loads are fewer: 151 us for two
#: operands of 4096 squared with 4, 200 with 8, on an H100).
_PER_THREAD, _PER_THREAD_OF_STRIP = 16, 4
#: Rows of a strip: a line of float32; half of one where there would be fewer strips than SMs.
_STRIP, _NARROW_STRIP = 32, 16
#: Warps of a program that splits strips; that splits rows longer than this, or shorter ones.
_STRIP_WARPS, _NARROW_STRIP_WARPS, _ROW_WARPS, _SHORT_ROW_WARPS, _SHORT_ROW = 32, 16, 8, 4, 1024
#: Tiles of the guard that a program looks at together.
_LOOK = 16


class GuardTile(NamedTuple):
    """The tile that the guard computes, and the programs that an SM holds."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int
    programs_per_sm: int


_SMALL_GUARD = GuardTile(64, 64, 32, 4, 3, 2)
#: Its program takes all registers of an SM.
_LARGE_GUARD = GuardTile(128, 64, 32, 8, 3, 1)


@dataclass(frozen=True)
class SplitOperand:
    """An operand's parts in scratch.

    Attributes:
        rows: M for A, N for B. batches: matrices that are split, 1 for a broadcast batch.
        across: they are stored across K: [K, lead], else [rows, lead].
        offset, exponents: where the parts and the exponents begin in scratch, bytes.
        lead, matrix: elements from one row as stored, and from one matrix, to the next.
    """

    name: str
    rows: int
    k: int
    batches: int
    across: bool
    offset: int
    exponents: int
    lead: int
    matrix: int

    @property
    def stored(self) -> tuple[int, int]:
        """(rows, columns) of a matrix of the parts as it lies in memory."""
        return (self.k, self.rows) if self.across else (self.rows, self.k)

    @property
    def strides(self) -> tuple[int, int, int]:
        """Elements from one matrix, row and element of K to the next; 0 for the matrix of a
        broadcast batch."""
        row, k = (1, self.lead) if self.across else (self.lead, 1)
        return self.matrix if self.batches > 1 else 0, row, k

    def map_of(self, parts: int, box_rows: int) -> Descriptor:
        """The tensor map of all parts: [parts * batches, rows or K, K or rows]."""
        return Descriptor(f"{self.name}_desc", "scratch", "fp16",
                          (parts * self.batches, *self.stored), (self.matrix, self.lead, 1),
                          (1, 64, 64), True, self.offset, (1, 64 if self.across else box_rows, 64))

    def exponents_at(self) -> Pointer:
        """The exponents as a kernel's argument."""
        return Pointer(f"{self.name}_exponents", "scratch", "fp32", 16, self.exponents)


@dataclass(frozen=True)
class SplitOperands:
    """Both operands' parts, and what scratch they and the partial sums take, bytes."""

    a: SplitOperand
    b: SplitOperand
    parts: int
    scratch_bytes: int


def parts_of(problem: GemmProblem) -> int:
    """fp16 parts of an element: 2, or 1 where TF32's accuracy is asked for."""
    return 1 if problem.precision == "tf32" else 2


def split_operands(problem: GemmProblem, config: KernelConfig,
                   geometry: Geometry | None) -> SplitOperands:
    """Where the parts lie: behind the partial sums of a split K. Without a geometry no batch is
    taken for a broadcast one."""
    parts, at, operands = parts_of(problem), partials_bytes(problem, config.split_k), {}
    for name, rows, across, stride in (
            ("a", problem.m, problem.layout[0] == "t", geometry and geometry.ab),
            ("b", problem.n, problem.layout[1] == "n", geometry and geometry.bb)):
        batches = 1 if stride == 0 else problem.batch
        outer, inner = (problem.k, rows) if across else (rows, problem.k)
        lead = -(-inner // _LEAD) * _LEAD
        at = -(-at // LINE_BYTES) * LINE_BYTES
        exponents = at + 2 * parts * batches * outer * lead
        operands[name] = SplitOperand(name, rows, problem.k, batches, across, at, exponents, lead,
                                      outer * lead)
        at = exponents + 4 * batches * rows
    return SplitOperands(operands["a"], operands["b"], parts, at)


def _scratch(problem, config, device):
    need = split_operands(problem, config, None).scratch_bytes
    if need <= MAX_SPLIT_SCRATCH_BYTES:
        return None
    return (f"the parts of both operands and split_k={config.split_k} take {need} bytes of "
            f"scratch; at most {MAX_SPLIT_SCRATCH_BYTES}. Use a kernel that takes no copies, such "
            "as tiled")


scratch = Constraint("scratch", _scratch, of_problem=True)


def exponents_in(problem: GemmProblem, config: KernelConfig,
                 geometry: Geometry) -> tuple[slice, slice]:
    """Where the exponents of A's rows and B's columns lie in a call's scratch, bytes. Those from
    :data:`FLAGGED` on are of rows and columns that the guard computed."""
    split = split_operands(problem, config, geometry)
    return tuple(slice(x.exponents, x.exponents + 4 * x.batches * x.rows)  # type: ignore
                 for x in (split.a, split.b))


def _strip(split: SplitOperands, device: DeviceSpec) -> int:
    """Rows of a strip."""
    strips = sum(-(-x.rows // _STRIP) * x.batches for x in (split.a, split.b) if x.across)
    return _STRIP if strips >= device.num_sms // 2 else _NARROW_STRIP


def _warps(split: SplitOperands, strip: int) -> int:
    """Warps of a program."""
    if split.a.across or split.b.across:
        return _STRIP_WARPS if strip == _STRIP else _NARROW_STRIP_WARPS
    return _SHORT_ROW_WARPS if split.a.k <= _SHORT_ROW else _ROW_WARPS


def _block(operand: SplitOperand, strip: int, warps: int) -> tuple[int, int, bool]:
    """(rows, elements of K, whether these are all) of a block."""
    k = 1 << max(4, (operand.k - 1).bit_length())
    # With 32 warps a thread has 64 registers: half the elements, or they spill (Triton 3.6).
    kept = 32 * _PER_THREAD * warps // (2 if warps == 32 else 1)
    if operand.across:
        if strip * k <= kept and strip == _NARROW_STRIP:
            return strip, k, True
        step = 32 * _PER_THREAD_OF_STRIP * warps // strip
        return (strip, k, True) if k <= step else (strip, step, False)
    if k > kept:
        return 1, kept, False
    return min(kept // k, 1 << (operand.rows - 1).bit_length()), k, True


def _source(problem: GemmProblem, geometry: Geometry, operand: str) -> Pointer:
    return in_memory(operand, operand, "fp32", getattr(problem, f"align_{operand}"), geometry)


def split_launch(problem: GemmProblem, config: KernelConfig, geometry: Geometry,
                 device: DeviceSpec, split: SplitOperands) -> Launch:
    """The launch that splits both operands."""
    g, arguments, constants, blocks = geometry, [], [], []
    strip = _strip(split, device)
    warps = _warps(split, strip)
    strides = {"a": (g.ab, g.am, g.ak), "b": (g.bb, g.bn, g.bk)}
    for operand in (split.a, split.b):
        x = operand.name
        batch, row, k = strides[x]
        rows, step, whole = _block(operand, strip, warps)
        aligned = max(1, getattr(problem, f"align_{x}") // 4)
        # Threads that cannot load 16 bytes of a row do not store 16 either: neighbours would read
        # words far apart.
        stored = divisor_of(operand.lead, 16) if aligned == 4 else 2
        arguments += [
            _source(problem, g, x),
            Pointer(f"{x}_parts", "scratch", "fp16", 2 * min(stored, 8), operand.offset),
            operand.exponents_at(), Scalar(f"rows_{x}", operand.rows, divisor_of(
                operand.rows, aligned) if operand.across else 1),
            Scalar(f"batch_{x}", batch, divisor_of(batch, aligned)),
            Scalar(f"row_{x}", row, divisor_of(row, aligned), fold=True,
                   wide=operand.rows * row >= 2**31),
            Scalar(f"k_{x}", k, divisor_of(k, aligned), fold=True, wide=step * k >= 2**31),
            Scalar(f"lead_{x}", operand.lead, stored, wide=step * operand.lead >= 2**31),
            Scalar(f"matrix_{x}", operand.matrix, stored), Scalar(f"batches_{x}", operand.batches)]
        constants += [(f"ALONG_{x.upper()}", not operand.across), (f"WHOLE_{x.upper()}", whole),
                      (f"BLOCK_ROWS_{x.upper()}", rows), (f"BLOCK_K_{x.upper()}", step)]
        blocks.append(-(-operand.rows // rows) * operand.batches)
    k = problem.k
    arguments += [Scalar("K", k, divisor_of(k, 4)), Scalar("blocks_a", blocks[0])]
    return Launch(
        "tritongemm.kernels.device.split_fp32", "split_fp32", tuple(arguments),
        (*constants, ("PARTS", split.parts),
         # Strips take longest.
         ("B_FIRST", split.b.across and not split.a.across)), (sum(blocks), 1, 1), warps, 1,
        f"tritongemm_split_{problem.precision}_{problem.layout}", **dependence(config, device))


def _programs(rows: int, columns: int, most: int) -> int:
    """Programs of the guard for rows by columns of tiles, which they take by turns. Where there are
    more tiles than ``most``: the largest number above half of it that has no divisor in common with
    ``columns``, so that the tiles of a column fall to different programs; else ``most``."""
    if rows * columns <= most:
        return rows * columns
    return next((x for x in range(most, most // 2, -1) if math.gcd(x, columns) == 1), most)


def _guard_of(problem: GemmProblem, device: DeviceSpec) -> GuardTile:
    """The large tile where the guard multiplies parts and small tiles are more than the SMs. Beside
    a program with a small one a program of the next launch fits on an SM. Both add up K in equal
    steps, by equal instructions of 64 rows and 64 columns a group of four warps."""
    small = _SMALL_GUARD
    tiles = -(-problem.m // small.rows) * problem.batch * -(-problem.n // small.columns)
    return small if problem.precision == "tf32" or tiles <= device.num_sms else _LARGE_GUARD


def guard_launch(problem: GemmProblem, config: KernelConfig, geometry: Geometry,
                 device: DeviceSpec, split: SplitOperands, c: TileTarget) -> Launch:
    """The launch that computes flagged rows and columns into ``c``: C, or the parts of a split
    K."""
    m, n, g = problem.m, problem.n, geometry
    align_a, align_b = max(1, problem.align_a // 4), max(1, problem.align_b // 4)
    tile = _guard_of(problem, device)
    vec_m = divisor_of(m, align_a) if g.am == 1 else 1
    vec_n = divisor_of(n, align_b) if g.bn == 1 else 1
    extra, epilogue = ((), NO_EPILOGUE)
    if config.split_k == 1:
        extra, epilogue = epilogue_of_launch(problem, g)
    arguments = (
        _source(problem, g, "a"), _source(problem, g, "b"), c.pointer,
        split.a.exponents_at(), split.b.exponents_at(),
        Scalar("M", m, vec_m), Scalar("N", n, vec_n),
        Scalar("K", problem.k, divisor_of(problem.k, max(align_a, align_b))),
        Scalar("batches", problem.batch), Scalar("mask_m", edge_mask(m)),
        Scalar("mask_n", edge_mask(n)), *operand_strides(g, tile.step, align_a, align_b),
        Scalar("stride_cb", c.batch), Scalar("stride_cm", c.row, divisor_of(c.row, c.align)),
        Scalar("stride_cn", c.column, 1, fold=True), Scalar("stride_cs", c.part))
    programs = _programs(-(-m // tile.rows) * problem.batch, -(-n // tile.columns),
                         tile.programs_per_sm * device.num_sms)
    words = epilogue_words(problem) if config.split_k == 1 else ()
    return Launch(
        "tritongemm.kernels.device.guard", "guard", (*arguments, *extra),
        (("VEC_M", vec_m), ("VEC_N", vec_n), ("BLOCK_M", tile.rows), ("BLOCK_N", tile.columns),
         ("BLOCK_K", tile.step), ("LOOK", _LOOK), ("SPLIT_K", config.split_k),
         ("BATCHED_A", split.a.batches > 1), ("BATCHED_B", split.b.batches > 1),
         ("TF32", problem.precision == "tf32"), ("INTERPRETED", False), *epilogue),
        (programs, 1, 1), tile.warps, tile.stages,
        "_".join(("tritongemm_guard", problem.precision, problem.layout, *words)),
        **dependence(config, device))
