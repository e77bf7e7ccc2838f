"""Fits the constants of the selection's model to sweep journals, by least squares on logarithms.

Coarse times are first scaled by the slowdown that such configs show under sustained power
(``sustained.py``). A network learns the remaining error of the constants (``training.py``). The
calibration holds the constants, the network, the problems and torch's time in the same rounds.

Damped Gauss-Newton over the logarithms of the constants. A prior holds each constant near its
typical value, so that constants which the timings do not determine keep it. Each problem has a free
factor (clocks, power), so that the fit concerns mainly the order of its configs. Fast configs have
more weight than slow ones, which are never chosen.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tritongemm import settings
from tritongemm.calibration.sustained import sustained
from tritongemm.calibration.timing_table import STEP, Fit, TimingTable
from tritongemm.calibration.timings import DeviceTimings, read_timings
from tritongemm.calibration.training import train
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem
from tritongemm.records import atomic
from tritongemm.records.calibration import (
    Calibration,
    Covers,
    Neighbour,
    NetworkRecord,
    Section,
    calibration_path,
    read_calibration,
    write_calibration,
)
from tritongemm.selection.inputs import NAMES
from tritongemm.selection.network import Network

#: Standard deviations, as logarithms: of a problem's factor, and of a timing near the best around
#: the model.
_PROBLEM_SPREAD, _NOISE = 0.02, 0.08
_ITERATIONS = 30
#: A config that is slower than the best by more than this for every problem, as a logarithm, is not
#: a candidate. That removes half of the configs and most of the time of a choice, and changes no
#: result of leave-one-out.
_NEARLY_BEST = 0.065
#: With fewer problems no network is trained: for the 19 of fp32, leave-one-out gives a worst choice
#: of 0.947 of the best speed without a network and 0.906 with one.
_LEAST_PROBLEMS = 100
#: Scale of the weight exp(-behind / _AS_GOOD) that orders the candidates.
_AS_GOOD = 0.03
#: Weight of the prior factor 1 of a config, as a number of timings.
_FACTOR_PRIOR = 4.0


def fit(table: TimingTable) -> Fit:
    """Fits the constants, then the factors of single configs to the residuals.

    A timing depends on few constants, so the normal equations are summed timing by timing. The
    factor of each problem is eliminated from them.
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
        slopes = [(table.log_predicted(x, column) - here) / STEP for column in range(len(of))]
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


def _factors(table: TimingTable, constants: np.ndarray) -> dict[str, float]:
    """Measured / predicted time of each config, shrunk towards 1 where there are few timings."""
    weight = np.exp(-2 * table.behind)
    miss = table.log_time - table.log_predicted(constants)
    miss = miss - table.mean_of_problem(miss, weight)
    total: dict[str, float] = {}
    seen: dict[str, float] = {}
    for name, w, value in zip(table.factor_ids, weight, miss, strict=True):
        total[name] = total.get(name, 0.0) + w * value
        seen[name] = seen.get(name, _FACTOR_PRIOR) + w
    return {name: math.exp(total[name] / seen[name]) for name in total}


def predicted(table: TimingTable, fitted: Fit) -> np.ndarray:
    """The predicted times of the table's rows in microseconds, by the constants alone."""
    return np.asarray(table.terms(fitted).total_us)


def learned(table: TimingTable, fitted: Fit) -> NetworkRecord | None:
    """A network trained on the residuals of ``fitted``; None if the table has too few problems."""
    if len(np.unique(table.problem)) < _LEAST_PROBLEMS:
        return None
    return train(NAMES, table.inputs(fitted),
                 table.log_time - np.log(predicted(table, fitted)), table.behind)


def corrected(table: TimingTable, fitted: Fit, network: NetworkRecord | None) -> np.ndarray:
    """The predicted times of the table's rows with the network's correction, microseconds."""
    if network is None:
        return predicted(table, fitted)
    return predicted(table, fitted) * np.exp(Network(network)(table.inputs(fitted)))


def candidates_of(configs: Sequence[KernelConfig], behind: np.ndarray
                  ) -> tuple[KernelConfig, ...]:
    """The configs that were the best for some problem, or nearly, sorted by the sum of exp(-behind
    / :data:`_AS_GOOD`), largest first.

    Args:
        configs: the config of each timing. behind: log(time / best time of its problem).
    """
    found: dict[KernelConfig, float] = {}
    for row in np.flatnonzero(behind <= _NEARLY_BEST):
        config, share = configs[row], math.exp(-behind[row] / _AS_GOOD)
        found[config] = found.get(config, 0.0) + share
    return tuple(sorted(found, key=lambda c: (-found[c], c.config_id)))


def neighbours_of(problems: Iterable[GemmProblem], measured: DeviceTimings
                  ) -> tuple[Neighbour, ...]:
    """The measured problems, with torch's time if ``measured`` has it."""
    ratios = {p: measured.vs_torch.get(p) for p in problems}
    return tuple(Neighbour(p, None if r is None else round(r, 4)) for p, r in ratios.items())


def near_the_best(misses: np.ndarray, behind: np.ndarray) -> float:
    """RMS of the errors of configs within 1.3 of their problem's best."""
    return round(float(np.sqrt((misses[behind < math.log(1.3)] ** 2).mean())), 4)


def section_of(table: TimingTable, units: tuple[str, ...], measured: DeviceTimings,
               listed: bool = True) -> Section:
    """The fitted section for ``units``. ``listed``: with candidates (:func:`candidates_of`);
    without, selection looks at all configs of the classes that were measured."""
    fitted = fit(table)
    network = learned(table, fitted)
    misses = np.log(corrected(table, fitted, network)) - table.log_time
    constants: dict[str, dict[str, float]] = {}
    for (owner, name), value in zip(table.keys, np.exp(fitted.constants), strict=True):
        constants.setdefault(owner, {})[name] = float(f"{value:.5g}")
    return Section(units, measured.run_ids, measured.triton, len(table.problems),
                   len(table.log_time), near_the_best(misses, table.behind), constants,
                   {name: round(value, 4) for name, value in fitted.factors.items()},
                   candidates_of(table.columns.configs, table.behind) if listed else (),
                   neighbours_of(table.problems, measured), network,
                   Covers.of((t.problem, t.config) for t in measured.timings))


def calibrate(journals: Iterable[str | os.PathLike[str]], device: str | None = None,
              path: str | os.PathLike[str] | None = None, *, listed: bool = True
              ) -> tuple[Path, Calibration]:
    """Fits every group of units in the journals, and writes the device's calibration.

    Sections for other units stay as they are. ``listed``: as of :func:`section_of`.

    Raises:
        DataFileError: a journal or calibration cannot be used, or the file is not writable.
        UsageError: journals of several devices and no ``device`` to choose one.
    """
    measured = sustained(read_timings(journals, device))
    return write(measured.device, path or calibration_path(measured.device.slug), (
        section_of(TimingTable(part.timings, part.device), units, part, listed)
        for units, part in measured.parts()))


def _other_sections(path: Path) -> tuple[Section, ...]:
    """Those of the file at ``path``, else of the one that it would hide. Raises DataFileError."""
    hidden = (settings.config_files("calibration").get(path.stem, [])
              if path.parent == settings.config_root() / "calibration" else [])
    found = path if path.exists() else next(iter(hidden), None)
    return () if found is None else read_calibration(found).sections


def write(device: DeviceSpec, path: str | os.PathLike[str], sections: Iterable[Section]
          ) -> tuple[Path, Calibration]:
    """Writes a calibration with ``sections``; other sections of the file stay, or of the one that
    a new file hides from selection."""
    path = Path(path)
    with atomic.locked(path):  # what cannot be used or written is refused before minutes of fitting
        _other_sections(path)
    made = list(sections)
    with atomic.locked(path):
        known = {unit for section in made for unit in section.units}
        made += [s for s in _other_sections(path) if not known & {*s.units}]
        made.sort(key=lambda s: s.units)
        result = Calibration(device.slug, device.arch, tuple(made))
        write_calibration(path, result)
    return path, result
