"""The tiled pointer kernel for float32 on tensor cores, six bf16 products in one launch."""

from __future__ import annotations

from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import constraints as rules
from tritongemm.kernels import footprint as footprints
from tritongemm.kernels.epilogue import NO_EPILOGUE, epilogue_of_launch
from tritongemm.kernels.launch import (
    Geometry,
    Launch,
    stage_bytes,
)
from tritongemm.kernels.pointer_tile import tile_arguments, tile_constants, tile_launches
from tritongemm.kernels.reduce import split_to_fill, target_of
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.sum_order import SumOrder, order_of
from tritongemm.kernels.takes import Takes
from tritongemm.problem import GemmProblem

#: Products of bf16 parts for one of float32 numbers (``device/bf16x6.py``).
_PRODUCTS = 6
#: Registers of a thread beside its sums and its share of the operands' tiles, and those for each
#: element of that share, as loaded and as parts. As compiled for sm_90.
_BASE_REGISTERS, _ELEMENT_REGISTERS = 48, 3.0
#: Elements of a step that a thread splits: more are spilled (compiled for sm_90).
_MAX_ELEMENTS = 64


def _on_warpgroups(config: KernelConfig) -> bool:
    """Whether Triton may multiply by wgmma, which reads the parts of B from shared memory."""
    return config.num_warps % 4 == 0 and config.block_m % 64 == 0


def _elements(config: KernelConfig) -> float:
    """Elements of a step's tiles for each thread, were they divided among all."""
    return (config.block_m + config.block_n) * config.block_k / (32 * config.num_warps)


def registers_needed(config: KernelConfig) -> float:
    """Registers that a thread needs; more than it may have are spilled."""
    return (_BASE_REGISTERS + 2 * footprints.accumulators(config)
            + _ELEMENT_REGISTERS * _elements(config))


def footprint(problem: GemmProblem, config: KernelConfig,
              device: DeviceSpec) -> footprints.Footprint:
    """A program for each tile; operands pass through shared memory, and registers, as parts."""
    return footprints.of_threads(
        problem, config, device, shared_bytes=shared_bytes(problem, config),
        registers=registers_needed(config), tensor_cores=True, products=_PRODUCTS)


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes: the pipeline's buffers, and for wgmma the three parts of a step's B; or the tile on
    its way to the store, a padded float32 copy."""
    parts = 3 * 2 * config.block_n * config.block_k if _on_warpgroups(config) else 0
    out = 4 * config.block_m * (config.block_n + 4)
    buffers = max(config.num_stages - 1, 1)  # one step is in registers
    return max(buffers * stage_bytes(problem, config) + parts, out) + 128


def launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
             geometry: Geometry) -> tuple[Launch, ...]:
    """The product, and for split_k > 1 the pass that adds the parts in a fixed order."""
    g = geometry
    arguments = tile_arguments(problem, config, g, target_of(problem, config, g))
    extra, epilogue = epilogue_of_launch(problem, g) if config.split_k == 1 else ((), NO_EPILOGUE)
    constants = (*tile_constants(problem, config, g), ("INTERPRETED", False), *epilogue)
    return tile_launches("tiled_bf16x6", problem, config, device, g, (*arguments, *extra),
                         constants)


def sum_order(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> SumOrder | None:
    """Each step along K of a tile has a sum of its own, which begins with the small products: the
    step is part of the order. What is computed again is found element by element."""
    if device.arch >= 100:
        return None
    unit = "wgmma" if device.arch >= 90 and _on_warpgroups(config) else "mma.sync"
    return order_of(f"{unit} k16 of 3 bf16 parts in steps of {config.block_k}", problem, config)


def _tile(problem, config, device):
    if config.block_k not in (16, 32, 64, 128):
        return f"block_k={config.block_k} is not 16, 32, 64 or 128"
    if _elements(config) > _MAX_ELEMENTS:
        return (f"{config.block_m}x{config.block_n}x{config.block_k} on {config.num_warps} warps: "
                f"a thread splits {_elements(config):.0f} elements a step, more than "
                f"{_MAX_ELEMENTS}. Use a smaller tile or more warps")
    return None


def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """The largest tile that still gives most SMs work, K split where that leaves them idle."""
    m, n = max(problem.m, 1), max(problem.n, 1)
    for block_m, block_n in ((64, 64), (32, 64), (32, 32), (16, 32)):
        tiles = -(-m // block_m) * -(-n // block_n) * max(problem.batch, 1)
        if tiles >= device.num_sms and block_m < 2 * m and block_n < 2 * n:
            break
    if block_n >= 4 * n:
        block_n = 16
    block_k = 32
    split = split_to_fill(tiles, 2 * device.num_sms, -(-problem.k // block_k))
    config = KernelConfig("tiled_bf16x6", block_m, block_n, block_k,
                          num_warps=4 if block_m * block_n > 256 else 1, num_stages=4,
                          group_m=8, split_k=split)
    while config.num_stages > 1 and shared_bytes(problem, config) > device.shared_bytes_per_block:
        config = replace(config, num_stages=config.num_stages - 1)
    return config


TILED_BF16X6 = KernelSpec(
    name="tiled_bf16x6",
    idea="float32 as six products of bf16 parts, split in registers; any strides, one launch",
    archs=(80, 89, 90, 100),
    takes=Takes(("fp32",), ("fp16x3",), outputs=("fp32",)),
    constraints=(
        rules.min_arch(80),
        rules.unused("epilogue_subtile", "pingpong", "swap_ab", "pad_operands", *rules.CLUSTERS,
                     *rules.CUDA_TILES),
        rules.flags, rules.powers_of_two, rules.dot_shape, rules.Constraint("tile", _tile),
        rules.not_oversized, rules.accumulator, rules.split_k, rules.grid,
        rules.shared_memory(shared_bytes)),
    shared_bytes=shared_bytes, launches=launches, default=default, footprint=footprint,
    by_rule=False, widens_a=True, sum_order=sum_order)
