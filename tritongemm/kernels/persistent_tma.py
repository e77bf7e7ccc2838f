"""The persistent kernel that loads by TMA: aligned operands, any layout."""

from __future__ import annotations

from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import constraints as rules
from tritongemm.kernels.epilogue import epilogue_of_launch
from tritongemm.kernels.footprint import Footprint, accumulators, bits_of, resident
from tritongemm.kernels.launch import (
    Geometry,
    Launch,
    Pointer,
    Scalar,
    dependence,
    elements_of_line,
    stage_bytes,
)
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.sum_order import SumOrder, dot_instruction, order_of
from tritongemm.kernels.symbol import symbol_of
from tritongemm.kernels.takes import Takes
from tritongemm.kernels.tensor_map import batched, stored_operand, tma_store
from tritongemm.problem import EPILOGUES, GemmProblem, divisor_of


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes: the pipeline's buffers, the piece of the tile on its way out, D's piece on its way
    to the accumulator's layout (float32 at the most), the barriers.

    The buffers of the K loop stay live across tiles when the loops are flattened.
    """
    stage = stage_bytes(problem, config)
    piece = config.block_m * config.block_n // config.epilogue_subtile
    out = problem.c.format.bytes_of(piece)
    epilogue = EPILOGUES[problem.epilogue]
    out += 4 * (piece if epilogue.d_is_matrix else config.block_n * epilogue.reads_d)
    if not tma_store(problem):
        out += 16 * config.block_m
    return config.num_stages * stage + out + 16 * config.num_stages + 1024


def footprint(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Footprint:
    """One program an SM, which computes tile after tile."""
    return Footprint(
        sms=device.num_sms, programs_per_sm=1, tiles_per_program=1, persistent=True,
        copy_engine=True, producer_warps=False, tensor_cores=True, k_over_threads=False,
        products=1, registers=accumulators(config), columns_b=config.block_n,
        bits_a=bits_of(problem.dtype_a), bits_b=bits_of(problem.dtype_b))


def launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
             geometry: Geometry) -> tuple[Launch, ...]:
    """One launch of at most one program an SM."""
    store = tma_store(problem)
    block_m, block_n = config.block_m, config.block_n
    tiles = -(-problem.m // block_m) * -(-problem.n // block_n) * problem.batch
    c = Pointer("c", "c", problem.dtype_out, problem.align_c)
    if store:
        c_desc = batched(problem, "c_desc", "c", problem.dtype_out, (problem.m, problem.n),
                         geometry.cm, (block_m, block_n // config.epilogue_subtile), geometry.cb)
    else:
        c_desc = Pointer("c_desc", "c", problem.dtype_out, problem.align_c)
    c_align = problem.c.elements
    extra, epilogue = epilogue_of_launch(problem, geometry)
    arguments = (
        stored_operand(problem, "a", block_m, config.block_k, geometry),
        stored_operand(problem, "b", block_n, config.block_k, geometry), c_desc, c,
        Scalar("M", problem.m), Scalar("N", problem.n, divisor_of(problem.n, c_align)),
        Scalar("K", problem.k), Scalar("batches", problem.batch, fold=True),
        Scalar("stride_cb", geometry.cb, divisor_of(geometry.cb, c_align)),
        Scalar("stride_cm", geometry.cm, divisor_of(geometry.cm, c_align)), *extra)
    constants = (
        ("A_T", problem.layout[0] == "t"), ("B_T", problem.layout[1] == "t"),
        ("BATCHED", problem.batch > 1), ("TMA_STORE", store),
        ("BLOCK_M", block_m), ("BLOCK_N", block_n), ("BLOCK_K", config.block_k),
        ("GROUP_M", config.group_m), ("SUBTILE", config.epilogue_subtile),
        # Flattening lets the next tile's loads start under this tile's store; on Blackwell it
        # would cancel the compiler's own overlap.
        ("FLATTEN", device.arch == 90), ("PRECISION", problem.precision), ("INTERPRETED", False),
        *epilogue)
    return (Launch("tritongemm.kernels.device.persistent_tma", "persistent_tma", arguments,
                   constants, (resident(tiles, device.num_sms, device), 1, 1), config.num_warps,
                   config.num_stages, symbol_of(problem, config),
                   **dependence(config, device)),)


def sum_order(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> SumOrder | None:
    """``tl.dot`` for each step along K of a tile."""
    instruction = dot_instruction(problem, config, device)
    return order_of(instruction, problem, config) if instruction else None


def _unit_inner_c(problem, config, device):
    return None if problem.align_c >= problem.c.format.itemsize else (
        "C must have an inner stride of 1")


def _subtile(problem, config, device):
    piece = config.block_n // config.epilogue_subtile
    if piece < 32:
        return f"epilogue_subtile={config.epilogue_subtile} leaves pieces of {piece} columns; " \
               "at least 32"
    return None


def _box(problem, config, device):
    for name in ("block_m", "block_n", "block_k"):
        if getattr(config, name) > 256:
            return f"{name}={getattr(config, name)}; a tensor map's box has at most 256 a side"
    return None


def _wgmma(problem, config, device):
    if device.arch == 90 and (config.num_warps < 4 or config.block_m < 16 * config.num_warps):
        return (f"block_m={config.block_m} on {config.num_warps} warps: the Hopper tensor "
                "instruction wants groups of 4 warps and 16 rows a warp")
    return None


def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """128x256x64 where that fills the SMs, 128x128 and less below; at most 4 stages, that fit."""
    block_k = elements_of_line(problem)
    block_m = 128 if problem.m > 32 else 64
    tiles = -(-problem.m // 128) * -(-problem.n // 256) * problem.batch
    block_n = 256 if tiles >= device.num_sms and problem.dtype_out != "fp32" else 128
    while block_k > 32 and block_k >= 4 * problem.k:
        block_k //= 2
    while block_n > 32 and block_n >= 4 * problem.n:
        block_n //= 2
    config = KernelConfig("persistent_tma", block_m, block_n, block_k,
                          num_warps=block_m // 16, num_stages=4, group_m=8,
                          epilogue_subtile=2 if block_n == 256 else 1)
    while config.num_stages > 2 and shared_bytes(problem, config) > device.shared_bytes_per_block:
        config = replace(config, num_stages=config.num_stages - 1)
    return config


PERSISTENT_TMA = KernelSpec(
    name="persistent_tma",
    idea="one program an SM, operands and C moved by TMA, C stored in epilogue tiles",
    archs=(90, 100),
    takes=Takes(("bf16", "fp16", "fp32"), ("native", "tf32")),
    constraints=(
        rules.archs(90, 100), rules.tf32_reads_k_major, rules.tma_extents, rules.tma_operands,
        rules.Constraint("c_stride", _unit_inner_c, of_problem=True),
        rules.unused("split_k", "pingpong", "swap_ab", "pad_operands", *rules.CLUSTERS,
                     *rules.CUDA_TILES),
        rules.flags, rules.powers_of_two, rules.dot_shape, rules.Constraint("box", _box),
        rules.Constraint("wgmma", _wgmma), rules.not_oversized, rules.accumulator,
        rules.Constraint("subtile", _subtile), rules.grid, rules.shared_memory(shared_bytes)),
    shared_bytes=shared_bytes, launches=launches, default=default, footprint=footprint,
    sum_order=sum_order)
