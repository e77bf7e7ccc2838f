"""The time to tune a shape that nothing is known of, and how close to the best it ends.

    python perf/bench_tuning.py FOLDER [--seed 45] [--budget 540]
    python perf/bench_tuning.py FOLDER --whole llm_prefill [--budget 540]
    python perf/bench_tuning.py FOLDER --report

The first draws a fresh shape of each family, the most important families first, and takes each
through four steps, each in new processes:

    cold    `tritongemm sweep` with empty caches; seconds from the command's start to its end
    warm    the same with the caches that this left
    wide    the best 48 configs by the model, and 200 at random
    again   the fastest of `wide` and the winners of `cold` and `warm`, in the same rounds

A loss is the winner's time over the fastest of `again`, minus 1. The goals, on an H100 with 16
cores: 25 s cold and 6 s warm as medians, a loss of at most 1 % as the median, and of 3 % for any.

``--whole`` sweeps a suite with caches that are empty when it is first called, and sums the time of
all calls by the journal's clock; the goal for `llm_prefill` is 18 minutes.

A call ends within its budget, if the longest shape so far is a measure for the next, and the same
command goes on where it ended. FOLDER/tuning.csv has a row for each finished shape. With
``--simulate`` nothing needs a GPU: see simulated_tuning.py.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "perf")]

from tritongemm import settings  # noqa: E402

#: Families, the most important first.
FAMILIES = ("square", "llm_prefill", "llm_decode", "aligned_random", "training", "stream_k",
            "batched", "odd", "split_k", "deepbench", "low_rank", "wide_k")
COLUMNS = ("family", "batch", "m", "n", "k", "layout", "cold_s", "cold_configs", "cold_compile_s",
           "cold_gpu_waited_s", "warm_s", "warm_configs", "wide_s", "wide_configs", "best_us",
           "cold_us", "warm_us", "cold_loss", "warm_loss", "device")
COLD_GOAL_S, WARM_GOAL_S, MEDIAN_GOAL, WORST_GOAL, WHOLE_GOAL_S = 25.0, 6.0, 0.01, 0.03, 1080.0
TOP, RANDOM, AGAIN = 48, 200, 5
#: Seconds that a shape is expected to take before one was measured.
SHAPE_S = 110.0
STEPS = ("cold", "warm", "wide", "again")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=45, help="of the fresh shapes (45)")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds of this call (540)")
    parser.add_argument("--families", default=",".join(FAMILIES), help="comma-separated")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nt", help="where a family does not say (nt)")
    parser.add_argument("--whole", metavar="SUITE", help="sweep a whole suite instead")
    parser.add_argument("--report", action="store_true", help="only print what was measured")
    parser.add_argument("--simulate", type=float, metavar="SPEED",
                        help="no GPU: sleep for SPEED times what a step would take")
    parser.add_argument("--inside", nargs=2, metavar=("STEP", "STEM"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return inside(args, *args.inside)
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.whole:
        return whole(args)
    if not args.report:
        measure(args)
    rows = read(args.folder / "tuning.csv")
    print("\n".join(summary(rows)))
    return 0 if len(rows) == len(args.families.split(",")) else 1


# -- the steps ------------------------------------------------------------------------------------

def measure(args: argparse.Namespace) -> None:
    """Takes the shapes that have no row through the steps, as far as the budget goes."""
    from tritongemm.bench.fresh import draw
    from tritongemm.records.suites import write_suite

    began, longest, path = time.monotonic(), 0.0, args.folder / "tuning.csv"
    done = {row["family"] for row in read(path)}
    for family in args.families.split(","):
        if family in done:
            continue
        left = args.budget - (time.monotonic() - began)
        if left < (longest or SHAPE_S * (args.simulate or 1.0)):
            print(f"{left:.0f} s are left; continue with the same command", flush=True)
            return
        stem = args.folder / f"{family}-{args.seed}"
        shape = draw(family, args.seed, 1)[0]
        write_suite(stem.with_suffix(".csv"), [shape])
        start = time.monotonic()
        seconds = {step: run(args, step, stem) for step in STEPS}
        longest = max(longest, time.monotonic() - start)
        row = row_of(family, shape.problem(args.dtype, args.layout), stem, seconds)
        new = not path.exists()
        with open(path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(f"{family}: cold {seconds['cold']:.1f} s, loss {100 * row['cold_loss']:.2f} %; "
              f"warm {seconds['warm']:.1f} s, {100 * row['warm_loss']:.2f} %", flush=True)


def run(args: argparse.Namespace, step: str, stem: Path) -> float:
    """Runs one step in a new process; its seconds. A cold one gets new caches, the others keep
    them. Raises SystemExit with what it printed."""
    journal, caches = journal_of(stem, step), Path(f"{stem}-caches")
    journal.unlink(missing_ok=True)  # of a call that was ended in this step
    if step == "cold":
        import shutil

        shutil.rmtree(caches, ignore_errors=True)
    return call(args, step, stem, caches)


def call(args: argparse.Namespace, step: str, stem: Path, caches: Path) -> float:
    """One child; see :func:`inside`."""
    caches.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, str(args.folder), "--dtype", args.dtype, "--layout",
               args.layout, "--seed", str(args.seed), "--budget", f"{args.budget:g}",
               "--inside", step, str(stem)]
    if args.whole:
        command += ["--whole", args.whole]
    if args.simulate:
        command += ["--simulate", f"{args.simulate:g}"]
    start = time.monotonic()
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=settings.child_environment(
            TRITONGEMM_CACHE_DIR=str(caches), TRITON_CACHE_DIR=str(caches / "triton")))
    seconds = time.monotonic() - start
    Path(f"{stem}-{step}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode not in (0, 1) or not journal_of(stem, step).exists():
        raise SystemExit(f"{step} of {stem.name} ended with {done.returncode}:\n"
                         f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seconds


def inside(args: argparse.Namespace, step: str, name: str) -> int:
    """What a child does: the command of a user, or a sweep of chosen candidates."""
    from tritongemm.tuning import sweep as sweeping

    stem = Path(name)
    journal = journal_of(stem, step)
    options: dict = {}
    if args.simulate:
        import simulated_tuning

        replaced = simulated_tuning.parts(settings.cache_root(), args.simulate)
        options = {**replaced, "compile_workers": simulated_tuning.PROCESSES}
        sweeping.sweep.__kwdefaults__.update(replaced)
    if step in ("cold", "warm"):
        from tritongemm.cli import main as command

        words = ["sweep", str(stem.with_suffix(".csv")), "--dtype", args.dtype, "--layout",
                 args.layout, "--journal", str(journal), "--plain"]
        if args.simulate:
            words += ["--compile-workers", str(options["compile_workers"])]
        return command(words)
    from tritongemm.records.suites import read_suite, suite_path
    from tritongemm.tuning.gains import winners_in

    if step == "whole":
        problems = [s.problem(args.dtype, args.layout) for s in read_suite(suite_path(args.whole))]
        report = sweeping.sweep(problems, journal, search="model", budget_s=args.budget,
                                share_budget=False, resume=journal.exists(), **options)
        return 1 if report.stopped else 0
    problems = [s.problem(args.dtype, args.layout) for s in read_suite(stem.with_suffix(".csv"))]
    if step == "wide":
        candidates = Wide(args.seed)
    else:
        winners = {config for earlier in ("cold", "warm")
                   for config in winners_in(journal_of(stem, earlier))[0].values()}
        candidates = Fastest(journal_of(stem, "wide"), winners)
    sweeping.sweep(problems, journal, candidates=candidates,
                   finalists=1 if step == "wide" else AGAIN + 2, seed=args.seed + 1, **options)
    return 0


class Wide:
    """The best :data:`TOP` configs by the model, and :data:`RANDOM` of all legal ones."""

    def __init__(self, seed: int) -> None:
        from tritongemm.tuning.candidates import KernelPlanner

        self._best, self._drawn = KernelPlanner(top=TOP), KernelPlanner(subset=RANDOM, seed=seed)

    def __call__(self, problem, device):
        """The candidates of one problem; deterministic."""
        from tritongemm.tuning.candidates import Candidates

        best, drawn = self._best(problem, device), self._drawn(problem, device)
        return Candidates(tuple(dict.fromkeys([*best.configs, *drawn.configs])), best.report)


class Fastest:
    """The fastest configs of a journal's coarse stage, and ``others``."""

    def __init__(self, journal: Path, others: set) -> None:
        from tritongemm.calibration.timings import times_of
        from tritongemm.workers.messages import COARSE

        self._times, self._others = times_of(journal, COARSE), others

    def __call__(self, problem, device):
        """The candidates of one problem."""
        from tritongemm.tuning.candidates import Candidates, PruneReport

        times = self._times.get(problem, {})
        configs = tuple(dict.fromkeys([*self._others, *sorted(times, key=times.get)[:AGAIN]]))
        return Candidates(configs, PruneReport(considered=len(configs), kept=len(configs)))


# -- what they found ------------------------------------------------------------------------------

def journal_of(stem: Path, step: str) -> Path:
    return Path(f"{stem}-{step}.jsonl")


def row_of(family: str, problem, stem: Path, seconds: dict[str, float]) -> dict:
    """A row of :data:`COLUMNS` from the journals of the four steps."""
    from tritongemm.calibration.timings import times_of
    from tritongemm.records.journal import read_journal
    from tritongemm.tuning.gains import winners_in
    from tritongemm.workers.messages import COARSE, FINAL

    again = journal_of(stem, "again")
    times = {**times_of(again, COARSE).get(problem, {}), **times_of(again, FINAL)[problem]}
    best = min(times_of(again, FINAL)[problem].values())
    row = {"family": family, "batch": problem.batch, "m": problem.m, "n": problem.n,
           "k": problem.k, "layout": problem.layout, "best_us": best,
           "wide_s": round(seconds["wide"], 2)}
    for step in ("cold", "warm"):
        winner = winners_in(journal_of(stem, step))[0][problem]
        row |= {f"{step}_s": round(seconds[step], 2), f"{step}_us": times[winner],
                f"{step}_loss": max(0.0, times[winner] / best - 1)}
    for step in ("cold", "warm", "wide"):
        records = list(read_journal(journal_of(stem, step)))
        row[f"{step}_configs"] = sum(r.get("stage") in ("coarse", "compile") for r in records)
        if step == "cold":
            row["cold_compile_s"] = round(sum(r.get("compile_s") or 0.0 for r in records), 1)
            row["device"] = records[0].get("device", "")
    log = Path(f"{stem}-cold.log").read_text(encoding="utf-8")
    waited = log.partition("waiting for compilers ")[2].partition(" s")[0]
    row["cold_gpu_waited_s"] = waited
    return row


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def summary(rows: list[dict[str, str]]) -> list[str]:
    """A table, and the medians and worst with their goals."""
    lines = ["| family | shape | cold, s | configs | loss | warm, s | loss |",
             "|---|---|---:|---:|---:|---:|---:|"]
    for r in rows:
        shape = (f"{r['batch']} x " if r["batch"] != "1" else "") + f"{r['m']}x{r['n']}x{r['k']}"
        lines.append(f"| {r['family']} | {shape} {r['layout']} | {float(r['cold_s']):.1f} | "
                     f"{r['cold_configs']} | {100 * float(r['cold_loss']):.2f} % | "
                     f"{float(r['warm_s']):.1f} | {100 * float(r['warm_loss']):.2f} % |")
    if not rows:
        return ["no shape was measured"]
    for step, goal in (("cold", COLD_GOAL_S), ("warm", WARM_GOAL_S)):
        seconds, loss = ([float(r[f"{step}_{what}"]) for r in rows] for what in ("s", "loss"))
        lines.append(
            f"{step}: median {statistics.median(seconds):.1f} s, most {max(seconds):.1f} s (goal "
            f"{goal:.0f} s); loss median {100 * statistics.median(loss):.2f} %, worst "
            f"{100 * max(loss):.2f} % (goals {100 * MEDIAN_GOAL:.0f} and {100 * WORST_GOAL:.0f} %)")
    return lines


def whole(args: argparse.Namespace) -> int:
    """Sweeps a suite until the budget is used up; prints the seconds of all calls so far."""
    from tritongemm.records.suites import read_suite, suite_path

    stem = args.folder / args.whole
    if not args.report:
        call(args, "whole", stem, Path(f"{stem}-caches"))
    count = len({s.problem(args.dtype, args.layout) for s in read_suite(suite_path(args.whole))})
    done, seconds = progress_of(journal_of(stem, "whole"))
    print(f"{args.whole}: {done} of {count} shapes in {seconds:.0f} s (goal {WHOLE_GOAL_S:.0f} s "
          f"for all of llm_prefill); at this pace all take {seconds * count / max(done, 1):.0f} s")
    return 0 if done == count else 1


def progress_of(journal: Path) -> tuple[int, float]:
    """The number of problems that ended, and the seconds of all runs, each from its header to its
    last record."""
    done, first, last = set(), {}, {}
    for line in journal.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        run, utc = record["run_id"], record.get("utc") or record.get("opened_utc")
        first.setdefault(run, utc)
        last[run] = utc
        if record["kind"] in ("winner", "left_out"):
            done.add(json.dumps(record["problem"], sort_keys=True))
    clock = datetime.fromisoformat
    return len(done), sum((clock(last[run].replace("Z", "+00:00"))
                           - clock(first[run].replace("Z", "+00:00"))).total_seconds()
                          for run in first)


if __name__ == "__main__":
    sys.exit(main())
