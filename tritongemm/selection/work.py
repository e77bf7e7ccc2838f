"""Counts what a config does for a problem: tiles, waves, steps, bytes. No rates, no times.

What depends on the kernel comes from its footprint (``kernels/footprint.py``); this module names no
kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from tritongemm.config import PARAMETERS, KernelConfig
from tritongemm.device import LINE_BYTES, DeviceSpec
from tritongemm.kernels import spec_named
from tritongemm.kernels.footprint import MAX_REGISTERS, Footprint, bits_of
from tritongemm.kernels.padding import copied, padded_bytes, padded_elements, within_sectors
from tritongemm.kernels.tensor_map import tma_store
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem
from tritongemm.selection.columns import Columns, kind_of

#: How a tile is stored: by TMA, by the threads with rows of C aligned to the given number of bytes,
#: transposed by the threads, or as float32 partial sums of a split K.
STORES = ("engine", "align16", "align8", "align4", "align2", "swapped", "split")
#: How threads load an operand: by its alignment in bytes.
LOADS = ("align16", "align8", "align4", "align2")
#: Slowdown of TMA on rows that begin inside an L2 sector (M = N = K = 4088 against 8176).
_WITHIN_SECTORS = 1.5
#: The parameters of a config that its :class:`Static` depends on.
_decisive = attrgetter("kernel", *(name for name in PARAMETERS
                                   if name not in ("group_m", "dependent_launch")))
#: Warp schedulers of an SM.
_SCHEDULERS = 4


class Work(NamedTuple):
    """Counts of one (problem, config, device). Extents of 0 count as 1, so that all are positive.

    Attributes:
        tiles: units of work: the tiles of C times the parts of a split K or of a cluster's K,
            including tiles of clusters that lie beyond the edge of C.
        waves: units that one program, or one slot of an SM, computes in sequence.
        per_sm: units that the busiest SM computes.
        steps: steps of the K loop in a unit.
        step_flops: floating-point operations of a step.
        sm_bytes: bytes that the busiest SM requests, in whole lines, or receives, if that is more.
        l2_bytes: bytes that all SMs request, in whole lines, and store.
        dram_bytes: bytes read from and written to device memory: each operand once, operands larger
            than the L2 once for each pass of the tile order over them, D, and the result.
        stages: stages of the pipeline.
        load_a, load_b: elements of A and of B that the warps of one scheduler load, in thousands; 0
            if TMA loads them.
        spilled: registers that a warp spills, times the steps of all warps of the busiest SM.
        dependent: 1 if the launch may overlap the end of its predecessor (dependent launch).
        store_kib: KiB that the busiest SM stores.
        split: parts of K.
        split_bytes: bytes that the pass over a split K reads (float32 partial sums) and writes.
        pad_bytes: bytes that the copy of unaligned operands, or the pass that converts them, reads
            and writes.
        pad_elements: elements of these copies, in thousands.
        sms, programs_per_sm, tiles_per_program, persistent, copy_engine, producer_warps,
            tensor_cores, k_over_threads, products, registers, columns_b, bits_a, bits_b: fields of
                :class:`~tritongemm.kernels.footprint.Footprint`.
        in_flight_kib: KiB in the pipelines of an SM when all stages are full.
        store: one of :data:`STORES`. loads_a, loads_b: one of :data:`LOADS`. pads: one of LOADS,
            or "" without copies.
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
    sms: int
    programs_per_sm: int
    tiles_per_program: int
    persistent: int
    copy_engine: int
    producer_warps: int
    tensor_cores: int
    k_over_threads: int
    products: int
    registers: float
    columns_b: int
    bits_a: int
    bits_b: int
    in_flight_kib: float
    store: str
    loads_a: str
    loads_b: str
    pads: str


#: The fields of :class:`Work` that are numbers.
NUMBERS = tuple(n for n in Work._fields if n not in ("store", "loads_a", "loads_b", "pads"))


def class_of(config: KernelConfig) -> str:
    """The config's class: the parameters that decide the rate of its K loop. Stages, tile order,
    split and copies are counted in :class:`Work` instead. ``swap_ab=2`` has the class of
    ``swap_ab=0``: it computes tiles in the same way."""
    name = (f"{config.kernel}_{config.block_m}x{config.block_n}x{config.block_k}"
            f"_w{config.num_warps}")
    if config.pingpong:
        name += "_p1"
    for axis, code in (("k", "c"), ("m", "m"), ("n", "n")):
        if (programs := getattr(config, f"cluster_{axis}")) > 1:
            name += f"_{code}{programs}"
    return name + "_x1" if config.swap_ab == 1 else name


def footprint_of(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Footprint:
    """The footprint that the kernel reports for ``config``. Raises :class:`ConfigError` for an
    unknown kernel."""
    return spec_named(config.kernel).footprint(problem, config, device)


def keeps_to_the_budget(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    """Whether the product's launch has at most one program for each SM of a ``device`` with a
    budget of SMs; always true without a budget. Passes over a split K and copies are short and not
    counted."""
    if not device.spare_sms:
        return True
    if work_of(problem, config, device).tiles <= device.num_sms:
        return True
    footprint = footprint_of(problem, config, device)
    return (footprint.persistent and footprint.programs_per_sm == 1
            and config.cluster_k * config.cluster_m * config.cluster_n <= device.num_sms)


class Static(NamedTuple):
    """The part of :class:`Work` that depends only on the config and the problem's kind
    (``columns.py``).

    Attributes:
        footprint: what the config occupies, as its kernel reports it.
        copies_a, copies_b: whether the operand is copied first.
        store, loads_a, loads_b, pads: as in :class:`Work`.
    """

    footprint: Footprint
    copies_a: bool
    copies_b: bool
    store: str
    loads_a: str
    loads_b: str
    pads: str


def static_of(kind: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Static:
    """The :class:`Static` of ``config`` for a kind, given as any problem of the kind."""
    return _static_of(kind, device)(config)


def _static_of(kind: GemmProblem, device: DeviceSpec) -> Callable[[KernelConfig], Static]:
    """:func:`static_of` for many configs; what does not depend on the config is computed once."""
    engine_stores, stores = tma_store(kind), f"align{max(kind.align_c, 2)}"
    loads = tuple(f"align{max(x, 2)}" for x in (kind.align_a, kind.align_b))
    copies_of = [copied(kind, way) for way in range(3)]
    whole, pads = f"align{FULL_ALIGNMENT}", f"align{max(min(kind.align_a, kind.align_b), 2)}"

    known: dict[tuple, Static] = {}

    def static(config: KernelConfig) -> Static:
        key = _decisive(config)
        if (found := known.get(key)) is None:
            found = known[key] = made(config)
        return found

    def made(config: KernelConfig) -> Static:
        footprint = footprint_of(kind, config, device)
        copies = copies_of[min(config.pad_operands, 2)]
        loads_a, loads_b = (whole, whole) if copies else loads[::-1] if config.swap_ab else loads
        store = "split" if config.split_k > 1 else (
            "swapped" if config.swap_ab == 1 else
            "engine" if footprint.copy_engine and engine_stores else stores)
        return Static(footprint, "a" in copies, "b" in copies, store, loads_a, loads_b,
                      pads if copies else "")
    return static


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
        *map(_static_of(kind, device), configs.configs)])


def _numbers(kind: GemmProblem, configs: Columns, device: DeviceSpec) -> np.ndarray:
    """[numbers, configs]: the fields of each :class:`Footprint`, then copies_a and copies_b."""
    def make() -> np.ndarray:
        each = statics(kind, configs, device)
        distinct = {id(static): static for static in each}
        place = {one: number for number, one in enumerate(distinct)}
        values = np.array([(*s.footprint, s.copies_a, s.copies_b)
                           for s in distinct.values()], float)
        values = values.reshape(-1, len(Footprint._fields) + 2)
        return values[[place[id(static)] for static in each]].T
    return configs.kept(("numbers", kind, device), make)


def counts(problem: GemmProblem, configs: Columns, device: DeviceSpec,
           index: np.ndarray | None = None) -> SimpleNamespace:
    """The numbers of :class:`Work` of many configs: an array for each of :data:`NUMBERS`.

    Args:
        index: selects from ``configs``; None: all of them.
    """
    numbers = _numbers(kind_of(problem), configs, device)
    if index is not None:
        configs, numbers = configs.take(index), numbers[:, index]
    *traits, copies_a, copies_b = numbers
    f: Any = Footprint(*traits)  # its fields are arrays
    c: Any = configs
    swap = c.swap_ab > 0
    m, n = (np.where(swap, *x) for x in ((max(problem.n, 1), max(problem.m, 1)),
                                         (max(problem.m, 1), max(problem.n, 1))))
    k, batch = max(problem.k, 1), max(problem.batch, 1)
    # Bytes of an element of the operand that supplies the tile's rows, and of the other one.
    size_m, size_n = (np.where(swap, *x) / 8 for x in ((f.bits_b, f.bits_a), (f.bits_a, f.bits_b)))
    out = bits_of(problem.dtype_out) / 8
    engine, several = f.copy_engine > 0, c.split_k > 1
    rows = -(-m // (c.block_m * c.cluster_m)) * c.cluster_m
    cols = -(-n // (c.block_n * c.cluster_n)) * c.cluster_n
    parts = c.split_k * c.cluster_k
    tiles = rows * cols * batch * parts
    slots = (f.sms * f.programs_per_sm * f.tiles_per_program).astype(np.int64)
    waves, per_sm = -(-tiles // slots), -(-tiles // f.sms.astype(np.int64))
    all_steps = -(-k // c.block_k)
    steps = -(-all_steps // parts)

    def requested(operand: str, side: np.ndarray, copies: np.ndarray) -> np.ndarray:
        lines = _lines(problem, operand, c.block_k, side, engine)
        return np.where(copies > 0, 1.0, lines)  # rows of copies are whole lines

    asked = c.block_k * (
        c.block_m * size_m / c.cluster_n * np.where(swap, requested("b", c.block_m, copies_b),
                                                    requested("a", c.block_m, copies_a))
        + f.columns_b * size_n / c.cluster_m
        * np.where(swap, requested("a", f.columns_b, copies_a),
                   requested("b", f.columns_b, copies_b)))
    received = c.block_k * (c.block_m * size_m + f.columns_b * size_n)
    result = float(batch) * max(problem.m, 1) * max(problem.n, 1) * out
    stored = np.where(several, 4.0 * c.split_k * batch * m * n, result)
    loads = np.where(engine, 0.0, steps * c.block_k / 1e3
                     * np.maximum(per_sm / _SCHEDULERS, waves / c.num_warps))
    way = np.minimum(c.pad_operands, 2)
    bytes_, elements = (np.array([of(problem, x) for x in range(3)], float)[way]
                        for of in (padded_bytes, padded_elements))
    copied_bytes = 2.0 * bytes_ + _converted_bytes(problem, f)
    return SimpleNamespace(
        tiles=tiles, waves=waves, per_sm=per_sm, steps=steps,
        step_flops=2.0 * c.block_m * c.block_n * c.block_k,
        sm_bytes=per_sm * steps * np.maximum(asked, received),
        l2_bytes=tiles * steps * asked + stored,
        dram_bytes=_dram_bytes(m * (k * size_m), n * (k * size_n), k * size_m, batch, rows, cols,
                               np.minimum(slots, tiles) // c.cluster_k, c, device)
        + result + problem.bytes_of_d(),
        stages=c.num_stages, load_a=loads * c.block_m, load_b=loads * c.block_n,
        spilled=np.maximum(0.0, f.registers - MAX_REGISTERS) * per_sm * steps * c.num_warps,
        dependent=np.minimum(c.dependent_launch, 1),
        store_kib=per_sm * c.block_m * c.block_n / c.cluster_k
        * np.where(several, 4, out) / 1024,
        split=c.split_k, split_bytes=np.where(several, stored + result, 0.0),
        pad_bytes=copied_bytes, pad_elements=elements / 1e3, **f._asdict(),
        in_flight_kib=f.programs_per_sm * c.num_stages * received / 1024)


def _converted_bytes(problem: GemmProblem, footprint: Any) -> np.ndarray:
    """Bytes that a conversion pass reads and writes where the kernel loads operands in another
    format than the problem's: each element once, and the converted operand."""
    converts = (footprint.products > 1) | (footprint.bits_a != bits_of(problem.dtype_a))
    a, b = (float(problem.batch) * x * problem.k for x in (problem.m, problem.n))
    own = a * bits_of(problem.dtype_a) + b * bits_of(problem.dtype_b)
    loaded = a * footprint.bits_a + b * footprint.bits_b
    return np.where(converts, (own + loaded) / 8, 0.0)


def _lines(problem: GemmProblem, operand: str, along_k: np.ndarray, along_rows: np.ndarray,
           engine: np.ndarray) -> np.ndarray:
    """Bytes of the 128-byte lines that the rows of a box of ``operand`` touch, divided by the bytes
    of the rows: a row that does not start at a line boundary touches one line more.

    Part of a line takes the L2 as long as the whole line, and TMA takes :data:`_WITHIN_SECTORS`
    times as long for rows that begin inside a sector. ``along_k`` and ``along_rows`` are the box's
    sides; the layout says which one is contiguous.
    """
    bits = bits_of(problem.dtype_a if operand == "a" else problem.dtype_b)
    k_major = problem.layout[0] == "n" if operand == "a" else problem.layout[1] == "t"
    lead = problem.leading_dimensions()[operand == "b"]
    outside = 1.0 - math.gcd(lead * bits // 8, LINE_BYTES) / LINE_BYTES
    lines = 1.0 + outside * LINE_BYTES / ((along_k if k_major else along_rows) * (bits / 8))
    return np.where(engine, lines * _WITHIN_SECTORS, lines) if within_sectors(
        problem, operand) else lines


def _dram_bytes(a: np.ndarray, b: np.ndarray, row_bytes: np.ndarray, batch: int, rows: np.ndarray,
                cols: np.ndarray, running: np.ndarray, configs: Any,
                device: DeviceSpec) -> np.ndarray:
    """Bytes of the operands that are read from device memory.

    Grouped order: programs compute a group of ``group_m`` rows of tiles (or of clusters) column by
        column. The group's part of A is reused at once. All of B is read again for every group,
        from the L2 as far as it fits there.

    Args:
        a, b: bytes of the operands of one product of the batch. row_bytes: of a row of A.
        rows, cols: numbers of tiles in M and in N. running: tiles that are computed at a time.
    """
    group = np.minimum(configs.group_m * configs.cluster_m, rows)
    panel = group * configs.block_m * row_bytes
    again_b = -(-rows // group) - 1
    again_a = np.maximum(0, -(-cols * group // np.maximum(running, 1)) - 1)
    return batch * (a * (1.0 + again_a * _missing(panel, device.l2_bytes))
                    + b * (1.0 + again_b * _missing(b + panel, device.l2_bytes)))


def _missing(needed: np.ndarray, l2_bytes: int) -> np.ndarray:
    """The share of ``needed`` bytes that an L2 of ``l2_bytes`` no longer holds."""
    ratio = needed / (0.6 * l2_bytes)
    return ratio ** 4 / (1.0 + ratio ** 4)
