"""The regret of selection (speed lost by choosing without measuring): leave-one-out over sweep
journals.

For every measured problem the model is fitted to the timings of the other problems only. The time
of its choice among the problem's measured configs is looked up in the journal; the result is best
time / chosen time, 1 for the best choice. Times are those of the coarse stage, scaled by the
slowdown under sustained power (``sustained.py``). The nearest tuned row, from a table of the other
problems' best configs, is evaluated in the same way. Problems of equal extents are left out
together, whatever their dtype. With transfer learning (``transfer.py``) the model also learns from
the sibling's timings of the other problems; the constants are the shipped ones, the sibling's or
the device's own. Own ones were fitted to all problems: only the network is trained without the ones
left out.

:func:`shipped` evaluates the shipped calibration, on journals that it was not trained on.
"""

from __future__ import annotations

import csv
import io
import math
import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tritongemm.calibration.calibrate import candidates_of, corrected, fit, learned
from tritongemm.calibration.sustained import sustained
from tritongemm.calibration.timing_table import TimingTable
from tritongemm.calibration.timings import DeviceTimings, Timing, read_timings
from tritongemm.calibration.transfer import Transfer, transfers_from_sibling
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.atomic import write_atomic
from tritongemm.records.tables import TableHeader, TunedRow, TunedTable, path_for
from tritongemm.selection.columns import Columns
from tritongemm.selection.fastest import AS_GOOD
from tritongemm.selection.model import model_for
from tritongemm.selection.policy import nearest_row

#: Seed of the assignment of problems to folds.
_SEED = 0
COLUMNS = ("batch", "m", "n", "k", "dtype", "layout", "precision", "align_a", "align_b",
           "align_c", "configs", "best_config", "best_us", "model_config", "model_us",
           "predicted_us", "model_share", "nearest_config", "nearest_us", "nearest_share")


@dataclass(frozen=True)
class Regret:
    """One problem: the best measured config, and the config that each way of choosing selects.

    ``model`` and ``nearest`` are None if that way selects nothing: there is no other problem, or
    none near enough.
    """

    problem: GemmProblem
    configs: int
    best: Timing
    model: Timing | None
    predicted_us: float | None
    nearest: Timing | None

    def share(self, timing: Timing | None) -> float | None:
        """Best time / the chosen config's time: the share of the best speed that the choice
        reaches."""
        return None if timing is None else self.best.time_us / timing.time_us


@dataclass(frozen=True)
class Summary:
    """The shares of one way of choosing: number of problems, geometric mean, worst."""

    count: int
    mean: float
    worst: float

    @classmethod
    def of(cls, shares: Sequence[float]) -> Summary:
        """The summary of ``shares``; all fields are 0 if there are none."""
        if not shares:
            return cls(0, 0.0, 0.0)
        return cls(len(shares), math.exp(sum(map(math.log, shares)) / len(shares)), min(shares))


def regret(journals: Iterable[str | os.PathLike[str]], device: str | None = None,
           folds: int | None = None) -> list[Regret]:
    """Evaluates the model and the nearest row on the problems of ``journals``.

    Args:
        folds: number of parts of the problems, each of which is left out once; None: one part for
            each set of extents (takes days: each part needs a fit and a training).

    Raises:
        UsageError: fewer than two folds. DataFileError: a bad journal.
    """
    _check(folds)
    measured = sustained(read_timings(journals, device))
    return [one for _, part in measured.parts() for one in _judge(part, folds, _alone(part))]


def regret_with_sibling(journals: Iterable[str | os.PathLike[str]], device: str,
                        folds: int | None = None) -> list[Regret]:
    """Evaluates the model of ``device`` that is trained on its sibling's journals too, and the
    nearest row, as :func:`regret` does.

    Raises:
        UsageError: fewer than two folds, or no sibling. DataFileError: a bad journal.
    """
    _check(folds)
    return [one for transfer in transfers_from_sibling(journals, device)[2]
            for one in _judge(transfer.measured, folds, _with_sibling(transfer))]


def _check(folds: int | None) -> None:
    if folds is not None and folds < 2:
        raise UsageError(f"folds={folds}; at least 2, so that something is left to fit")


def shipped(journals: Iterable[str | os.PathLike[str]], device: str | None = None) -> list[Regret]:
    """Evaluates the calibration that the device uses, its own or its sibling's, on the problems of
    ``journals``, without fitting. The journals should not be those that it was trained on.

    Raises:
        UsageError: no calibration serves the device. DataFileError: a bad journal or calibration.
    """
    found = []
    measured = sustained(read_timings(journals, device))
    by_problem: dict[GemmProblem, list[Timing]] = {}
    for timing in measured.timings:
        by_problem.setdefault(timing.problem, []).append(timing)
    for problem, timings in by_problem.items():
        model = model_for(problem, measured.device)
        if model.section is None:
            raise UsageError(f"no calibration serves {measured.device.slug} for {problem.unit}, "
                             "its own or a sibling's; run `tritongemm calibrate` first")
        place = np.array([model.place(t.config) for t in timings])
        chosen_among = (place < len(model.candidates) if model.candidates
                        else np.array([model.knows(t.config) for t in timings]))
        expected = np.where(
            chosen_among, model.times(problem, Columns([t.config for t in timings])), np.inf)
        chosen = _first(expected, place)
        found.append(Regret(problem, len(timings), min(timings, key=lambda t: t.time_us),
                            None if chosen is None else timings[chosen],
                            None if chosen is None else float(expected[chosen]), None))
    return found


def _first(expected: np.ndarray, place: np.ndarray) -> int | None:
    """The index of the chosen config: among those within ``AS_GOOD`` of the least expected time,
    the first by ``place``. None if there is no candidate."""
    if not np.isfinite(expected).any():
        return None
    as_good = np.flatnonzero(expected <= AS_GOOD * expected.min())
    return int(as_good[np.argmin(place[as_good])])


#: Maps the indices of the left-out timings to their expected times in microseconds and the
#: candidates, both from all other timings.
_Prediction = Callable[[np.ndarray], tuple[np.ndarray, tuple[KernelConfig, ...]]]


def _alone(measured: DeviceTimings) -> _Prediction:
    """Predicts with a model fitted to the other timings."""
    table = TimingTable(measured.timings, measured.device)

    def predict(left_out: np.ndarray) -> tuple[np.ndarray, tuple[KernelConfig, ...]]:
        training = table.rows(np.delete(np.arange(len(measured.timings)), left_out))
        fitted = fit(training)
        return (corrected(table.rows(left_out), fitted, learned(training, fitted)),
                candidates_of(training.columns.configs, training.behind))
    return predict


def _with_sibling(transfer: Transfer) -> _Prediction:
    """Predicts with a model trained on the device's other timings and on its sibling's timings of
    other extents."""
    target, source = transfer.target, transfer.source

    def predict(left_out: np.ndarray) -> tuple[np.ndarray, tuple[KernelConfig, ...]]:
        test = target.rows(left_out)
        extents = {_extents(p) for p in test.problems()}
        training = source.rows(np.flatnonzero(
            [_extents(t.problem) not in extents for t in source.timings])).joined_with(
            target.rows(np.delete(np.arange(len(target.timings)), left_out)))
        times = np.log([t.time_us for t in test.timings]) - test.missed_by(training.network())
        return np.exp(times), training.candidates()
    return predict


def _judge(measured: DeviceTimings, folds: int | None, predict: _Prediction) -> list[Regret]:
    timings, device = measured.timings, measured.device
    extents = sorted({_extents(t.problem) for t in timings})
    random.Random(_SEED).shuffle(extents)
    parts = min(folds or len(extents), len(extents))
    part_of = {x: number % parts for number, x in enumerate(extents)}
    part = np.array([part_of[_extents(t.problem)] for t in timings])
    expected, place = np.full(len(timings), np.inf), np.zeros(len(timings), int)
    for these in (np.flatnonzero(part == one) for one in range(parts)):
        if len(these) < len(timings):
            times, candidates = predict(these)
            places = {config: number for number, config in enumerate(candidates)}
            place[these] = [places.get(timings[i].config, -1) for i in these]
            expected[these] = np.where(place[these] < 0, np.inf, times)
    numbers: dict[GemmProblem, int] = {}
    problem_of = np.array([numbers.setdefault(t.problem, len(numbers)) for t in timings])
    rows = np.argsort(problem_of, kind="stable")
    by_problem = np.split(rows, np.flatnonzero(np.diff(problem_of[rows])) + 1)
    best = [min((timings[i] for i in own), key=lambda t: t.time_us) for own in by_problem]
    tuned = [(path_for(t.problem, device.slug), _row(t)) for t in best]
    found = []
    for own, fastest in zip(by_problem, best, strict=True):
        problem = fastest.problem
        first = _first(expected[own], place[own])
        chosen = None if first is None else timings[own[first]]
        nearest = _nearest(problem, device, [timings[i] for i in own], tuned)
        found.append(Regret(problem, len(own), fastest, chosen,
                            None if first is None else float(expected[own[first]]), nearest))
    return found


def _extents(of: GemmProblem | TunedRow) -> tuple[int, ...]:
    return of.batch, of.m, of.n, of.k


def _row(best: Timing) -> TunedRow:
    """The table row that ``best`` makes."""
    return TunedRow.of(best.problem, best.config, time_us=best.time_us, margin_vs_second=None,
                       run_id="-")


def _nearest(problem: GemmProblem, device: DeviceSpec, measured: list[Timing],
             tuned: Sequence[tuple[Path, TunedRow]]) -> Timing | None:
    """The choice of a table of the other problems' best configs, of those that belong to the same
    table."""
    times = {t.config: t for t in measured}
    path = path_for(problem, device.slug)
    header = TableHeader.of(problem, device=device.slug, arch=device.arch, space_hash="-",
                            torch="-", triton="-")
    rows = {row.key: row for of, row in tuned
            if of == path and _extents(row) != _extents(problem) and row.config in times}
    near = nearest_row(problem, device, TunedTable(header, rows))
    return None if near is None else times[near[1].config]


def summaries(found: Sequence[Regret]) -> dict[str, tuple[Summary, Summary]]:
    """Kind of problem -> (model, nearest row), ``all`` last.

    The nearest row's covers the problems that have one, so its count may be smaller.
    """
    kinds: dict[str, list[Regret]] = {}
    for one in found:
        if one.model is not None:
            kinds.setdefault(kind_of(one.problem), []).append(one)
            kinds.setdefault("all", []).append(one)
    return {kind: (Summary.of([s for x in kinds[kind] if (s := x.share(x.model)) is not None]),
                   Summary.of([s for x in kinds[kind] if (s := x.share(x.nearest)) is not None]))
            for kind in sorted(kinds, key=lambda k: (k == "all", k))}


def kind_of(problem: GemmProblem) -> str:
    """The dtype and ``square``, ``decode`` (M at most 64), ``unaligned`` or ``other``."""
    if problem.m == problem.n == problem.k:
        kind = "square"
    elif problem.m <= 64:
        kind = "decode"
    elif min(problem.align_a, problem.align_b, problem.align_c) < 16:
        kind = "unaligned"
    else:
        kind = "other"
    return f"{problem.unit} {kind}"


def write_csv(path: str | os.PathLike[str], found: Sequence[Regret]) -> Path:
    """Writes one row for each problem, columns :data:`COLUMNS`: times in microseconds, shares of
    the best speed.

    Raises:
        DataFileError: not writable.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in found:
        p = one.problem
        writer.writerow([p.batch, p.m, p.n, p.k, p.dtype_a, p.layout, p.precision, p.align_a,
                         p.align_b, p.align_c, one.configs, *_cells(one.best),
                         *_cells(one.model), _figure(one.predicted_us, 3),
                         _figure(one.share(one.model), 4), *_cells(one.nearest),
                         _figure(one.share(one.nearest), 4)])
    write_atomic(path, text.getvalue(), follow_links=True)
    return Path(path)


def _cells(timing: Timing | None) -> tuple[str, str]:
    if timing is None:
        return "", ""
    return timing.config.config_id, _figure(timing.time_us, 3)


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
