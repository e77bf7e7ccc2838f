"""Measures the regret of selection on freshly drawn shapes, on which nothing was tuned.

There are two runs. Each is a sweep with its own journal, so that both can resume and have a budget.
The wide run times many configs of each drawn shape: the best by the selection's estimate, the best
of each class of configs, and some at random, so that configs which the model underrates are
measured too. The second run, in a new process, measures the fastest of them again, interleaved with
the selection's choice and torch. The regret compares the choice with the best config of these
rounds.

On an H200 a config takes about 16 ms in the wide run, and a shape about one second more over both
runs.
"""

from __future__ import annotations

import heapq
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritongemm import selection
from tritongemm.calibration.regret import Regret
from tritongemm.calibration.timings import Timing, times_of
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import problem_key
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import model_for
from tritongemm.selection.policy import nearest, tables_for
from tritongemm.selection.work import class_of
from tritongemm.tuning.candidates import Candidates, PruneReport
from tritongemm.tuning.progress import Progress
from tritongemm.tuning.sweep import sweep
from tritongemm.workers.messages import COARSE, FINAL

SHAPES, SIDES, MULTIPLE = 60, (128, 8192), 8
#: Configs of a shape in the wide run: the best by estimate, the best of each class whose estimate
#: is at most HOPELESS times the best, and random ones of all.
TOP, RANDOM, HOPELESS = 48, 12, 1.6
#: Number of the wide run's fastest configs that are measured again, and device seconds of the
#: second run's rounds.
AGAIN, _AGAIN_S, _WIDE_S = 5, 0.6, 0.1
#: Seconds for a config in the wide run, and for a shape over both runs, on an H200; for the
#: forecast.
_CONFIG_S, _SHAPE_S = 0.016, 1.3
#: The second run's share of a budget.
_AGAIN_SHARE = 0.25


def draw(seed: int, *, dtype: str = "bf16", layout: str = "nt") -> Iterator[GemmProblem]:
    """Draws problems without end, each side log-uniform in :data:`SIDES`. Every other one is
    aligned: its sides are multiples of :data:`MULTIPLE`. No two have the same extents."""
    rng = random.Random(f"regret:{seed}")
    low, high = map(math.log, SIDES)
    taken: set[tuple[int, ...]] = set()
    while True:
        step = MULTIPLE if len(taken) % 2 == 0 else 1
        sides = tuple(round(math.exp(rng.uniform(low, high)) / step) * step for _ in range(3))
        if sides not in taken:
            taken.add(sides)
            yield GemmProblem.contiguous(*sides, dtype=dtype, layout=layout)


def unmeasured(problems: Iterable[GemmProblem], device: DeviceSpec) -> Iterator[GemmProblem]:
    """Those of ``problems`` whose extents the device's calibration and tuned tables do not contain.

    Raises:
        UsageError: no calibration serves the device, so there is nothing to evaluate.
    """
    known: dict[tuple[str, ...], set[tuple[int, ...]]] = {}
    for problem in problems:
        kind = problem.op, problem.dtype_a, problem.unit, problem.layout
        if kind not in known:
            known[kind] = _measured_extents(problem, device)
        if _extents(problem) not in known[kind]:
            yield problem


def _measured_extents(problem: GemmProblem, device: DeviceSpec) -> set[tuple[int, ...]]:
    """The extents of all problems of this dtype, precision and layout that were measured."""
    section = model_for(problem, device).section
    if section is None:
        raise UsageError(f"no calibration serves {device.slug} for {problem.unit}, its own or a "
                         "sibling's; run `tritongemm calibrate` first")
    found = {_extents(x.problem) for x in section.neighbours}
    for table in tables_for(problem, device):
        found.update(_extents(row.problem(table.header)) for row in table.rows.values())
    return found


def _extents(problem: GemmProblem) -> tuple[int, ...]:
    return problem.batch, problem.m, problem.n, problem.k


class Wide:
    """The wide run's candidates; see :data:`TOP`. The selection's choice is always among them."""

    def __init__(self, seed: int = 0, top: int = TOP, at_random: int = RANDOM) -> None:
        self._seed, self._top, self._random = seed, top, at_random

    def __call__(self, problem: GemmProblem, device: DeviceSpec) -> Candidates:
        """The candidates of one problem; deterministic."""
        ordered = selection.candidates(problem, device)
        chosen = dict.fromkeys((chosen_by_model(problem, device), *ordered[:self._top]))
        model = model_for(problem, device)
        times = model.times(problem, Columns(ordered))
        hopeful = [c for c, time_us in zip(ordered, times, strict=True)
                   if time_us <= HOPELESS * times[0]]
        chosen.update(dict.fromkeys({class_of(c): c for c in reversed(hopeful)}.values()))
        rest = [config for config in ordered if config not in chosen]
        rng = random.Random(f"{self._seed} {problem_key(problem)}")
        chosen.update(dict.fromkeys(rng.sample(rest, min(self._random, len(rest)))))
        return _candidates(chosen, len(ordered))


class Again:
    """The second run's candidates: the fastest of the wide run's journal, and the choice."""

    def __init__(self, journal: Path, count: int = AGAIN) -> None:
        self._fastest = {problem: heapq.nsmallest(count, times, key=lambda c: times[c])
                         for problem, times in times_of(journal, COARSE).items()}

    def __call__(self, problem: GemmProblem, device: DeviceSpec) -> Candidates:
        """The candidates of one problem; none if the wide run did not reach it."""
        fastest = self._fastest.get(problem)
        if fastest is None:
            return _candidates((), 0)
        near = chosen_by_nearest(problem, device)
        return _candidates(dict.fromkeys((chosen_by_model(problem, device),
                                          *([near] if near else []), *fastest)), len(fastest))


def _candidates(configs: Iterable[KernelConfig], considered: int) -> Candidates:
    configs = tuple(configs)
    return Candidates(configs, PruneReport(considered=considered, kept=len(configs),
                                           not_chosen=max(0, considered - len(configs))))


def chosen_by_model(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """The selection's choice for a problem without a tuned row."""
    return selection.choose(problem, device).config


def chosen_by_nearest(problem: GemmProblem, device: DeviceSpec) -> KernelConfig | None:
    """The config of the nearest tuned row, or None."""
    near = nearest(problem, device)
    return None if near is None else near[1].config


@dataclass(frozen=True)
class Forecast:
    """The expected cost of a run: shapes, configs in the wide run, seconds on an H200 with compiled
    kernels, distinct binaries."""

    shapes: int
    configs: int
    seconds: float
    binaries: int


def forecast(problems: Sequence[GemmProblem], device: DeviceSpec, wide: Wide) -> Forecast:
    """Computes the :class:`Forecast`; needs no GPU."""
    from tritongemm.kernels.compile import binary_key, launches_of

    configs, keys = 0, set()
    for problem in problems:
        for config in wide(problem, device).configs:
            configs += 1
            keys.update(binary_key(launch, device.arch)
                        for launch in launches_of(problem, config, device))
    return Forecast(len(problems), configs, configs * _CONFIG_S + len(problems) * _SHAPE_S,
                    len(keys))


def journals(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """The paths of the journals of the wide and of the second run."""
    path = Path(path)
    return (path.with_name(f"{path.stem}-wide{path.suffix}"),
            path.with_name(f"{path.stem}-again{path.suffix}"))


def measure(problems: Sequence[GemmProblem], journal: str | os.PathLike[str], *, wide: Wide,
            budget_s: float | None = None, resume: bool = False, seed: int = 0,
            progress: Callable[[], Progress] = Progress, **options: object) -> None:
    """Runs both sweeps. Shapes that the budget leaves out are also left out of the evaluation.

    Args:
        budget_s: seconds for both runs together.
        resume: continue journals of the same environment.
        progress: makes the display of each run.
        options: of :func:`~tritongemm.tuning.sweep.sweep`.

    Raises:
        As :func:`~tritongemm.tuning.sweep.sweep`.
    """
    first, second = journals(journal)
    started = time.monotonic()
    share = None if budget_s is None else budget_s * (1 - _AGAIN_SHARE)
    sweep(problems, first, candidates=wide, budget_s=share, resume=resume and first.exists(),
          finalists=1, seed=seed, progress=progress(),
          **{"measurer_arguments": {"final_s": _WIDE_S}, **options})  # type: ignore[arg-type]
    left = None if budget_s is None else max(1.0, budget_s - (time.monotonic() - started))
    again = Again(first)
    sweep(problems, second, candidates=again, budget_s=left, resume=resume and second.exists(),
          finalists=AGAIN + 2, seed=seed + 1, progress=progress(),
          **{"measurer_arguments": {"final_s": _AGAIN_S}, **options})  # type: ignore[arg-type]


def judge(problems: Sequence[GemmProblem], journal: str | os.PathLike[str],
          device: DeviceSpec) -> list[Regret]:
    """Evaluates the selection by the second run's rounds, problem by problem.

    A choice that was too slow to become a finalist is judged by its coarse time in the same run.

    Raises:
        DataFileError: a journal that cannot be used.
    """
    first, second = journals(journal)
    wide, coarse, final = (times_of(first, COARSE), times_of(second, COARSE),
                           times_of(second, FINAL))
    found = []
    for problem in problems:
        if problem not in final:
            continue
        times = {**coarse.get(problem, {}), **final[problem]}
        best = min(final[problem], key=lambda c: final[problem][c])
        choice = selection.choose(problem, device)
        near = chosen_by_nearest(problem, device)
        timings = [Timing(problem, c, times[c]) if c in times else None
                   for c in (choice.config, near)]
        found.append(Regret(problem, len(wide.get(problem, ())),
                            Timing(problem, best, final[problem][best]), timings[0],
                            choice.predicted_us, timings[1]))
    return found
