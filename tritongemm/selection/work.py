"""What a config does for a problem, counted: tiles, waves, steps, bytes. No rates, no times.

A kernel's part of it comes from its footprint (``kernels/footprint.py``); no kernel is known here
by name.
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

#: How a tile reaches memory: stored by TMA, by the threads with rows of C aligned to so
#: many bytes, transposed by the threads, or as float32 partial sums of a split K.
STORES = ("engine", "align16", "align8", "align4", "align2", "swapped", "split")
#: How threads load an operand: the bytes of its alignment.
LOADS = ("align16", "align8", "align4", "align2")
#: Slowdown of TMA on rows that begin inside a sector (4088 cubed against 8176 cubed).
_WITHIN_SECTORS = 1.5
#: What of a config decides its :class:`Static`.
_decisive = attrgetter("kernel", *(name for name in PARAMETERS
                                   if name not in ("group_m", "dependent_launch")))
#: Warp schedulers of an SM.
_SCHEDULERS = 4


class Work(NamedTuple):
    """Counts of one (problem, config, device). Extents of 0 count as 1, so that all are positive.

    Attributes:
        tiles: units of work: the tiles of C, each part of a split K or of a cluster's K counted,
            with the tiles that clusters reach over the edge of C.
        waves: units that one program, or one slot of an SM, computes one after another.
        per_sm: units of the busiest SM.
        steps: of the K loop in a unit.
        step_flops: operations of a step.
        sm_bytes: that the busiest SM requests, in whole lines, or receives, if that is more.
        l2_bytes: that all SMs request, in whole lines, and store.
        dram_bytes: that cross the memory's pins: each operand once, operands that outgrow the L2
            as often as the tile order returns to them, D, and the result.
        stages: of the pipeline.
        load_a, load_b: thousand elements of A and of B that the warps of one scheduler load; 0
            where TMA loads.
        spilled: registers of a warp that do not fit, times the steps of all warps of the busiest
            SM.
        dependent: 1 where the launch may start under the end of its predecessor.
        store_kib: that the busiest SM stores, KiB.
        split: parts of K.
        split_bytes: that the pass over a split K reads (float32 partial sums) and writes.
        pad_bytes: that the copy of unaligned operands, or the pass that converts them, reads and
            writes.
        pad_elements: thousand elements of these copies.
        sms, programs_per_sm, tiles_per_program, persistent, copy_engine, producer_warps,
            tensor_cores, k_over_threads, products, registers, columns_b, bits_a, bits_b: of the
            :class:`~tritongemm.kernels.footprint.Footprint`.
        in_flight_kib: KiB that an SM's pipelines hold when all stages are full.
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
    """The config's class: what decides the rate of its K loop. Stages, tile order, split and copies
    are counted in :class:`Work` instead. ``swap_ab=2`` computes its tiles as ``swap_ab=0`` does."""
    name = (f"{config.kernel}_{config.block_m}x{config.block_n}x{config.block_k}"
            f"_w{config.num_warps}")
    if config.pingpong:
        name += "_p1"
    for axis, code in (("k", "c"), ("m", "m"), ("n", "n")):
        if (programs := getattr(config, f"cluster_{axis}")) > 1:
            name += f"_{code}{programs}"
    return name + "_x1" if config.swap_ab == 1 else name


def footprint_of(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Footprint:
    """The footprint of ``config``, by its kernel. Raises :class:`ConfigError` for an unknown
    kernel."""
    return spec_named(config.kernel).footprint(problem, config, device)


def keeps_to_the_budget(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    """Whether the launch of the product has at most one program for each SM of a ``device`` whose
    other SMs are left to other work; always true on a whole device. Passes over a split K and
    copies are short, and not counted."""
    if not device.spare_sms:
        return True
    if work_of(problem, config, device).tiles <= device.num_sms:
        return True
    footprint = footprint_of(problem, config, device)
    return (footprint.persistent and footprint.programs_per_sm == 1
            and config.cluster_k * config.cluster_m * config.cluster_n <= device.num_sms)


class Static(NamedTuple):
    """The part of :class:`Work` that the kind of a problem decides (``columns.py``).

    Attributes:
        footprint: what the config occupies, by its kernel.
        copies_a, copies_b: whether the operand is copied first.
        store, loads_a, loads_b, pads: as of :class:`Work`.
    """

    footprint: Footprint
    copies_a: bool
    copies_b: bool
    store: str
    loads_a: str
    loads_b: str
    pads: str


def static_of(kind: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Static:
    """The part that a kind decides, of a kind or of any problem of it."""
    return _static_of(kind, device)(config)


def _static_of(kind: GemmProblem, device: DeviceSpec) -> Callable[[KernelConfig], Static]:
    """:func:`static_of` for many configs: what no config changes is worked out once."""
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
        index: only these of ``configs``; None: all.
    """
    numbers = _numbers(kind_of(problem), configs, device)
    if index is not None:
        configs, numbers = configs.take(index), numbers[:, index]
    *traits, copies_a, copies_b = numbers
    f: Any = Footprint(*traits)  # of arrays
    c: Any = configs
    swap = c.swap_ab > 0
    m, n = (np.where(swap, *x) for x in ((max(problem.n, 1), max(problem.m, 1)),
                                         (max(problem.m, 1), max(problem.n, 1))))
    k, batch = max(problem.k, 1), max(problem.batch, 1)
    # Bytes of an element of what the kernel loads as its rows, and as its columns.
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
        return np.where(copies > 0, 1.0, lines)  # copies have rows of whole lines

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
    """Bytes that a pass before the product reads and writes where the kernel loads operands in
    other numbers than the problem's: one read of each element, and what the kernel loads of it."""
    converts = (footprint.products > 1) | (footprint.bits_a != bits_of(problem.dtype_a))
    a, b = (float(problem.batch) * x * problem.k for x in (problem.m, problem.n))
    own = a * bits_of(problem.dtype_a) + b * bits_of(problem.dtype_b)
    loaded = a * footprint.bits_a + b * footprint.bits_b
    return np.where(converts, (own + loaded) / 8, 0.0)


def _lines(problem: GemmProblem, operand: str, along_k: np.ndarray, along_rows: np.ndarray,
           engine: np.ndarray) -> np.ndarray:
    """Bytes of the 128-byte lines that the rows of a box of ``operand`` touch, over the bytes of
    the rows: a row that does not begin a line takes one line more.

    The L2 delivers part of a line as slowly as all of it, and TMA takes
    :data:`_WITHIN_SECTORS` times as long for rows that begin inside a sector. ``along_k`` and
    ``along_rows`` are the box's sides; the layout says which one is contiguous.
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
    """Bytes of the operands that come from memory.

    Tiles go down a group of ``group_m`` rows of tiles, or of clusters, column by column. The
    group's part of A is read again at once. All of B is read again for every group, from the L2 as
    far as it fits there.

    Args:
        a, b: bytes of the operands of one product of the batch. row_bytes: of a row of A.
        rows, cols: tiles down and across. running: tiles that are computed at a time.
    """
    group = np.minimum(configs.group_m * configs.cluster_m, rows)
    panel = group * configs.block_m * row_bytes
    again_b = -(-rows // group) - 1
    again_a = np.maximum(0, -(-cols * group // np.maximum(running, 1)) - 1)
    return batch * (a * (1.0 + again_a * _missing(panel, device.l2_bytes))
                    + b * (1.0 + again_b * _missing(b + panel, device.l2_bytes)))


def _missing(needed: np.ndarray, l2_bytes: int) -> np.ndarray:
    """The share that has left an L2 of ``l2_bytes`` when ``needed`` bytes went through it."""
    ratio = needed / (0.6 * l2_bytes)
    return ratio ** 4 / (1.0 + ratio ** 4)
