"""Replays the sweep's search over full journals: predict, take a batch, reveal its times, go on.

    python perf/search_replay.py CACHE.gz --out search-replay.csv [--cold JOURNAL]

Needs no GPU: journals of whole spaces hold the time of every config that a search could ask for.
Each problem is replayed with two sets of predictions:

    left-out    the shipped constants and a network that is trained anew, on the problems of all
                other extents (minutes; CACHE.gz keeps what it predicts)
    rules       the constants that serve a device without a calibration

``--cold`` adds a journal that a search has made, which holds only what that search asked for: its
problems are replayed by the shipped model (``shipped``).

A loss is the best coarse time that the search has seen over the journal's best, minus 1; ``random``
and ``order`` are the losses of as many configs at random (mean of 20 draws) and of as many of the
first by prediction.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from tritongemm.calibration.timings import Timing, read_timings, times_of
from tritongemm.calibration.training import Size, train
from tritongemm.calibration.transfer import training_set_of
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import (
    config_from_json,
    config_to_json,
    problem_from_json,
    problem_to_json,
)
from tritongemm.selection.columns import Columns
from tritongemm.selection.inputs import NAMES
from tritongemm.selection.model import Model, Served, model_for, model_of
from tritongemm.tuning.search import GAIN, Search, follow, spread_of

DEVICE = "nvidia-h200"
TIMINGS = Path(__file__).resolve().parent / "results" / DEVICE / "timings" / "bf16-fp16.npz"
#: Journals of whole spaces, or of the most configs a problem.
FULL = ("bf16_nt_widths-full", "bf16_nt_weak-full", "bf16_nt_square-exhaustive",
        "bf16_nt_spread-exhaustive", "bf16_nt_narrow-full", "bf16_lost-top",
        "bf16_nt_fresh12217801-top", "bf16_cold_layouts_deep-top")
#: A problem with fewer timed configs than this has nothing to search.
LEAST = 90
#: Half of the rounds of ``calibrate``: the network is a little worse than a shipped one.
SIZE = Size(hidden=128, rounds=60, decay=5e-2)
DRAWS = 20
COLUMNS = ("journal", "batch", "m", "n", "k", "layout", "model", "configs", "timed", "loss",
           "loss_random", "loss_order", "gain_left")

Problems = dict[GemmProblem, dict[KernelConfig, tuple[float, float]]]


def timings_of(name: str) -> dict[GemmProblem, dict[KernelConfig, float]]:
    """problem -> config -> time in us, of the coarse stage of one journal."""
    return with_choices(times_of(TIMINGS, sweep=name))


def with_choices(found: dict[GemmProblem, dict[KernelConfig, float]]
                 ) -> dict[GemmProblem, dict[KernelConfig, float]]:
    """The problems with at least :data:`LEAST` timed configs."""
    return {p: times for p, times in found.items() if len(times) >= LEAST}


def predict(cache: Path) -> None:
    """Writes journal, problem, config, time and left-out prediction of every replayed timing."""
    device = device_named(DEVICE)
    replayed = {name: timings_of(name) for name in FULL}

    def extents(p: GemmProblem) -> tuple[int, ...]:
        return p.batch, p.m, p.n, p.k

    left_out = {extents(p) for found in replayed.values() for p in found}
    timings = read_timings([TIMINGS], DEVICE).timings
    training = [t for t in timings
                if t.problem.unit in ("bf16", "fp16") and extents(t.problem) not in left_out]
    model = model_for(training[0].problem, device)
    served = Served(model.section, model.where, device)
    print(f"{sum(map(len, replayed.values()))} problems to replay, {len(left_out)} extents left "
          f"out; learning from {len(training)} timings of {len({t.problem for t in training})} "
          "problems", flush=True)
    examples = training_set_of(training, served)
    network = train(NAMES, examples.inputs, examples.misses, examples.behind, SIZE)
    with gzip.open(cache, "wt") as file:
        for name, found in replayed.items():
            for problem, times in found.items():
                one = training_set_of([Timing(problem, c, t) for c, t in times.items()], served)
                predicted = np.exp(np.log([t.time_us for t in one.timings])
                                   - one.missed_by(network))
                for timing, time_us in zip(one.timings, predicted, strict=True):
                    file.write(json.dumps([name, problem_to_json(problem), config_to_json(
                        timing.config), timing.time_us, round(float(time_us), 4)]) + "\n")


def predictions(cache: Path) -> dict[str, Problems]:
    """journal -> problem -> config -> (time, left-out prediction)."""
    found: dict[str, Problems] = {}
    with gzip.open(cache, "rt") as file:
        for line in file:
            name, problem, config, time_us, predicted = json.loads(line)
            found.setdefault(name, {}).setdefault(problem_from_json(problem), {})[
                config_from_json(config)] = (time_us, predicted)
    return found


def replay_full(name: str, problem: GemmProblem, times: dict[KernelConfig, tuple[float, float]],
                gain: float) -> Iterator[dict[str, object]]:
    """A row for each set of predictions."""
    device = device_named(DEVICE)
    rules = model_of(Served(None, device.name, device), problem)
    yield from replay(name, problem, {c: t for c, (t, _) in times.items()}, gain, (
        ("left-out", np.array([left_out for _, left_out in times.values()]),
         model_for(problem, device)),
        ("rules", rules.times(problem, Columns(list(times))), rules)))


def replay_cold(journal: Path, gain: float) -> Iterator[dict[str, object]]:
    """A row for each problem of a search's journal."""
    for problem, times in with_choices(times_of(journal)).items():
        model = model_for(problem, device_named(DEVICE))
        predicted = model.times(problem, Columns(list(times)))
        yield from replay(journal.stem, problem, times, gain, (("shipped", predicted, model),))


def replay(name: str, problem: GemmProblem, times: dict[KernelConfig, float], gain: float,
           predictions: Iterable[tuple[str, np.ndarray, Model]]) -> Iterator[dict[str, object]]:
    """A row for each of ``predictions``: their name, the time of each config, and the model whose
    errors the search reckons with."""
    device = device_named(DEVICE)
    configs, measured = list(times), np.array(list(times.values()))
    best = measured.min()
    for which, predicted, model in predictions:
        search = Search(configs, predicted, spread=spread_of(model, device), gain=gain)
        timed = follow(search, times)
        rng = np.random.default_rng(0)
        drawn = [rng.permutation(measured)[:timed].min() / best - 1 for _ in range(DRAWS)]
        first = measured[np.argsort(predicted, kind="stable")[:timed]].min() / best - 1
        assert search.best_us is not None
        yield {"journal": name, "batch": problem.batch, "m": problem.m, "n": problem.n,
               "k": problem.k, "layout": problem.layout, "model": which, "configs": len(configs),
               "timed": timed, "loss": f"{max(0.0, search.best_us / best - 1):.4f}",
               "loss_random": f"{np.mean(drawn):.4f}", "loss_order": f"{first:.4f}",
               "gain_left": f"{search.gain_left or 0.0:.4f}"}


def summary(rows: list[dict[str, object]]) -> list[str]:
    """A line for each journal and set of predictions, and one for all."""
    lines = ["| predictions | journal | problems | configs | timed: median, most | loss: median, "
             "worst | above 1 %, 3 % | random: mean, worst | order: mean, worst |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for which in ("left-out", "rules", "shipped"):
        for name in (*dict.fromkeys(str(r["journal"]) for r in rows), "all"):
            some = [r for r in rows if r["model"] == which and name in (r["journal"], "all")]
            if not some:
                continue

            def of(column: str, some=some) -> np.ndarray:
                return np.array([float(str(r[column])) for r in some])

            loss, others = of("loss"), (of("loss_random"), of("loss_order"))
            lines.append(
                f"| {which} | {name} | {len(some)} | {np.median(of('configs')):.0f} | "
                f"{np.median(of('timed')):.0f}, {of('timed').max():.0f} | "
                f"{100 * np.median(loss):.2f} %, {100 * loss.max():.1f} % | "
                f"{(loss > 0.01).sum()}, {(loss > 0.03).sum()} | " + " | ".join(
                    f"{100 * x.mean():.2f} %, {100 * x.max():.1f} %" for x in others) + " |")
    return lines


def main() -> None:
    """Predicts, unless the cache exists, replays, writes the CSV and prints a summary."""
    parser = argparse.ArgumentParser(description="Replays the search over full journals.")
    parser.add_argument("cache", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gain", type=float, default=GAIN)
    parser.add_argument("--cold", type=Path, metavar="JOURNAL", help="of a search")
    args = parser.parse_args()
    if not args.cache.exists():
        predict(args.cache)
    rows = [row for name, found in predictions(args.cache).items()
            for problem, times in found.items()
            for row in replay_full(name, problem, times, args.gain)]
    if args.cold:
        rows += replay_cold(args.cold, args.gain)
    with open(args.out, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
