"""The launch that adds the parts of a split K, in a fixed order. They are kept as the compute mode
accumulates: float32."""

from __future__ import annotations

from typing import NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.formats import format_of
from tritongemm.kernels.epilogue import epilogue_of_launch
from tritongemm.kernels.launch import (
    Geometry,
    Launch,
    Pointer,
    Scalar,
    dependence,
)
from tritongemm.kernels.symbol import epilogue_words
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem, divisor_of

#: Elements of the result that a program of 128 threads adds, and parts of them that it loads.
_MAX_BLOCK, _MIN_BLOCK, _LOADS = 1024, 64, 8192
#: Bytes of shared memory that the pass takes at most: a block of sums on its way to the store.
REDUCE_BYTES = 4 * _MAX_BLOCK


def partials_bytes(problem: GemmProblem, split: int) -> int:
    """Scratch of [split, batch, M, N] partial sums, bytes; none without a split."""
    if split == 1:
        return 0
    return format_of(problem.compute.accumulator).bytes_of(
        split * problem.batch * problem.m * problem.n)


def split_to_fill(programs: int, slots: int, steps: int, most: int = 16) -> int:
    """Parts of a K of ``steps`` that rule defaults take: doubled up to ``most`` as long as all
    programs have a slot then and each part has four steps or more."""
    split = 1
    while split < most and programs * split * 2 <= slots and steps >= 8 * split:
        split *= 2
    return split


class TileTarget(NamedTuple):
    """Where the tiles of a product go: a pointer, and the strides of its batch, rows, columns and
    parts, elements."""

    pointer: Pointer
    batch: int
    row: int
    column: int
    part: int

    @property
    def align(self) -> int:
        """Elements that divide the addresses of rows."""
        return format_of(self.pointer.dtype).elements_of(self.pointer.align)

    @property
    def pairs(self) -> bool:
        """Whether two float32 values of a row may be stored at once."""
        return (self.column == 1 and self.pointer.dtype == "fp32" and self.pointer.align >= 8
                and (self.row | self.batch | self.part) % 2 == 0)


def target_of(problem: GemmProblem, config: KernelConfig, geometry: Geometry) -> TileTarget:
    """C, or with a split its parts in scratch.

    Args:
        problem: as it was asked for, whose C [M, N] the parts are laid out like.
        geometry: of what the kernel stores: the transposed product's with ``swap_ab=1``.
    """
    if config.split_k == 1:
        pointer = Pointer("c", "c", problem.dtype_out, problem.align_c)
        return TileTarget(pointer, geometry.cb, geometry.cm, geometry.cn, 0)
    row, column = (1, problem.n) if config.swap_ab == 1 else (problem.n, 1)
    matrix = problem.m * problem.n
    return TileTarget(_partials("c", problem), matrix, row, column, problem.batch * matrix)


def _partials(name: str, problem: GemmProblem) -> Pointer:
    """The partial sums in scratch, whose base is as aligned as torch's allocator makes it."""
    return Pointer(name, "scratch", problem.compute.accumulator, FULL_ALIGNMENT)


def reduce_launch(problem: GemmProblem, config: KernelConfig, geometry: Geometry,
                  device: DeviceSpec) -> Launch:
    """C [batch, M, N] = sum of the parts in ``scratch``, and the epilogue."""
    m, n, g, split = problem.m, problem.n, geometry, config.split_k
    total = problem.batch * m * n
    arguments = (
        _partials("partials", problem),
        Pointer("c", "c", problem.dtype_out, problem.align_c),
        Scalar("M", m), Scalar("N", n, divisor_of(n, 8)), Scalar("total", total,
                                                                 divisor_of(total, 8)),
        Scalar("stride_cb", g.cb, divisor_of(g.cb, 8)),
        Scalar("stride_cm", g.cm, divisor_of(g.cm, 8)), Scalar("stride_cn", g.cn, 1, fold=True))
    extra, epilogue = epilogue_of_launch(problem, g)
    parts = 1 << (split - 1).bit_length()  # what tl.arange takes
    block = min(_MAX_BLOCK, max(_MIN_BLOCK, _LOADS // parts))
    furthest = (problem.batch - 1) * max(g.cb, g.db) + g.max_offset(problem)
    constants = (("SPLIT_K", split), ("PARTS", parts), ("BLOCK", block),
                 ("INDEX64", furthest >= 2**31 or total * split >= 2**31), *epilogue)
    symbol = "_".join((f"tritongemm_reduce_k{split}", *epilogue_words(problem)))
    return Launch("tritongemm.kernels.device.reduce", "reduce_splits", (*arguments, *extra),
                  constants, (-(-total // block), 1, 1), 4, 1, symbol,
                  **dependence(config, device))
