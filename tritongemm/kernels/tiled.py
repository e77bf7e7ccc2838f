"""The tiled pointer kernel: any strides, any extents, any alignment."""

from __future__ import annotations

from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.formats import format_of
from tritongemm.kernels import constraints as rules
from tritongemm.kernels import footprint as footprints
from tritongemm.kernels.epilogue import NONE_OF_ALL, any_epilogue_of_launch
from tritongemm.kernels.launch import (
    Geometry,
    Launch,
    as_dot_multiplies,
    elements_of_line,
    stage_bytes,
    two_batch_strides,
)
from tritongemm.kernels.pointer_tile import tile_arguments, tile_constants, tile_launches
from tritongemm.kernels.reduce import split_to_fill, target_of
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.sum_order import SumOrder, dot_instruction, order_of
from tritongemm.kernels.takes import Takes
from tritongemm.problem import EPILOGUES, GemmProblem

#: Registers of a thread beside the accumulator, on tensor cores and on CUDA cores, whose operands
#: pass through registers from shared memory. As compiled for sm_90.
_BASE_REGISTERS, _FMA_REGISTERS = 28, 64
#: Registers for each element that a thread loads in a step, by the bytes of its alignment: what
#: cannot be copied to shared memory asynchronously (less than 4 bytes) passes through registers.
#: As compiled for sm_90.
_LOAD_REGISTERS = {16: 0.2, 8: 0.55, 4: 1.1, 2: 3.0, 1: 3.0}


def registers_needed(problem: GemmProblem, config: KernelConfig) -> float:
    """Registers that a thread needs; more than it may have are spilled."""
    sums = footprints.accumulators(config)
    if rules.on_cuda_cores(problem):
        return _FMA_REGISTERS + sums
    loads = (config.block_m * _LOAD_REGISTERS[problem.align_a]
             + config.block_n * _LOAD_REGISTERS[problem.align_b]) * config.block_k
    return _BASE_REGISTERS + sums + loads / (32 * config.num_warps)


def footprint(problem: GemmProblem, config: KernelConfig,
              device: DeviceSpec) -> footprints.Footprint:
    """A program for each tile; operands pass through shared memory."""
    return footprints.of_threads(
        problem, config, device, shared_bytes=shared_bytes(problem, config),
        registers=registers_needed(problem, config), tensor_cores=not rules.on_cuda_cores(problem))


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes: the pipeline's buffers of both operands, or the tile on its way to the store.

    ``num_stages`` buffers on Hopper (wgmma reads them asynchronously), one less before; the
    estimate takes the larger. The accumulator is converted through shared memory before the
    store, a padded float32 copy at the most, while the buffers are dead.
    """
    stage = stage_bytes(problem, config)
    tile = config.block_m * config.block_n
    out = format_of(problem.compute.accumulator if config.split_k > 1
                    else problem.dtype_out).itemsize
    pad = 16 // out * config.block_m * out
    return max(config.num_stages * stage, tile * out + pad) + 128


def launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
             geometry: Geometry) -> tuple[Launch, ...]:
    """The product, and for split_k > 1 the pass that adds the parts in a fixed order."""
    problem = as_dot_multiplies(problem)
    g, c = geometry, target_of(problem, config, geometry)
    batch, one_stride = two_batch_strides(
        problem, g, problem.a.elements, problem.b.elements, c.align)
    extra, epilogue = (
        any_epilogue_of_launch(problem, g) if config.split_k == 1 else ((), NONE_OF_ALL))
    constants = (
        *tile_constants(problem, config, g),
        ("PRECISION", problem.precision), ("INTERPRETED", False), *one_stride, *epilogue)
    arguments = (*tile_arguments(problem, config, g, c), *batch, *extra)
    return tile_launches("tiled", problem, config, device, g, arguments, constants)


def sum_order(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> SumOrder | None:
    """``tl.dot`` for each step along K of a tile."""
    instruction = dot_instruction(problem, config, device)
    return order_of(instruction, problem, config) if instruction else None


def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """The rule default: the largest usual tile that still gives most SMs work.

    Tiles from 128x128 down while there are fewer of them than SMs; deep K with few tiles is
    split. GROUP_M 8 is the usual order (1 where M is much longer than N has no reuse to gain).
    """
    fma = rules.on_cuda_cores(problem)
    shapes = ((128, 64), (64, 64), (64, 32), (32, 32), (16, 32), (16, 16)) if fma else (
        (128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (16, 32), (16, 16))
    block_k = 16 if fma else elements_of_line(problem)
    m, n = max(problem.m, 1), max(problem.n, 1)
    for block_m, block_n in shapes:
        fits = (block_m == 16 or block_m < 2 * m) and (block_n == 16 or block_n < 2 * n)
        tiles = -(-m // block_m) * -(-n // block_n) * max(problem.batch, 1)
        if fits and tiles >= device.num_sms // 2:
            break
    warps = 8 if block_m * block_n >= 128 * 128 or (fma and block_m * block_n >= 8192) else 4
    if block_m * block_n <= 512:
        warps = 2 if block_m * block_n == 512 else 1
    while block_k > 16 and block_k >= 4 * max(problem.k, 1):
        block_k //= 2
    steps = -(-problem.k // block_k)
    split = 1
    if EPILOGUES[problem.epilogue].plain and "c" not in problem.two_strides:
        split = split_to_fill(tiles, device.num_sms, steps)
    config = KernelConfig("tiled", block_m, block_n, block_k, num_warps=warps,
                          num_stages=2 if fma else 4, group_m=8, split_k=split)
    while config.num_stages > 1 and shared_bytes(problem, config) > device.shared_bytes_per_block:
        config = replace(config, num_stages=config.num_stages - 1)
    return config


TILED = KernelSpec(
    name="tiled",
    idea="one program a tile of C, pointers and masks, software-pipelined K loop, split-K",
    archs=(80, 89, 90, 100),
    takes=Takes(("bf16", "fp16", "fp32"), ("native", "ieee", "tf32", "fp16x3"), two_strides="abc",
                all_epilogues=True),
    constraints=(
        rules.min_arch(80),
        rules.unused("epilogue_subtile", "pingpong", "swap_ab", "pad_operands", *rules.CLUSTERS,
                     *rules.CUDA_TILES),
        rules.flags, rules.powers_of_two, rules.dot_shape, rules.not_oversized, rules.accumulator,
        rules.fma_tile, rules.whole_epilogue, rules.split_k, rules.split_of_one_stride, rules.grid,
        rules.shared_memory(shared_bytes)),
    shared_bytes=shared_bytes, launches=launches, default=default, footprint=footprint,
    sum_order=sum_order)
