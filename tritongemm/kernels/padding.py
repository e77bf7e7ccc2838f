"""Operands that TMA cannot read, or reads slowly, copied to aligned scratch by one
launch before it.

Only the operand that needs it is copied; rows keep their extent and get a leading dimension of
whole 128-byte lines. The copies live in the call's scratch: nothing outlives the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tritongemm.config import KernelConfig
from tritongemm.device import LINE_BYTES, SECTOR_BYTES, DeviceSpec
from tritongemm.kernels.launch import (
    Descriptor,
    Geometry,
    Launch,
    Pointer,
    Scalar,
    dependence,
)
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem, dtype_of

#: What a program copies at most.
_BLOCK_ROWS, _BLOCK_COLS = 8, 512


@dataclass(frozen=True)
class Padding:
    """The copy's launch, the problem and geometry that the product then sees, and where the
    copies lie in scratch (bytes)."""

    launch: Launch
    problem: GemmProblem
    geometry: Geometry
    offsets: dict[str, int]
    scratch_bytes: int

    def moved(self, descriptor: Descriptor) -> Descriptor:
        """The tensor map over the copy, where its operand was copied."""
        if descriptor.operand not in self.offsets:
            return descriptor
        return replace(descriptor, operand="scratch", offset=self.offsets[descriptor.operand])


def _lead(problem: GemmProblem, operand: str) -> int:
    """Elements between rows of the copy."""
    per_line = LINE_BYTES // dtype_of(getattr(problem, f"dtype_{operand}")).itemsize
    return -(-problem.stored(operand)[1] // per_line) * per_line


def within_sectors(problem: GemmProblem, operand: str) -> bool:
    """Whether rows of the operand begin inside a sector of the L2, where they have no gaps.

    Such rows cost TMA half its rate: 4088 cubed runs at two thirds of 4096 cubed's
    speed, 8176 cubed (rows of whole sectors, but not of whole lines) as fast as 8192 cubed.
    """
    lead = problem.leading_dimensions()[operand == "b"]
    bits = dtype_of(getattr(problem, f"dtype_{operand}")).bits
    return lead * bits % (8 * SECTOR_BYTES) != 0


def copied(problem: GemmProblem, pad_operands: int) -> list[str]:
    """The operands that ``pad_operands`` copies: 1: those that TMA cannot read, 2:
    those that it reads slowly too."""
    return [x for x in ("a", "b") if pad_operands
            and (getattr(problem, f"align_{x}") < FULL_ALIGNMENT
                 or (pad_operands > 1 and within_sectors(problem, x)))]


def _bytes(problem: GemmProblem, operand: str) -> int:
    rows = problem.stored(operand)[0] * problem.batch
    size = dtype_of(getattr(problem, f"dtype_{operand}")).itemsize
    return -(-rows * _lead(problem, operand) * size // LINE_BYTES) * LINE_BYTES


def padded_bytes(problem: GemmProblem, pad_operands: int) -> int:
    """Scratch of the copies, bytes."""
    return sum(_bytes(problem, x) for x in copied(problem, pad_operands))


def padded_elements(problem: GemmProblem, pad_operands: int) -> float:
    """Elements of the copies."""
    return sum(_bytes(problem, x) / dtype_of(getattr(problem, f"dtype_{x}")).itemsize
               for x in copied(problem, pad_operands))


def pad_operands(problem: GemmProblem, config: KernelConfig, geometry: Geometry,
                 device: DeviceSpec, start: int) -> Padding:
    """Copies of the operands that need one, from byte ``start`` of scratch on."""
    start = -(-start // LINE_BYTES) * LINE_BYTES
    offsets, strides, dense, arguments, blocks = {}, {}, {}, [], []
    wanted = copied(problem, config.pad_operands)
    widest = max(problem.stored(x)[1] for x in wanted)
    block_cols = min(_BLOCK_COLS, 1 << max(5, (widest - 1).bit_length()))
    for x in ("a", "b"):
        dtype = getattr(problem, f"dtype_{x}")
        size = dtype_of(dtype).itemsize
        rows, cols = problem.stored(x)
        lead = _lead(problem, x)
        if x in wanted:
            offsets[x] = start
            start += _bytes(problem, x)
            blocks.append(-(-rows * problem.batch // _BLOCK_ROWS) * -(-cols // block_cols))
            strides[x] = (rows * lead, lead)
        else:
            blocks.append(0)
        batch_stride, outer, inner = _strides(problem, geometry, x)
        dense[x] = inner == 1 and size == 2
        # What divides the rows' distance in the copy is not told: each thread would then store 16
        # bytes, and a warp's reads of words that begin anywhere would be spread over lines.
        arguments += [
            Pointer(f"{x}", x, dtype, size),
            Pointer(f"{x}_copy", "scratch" if x in offsets else x, dtype, size, offsets.get(x, 0)),
            Scalar(f"rows_{x}", rows), Scalar(f"cols_{x}", cols),
            Scalar(f"batch_{x}", batch_stride), Scalar(f"outer_{x}", outer),
            Scalar(f"inner_{x}", inner, fold=True, wide=cols * inner >= 2**31),
            Scalar(f"lead_{x}", lead)]
    arguments += [Scalar("blocks_a", blocks[0]), Scalar("batches", problem.batch)]
    launch = Launch(
        "tritongemm.kernels.device.pad", "pad_operands", tuple(arguments),
        (("COPY_A", blocks[0] > 0), ("COPY_B", blocks[1] > 0), ("BATCHED", problem.batch > 1),
         ("DENSE_A", dense["a"]), ("DENSE_B", dense["b"]), ("BLOCK_ROWS", _BLOCK_ROWS),
         ("BLOCK_COLS", block_cols)),
        (sum(blocks), 1, 1), 4, 1, f"tritongemm_pad_{problem.operands}_{''.join(offsets)}",
        **dependence(config, device))
    aligned = replace(problem, align_a=FULL_ALIGNMENT, align_b=FULL_ALIGNMENT)
    return Padding(launch, aligned, _padded(problem, geometry, strides), offsets, start)


def _strides(problem: GemmProblem, g: Geometry, operand: str) -> tuple[int, int, int]:
    """(batch, between rows as stored, along a row) of an operand, elements."""
    if operand == "a":
        return (g.ab, g.am, g.ak) if problem.layout[0] == "n" else (g.ab, g.ak, g.am)
    return (g.bb, g.bk, g.bn) if problem.layout[1] == "n" else (g.bb, g.bn, g.bk)


def _padded(problem: GemmProblem, g: Geometry, strides: dict[str, tuple[int, int]]) -> Geometry:
    """The geometry with the copies' strides in place of the originals'."""
    if "a" in strides:
        batch, lead = strides["a"]
        am, ak = (lead, 1) if problem.layout[0] == "n" else (1, lead)
        g = replace(g, ab=batch, am=am, ak=ak)
    if "b" in strides:
        batch, lead = strides["b"]
        bk, bn = (lead, 1) if problem.layout[1] == "n" else (1, lead)
        g = replace(g, bb=batch, bk=bk, bn=bn)
    return g
