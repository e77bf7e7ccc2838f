"""The launches, arguments and constants of pointer kernels that have a program for each tile of
C."""

from __future__ import annotations

from collections.abc import Sequence

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels.launch import (
    Argument,
    Geometry,
    Launch,
    Scalar,
    dependence,
    edge_mask,
    in_memory,
    operand_strides,
)
from tritongemm.kernels.reduce import TileTarget, partials_bytes, reduce_launch
from tritongemm.kernels.symbol import symbol_of
from tritongemm.problem import GemmProblem, divisor_of


def tile_launches(function: str, problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
                  geometry: Geometry, arguments: Sequence[Argument],
                  constants: tuple[tuple[str, object], ...],
                  gluon: bool = False) -> tuple[Launch, ...]:
    """The product, by the ``function`` of the module of that name, and for split_k > 1 the pass
    that adds the parts in a fixed order."""
    split = config.split_k
    tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
    product = Launch(
        f"tritongemm.kernels.device.{function}", function, tuple(arguments), constants,
        (tiles * problem.batch, split, 1), config.num_warps, config.num_stages,
        symbol_of(problem, config), gluon=gluon, **dependence(config, device),
        scratch_bytes=partials_bytes(problem, split))
    if split == 1:
        return (product,)
    return (product, reduce_launch(problem, config, geometry, device))


def tile_arguments(problem: GemmProblem, config: KernelConfig, geometry: Geometry,
                   c: TileTarget) -> tuple[Argument, ...]:
    """A, B, C, the extents and the strides, in the order of the kernels' parameters."""
    m, n, k = problem.m, problem.columns, problem.k
    g, align_a, align_b = geometry, problem.a.elements, problem.b.elements
    # Elements that are contiguous and aligned along an operand's inner axis: what a vectorised
    # load may take at once, where the extent is a multiple too.
    return (
        in_memory("a", "a", problem.dtype_a, problem.align_a, g),
        in_memory("b", "b", problem.dtype_b, problem.align_b, g),
        c.pointer,
        Scalar("M", m, divisor_of(m, align_a) if g.am == 1 else 1),
        Scalar("N", n, divisor_of(n, max(align_b if g.bn == 1 else 1, c.align))),
        Scalar("K", k, divisor_of(k, max(align_a, align_b))),
        Scalar("mask_m", edge_mask(m)), Scalar("mask_n", edge_mask(n)),
        *operand_strides(g, config.block_k, align_a, align_b),
        Scalar("stride_cb", c.batch, divisor_of(c.batch, c.align)),
        Scalar("stride_cm", c.row, divisor_of(c.row, c.align)),
        Scalar("stride_cn", c.column, 1, fold=True),
        Scalar("stride_cs", c.part, divisor_of(c.part, 4)),
    )


def tile_constants(problem: GemmProblem, config: KernelConfig,
                   geometry: Geometry) -> tuple[tuple[str, object], ...]:
    """VEC_M to INDEX64."""
    m, n, k, g = problem.m, problem.columns, problem.k, geometry
    steps, split = -(-k // config.block_k), config.split_k
    return (
        ("VEC_M", divisor_of(m, problem.a.elements) if g.am == 1 else 1),
        ("VEC_N", divisor_of(n, problem.b.elements) if g.bn == 1 else 1),
        ("BLOCK_M", config.block_m), ("BLOCK_N", config.block_n), ("BLOCK_K", config.block_k),
        ("GROUP_M", config.group_m), ("SPLIT_K", split),
        ("EVEN_K", k % config.block_k == 0 and steps % split == 0),
        ("INDEX64", g.max_offset(problem) >= 2**31 or m * n >= 2**31))
