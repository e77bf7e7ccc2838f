"""Replays the sweep's search over full journals: predict, take a batch, reveal its times, go on.

    python perf/search_replay.py predict --cache predictions.npz    (minutes: trains a network)
    python perf/search_replay.py replay --cache predictions.npz --out DIR [--gain 0.01]

Needs no GPU. Journals of whole spaces hold the time of every config that a search could have asked
for. The predictions come from a network that has not seen the replayed problems: it is trained
anew, by the shipped constants, on the problems of all other extents.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

from tritongemm.calibration.timings import Timing, read_timings
from tritongemm.calibration.training import Size, train
from tritongemm.calibration.transfer import training_set_of
from tritongemm.device import device_named
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import calibration_path
from tritongemm.records.codec import (
    config_from_json,
    config_to_json,
    problem_from_json,
    problem_to_json,
)
from tritongemm.records.journal import read_journal
from tritongemm.selection.inputs import NAMES
from tritongemm.selection.model import _served

DEVICE = "nvidia-h200"
SWEEPS = Path(__file__).resolve().parent / "results" / DEVICE / "sweeps"
#: Journals of whole spaces, or of most of one.
FULL = ("bf16_nt_widths-full", "bf16_nt_weak-full", "bf16_nt_square-exhaustive",
        "bf16_nt_spread-exhaustive", "bf16_nt_narrow-full", "bf16_lost-top",
        "bf16_nt_fresh12217801-top", "bf16_cold_layouts_deep-top")
#: A problem with fewer timed configs than this has nothing to search.
LEAST = 90
#: Half of the rounds of ``calibrate``.
SIZE = Size(hidden=128, rounds=60, decay=5e-2)


def timings_of(name: str) -> dict[GemmProblem, dict]:
    """problem -> config -> time in us, of the coarse stage of one journal."""
    found: dict[GemmProblem, dict] = {}
    for record in read_journal(SWEEPS / f"{name}.jsonl.gz"):
        if (record["kind"] == "result" and record["status"] == "ok" and record.get("time_us")
                and record.get("stage") == "coarse"):
            found.setdefault(problem_from_json(record["problem"]), {})[
                config_from_json(record["config"])] = float(record["time_us"])
    return {p: times for p, times in found.items() if len(times) >= LEAST}


def extents(p: GemmProblem) -> tuple:
    return p.batch, p.m, p.n, p.k


def predict(cache: Path) -> None:
    device = device_named(DEVICE)
    replayed = {name: timings_of(name) for name in FULL}
    left_out = {extents(p) for found in replayed.values() for p in found}
    others = read_timings(sorted(SWEEPS.glob("bf16*.jsonl.gz")), DEVICE)
    training = [t for t in others.timings
                if t.problem.unit in ("bf16", "fp16") and extents(t.problem) not in left_out]
    served = _served(str(calibration_path(device.slug)), device, "bf16")
    print(f"{sum(map(len, replayed.values()))} problems to replay, {len(left_out)} extents left "
          f"out, {len(training)} timings of {len({t.problem for t in training})} problems to "
          "learn from", flush=True)
    examples = training_set_of(training, served)
    record = train(NAMES, examples.inputs, examples.misses, examples.behind, SIZE)
    with gzip.open(cache, "wt") as file:
        for name, found in replayed.items():
            for problem, times in found.items():
                one = training_set_of([Timing(problem, c, t) for c, t in times.items()], served)
                missed = one.missed_by(record)  # log of measured over predicted
                for timing, miss in zip(one.timings, missed, strict=True):
                    file.write(json.dumps([name, problem_to_json(problem),
                                           config_to_json(timing.config), timing.time_us,
                                           round(float(miss), 5)]) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("predict", "replay"))
    parser.add_argument("--cache", type=Path, required=True)
    args = parser.parse_args()
    if args.what == "predict":
        predict(args.cache)


if __name__ == "__main__":
    main()
