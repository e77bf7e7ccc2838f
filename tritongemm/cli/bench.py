"""``tritongemm bench``: measure providers against torch.matmul and append CSV rows."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.cli.options import add_count, add_seconds, joined_tags
from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.cli.shapes import (
    add_shape_arguments,
    operand_words,
    problems_of,
    shapes_from,
)
from tritongemm.cli.waiting import Waiting, starting
from tritongemm.cli.where import cpu_instead
from tritongemm.errors import UsageError
from tritongemm.problem import GemmProblem

if TYPE_CHECKING:
    from tritongemm.bench.runner import BenchPlan

DEFAULT_OUT = Path("results/bench.csv")
_PROVIDERS, _CPU_PROVIDERS = "torch,tritongemm", "torch,numpy_blocked"
#: Larger shapes take minutes each on a CPU.
_CPU_MAX_EXTENT = 2048
#: Seconds between progress lines of compiling, where the terminal cannot overwrite a line.
_QUIET_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    add_shape_arguments(parser, dtype=None, dtype_default="bf16; on the CPU fp32")
    fresh = parser.add_argument_group("fresh shapes")
    fresh.add_argument("--fresh", type=int, metavar="SEED",
                       help="draw new shapes like those of --family with this seed; no shape of "
                            "the suite itself is among them")
    fresh.add_argument("--family", metavar="NAMES", help="suites to draw from, a comma list")
    add_count(fresh, "--count", help="shapes for each family (default: as many as the suite has)")
    group = parser.add_argument_group("measuring")
    group.add_argument("--providers", metavar="LIST",
                       help="a comma list; torch, the baseline, is always there. --list names "
                            "them; package.module:Class is one of your own "
                            f"(default {_PROVIDERS}; on the CPU {_CPU_PROVIDERS})")
    group.add_argument("--device", default="auto", metavar="NAME",
                       help="cuda, cuda:INDEX or cpu; auto is the current CUDA device, the CPU "
                            "where there is none, or the interpreter under TRITON_INTERPRET=1, "
                            "which checks results and measures no time")
    group.add_argument("--scheduler", metavar="ADDRESS",
                       help="measure on the workers of a Dask cluster, such as "
                            "tcp://10.0.0.1:8786; needs the extra [cluster]")
    add_count(group, "--processes", default=1,
              help="measure the whole list in N fresh processes and keep the median row "
                   "of each shape (default 1; published figures use 3)")
    add_seconds(group, "--budget",
                help="device time of one problem's rounds (default: the protocol's)")
    add_seconds(group, "--timeout", least=1, default=600.0,
                help="kill the process of a problem that takes longer (default %(default)g)")
    add_count(group, "--seed", least=0, metavar="SEED", default=0,
              help="seed of the operands and the order of rounds (default 0)")
    add_count(group, "--compile-workers", least=0,
              help="processes that compile kernels first (default: one a core; 0: none)")
    group.add_argument("--host-time", action="store_true",
                       help="also measure the host time of a call, for small problems")
    output = parser.add_argument_group("output")
    output.add_argument("--out", type=file_argument, default=DEFAULT_OUT, metavar="FILE.csv",
                        help="append rows to this CSV; the run's environment goes into "
                             "runs.json in its folder (default %(default)s)")
    output.add_argument("--tag", action="append", default=[], metavar="WORD",
                        help="a word of your own in every row; may be repeated")
    output.add_argument("--resume", action="store_true",
                        help="skip problems that the CSV already has from the same environment")
    output.add_argument("--list", action="store_true", help="list suites and providers, and exit")


def run(args: argparse.Namespace) -> int:
    """Returns 0; 1 where a result was wrong, a control left its limit or nothing was measured; 130
    when interrupted. Raises :class:`TritonGemmError` for what cannot be measured at all."""
    if args.list:
        return _list()
    check_file(args.out)
    plan = _plan(args, _choose_defaults(args))
    waiting = starting()
    waiting.start()
    try:
        return _bench(args, plan, waiting)
    finally:
        waiting.stop()


def _plan(args: argparse.Namespace, limit: str) -> BenchPlan:
    """The arguments, all of them checked. ``limit``: as :func:`problems_of` takes it."""
    from tritongemm.bench.runner import BenchPlan
    from tritongemm.bench.target import check

    work = _work(args, limit)
    plan = BenchPlan(
        work=work, providers=_words(args.providers), out=args.out,
        tags=joined_tags(args.tag), resume=args.resume, processes=args.processes, seed=args.seed,
        budget_s=args.budget, timeout_s=args.timeout, device=args.device,
        compile_workers=args.compile_workers, host_time=args.host_time,
        notes=_notes(args, [problem for _, problem in work]))
    if not args.scheduler:
        check(args.device)
    return plan


def _bench(args: argparse.Namespace, plan: BenchPlan, waiting: Waiting) -> int:
    from tritongemm.bench import runner

    try:
        if args.scheduler:
            from tritongemm.bench.cluster import bench_on_cluster

            report = bench_on_cluster(plan, args.scheduler, _Lines(plan.providers, waiting))
        else:
            report = runner.bench(plan, _Lines(plan.providers, waiting))
    except KeyboardInterrupt:
        print(f"\ninterrupted. Every row measured so far is on the disk; the same command with "
              f"--resume continues ({args.out})", file=sys.stderr)
        return 130
    return _summary(report)


def _choose_defaults(args: argparse.Namespace) -> str:
    """Fills in the providers, dtypes and precision that can run where the bench measures. Returns
    where a ``--max-extent`` that it sets comes from; empty where it sets none."""
    from tritongemm.ops.float32 import default_precision

    if args.scheduler and args.device != "auto":
        raise UsageError("--scheduler excludes --device: each worker of the cluster has its own")
    if args.scheduler and args.compile_workers is not None:
        raise UsageError("--scheduler excludes --compile-workers: the workers' measuring processes "
                         "compile")
    reason, limit = None if args.scheduler else cpu_instead(args.device), ""
    if reason is not None and args.device == "auto" and args.providers is None:
        args.device = "cpu"
        shapes = ""
        if args.max_extent is None:
            args.max_extent = _CPU_MAX_EXTENT
            shapes = f", and shapes up to {_CPU_MAX_EXTENT} (--max-extent)"
            limit = "the default on a CPU, where larger shapes take minutes each"
        print(f"{reason}: the host providers are measured on the CPU{shapes}. "
              "TRITON_INTERPRET=1 checks kernels instead, without timing them")
    args.providers = args.providers or (_PROVIDERS if reason is None else _CPU_PROVIDERS)
    args.dtype = args.dtype or ("bf16" if reason is None else "fp32")
    args.precision = args.precision or (default_precision("fp32") if reason is None else "ieee")
    return limit


def _work(args: argparse.Namespace, limit: str):
    if args.fresh is None:
        if args.family or args.count is not None:
            raise UsageError("--family and --count go with --fresh SEED")
        return problems_of(shapes_from(args), args, limit, mixed=True)
    if not args.family:
        raise UsageError("--fresh SEED needs --family NAME, a suite to draw from")
    from tritongemm.bench.fresh import draw

    shapes = []
    if args.suites or args.shapes or args.m:
        shapes = shapes_from(args)
    for family in _words(args.family):
        shapes += draw(family, args.fresh, args.count)
    return problems_of(shapes, args, limit, mixed=True)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for part in text.split(",") if (word := part.strip()))


def _notes(args: argparse.Namespace, problems: Sequence[GemmProblem]) -> dict[str, object]:
    """What ``runs.json`` records of the problems, whichever of a suite and an argument says it."""
    notes: dict[str, object] = {
        name: ",".join(sorted({getattr(problem, field) for problem in problems}))
        for name, field in (("dtypes", "dtype_a"), ("layouts", "layout"),
                            ("precision", "precision"), ("epilogues", "epilogue"))}
    notes.update(operand_words(args))
    if args.fresh is not None:
        notes["fresh_seed"] = args.fresh
    return notes


def _list() -> int:
    from tritongemm.bench.providers import PROVIDERS
    from tritongemm.records.suites import known_suites, read_suite

    print("providers: " + ", ".join(PROVIDERS))
    print("suites (each also a --family):")
    for name, path in known_suites().items():
        print(f"  {name:<16}{len(read_suite(path)):>5} shapes")
    return 0


class _Lines:
    """Prints one line for each problem; on a terminal the count of compiled kernels is overwritten
    in place."""

    def __init__(self, providers: tuple[str, ...], waiting: Waiting) -> None:
        self._providers, self._waiting = providers, waiting
        self._terminal = sys.stdout.isatty()
        self._compiling_said = self._began = time.monotonic()
        self._pass = -1

    def __call__(self, event) -> None:
        getattr(self, f"_{event.stage}")(event)

    def _start(self, event) -> None:
        self._waiting.stop()
        print(f"measuring on {event.message}: {', '.join(self._providers)}", flush=True)

    def _said(self, event) -> None:
        self._waiting.stop()
        print(event.message, flush=True)

    def _compile(self, event) -> None:
        last = event.done == event.total
        if self._terminal:
            print(f"\rcompiled {event.done} of {event.total} kernels", end="\n" if last else "",
                  flush=True)
        elif last or time.monotonic() - self._compiling_said > _QUIET_S:
            self._compiling_said = time.monotonic()
            print(f"compiled {event.done} of {event.total} kernels", flush=True)

    def _lost(self, event) -> None:
        where = f" at {event.problem}" if event.problem is not None else ""
        print(f"  ! {event.message}{where}; a new process continues", flush=True)

    def _row(self, event) -> None:
        if event.pass_index != self._pass:
            self._pass, self._began = event.pass_index, time.monotonic()
            if event.passes > 1:
                print(f"process {event.pass_index + 1} of {event.passes}", flush=True)
        spent = time.monotonic() - self._began
        left = event.total - event.done
        # `spent` does not include the first problem: the pass began with its row.
        eta = f"  {_minutes(spent / (event.done - 1) * left)} left" if left and spent > 10 else ""
        width = len(str(event.total))
        parts = [text for row in event.rows if (text := _of_row(row))]
        print(f"[{event.done:>{width}}/{event.total}] {event.problem!s:<28} "
              + "; ".join(parts) + eta, flush=True)


def _minutes(seconds: float) -> str:
    return f"{math.ceil(seconds)} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _of_row(row: Mapping[str, object]) -> str:
    """``torch 177.5 us``, ``tritongemm 1.031x (1.020-1.042)``; nothing for the control."""
    from tritongemm.ladder.climbing import duration
    from tritongemm.records.control import BASELINE, CONTROL

    name = row["provider"]
    if name == CONTROL:
        return ""
    if row["status"] != "ok":
        return f"{name} {row['status']}: {str(row.get('error') or '')[:100]}"
    if row.get("time_us_p50") is None:
        return f"{name} right (error {row['max_err_ratio']:.2f} of its limit)"
    if name == BASELINE or row.get("ratio_vs_torch") is None:
        return f"{name} {duration(row['time_us_p50'])}"
    return (f"{name} {row['ratio_vs_torch']:.3f}x ({row['ratio_low']:.3f}-"
            f"{row['ratio_high']:.3f})")


def _summary(report) -> int:
    if not report.written:
        print(f"nothing left to measure: all {report.skipped} problems are in {report.out}")
        return 0
    ended = ", ".join(f"{count} {status}" for status, count in sorted(report.statuses.items()))
    skipped = f"; {report.skipped} problems were there already" if report.skipped else ""
    print(f"{report.written} rows appended to {report.out} ({ended}){skipped}")
    bad = report.statuses.get("wrong", 0) > 0 or not report.statuses.get("ok")
    for suite, control in report.controls.items():
        if control.mean_ratio is None:
            continue
        verdict = (f"VOID, {control.reason}" if control.void else
                   f"torch against torch {control.mean_ratio:.4f} over {control.count} shapes, "
                   "within its limit")
        print(f"{suite or 'shapes'}: {verdict}")
        bad |= control.void
    return 1 if bad else 0
