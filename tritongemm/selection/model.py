"""The predicted time of a config for a problem: a sum of terms that can be checked by hand.

launch + fill + K loop + units + store + pass over a split K + copies of unaligned operands, and a
correction by a small network (``network.py``). ``work.py`` counts the work. The constants come from
a calibration of the device, which ``tritongemm calibrate`` fits to a sweep's timings; without one,
from the datasheet's peaks and typical shares of them. The K loop takes about as long as the slowest
of its bounds: the compute rate of the unit at this tile, the latency of one program's dependent
steps, the loads of an SM, the bandwidth of the L2, the bandwidth of the memory.

Constants, by owner:
    memory: dram_gbps, l2_gbps, sm_gbps (into one SM), split_us and split_gbps (the pass over a
        split K), pad_us, pad_gbps, pad_kelement_us_<alignment> (the copies).
    a kernel: fill_us (from launch to the first product), latency_us (of a load; a program waits for
        it once in ``num_stages`` steps), store_kib_us_<how> (an SM stores one KiB),
        load_kelement_us_<alignment> (the warps of one scheduler load 1,000 elements), spill_us (one
        spilled register of a warp, for each step), dependent_drag (relative slowdown of the K loop
        while the end of the preceding kernel shares the device).
    Launch times have a second constant, ``..._dependent``, for configs with programmatic dependent
    launch.
    a class of configs: peak_share (share of the unit's peak rate that the tile reaches), pace_us
        (least time of a program's step), unit_us (start and end of a unit of work). The constants
        of a class that was not measured are interpolated between the classes with the next smaller
        and larger tile width.

A calibration lists the formats, compute modes and kernels that it was fitted to. Any other problem
or config is not calibrated: its terms use typical constants and no correction
(:func:`not_calibrated` gives the reason).
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Section,
    calibration_path,
    read_shipped,
)
from tritongemm.records.prepared_calibration import Configs
from tritongemm.selection.columns import Columns, kind_of
from tritongemm.selection.inputs import NAMES, fixed_inputs, inputs_of
from tritongemm.selection.neighbours import Bound, Neighbours
from tritongemm.selection.network import Network
from tritongemm.selection.sibling import as_fast_as, as_on, sibling_of
from tritongemm.selection.typical import Key, peak_tflops, usual
from tritongemm.selection.work import (
    Static,
    Work,
    class_of,
    counts,
    statics,
)

log = logging.getLogger("tritongemm")

#: Time of an empty kernel in a CUDA graph on Hopper, microseconds.
LAUNCH_US = 1.5
#: Order p of the p-norm that combines the bounds of the K loop: close to their maximum, and
#: somewhat above it where two bounds are close.
_SHARPNESS = 4.0


class Estimate(NamedTuple):
    """The terms of a predicted time, in microseconds, with the tiles and waves behind them.

    All are at least 0 except ``correction_us``, which is negative where the network expects a
    shorter time than the sum of the others. Fields are arrays where several configs are estimated
    at once.
    """

    tiles: int
    waves: int
    launch_us: float
    fill_us: float
    k_loop_us: float
    unit_us: float
    store_us: float
    split_us: float
    pad_us: float
    correction_us: float = 0.0

    @property
    def total_us(self) -> float:
        """The sum of the terms."""
        return (self.launch_us + self.fill_us + self.k_loop_us + self.unit_us + self.store_us
                + self.split_us + self.pad_us + self.correction_us)


class Rates(NamedTuple):
    """The constants of one config and problem; rates are per microsecond."""

    fill_us: float
    flops: float
    pace_us: float
    latency_us: float
    unit_us: float
    sm_bytes: float
    l2_bytes: float
    dram_bytes: float
    load_a_us: float
    load_b_us: float
    spill_us: float
    drag: float
    store_us: float
    split_us: float
    split_bytes: float
    pad_us: float
    pad_bytes: float
    pad_element_us: float


def keys_of(config: KernelConfig, work: Work | Static) -> tuple[Key, ...]:
    """(owner, name) of the constant behind each field of :class:`Rates`, in order."""
    kernel, name, memory = config.kernel, class_of(config), "memory"
    early = "_dependent" if config.dependent_launch else ""
    return ((kernel, "fill_us" + early), (name, "peak_share"), (name, "pace_us"),
            (kernel, "latency_us"), (name, "unit_us"), (memory, "sm_gbps"),
            (memory, "l2_gbps"), (memory, "dram_gbps"),
            (kernel, "load_kelement_us_" + work.loads_a),
            (kernel, "load_kelement_us_" + work.loads_b), (kernel, "spill_us"),
            (kernel, "dependent_drag"),
            (kernel, "store_kib_us_" + work.store), (memory, "split_us" + early),
            (memory, "split_gbps"), (memory, "pad_us" + early), (memory, "pad_gbps"),
            (memory, "pad_kelement_us_" + (work.pads or "align16")))


def scales(problem: GemmProblem, device: DeviceSpec) -> Rates:
    """The factors that turn constants into rates: the unit's peak for one SM, and bytes per
    microsecond for one GB/s."""
    flops = peak_tflops(device, problem.unit) * 1e6 / device.num_sms
    return Rates(1.0, flops, 1.0, 1.0, 1.0, 1e3, 1e3, 1e3, 1.0, 1.0, 1.0,
                 1.0, 1.0, 1.0, 1e3, 1.0, 1e3, 1.0)


def predict(work: Work, rates: Rates, factor: float = 1.0) -> Estimate:
    """The terms of a prediction. Pure arithmetic, so that fields may be numbers or arrays.

    Args:
        factor: measured / predicted time of the product's kernel, without split and copies.
    """
    p = _SHARPNESS
    k_loop = sum(bound ** p for bound in bounds_of(work, rates)) ** (1.0 / p)
    k_loop = (k_loop + work.load_a * rates.load_a_us + work.load_b * rates.load_b_us
              + work.spilled * rates.spill_us) * (1.0 + work.dependent * rates.drag)
    return Estimate(
        work.tiles, work.waves, LAUNCH_US, factor * rates.fill_us, factor * k_loop,
        factor * work.waves * rates.unit_us, factor * work.store_kib * rates.store_us,
        (work.split > 1) * rates.split_us + work.split_bytes / rates.split_bytes,
        (work.pad_bytes > 0) * rates.pad_us + work.pad_bytes / rates.pad_bytes
        + work.pad_elements * rates.pad_element_us)


def bounds_of(work: Work, rates: Rates) -> tuple[float, ...]:
    """The lower bounds of the K loop's time, microseconds: compute rate, dependent steps, loads of
    an SM, L2 bandwidth, memory bandwidth."""
    return (work.per_sm * work.steps * work.step_flops / rates.flops,
            work.waves * work.steps * (rates.pace_us + rates.latency_us / work.stages),
            work.sm_bytes / rates.sm_bytes, work.l2_bytes / rates.l2_bytes,
            work.dram_bytes / rates.dram_bytes)


def factor_id(config: KernelConfig, name: str = "") -> str:
    """The id of the config's factor: its class (``name``, where the caller knows it), stages, tile
    order and epilogue, without split and copies, which have terms of their own."""
    return (f"{name or class_of(config)}_s{config.num_stages}_g{config.group_m}"
            f"_e{config.epilogue_subtile}")


def _any_width(name: str) -> str:
    """The name of a class with any width of its tile; the name of another owner unchanged."""
    return re.sub(r"x\d+x", "x*x", name, count=1)


def _by_width(constants: Mapping[str, Mapping[str, float]]
              ) -> dict[Key, list[tuple[int, float]]]:
    """Groups classes that differ only in the tile's width: (:func:`_any_width`, constant) ->
    [(width, value)], narrowest first."""
    found: dict[Key, list[tuple[int, float]]] = {}
    for name, values in constants.items():
        if width := re.search(r"x(\d+)x", name):
            for constant, value in values.items():
                found.setdefault((_any_width(name), constant), []).append((int(width[1]), value))
    return {key: sorted(pairs) for key, pairs in found.items()}


class Model:
    """The model of the problems that run on one kind of unit of a device. Caches constants.

    Attributes:
        section: the calibration; None: typical constants.
        where: names of the devices whose timings calibrated it; here: whether the device itself is
            one of them.
        neighbours: the measured problems; None if there are none.
        candidates: configs that were the best, or nearly, for a measured problem; those that won
            the most problems first. Empty if the calibration lists none.
    """

    def __init__(self, served: Served, unit: str, scale: Rates) -> None:
        section = served.section
        self.section, self.where, self.here = section, served.where, served.here
        self._device, self._unit, self._scale = served.device, unit, scale
        self.neighbours = _neighbours(section)
        self._of_sibling = _neighbours(served.of_sibling)
        self.candidates = section.candidates if section is not None else ()
        self._network = (Network(section.network)
                         if section is not None and section.network is not None else None)
        self._learned = frozenset(section.covers.kernels) if section is not None else frozenset()
        self._constants_of: dict[tuple, tuple[float, ...]] = {}

    def knows(self, config: KernelConfig) -> bool:
        """Whether configs of this class, launched this way, were measured for the calibration."""
        if self.section is None or class_of(config) not in self.section.constants:
            return False
        early = "_dependent" if config.dependent_launch else ""
        return "fill_us" + early in self.section.constants.get(config.kernel, {})

    def bounds(self, problem: GemmProblem) -> tuple[Bound | None, Bound | None]:
        """Torch's time over ours, as far as measurements on the device and on its sibling tell;
        None where there are none."""
        bound, of_sibling = (None if some is None else some.bound(problem)
                             for some in (self.neighbours, self._of_sibling))
        return (bound, of_sibling) if self.here else (None, bound)

    def place(self, config: KernelConfig) -> int:
        """The position of ``config`` in ``candidates``; their number if it is not one of them."""
        if isinstance(self.candidates, Configs):  # few are asked for, and the others not yet made
            found = self.candidates.place(config)
            return len(self.candidates) if found is None else found
        return self._places.get(config, len(self._places))

    @functools.cached_property
    def _places(self) -> dict[KernelConfig, int]:
        return {config: place for place, config in enumerate(self.candidates)}

    @functools.cached_property
    def _of_width(self) -> dict[Key, list[tuple[int, float]]]:
        return _by_width(self.section.constants if self.section is not None else {})

    def estimate(self, problem: GemmProblem, config: KernelConfig) -> Estimate:
        """The terms of ``config`` for ``problem``."""
        terms = self._estimates(problem, Columns((config,)))
        numbers = (np.broadcast_to(x, (1,))[0].item() for x in terms)
        tiles, waves, *rest = numbers
        return Estimate(round(tiles), round(waves), *rest)

    def times(self, problem: GemmProblem, configs: Columns,
              index: np.ndarray | None = None) -> np.ndarray:
        """The predicted times of many configs, microseconds; ``index``: only of these."""
        return np.asarray(self._estimates(problem, configs, index).total_us)

    def _estimates(self, problem: GemmProblem, configs: Columns,
                   index: np.ndarray | None = None) -> Estimate:
        """The terms of many configs, as arrays. Configs that were not measured get no
        correction."""
        terms, inputs = self._uncorrected(problem, configs, index)
        if self._network is None or not len(configs if index is None else index):
            return terms
        learned = configs.kept(("learned", self), lambda: np.array(
            [config.kernel in self._learned for config in configs.configs]))
        if index is not None:
            learned = learned[index]
        return terms._replace(correction_us=np.where(
            learned, terms.total_us * np.expm1(self._network(inputs())), 0.0))

    def training_inputs(self, problem: GemmProblem, configs: Columns
                        ) -> tuple[np.ndarray, np.ndarray]:
        """([configs, inputs] of a network, times without a correction in microseconds)."""
        terms, inputs = self._uncorrected(problem, configs)
        return inputs(), np.asarray(terms.total_us)

    def _uncorrected(self, problem: GemmProblem, configs: Columns, index: np.ndarray | None = None
                     ) -> tuple[Estimate, Callable[[], np.ndarray]]:
        """The terms of many configs without the correction, and a function that computes the
        network's inputs."""
        works: Any = counts(problem, configs, self._device, index)
        kind = kind_of(problem)
        classes = configs.kept(("classes",), lambda: [class_of(c) for c in configs.configs])
        factors = configs.kept(("factors", self), lambda: self._factors(configs.configs, classes))
        constants = configs.kept((kind, self), lambda: self._constants(
            configs.configs, classes, statics(kind, configs, self._device)))
        if index is not None:
            factors, constants = factors[index], constants[:, index]
        of: Any = Rates(*(x * scale for x, scale in zip(constants, self._scale, strict=True)))
        terms = predict(works, of, factors)  # type: ignore[arg-type]

        def inputs() -> np.ndarray:
            fixed = configs.kept(("inputs", kind, self._device), lambda: fixed_inputs(
                configs, counts(kind, configs, self._device)))
            part = configs if index is None else configs.take(index)
            bounds: Any = bounds_of(works, of)
            return inputs_of(fixed if index is None else fixed[index], part, (problem,),
                             np.zeros(len(part), int), works, bounds, terms,
                             self._device.num_sms)
        return terms, inputs

    def _between(self, key: Key, width: int) -> float | None:
        """A constant of a class that was not measured: interpolated between the classes that differ
        only in the tile's width, or taken from the nearest one. None if there is no such class."""
        widths = self._of_width.get((_any_width(key[0]), key[1]))
        return float(np.interp(width, *zip(*widths, strict=True))) if widths else None

    def _factors(self, configs: Iterable[KernelConfig], classes: Sequence[str]) -> np.ndarray:
        """The factor of each config."""
        known: Mapping[str, float] = self.section.factors if self.section is not None else {}
        return np.array([known.get(factor_id(config, name), 1.0)
                         for config, name in zip(configs, classes, strict=True)], float)

    def _constants(self, configs: Iterable[KernelConfig], classes: Sequence[str],
                   parts: Sequence[Static]) -> np.ndarray:
        """[constants, configs]: the constants behind :class:`Rates` for problems of a kind."""
        known = self.section.constants if self.section is not None else {}
        places: dict[tuple, int] = {}
        distinct: list[tuple[float, ...]] = []
        which: list[int] = []
        for config, name, static in zip(configs, classes, parts, strict=True):
            key = (name, config.dependent_launch, static.store, static.loads_a, static.loads_b,
                   static.pads)
            place = places.get(key)
            if place is None:
                place = places[key] = len(distinct)
                if key not in self._constants_of:
                    self._constants_of[key] = tuple(
                        known.get(owner, {}).get(constant)
                        or self._between((owner, constant), config.block_n)
                        or usual((owner, constant), config, static, self._device, self._unit)
                        for owner, constant in keys_of(config, static))
                distinct.append(self._constants_of[key])
            which.append(place)
        return np.array(distinct, float).reshape(-1, len(self._scale))[which].T


class Served(NamedTuple):
    """A section of a calibration, and the device that it is used for.

    Attributes:
        section: None if no calibration has one.
        where: names of the devices that it was measured on.
        device: the device that it is used for, with the peaks that its constants are shares of.
        of_sibling: the sibling's own section, where ``section`` was made of both devices' timings:
            its neighbours are those that were measured beside torch on the device.
        here: whether timings of the device itself are among the section's.
    """

    section: Section | None
    where: str
    device: DeviceSpec
    of_sibling: Section | None = None
    here: bool = True


def _neighbours(section: Section | None) -> Neighbours | None:
    return None if section is None or not section.neighbours else Neighbours(section.neighbours)


@functools.lru_cache(maxsize=64)
def _served(path: str, device: DeviceSpec, unit: str) -> Served:
    """The section for ``unit``, from the first of these that has one: the device's calibration at
    ``path``, the calibration fitted to timings of the device and its sibling, the sibling's.
    Cached."""
    section = _shipped(device.slug, unit)
    if section is not None:
        return Served(section, device.name, device)
    sibling = sibling_of(device, unit)
    if sibling is None:
        return Served(None, device.name, device)
    section = _shipped(device.slug, unit, sibling.slug)
    if section is not None:
        return Served(section, f"{sibling.name} and {device.name}", as_fast_as(sibling, device),
                      _shipped(sibling.slug, unit))
    return of_sibling(sibling, device, unit)


def of_sibling(sibling: DeviceSpec, device: DeviceSpec, unit: str) -> Served:
    """The section of the sibling's calibration, adapted to ``device``."""
    section = _shipped(sibling.slug, unit)
    if section is None:
        return Served(None, device.name, device)
    return Served(as_on(section, sibling, device), sibling.name, as_fast_as(sibling, device),
                  here=sibling == device)


def _shipped(device: str, unit: str, sibling: str = "") -> Section | None:
    """The section for ``unit``. If its network expects other inputs than this release computes, the
    network is dropped, with one warning per file, and the constants are used without a
    correction."""
    calibration = _read(str(calibration_path(device, sibling)), device, sibling)
    return calibration.section(unit) if calibration is not None else None


@functools.lru_cache(maxsize=16)
def _read(path: str, device: str, sibling: str) -> Calibration | None:
    calibration = read_shipped(device, sibling)
    if calibration is None:
        return None
    foreign = [section.network.names for section in calibration.sections
               if section.network is not None and section.network.names != NAMES]
    if not foreign:
        return calibration
    other = ", ".join(sorted({*foreign[0]} ^ {*NAMES})) or "their order"
    log.warning("tritongemm: %s: the network expects other inputs than this release computes "
                "(%s) and is not used; configs are chosen by the constants alone. Run "
                "`tritongemm calibrate` on the journals again", path, other)
    return replace(calibration, sections=tuple(
        section if section.network is None or section.network.names == NAMES
        else replace(section, network=None) for section in calibration.sections))


@functools.lru_cache(maxsize=64)
def _model(served: Served, unit: str, scale: Rates) -> Model:
    return Model(served, unit, scale)


def model_for(problem: GemmProblem, device: DeviceSpec) -> Model:
    """The model for problems like ``problem``; with typical constants where no calibration covers
    it."""
    return model_of(_served(str(calibration_path(device.slug)), device, problem.unit), problem)


def model_of(served: Served, problem: GemmProblem) -> Model:
    """The model of a section for problems like ``problem``."""
    if served.section is not None and _not_covered(served.section, problem) is not None:
        served = served._replace(section=None, of_sibling=None)
    return _model(served, problem.unit, scales(problem, served.device))


def _not_covered(section: Section, problem: GemmProblem) -> str | None:
    """Names the format or compute mode of ``problem`` that the section's timings do not include."""
    formats = {problem.dtype_a, problem.dtype_b} - {*section.covers.formats}
    if formats:
        return f"operands of {', '.join(sorted(formats))} were not measured"
    if problem.precision not in section.covers.computes:
        return f"products in {problem.precision} were not measured"
    return None


def not_calibrated(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str | None:
    """Why no measurement supports the predicted time of ``config`` for ``problem``, in one phrase;
    None if the calibration covers both."""
    section = _served(str(calibration_path(device.slug)), device, problem.unit).section
    if section is None:
        return f"no calibration serves {device.name} for {problem.unit}"
    if reason := _not_covered(section, problem):
        return reason
    if config.kernel not in section.covers.kernels:
        return f"kernel {config.kernel} was not measured"
    return None


def forget() -> None:
    """Forgets the calibrations read so far."""
    _read.cache_clear()
    _served.cache_clear()
    _model.cache_clear()


def estimate(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Estimate:
    """The predicted time of ``config`` for ``problem`` on ``device``, term by term."""
    return model_for(problem, device).estimate(problem, config)
