"""What batch invariance costs: the chosen config with it and without it, timed in the same rounds.

    python perf/bench_invariance.py --out batch-invariance.csv [--suites llm_prefill,llm_decode]
                                    [--budget 0.15] [--top 3]

One row a problem: both configs and times, and the speed with batch invariance over the speed
without it, paired by round, with its 95 % interval. Where both are one config the ratio is 1 and
nothing is timed. ``--top COUNT`` also times the COUNT configs of the class with the least predicted
times, and records the fastest: what a better prediction could reach. Binaries that are missing are
compiled first, on all cores. The last lines are the geometric mean and the worst of each suite.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import sys
import time
from pathlib import Path

import numpy as np

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, current_device
from tritongemm.errors import DeviceError
from tritongemm.kernels import violation
from tritongemm.measure.contender import Contender
from tritongemm.measure.protocol import measure
from tritongemm.ops.plan import bind_config
from tritongemm.problem import GemmProblem
from tritongemm.records.suites import read_suite, suite_path
from tritongemm.selection import choose, sum_class
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import model_for
from tritongemm.tuning.sweep import problem_of_item
from tritongemm.workers.builder import Builder
from tritongemm.workers.compile_pool import compile_all

COLUMNS = ("device", "suite", "batch", "m", "n", "k", "dtype", "layout", "sum_order", "free_config",
           "invariant_config", "free_us", "invariant_us", "speed", "speed_low", "speed_high",
           "best_config", "best_speed", "status")


def within(problem: GemmProblem, device: DeviceSpec, top: int) -> tuple[KernelConfig, ...]:
    """The choice under batch invariance, then other promising configs of its class."""
    with settings.override(batch_invariant=True):
        chosen = choose(problem, device).config
    alike, model = sum_class(problem, device), model_for(problem, device)
    some = [c for c in model.candidates if alike.holds(problem, c, device)]
    if not top or not some:
        return (chosen,)
    order = np.argsort(model.times(problem, Columns(some)), kind="stable")
    legal = (some[i] for i in order if violation(problem, some[i], device) is None)
    return tuple(dict.fromkeys((chosen, *(c for c, _ in zip(legal, range(top))))))


def build(cases: list[tuple[GemmProblem, KernelConfig]], device: DeviceSpec) -> None:
    """Compiles what the store lacks."""
    missing = {}
    for problem, config in cases:
        key = Builder.key(problem, config, device)
        if not Builder.stored(key):
            missing.setdefault(key, (problem, config))
    start = time.monotonic()
    found = compile_all([(key, *case) for key, case in missing.items()], {"device": device},
                        workers=len(os.sched_getaffinity(0)))
    for key, outcome in found.items():
        if not outcome.ok:
            print(f"not built: {missing[key][1]}: {outcome.reason}")
    print(f"{len(missing)} builds in {time.monotonic() - start:.0f} s", flush=True)


def row_of(problem: GemmProblem, free: KernelConfig, invariant: tuple[KernelConfig, ...],
           device: DeviceSpec, budget_s: float) -> dict[str, object]:
    """The fields of a problem that are measured."""
    chosen = invariant[0]
    if invariant == (free,):
        return {"speed": 1.0, "speed_low": 1.0, "speed_high": 1.0, "best_config": free.config_id,
                "best_speed": 1.0, "status": "same"}
    configs = dict.fromkeys((free, *invariant))

    def contender(config: KernelConfig) -> Contender:
        def bind(one):
            launch = bind_config(problem, config, device)
            return lambda: launch(*one.arguments)
        return Contender(config.config_id, bind)

    found = measure(problem, [contender(c) for c in configs], baseline=free.config_id,
                    budget_s=budget_s, control=False, power="never")
    of_free, of_chosen = found[free.config_id], found[chosen.config_id]
    if not of_free.ok or not of_chosen.ok:
        return {"status": f"{of_free.status} {of_free.error} / {of_chosen.status} "
                          f"{of_chosen.error}"}
    speeds = {c: 1.0 if c == free else found[c.config_id].ratio_vs_torch or 0.0
              for c in invariant}
    best = max(invariant, key=speeds.__getitem__)
    low, high = (1.0, 1.0) if chosen == free else (of_chosen.ratio_low, of_chosen.ratio_high)
    return {"free_us": of_free.time_us_p50, "invariant_us": of_chosen.time_us_p50,
            "speed": speeds[chosen], "speed_low": low, "speed_high": high,
            "best_config": best.config_id, "best_speed": speeds[best], "status": "ok"}


def main() -> int:
    """Measures, writes the CSV, prints a line a suite."""
    parser = argparse.ArgumentParser(description="What batch invariance costs.")
    parser.add_argument("--suites", default="llm_prefill,llm_decode")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nt")
    parser.add_argument("--budget", type=float, default=0.15, help="seconds of rounds a problem")
    parser.add_argument("--top", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    try:
        device = current_device()
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 2
    cases = [(name, problem_of_item(shape, args.dtype, args.layout, "ieee"))
             for name in args.suites.split(",") for shape in read_suite(suite_path(name))]
    free = {p: choose(p, device).config for _, p in cases}
    invariant = {p: within(p, device, args.top) for _, p in cases}
    build([(p, c) for _, p in cases for c in dict.fromkeys((free[p], *invariant[p]))
           if invariant[p] != (free[p],)], device)
    rows = []
    with open(args.out, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for name, p in cases:
            row = {"device": device.slug, "suite": name, "batch": p.batch, "m": p.m, "n": p.n,
                   "k": p.k, "dtype": p.dtype_a, "layout": p.layout,
                   "sum_order": str(sum_class(p, device).order), "free_config": free[p].config_id,
                   "invariant_config": invariant[p][0].config_id,
                   **row_of(p, free[p], invariant[p], device, args.budget)}
            writer.writerow({key: f"{value:.4f}" if isinstance(value, float) else value
                             for key, value in row.items()})
            file.flush()
            rows.append(row)
    failed = [row for row in rows if row["status"] not in ("ok", "same")]
    for name in args.suites.split(","):
        for column in ("speed", *(("best_speed",) if args.top else ())):
            speeds = [(float(str(r[column])), r) for r in rows
                      if r["suite"] == name and r not in failed]
            mean = math.exp(sum(math.log(s) for s, _ in speeds) / len(speeds))
            worst, at = min(speeds, key=lambda x: x[0])
            print(f"{name} {column}: {len(speeds)} problems, geometric mean {mean:.4f}, worst "
                  f"{worst:.4f} at {at['m']}x{at['n']}x{at['k']}, "
                  f"{sum(s < 0.8 for s, _ in speeds)} below 0.80")
    for row in failed:
        print(f"failed: {row['m']}x{row['n']}x{row['k']}: {row['status']}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
