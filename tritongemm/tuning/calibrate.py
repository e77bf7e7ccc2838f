"""Sweep journals -> the constants of the selection's model, by least squares on logarithms.

What the constants still miss is learned by a network (``training.py``), written beside them with
the problems and torch's time in the same rounds.

Damped Gauss-Newton over the logarithms of the constants, each held near its usual value by a
prior, so that what the timings do not show stays where it was. Each problem may be off by a
factor of its own (clocks, power): what is fitted is above all the order of its configs. Fast
configs weigh more than slow ones, which nobody would choose.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, device_named
from tritongemm.errors import DataFileError, UsageError
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem
from tritongemm.records import atomic
from tritongemm.records.calibration import (
    Calibration,
    Neighbour,
    NetworkRecord,
    Section,
    calibration_path,
    read_calibration,
    write_calibration,
)
from tritongemm.records.codec import config_from_json, problem_from_json
from tritongemm.records.journal import read_journal
from tritongemm.selection.inputs import NAMES, inputs_of
from tritongemm.selection.model import (
    Key,
    Rates,
    bounds_of,
    factor_id,
    keys_of,
    predict,
    scales,
    usual,
)
from tritongemm.selection.network import Network
from tritongemm.selection.work import NUMBERS, work_of
from tritongemm.tuning.jobs import COARSE
from tritongemm.tuning.training import train

#: Units whose kernels run alike, so that one section serves both.
TOGETHER = (("bf16", "fp16"), ("fp32",), ("tf32",))
#: How far a constant may lie from its usual value: standard deviation of the logarithm.
_SPREAD = {"dram_gbps": 0.15, "l2_gbps": 0.5, "sm_gbps": 0.5, "peak_share": 0.2}
_SPREAD_ELSE = 0.7
#: Of a problem's own factor, and of a timing near the best about the model.
_PROBLEM_SPREAD, _NOISE = 0.02, 0.08
_ITERATIONS, _STEP = 30, 1e-4
#: A config that is slower than the best of every problem by more than this, as a logarithm, is
#: chosen for none: leaving half of all out costs no choice that leave-one-out can see, and saves
#: most of the time of choosing.
_NEARLY_BEST = 0.065
#: Fewer problems than this show a network none of what tells problems apart: fp32's 19, left out in
#: turn, are chosen for at 0.947 of the best at the worst without one, at 0.906 with one.
_LEAST_PROBLEMS = 100
#: How far behind the best a config counts as much as the best for the contenders' order.
_AS_GOOD = 0.03
#: Timings that a config's own factor is taken to have had before it is seen.
_FACTOR_PRIOR = 4.0


@dataclass(frozen=True)
class Timing:
    """One measured config of one problem."""

    problem: GemmProblem
    config: KernelConfig
    time_us: float


@dataclass(frozen=True)
class Source:
    """What journals hold for one device: the fastest coarse time of each problem and config, and
    of problems with a winner torch's time over the winner's (``vs_torch``)."""

    device: DeviceSpec
    timings: tuple[Timing, ...]
    run_ids: tuple[str, ...]
    triton: str
    vs_torch: Mapping[GemmProblem, float]


def read_timings(journals: Iterable[str | os.PathLike[str]], device: str | None = None) -> Source:
    """The timings of ``journals``; only those of ``device`` (a slug) if given.

    Raises:
        DataFileError: a journal that cannot be read or holds no timing.
        UsageError: journals of several devices and no ``device`` to choose one.
    """
    best: dict[tuple[GemmProblem, KernelConfig], float] = {}
    winners: dict[GemmProblem, tuple[float, float]] = {}
    runs: dict[str, str] = {}
    slugs: set[str] = set()
    path: Path | None = None
    for path in map(Path, journals):
        slug = ""
        for record in read_journal(path):
            if record["kind"] == "header":
                slug, run = str(record.get("device", "")), str(record.get("run_id", ""))
                versions = record.get("versions")
                triton = versions.get("triton") if isinstance(versions, dict) else None
                if device is None or slug == device:
                    slugs.add(slug)
                    runs[run] = str(triton or "unknown")
            elif (record["kind"] == "result" and record["status"] == "ok"
                  and record.get("stage") == COARSE and record.get("time_us")
                  and (device is None or slug == device)):
                config = config_from_json(record["config"])
                if config.kernel in SPECS:
                    key = (problem_from_json(record["problem"]), config)
                    best[key] = min(record["time_us"], best.get(key, math.inf))
            elif (record["kind"] == "winner" and record.get("ratio_vs_torch")
                  and (device is None or slug == device)):
                problem = problem_from_json(record["problem"])
                found = (record["time_us"], record["ratio_vs_torch"])
                if config_from_json(record["config"]).kernel in SPECS:
                    winners[problem] = min(found, winners.get(problem, found))
    if path is None:
        raise UsageError("no journal is given; name those that `tritongemm sweep` wrote")
    if len(slugs) > 1:
        raise UsageError(f"the journals are of {', '.join(sorted(slugs))}; choose one with "
                         "--device")
    if not best:
        raise DataFileError(path, "holds no timing" + (f" of {device}" if device else "")
                            + "; sweep some problems first")
    timings = tuple(Timing(p, c, t) for (p, c), t in best.items())
    return Source(device_named(slugs.pop()), timings, tuple(sorted(runs)), max(runs.values()),
                  {problem: ratio for problem, (_, ratio) in winners.items()})


class Table:
    """Timings as columns: counts of work, where each rate's constant stands, and the times."""

    def __init__(self, timings: Sequence[Timing], device: DeviceSpec) -> None:
        works = [work_of(t.problem, t.config, device) for t in timings]
        self.work = SimpleNamespace(**{
            name: np.array([getattr(w, name) for w in works], float) for name in NUMBERS})
        index: dict[Key, int] = {}
        usuals: list[float] = []
        columns = []
        for timing, work in zip(timings, works, strict=True):
            row = []
            for key in keys_of(timing.config, work):
                if key not in index:
                    index[key] = len(index)
                    usuals.append(usual(key, timing.config, device, timing.problem.unit))
                row.append(index[key])
            columns.append(row)
        self.keys = list(index)
        self.usual = np.log(np.array(usuals))
        self.spread = np.array([_SPREAD.get(name, _SPREAD_ELSE) for _, name in self.keys])
        self.index = np.array(columns)
        self.scale = np.log(np.array([scales(t.problem, device) for t in timings]))
        self.log_time = np.log(np.array([t.time_us for t in timings]))
        numbers: dict[GemmProblem, int] = {}
        self.problem = np.array([numbers.setdefault(t.problem, len(numbers)) for t in timings])
        self.problems = list(numbers)
        self.best = np.full(len(numbers), np.inf)
        np.minimum.at(self.best, self.problem, self.log_time)
        self.behind = self.log_time - self.best[self.problem]
        self.factor_ids = [factor_id(t.config) for t in timings]
        self.configs = [t.config for t in timings]
        self.num_sms = device.num_sms

    def rows(self, chosen: Any) -> Table:
        """The rows of an index or mask, with the same constants and numbers of problems."""
        part = object.__new__(Table)
        part.__dict__.update(self.__dict__)
        part.work = SimpleNamespace(**{k: v[chosen] for k, v in vars(self.work).items()})
        for name in ("index", "scale", "log_time", "problem", "behind"):
            setattr(part, name, getattr(self, name)[chosen])
        for name in ("factor_ids", "configs"):
            setattr(part, name, list(np.array(getattr(self, name), object)[chosen]))
        return part

    def log_predicted(self, constants: np.ndarray, column: int | None = None) -> np.ndarray:
        """Logarithm of the predicted times; ``column``: that rate a small step up."""
        rates = self.scale + constants[self.index]
        if column is not None:
            rates[:, column] += _STEP
        work: Any = self.work
        rows: Any = Rates(*np.exp(rates).T)
        return np.log(predict(work, rows).total_us)


@dataclass(frozen=True)
class Fit:
    """Constants (logarithms, in the order of ``Table.keys``) and factors by config."""

    constants: np.ndarray
    factors: dict[str, float]


def fit(table: Table) -> Fit:
    """Fits the constants, then the factors of single configs to what is left.

    A timing depends on few of the constants, so the normal equations are summed timing by timing;
    what a problem's own factor explains is taken out of them problem by problem.
    """
    squared = (np.exp(-table.behind) / _NOISE) ** 2
    count, keys, prior = len(table.problems), len(table.usual), _PROBLEM_SPREAD ** -2
    per_problem = np.bincount(table.problem, squared, count) + prior
    explained = 1 / per_problem + prior / per_problem ** 2  # of the product of two weighted sums
    of = table.index.T

    def by_problem(values: np.ndarray) -> np.ndarray:
        return np.bincount(table.problem, squared * values, count)

    def cost(x: np.ndarray) -> float:
        misses = table.log_predicted(x) - table.log_time
        return float(squared @ misses ** 2 - explained @ by_problem(misses) ** 2
                     + (((x - table.usual) / table.spread) ** 2).sum())

    x, damping = table.usual.copy(), 1e-2
    at = cost(x)
    for _ in range(_ITERATIONS):
        here = table.log_predicted(x)
        misses = here - table.log_time
        slopes = [(table.log_predicted(x, column) - here) / _STEP for column in range(len(of))]
        normal, slope, sums = np.zeros(keys * keys), np.zeros(keys), np.zeros(count * keys)
        for one, values in zip(of, slopes, strict=True):
            np.add.at(slope, one, squared * values * misses)
            np.add.at(sums, table.problem * keys + one, squared * values)
            for other, others in zip(of, slopes, strict=True):
                np.add.at(normal, one * keys + other, squared * values * others)
        sums = sums.reshape(count, keys)
        normal = (normal.reshape(keys, keys) - (sums * explained[:, None]).T @ sums
                  + np.diag(table.spread ** -2))
        slope += (x - table.usual) / table.spread ** 2 - sums.T @ (explained * by_problem(misses))
        before = at
        while damping < 1e6:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slope)
            tried = x + np.clip(step, -1.0, 1.0)
            reached = cost(tried)
            if reached < at:
                x, at, damping = tried, reached, max(damping / 5, 1e-6)
                break
            damping *= 4
        if before - at < 1e-4 * before:
            break
    return Fit(x, _factors(table, x))


def _factors(table: Table, constants: np.ndarray) -> dict[str, float]:
    """Measured over predicted of each config, drawn towards 1 where it was seen seldom."""
    weight = np.exp(-2 * table.behind)
    miss = table.log_time - table.log_predicted(constants)
    count = len(table.problems)
    own = np.bincount(table.problem, weight * miss, count) / np.maximum(
        np.bincount(table.problem, weight, count), 1e-9)
    miss = miss - own[table.problem]
    total: dict[str, float] = {}
    seen: dict[str, float] = {}
    for name, w, value in zip(table.factor_ids, weight, miss, strict=True):
        total[name] = total.get(name, 0.0) + w * value
        seen[name] = seen.get(name, _FACTOR_PRIOR) + w
    return {name: math.exp(total[name] / seen[name]) for name in total}


def predicted(table: Table, fitted: Fit) -> np.ndarray:
    """Predicted times of the table's rows, microseconds, by the constants alone."""
    return np.asarray(_terms(table, fitted).total_us)


def _rates(table: Table, fitted: Fit) -> Any:
    return Rates(*np.exp(table.scale + fitted.constants[table.index]).T)


def _terms(table: Table, fitted: Fit) -> Any:
    factors: Any = np.array([fitted.factors.get(name, 1.0) for name in table.factor_ids])
    work: Any = table.work
    return predict(work, _rates(table, fitted), factors)


def inputs(table: Table, fitted: Fit) -> np.ndarray:
    """What the network sees of the table's rows."""
    work, rates = table.work, _rates(table, fitted)
    return inputs_of(table.configs, table.problems, table.problem, work, bounds_of(work, rates),
                     _terms(table, fitted), table.num_sms)


def learned(table: Table, fitted: Fit) -> NetworkRecord | None:
    """The network of what ``fitted`` misses of the table's rows; None: they are of too few
    problems."""
    if len(np.unique(table.problem)) < _LEAST_PROBLEMS:
        return None
    return train(NAMES, inputs(table, fitted),
                 table.log_time - np.log(predicted(table, fitted)), table.behind)


def corrected(table: Table, fitted: Fit, network: NetworkRecord | None) -> np.ndarray:
    """Predicted times of the table's rows with what the network corrects, microseconds."""
    if network is None:
        return predicted(table, fitted)
    return predicted(table, fitted) * np.exp(Network(network)(inputs(table, fitted)))


def contenders_of(table: Table) -> tuple[KernelConfig, ...]:
    """The configs that were the best of some problem of the table's rows, or nearly; those of many
    problems first, by the sum of exp(-behind / :data:`_AS_GOOD`)."""
    found: dict[KernelConfig, float] = {}
    for row in np.flatnonzero(table.behind <= _NEARLY_BEST):
        config, share = table.configs[row], math.exp(-table.behind[row] / _AS_GOOD)
        found[config] = found.get(config, 0.0) + share
    return tuple(sorted(found, key=lambda c: (-found[c], c.config_id)))


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def section_of(table: Table, units: tuple[str, ...], source: Source) -> Section:
    """The fitted section for ``units``."""
    fitted = fit(table)
    network = learned(table, fitted)
    good = table.behind < math.log(1.3)
    miss = np.log(corrected(table, fitted, network))[good] - table.log_time[good]
    constants: dict[str, dict[str, float]] = {}
    for (owner, name), value in zip(table.keys, np.exp(fitted.constants), strict=True):
        constants.setdefault(owner, {})[name] = float(f"{value:.5g}")
    return Section(units, source.run_ids, source.triton, len(table.problems),
                   len(table.log_time), round(float(np.sqrt((miss ** 2).mean())), 4), constants,
                   {name: round(value, 4) for name, value in fitted.factors.items()},
                   contenders_of(table),
                   tuple(Neighbour(problem, _rounded(source.vs_torch.get(problem)))
                         for problem in table.problems), network)


def calibrate(journals: Iterable[str | os.PathLike[str]], device: str | None = None,
              path: str | os.PathLike[str] | None = None) -> tuple[Path, Calibration]:
    """Fits every group of units that the journals hold, and writes the device's calibration.

    Sections of units that the journals do not hold stay as they are.

    Raises:
        DataFileError: a journal or calibration that cannot be used, or not writable.
        UsageError: journals of several devices and no ``device`` to choose one.
    """
    source = read_timings(journals, device)
    path = Path(path) if path is not None else calibration_path(source.device.slug)
    if path.exists():
        read_calibration(path)  # one that cannot be kept is refused before minutes of fitting
    sections: list[Section] = []
    for units in TOGETHER:
        timings = [t for t in source.timings if t.problem.unit in units]
        if timings:
            sections.append(section_of(Table(timings, source.device), units, source))
    with atomic.locked(path):
        if path.exists():
            known = {unit for section in sections for unit in section.units}
            sections += [s for s in read_calibration(path).sections if not known & {*s.units}]
        sections.sort(key=lambda s: s.units)
        result = Calibration(source.device.slug, source.device.arch, tuple(sections))
        write_calibration(path, result)
    return path, result
