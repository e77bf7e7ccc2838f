"""float32 products on Hopper's fp16 tensor cores: operands are split into fp16 parts in scratch,
a warp-specialised kernel multiplies them, and a third one computes rows that the parts cannot
represent. Its launches and its rules."""

from __future__ import annotations

import math
from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import constraints as rules
from tritongemm.kernels.epilogue import NO_EPILOGUE, epilogue_of_launch
from tritongemm.kernels.footprint import Footprint, accumulators, resident
from tritongemm.kernels.launch import Geometry, Launch, Scalar, dependence
from tritongemm.kernels.reduce import partials_bytes, reduce_launch, split_to_fill, target_of
from tritongemm.kernels.spec import KernelSpec
from tritongemm.kernels.split_fp32 import (
    guard_launch,
    parts_of,
    scratch,
    split_launch,
    split_operands,
)
from tritongemm.kernels.sum_order import SumOrder, order_of
from tritongemm.kernels.symbol import symbol_of
from tritongemm.kernels.takes import Takes
from tritongemm.kernels.warpgroups import (
    BARRIER_BYTES,
    MAX_STAGES,
    OTHER_BYTES,
    START_REGISTERS,
    consumer_registers,
    consumers_of,
    programs_an_sm,
)
from tritongemm.problem import GemmProblem, divisor_of

_STEP = 64
#: Registers a thread of the producer, by consumers.
_PRODUCER_REGISTERS = {1: 40, 2: 40, 3: 32}
#: Registers a thread beside the sums.
_OTHER_REGISTERS = 40


def separate(problem: GemmProblem, config: KernelConfig) -> bool:
    """Whether the small products have sums of their own: where three sets of registers fit."""
    return (parts_of(problem) == 2
            and 3 * config.block_n // 2 + _OTHER_REGISTERS <= _consumer_registers(config))


def _consumer_registers(config: KernelConfig) -> int:
    """Registers a thread of a consumer."""
    consumers = consumers_of(config)
    if consumers == 1:  # the kernel's first warps keep what it starts with
        return 255
    return min(240, consumer_registers(consumers, _PRODUCER_REGISTERS[consumers]))


def stage_layout(problem: GemmProblem, config: KernelConfig) -> tuple[int, int]:
    """(rows of 128 bytes of one part of B, bytes of all parts of both operands) in a stage: tiles
    of 64 along K. Stored across K, B lies in swizzle atoms of 64 columns."""
    b_rows = config.block_n
    if problem.layout[1] == "n":
        b_rows = -(-b_rows // 64) * 64
    return b_rows, 2 * _STEP * parts_of(problem) * (config.block_m + b_rows)


def shared_bytes(problem: GemmProblem, config: KernelConfig) -> int:
    """Bytes: the stages and the barriers."""
    return config.num_stages * stage_layout(problem, config)[1] + BARRIER_BYTES + OTHER_BYTES


def launches(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
             geometry: Geometry) -> tuple[Launch, ...]:
    """The split pass, the product, the guard, and for split_k > 1 the pass that adds the parts of
    K."""
    split, g = split_operands(problem, config, geometry), geometry
    c = target_of(problem, config, g)
    extra, epilogue = ((), NO_EPILOGUE)
    if config.split_k == 1:
        extra, epilogue = epilogue_of_launch(problem, g)
    consumers = consumers_of(config)
    b_rows, stage = stage_layout(problem, config)
    arguments = (
        split.a.map_of(split.parts, config.block_m), split.b.map_of(split.parts, config.block_n),
        c.pointer, split.a.exponents_at(), split.b.exponents_at(), Scalar("M", problem.m),
        Scalar("N", problem.n, divisor_of(problem.n, 8)), Scalar("K", problem.k),
        Scalar("batches", problem.batch, fold=True),
        Scalar("stride_cb", c.batch, divisor_of(c.batch, 4)),
        Scalar("stride_cm", c.row, divisor_of(c.row, 8), fold=True),
        Scalar("stride_cn", c.column, divisor_of(c.column, 8), fold=True),
        Scalar("stride_cs", c.part, divisor_of(c.part, 4)), *extra)
    units = (-(-problem.m // config.block_m) * -(-problem.n // config.block_n) * problem.batch
             * config.split_k)
    programs = resident(units, device.num_sms * _programs_an_sm(problem, config, device), device)
    product = Launch(
        "tritongemm.kernels.device.split_product", "split_product", arguments,
        (("A_T", split.a.across), ("B_T", not split.b.across), ("BATCHED", problem.batch > 1),
         ("BATCHED_A", split.a.batches > 1), ("BATCHED_B", split.b.batches > 1),
         ("PARTS", split.parts),
         ("SEPARATE", separate(problem, config)), ("BLOCK_M", config.block_m),
         ("BLOCK_N", config.block_n), ("B_ROWS", b_rows), ("STAGE_BYTES", stage),
         ("GROUP_M", config.group_m), ("SPLIT_K", config.split_k), ("STAGES", config.num_stages),
         ("PAIRED_C", c.pairs),
         ("CONSUMER_REGISTERS", _consumer_registers(config)),
         ("PRODUCER_REGISTERS", _PRODUCER_REGISTERS[consumers]), *epilogue),
        (programs, 1, 1), 4, 1, symbol_of(problem, config),
        maxnreg=START_REGISTERS[consumers], gluon=True,
        first_shared=config.num_stages * stage,
        **dependence(config, device), scratch_bytes=split.scratch_bytes)
    after = (reduce_launch(problem, config, g, device),) if config.split_k > 1 else ()
    return (split_launch(problem, config, g, device, split), product,
            guard_launch(problem, config, g, device, split, c), *after)


def sum_order(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> SumOrder | None:
    """A step of 64 along K adds its products to float32 sums in registers; the small products have
    sums of their own, or not. A row that the parts cannot represent is computed by the guard, whose
    tiles all add in one order; up to K = 2^21 its elements alone decide that."""
    sums = ", small products apart" if separate(problem, config) else ""
    return order_of(f"wgmma k16 of {parts_of(problem)} fp16 parts{sums}", problem, config)


def footprint(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Footprint:
    """Programs compute tile after tile of the parts that a pass before them has written."""
    parts = parts_of(problem)
    return Footprint(
        sms=device.num_sms, programs_per_sm=_programs_an_sm(problem, config, device),
        tiles_per_program=1, persistent=True, copy_engine=True, producer_warps=True,
        tensor_cores=True, k_over_threads=False, products=problem.compute.products,
        registers=(2 + separate(problem, config)) * accumulators(config),
        columns_b=config.block_n, bits_a=16 * parts, bits_b=16 * parts)


def _programs_an_sm(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> int:
    return programs_an_sm(config, shared_bytes(problem, config), device)


def _tile(problem, config, device):
    if config.num_warps not in (4, 8, 12):
        return f"num_warps={config.num_warps}; consumers are one to three groups of 4 warps"
    if config.block_m != 16 * config.num_warps:
        return (f"block_m={config.block_m} on {config.num_warps} warps: a group of 4 warps has 64 "
                "rows")
    if config.block_k != _STEP:
        return f"block_k={config.block_k}; a step along K is {_STEP} elements, 128 bytes"
    if config.block_n % 8 or not 16 <= config.block_n <= 256:
        return f"block_n={config.block_n} is not a multiple of 8 from 16 to 256"
    if not 2 <= config.num_stages <= MAX_STAGES:
        return f"num_stages={config.num_stages} is outside 2 to {MAX_STAGES}"
    need = config.block_n + _OTHER_REGISTERS
    if need > _consumer_registers(config):
        return (f"block_n={config.block_n} takes {need} registers a thread of "
                f"{_consumer_registers(config)}: two sums of block_n / 2 each, and others")
    return None


def _oversized(problem, config, device):
    for name, least in (("m", 64), ("n", 32)):
        block, extent = getattr(config, f"block_{name}"), getattr(problem, name)
        if block > least and block >= 2 * extent:
            return f"block_{name}={block} is at least twice the extent {extent}"
    return None


#: Tiles that rule defaults choose from.
_TILES = ((128, 128), (128, 96), (128, 64), (64, 64), (64, 32))


def default(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """The tile whose waves take the shortest time, K split where it leaves SMs idle."""
    best, least = None, math.inf
    for block_m, block_n in _TILES:
        if block_m > 64 and block_m >= 2 * problem.m or block_n > 32 and block_n >= 2 * problem.n:
            continue
        config = KernelConfig("split_product", block_m, block_n, _STEP, num_warps=block_m // 16,
                              num_stages=4)
        while (config.num_stages > 2
               and shared_bytes(problem, config) > device.shared_bytes_per_block):
            config = replace(config, num_stages=config.num_stages - 1)
        units = -(-problem.m // block_m) * -(-problem.n // block_n) * problem.batch
        slots = device.num_sms * _programs_an_sm(problem, config, device)
        # A step takes 0.25 us and 0.35 us for each 8,192 results of an SM, a tile 1.5 us beside
        # its steps, adding parts 2.5 us and what their bytes take (measured on an H100).
        step = 0.25 + 0.35 * block_m * block_n * (slots // device.num_sms) / 8192
        for split in {1, split_to_fill(units, slots, -(-problem.k // _STEP))}:
            time = -(-units * split // slots) * (1.5 + -(-problem.k // (_STEP * split)) * step)
            if split > 1:
                time += 2.5 + partials_bytes(problem, split) / 4e6
            if time < least:
                best, least = replace(config, split_k=split), time
    assert best is not None
    return best


SPLIT_PRODUCT = KernelSpec(
    name="split_product",
    idea="float32 operands split into fp16 parts, three tensor-core products of the parts",
    archs=(90,),
    constraints=(
        rules.archs(90), rules.not_interpreted, rules.gluon, rules.tma_extents,
        rules.unused("epilogue_subtile", "pingpong", "swap_ab", "pad_operands", *rules.CLUSTERS,
                     *rules.CUDA_TILES),
        rules.flags, rules.Constraint("tile", _tile), rules.Constraint(rules.WASTE, _oversized),
        # The bound of scratch keeps grids and extents below what 32 bits hold.
        scratch, rules.split_k,
        rules.shared_memory(shared_bytes)),
    shared_bytes=shared_bytes, launches=launches, default=default, footprint=footprint,
    widens_a=True, guarded=True, takes=Takes(("fp32",), ("fp16x3", "tf32"), outputs=("fp32",)),
    sum_order=sum_order)
