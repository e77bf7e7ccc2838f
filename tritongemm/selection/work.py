"""What a config makes of a problem, counted: tiles, waves, steps, bytes. No rates, no times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import gemv, shared_bytes, skinny, warp_tile
from tritongemm.kernels.padding import copied, padded_bytes, within_sectors
from tritongemm.kernels.tensor_map import tma_store
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem, dtype_of
from tritongemm.selection.columns import KERNELS, Columns, kind_of

#: Kernels that multiply on CUDA cores, whatever the dtype.
CUDA_CORES = frozenset({"gemv"})
#: Kernels whose programs walk over tiles, but for clusters that share K; the others have a program
#: a tile.
PERSISTENT = frozenset({"persistent_tma", "warp_specialized"})
_ENGINES = [KERNELS.index(name) for name in PERSISTENT]
#: How a tile reaches memory: by the copy engine, by the threads with rows of C aligned to so many
#: bytes, transposed by the threads, or as float32 parts of a split K.
STORES = ("engine", "align16", "align8", "align4", "align2", "swapped", "split")
#: How the threads of a pointer kernel load an operand: bytes of its alignment.
LOADS = ("align16", "align8", "align4", "align2")
#: Programs of one SM at most, by the hardware's limit of threads.
_MAX_THREADS = 2048
#: Bytes of a line of the L2.
_LINE = 128
#: What rows that begin inside a sector cost the copy engine (4088 cubed against 8176 cubed).
_WITHIN_SECTORS = 1.5
#: Warp schedulers of an SM.
_SCHEDULERS = 4
#: Registers that a thread may have.
_MAX_REGISTERS = 255
#: Registers of the pointer kernel beside the accumulator, and those for each element that a
#: thread loads in a step, by the bytes of its alignment: what cannot be copied to shared memory
#: asynchronously (less than 4 bytes) passes through registers. As compiled for sm_90.
_BASE_REGISTERS = 28
#: The same on CUDA cores, whose operands pass through registers from shared memory.
_FMA_REGISTERS = 64
_LOAD_REGISTERS = {16: 0.2, 8: 0.55, 4: 1.1, 2: 3.0, 1: 3.0}


class Work(NamedTuple):
    """Counts of one (problem, config, device); extents of 0 count as 1, so that all are positive.

    Attributes:
        tiles: units of work: tiles of C, the parts of a split K, or of a cluster's, counted each;
            and the tiles beside C that clusters reach over its edge.
        waves: units that one program, or one slot of an SM, does one after another.
        per_sm: units that the busiest SM does.
        steps: of the K loop in a unit.
        step_flops: operations of a step.
        sm_bytes: that the busiest SM asks for, in whole lines, or takes in, if that is more.
        l2_bytes: that all SMs ask for, in whole lines, and store.
        dram_bytes: that cross the memory's pins: operands once, those that outgrow the L2 as
            often as the tile order comes back to them, D and the result.
        stages: of the pipeline.
        load_a, load_b: elements of A and of B that the warps of one scheduler load, in
            thousands; 0 where the copy engine does.
        spilled: registers of a warp that do not fit, times the steps of all warps of the busiest
            SM.
        dependent: 1 where the launch may start under its predecessor's tail.
        store_kib: that the busiest SM stores, KiB.
        split: parts of K.
        split_bytes: float32 parts read, and the result written, by the adding pass.
        pad_bytes: read and written by the copy of unaligned operands.
        pad_elements: of the copies, in thousands.
        store: of :data:`STORES`; loads_a, loads_b: of :data:`LOADS`; pads: of LOADS, or "".
    """

    tiles: int
    waves: int
    per_sm: int
    steps: int
    step_flops: float
    sm_bytes: float
    l2_bytes: float
    dram_bytes: float
    stages: int
    load_a: float
    load_b: float
    spilled: float
    dependent: int
    store_kib: float
    split: int
    split_bytes: float
    pad_bytes: float
    pad_elements: float
    store: str
    loads_a: str
    loads_b: str
    pads: str


#: The fields of :class:`Work` that are numbers.
NUMBERS = tuple(n for n in Work._fields if n not in ("store", "loads_a", "loads_b", "pads"))


def class_of(config: KernelConfig) -> str:
    """The config's class: what decides the rate of its K loop. Stages, order, split and copies
    are counted in :class:`Work` instead."""
    name = (f"{config.kernel}_{config.block_m}x{config.block_n}x{config.block_k}"
            f"_w{config.num_warps}")
    if config.pingpong:
        name += "_p1"
    for axis, code in (("k", "c"), ("m", "m"), ("n", "n")):
        if (programs := getattr(config, f"cluster_{axis}")) > 1:
            name += f"_{code}{programs}"
    return name + "_x1" if config.swap_ab == 1 else name  # tiles that are turned are made alike


def resident_programs(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> int:
    """Units that an SM works on at a time."""
    if config.kernel == "persistent_tma":
        return 1
    if config.kernel == "warp_specialized":
        if config.pingpong:
            return 2  # in turn: one multiplies, the other stores
        return warp_tile.programs_an_sm(problem, config, device)
    shared = shared_bytes(problem, config)
    registers = min(_MAX_REGISTERS, registers_needed(problem, config)) * 32 * config.num_warps
    return max(1, min(device.shared_bytes_per_sm // (shared + 1024),
                      int(device.registers_per_sm // registers),
                      _MAX_THREADS // (32 * config.num_warps)))


def keeps_to_the_budget(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    """Whether the product's launch has at most a program an SM of ``device``, where that leaves
    SMs to others; always true elsewhere. Passes over split parts and copies are short, and not
    counted."""
    if not device.spare_sms:
        return True
    tiles = work_of(problem, config, device).tiles
    if tiles <= device.num_sms:
        return True
    return (config.kernel in PERSISTENT and config.cluster_k == 1
            and config.cluster_m * config.cluster_n <= device.num_sms
            and (config.pingpong == 1 or resident_programs(problem, config, device) == 1))


def registers_needed(problem: GemmProblem, config: KernelConfig) -> float:
    """Registers that a thread of a pointer kernel wants; more than it may have are spilled."""
    if config.kernel == "gemv":
        return gemv.registers_needed(problem, config)
    if config.kernel == "skinny":
        return skinny.registers_needed(problem, config)
    if problem.unit == "fp32":
        return _FMA_REGISTERS + config.block_m * config.block_n / (32 * config.num_warps)
    loads = (config.block_m * _LOAD_REGISTERS[problem.align_a]
             + config.block_n * _LOAD_REGISTERS[problem.align_b]) * config.block_k
    return _BASE_REGISTERS + (config.block_m * config.block_n + loads) / (32 * config.num_warps)


class Static(NamedTuple):
    """What of :class:`Work` a problem's kind decides (``columns.py``).

    Attributes:
        sms: that programs can lie on.
        programs: units that an SM works on at a time.
        columns: of B that a stage holds.
        registers: that a thread of a pointer kernel wants; 0 for the others.
        copies_a, copies_b: 1 where the operand is copied first.
        store, loads_a, loads_b, pads: as of :class:`Work`.
    """

    sms: int
    programs: int
    columns: int
    registers: float
    copies_a: int
    copies_b: int
    store: str
    loads_a: str
    loads_b: str
    pads: str


#: Of the fields of :class:`Static` that are numbers, which come first.
_TYPES = (int, int, int, float, int, int)


def static_of(kind: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Static:
    """What ``config`` makes of problems of a kind, or of one problem: no size of it counts."""
    align_a, align_b = kind.align_a, kind.align_b
    if config.swap_ab:
        align_a, align_b = align_b, align_a
    copies = copied(kind, config.pad_operands)
    if copies:
        align_a = align_b = FULL_ALIGNMENT
    store = "split" if config.split_k > 1 else (
        "swapped" if config.swap_ab == 1 else
        "engine" if config.kernel in PERSISTENT and tma_store(kind) else
        f"align{max(kind.align_c, 2)}")
    return Static(
        warp_tile.sms_of(config, device) if config.kernel == "warp_specialized"
        else device.num_sms,
        resident_programs(kind, config, device),
        warp_tile.columns_of_b(kind, config) if config.kernel == "warp_specialized"
        else config.block_n,
        0.0 if config.kernel in PERSISTENT else registers_needed(kind, config),
        "a" in copies, "b" in copies, store, f"align{max(align_a, 2)}", f"align{max(align_b, 2)}",
        f"align{max(min(kind.align_a, kind.align_b), 2)}" if copies else "")


def work_of(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Work:
    """Counts what ``config`` does for ``problem`` on ``device``."""
    columns = Columns((config,))
    counted = counts(problem, columns, device)
    (static,) = statics(kind_of(problem), columns, device)
    numbers = {name: values.item() for name, values in vars(counted).items()}
    return Work(**numbers, store=static.store, loads_a=static.loads_a, loads_b=static.loads_b,
                pads=static.pads if counted.pad_bytes[0] else "")


def statics(kind: GemmProblem, configs: Columns, device: DeviceSpec) -> Sequence[Static]:
    """The :class:`Static` of each config."""
    return configs.kept(("static", kind, device), lambda: [
        static_of(kind, config, device) for config in configs.configs])


def counts(problem: GemmProblem, configs: Columns, device: DeviceSpec,
           index: np.ndarray | None = None) -> SimpleNamespace:
    """The numbers of :class:`Work` of many configs, arrays by :data:`NUMBERS`.

    Args:
        index: only these of ``configs``; None: all.
    """
    kind = kind_of(problem)
    static: Sequence[np.ndarray] = configs.kept(("numbers", kind, device), lambda: [
        np.array([s[place] for s in statics(kind, configs, device)], _TYPES[place])
        for place in range(len(_TYPES))])
    if index is not None:
        configs, static = configs.take(index), [values[index] for values in static]
    sms, programs, columns, registers, copies_a, copies_b = static
    c: Any = configs
    swap = c.swap_ab > 0
    m, n = (np.where(swap, *x) for x in ((max(problem.n, 1), max(problem.m, 1)),
                                         (max(problem.m, 1), max(problem.n, 1))))
    k, batch = max(problem.k, 1), max(problem.batch, 1)
    size, out = dtype_of(problem.dtype_a).itemsize, dtype_of(problem.dtype_out).itemsize
    engine, several = np.isin(c.kernel, _ENGINES), c.split_k > 1
    rows = -(-m // (c.block_m * c.cluster_m)) * c.cluster_m
    cols = -(-n // (c.block_n * c.cluster_n)) * c.cluster_n
    parts = c.split_k * c.cluster_k
    tiles = rows * cols * batch * parts
    slots = sms * programs
    waves, per_sm = -(-tiles // slots), -(-tiles // sms)
    all_steps = -(-k // c.block_k)
    steps = -(-all_steps // parts)

    def asked_of(operand: str, side: np.ndarray, copies: np.ndarray) -> np.ndarray:
        lines = _lines(problem, operand, c.block_k, side, engine)
        return np.where(copies > 0, 1.0, lines)  # copies have rows of whole lines

    asked = c.block_k * size * (
        c.block_m / c.cluster_n * np.where(swap, asked_of("b", c.block_m, copies_b),
                                           asked_of("a", c.block_m, copies_a))
        + columns / c.cluster_m * np.where(swap, asked_of("a", columns, copies_a),
                                           asked_of("b", columns, copies_b)))
    taken_in = c.block_k * size * (c.block_m + columns)
    result = float(batch) * max(problem.m, 1) * max(problem.n, 1) * out
    stored = np.where(several, 4.0 * c.split_k * batch * m * n, result)
    loads = np.where(engine, 0.0, steps * c.block_k / 1e3
                     * np.maximum(per_sm / _SCHEDULERS, waves / c.num_warps))
    padded = np.array([padded_bytes(problem, way) for way in range(3)], float)[c.pad_operands]
    return SimpleNamespace(
        tiles=tiles, waves=waves, per_sm=per_sm, steps=steps,
        step_flops=2.0 * c.block_m * c.block_n * c.block_k,
        sm_bytes=per_sm * steps * np.maximum(asked, taken_in),
        l2_bytes=tiles * steps * asked + stored,
        dram_bytes=_dram_bytes(m, n, k, batch, size, rows, cols,
                               np.minimum(slots, tiles) // c.cluster_k, c, device)
        + result + problem.bytes_of_d(),
        stages=c.num_stages, load_a=loads * c.block_m, load_b=loads * c.block_n,
        spilled=np.maximum(0.0, registers - _MAX_REGISTERS) * per_sm * steps * c.num_warps,
        dependent=np.minimum(c.dependent_launch, 1),
        store_kib=per_sm * c.block_m * c.block_n / c.cluster_k
        * np.where(several, 4, out) / 1024,
        split=c.split_k, split_bytes=np.where(several, stored + result, 0.0),
        pad_bytes=2.0 * padded, pad_elements=padded / size / 1e3)


def _lines(problem: GemmProblem, operand: str, along_k: np.ndarray, along_rows: np.ndarray,
           engine: np.ndarray) -> np.ndarray:
    """Bytes of the 128-byte lines that the rows of a box of ``operand`` touch, over the bytes of
    the rows: a row that does not begin a line takes one line more.

    The L2 delivers part of a line as slowly as all of it, and the copy engine takes
    :data:`_WITHIN_SECTORS` times as long for rows that begin inside a sector. ``along_k`` and
    ``along_rows`` are the box's sides; the layout says which one is contiguous.
    """
    size = dtype_of(problem.dtype_a).itemsize
    k_major = problem.layout[0] == "n" if operand == "a" else problem.layout[1] == "t"
    lead = problem.leading_dimensions()[operand == "b"]
    outside = 1.0 - math.gcd(lead * size, _LINE) / _LINE
    lines = 1.0 + outside * _LINE / ((along_k if k_major else along_rows) * size)
    return np.where(engine, lines * _WITHIN_SECTORS, lines) if within_sectors(
        problem, operand) else lines


def _dram_bytes(m: np.ndarray, n: np.ndarray, k: int, batch: int, size: int, rows: np.ndarray,
                cols: np.ndarray, running: np.ndarray, configs: Any,
                device: DeviceSpec) -> np.ndarray:
    """Bytes of operands that come from memory.

    Tiles go down a group of ``group_m`` rows, of clusters where there are any, column by column.
    The group's part of A is used again at once; B comes round again with every group, and is still
    in the L2 as far as it fits there.
    """
    group = np.minimum(configs.group_m * configs.cluster_m, rows)
    a, b = m * (float(k) * size), n * (float(k) * size)
    panel = group * configs.block_m * (float(k) * size)
    again_b = -(-rows // group) - 1
    again_a = np.maximum(0, -(-cols * group // np.maximum(running, 1)) - 1)
    return batch * (a * (1.0 + again_a * _missing(panel, device.l2_bytes))
                    + b * (1.0 + again_b * _missing(b + panel, device.l2_bytes)))


def _missing(needed: np.ndarray, l2_bytes: int) -> np.ndarray:
    """The share that has left an L2 of ``l2_bytes`` when ``needed`` bytes went through it."""
    ratio = needed / (0.6 * l2_bytes)
    return ratio ** 4 / (1.0 + ratio ** 4)
