"""How well a model of two devices tells that a sibling's row is outdone (selection/policy.py).

    python perf/sibling_rows.py DEVICE JOURNAL...

The model is trained as `calibrate --with-sibling` trains it, with a fifth of the problems left out
at a time, and predicts for those the sibling's row (its best measured config) and the fastest of
the configs that were measured. Prints, by least predicted ratio: how many rows give way, and the
row's measured time over that of the config in its place. Of the device's problems the row may be
slow; of the sibling's it is the best, so each one that gives way is an error.

Published: nvidia-h200 with nvidia-h200/timings/fp32-split.npz and
nvidia-h100-80gb-hbm3/timings/fp32.npz of perf/results.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tritongemm.calibration.transfer import (
    TrainingSet,
    Transfer,
    transfers_from_sibling,
)
from tritongemm.config import KernelConfig
from tritongemm.problem import GemmProblem

FOLDS, SEED = 5, 5
LEAST = (1.05, 1.1, 1.15, 1.2, 1.3, 1.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device")
    parser.add_argument("journals", nargs="+")
    args = parser.parse_args()
    target, sibling, transfers = transfers_from_sibling(args.journals, args.device)
    print("| problems of | rows | predicted from | give way | mean | least | most |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for transfer in transfers:
        for name, found in zip((target.slug, sibling.slug), ratios(transfer), strict=True):
            for least in LEAST:
                real = [row for predicted, row in found if predicted >= least]
                words = ([f"{x:.3f}" for x in (np.exp(np.log(real).mean()), min(real), max(real))]
                         if real else ["", "", ""])
                print(f"| {name} | {len(found)} | {least} | {len(real)} | {' | '.join(words)} |")
    return 0


def extents(problem: GemmProblem) -> tuple[int, ...]:
    return problem.batch, problem.m, problem.n, problem.k


def ratios(transfer: Transfer) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """(predicted, measured) ratios of row to chosen config, of the device's and of the sibling's
    problems."""
    sets = (transfer.target, transfer.source)
    rows: dict[GemmProblem, KernelConfig] = {}
    for timing in sorted(transfer.source.timings, key=lambda t: -t.time_us):
        rows[timing.problem] = timing.config  # the fastest is the last
    known = sorted({extents(t.problem) for some in sets for t in some.timings})
    random.Random(SEED).shuffle(known)
    fold = {one: number % FOLDS for number, one in enumerate(known)}
    folds = [np.array([fold[extents(t.problem)] for t in some.timings]) for some in sets]
    found: tuple[list, list] = ([], [])
    for left_out in range(FOLDS):
        target, source = (some.rows(np.flatnonzero(which != left_out))
                          for some, which in zip(sets, folds, strict=True))
        network = source.joined_with(target).network()
        for some, which, into in zip(sets, folds, found, strict=True):
            into += _of(some.rows(np.flatnonzero(which == left_out)), network, rows)
    return found


def _of(tested: TrainingSet, network, rows: dict) -> list[tuple[float, float]]:
    predicted = np.exp(np.log([t.time_us for t in tested.timings]) - tested.missed_by(network))
    by_problem = defaultdict(dict)
    for timing, one in zip(tested.timings, predicted.tolist(), strict=True):
        by_problem[timing.problem][timing.config] = one, timing.time_us
    found = []
    for problem, configs in by_problem.items():
        if (row := configs.get(rows.get(problem))) is not None:
            chosen = min(configs.values())
            found.append((row[0] / chosen[0], row[1] / chosen[1]))
    return found


if __name__ == "__main__":
    sys.exit(main())
