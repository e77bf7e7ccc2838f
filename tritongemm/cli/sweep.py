"""``tritongemm sweep``: measures configs for each shape and writes each outcome into a journal."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.cli.options import add_count, add_seconds
from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.cli.shapes import add_shape_arguments, listed, problems_from
from tritongemm.cli.where import devices_of, first_gpu
from tritongemm.errors import UsageError

if TYPE_CHECKING:
    from tritongemm.problem import GemmProblem
    from tritongemm.tuning.progress import Progress
    from tritongemm.tuning.sweep import SweepReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    add_shape_arguments(parser)
    where = parser.add_argument_group("where and how long")
    where.add_argument("--journal", type=file_argument, metavar="FILE.jsonl",
                       help="every outcome is appended here as it happens "
                            "(default sweep-RUN.jsonl)")
    where.add_argument("--resume", action="store_true",
                       help="continue the journal; configs measured in the same environment are "
                            "skipped, unless they timed out at a lower limit than now")
    where.add_argument("--devices", default="0", metavar="LIST",
                       help="`all`, or CUDA indices such as 0,1; each takes the next problem "
                            "(default %(default)s)")
    where.add_argument("--scheduler", metavar="ADDRESS",
                       help="sweep on the workers of a Dask cluster, such as tcp://10.0.0.1:8786; "
                            "`tritongemm worker ADDRESS` starts them; needs the extra [cluster]")
    add_seconds(where, "--budget", help="stop after that long; each problem gets an equal share")
    add_seconds(where, "--timeout", default=20.0,
                help="limit for checking and timing one config (default %(default)s)")
    add_seconds(where, "--compile-timeout", default=120.0,
                help="limit for compiling one config (default %(default)s)")
    add_count(where, "--compile-workers", help="compiling processes (default one a core)")
    what = parser.add_argument_group("which configs")
    what.add_argument("--kernels", metavar="LIST",
                      help="kernels of configs/spaces, comma separated (default all)")
    what.add_argument("--rungs", metavar="LIST",
                      help="CUDA rungs of the ladder instead (configs/spaces/ladder), or `all`; "
                           "needs --dtype fp32; writes a journal each; their winners go to "
                           "separate tables")
    add_count(what, "--top",
              help="only the N configs of each problem that the model ranks first, and "
                   "the one in use")
    add_count(what, "--random",
              help="only N random configs of each problem, drawn with --seed, and the "
                   "one in use (--search random: 150)")
    what.add_argument("--search", choices=("model", "full", "random"),
                      help="which configs are measured: model, in the order that the model expects "
                           "until the rest is expected to gain less than --gain; full, all; "
                           "random, some drawn with --seed (default model; full with --top, "
                           "--random or --rungs)")
    what.add_argument("--gain", type=float, default=1.0, metavar="PERCENT",
                      help="stop a problem when the rest of its configs is expected to gain less "
                           "(default %(default)s %%)")
    what.add_argument("--expected", type=float, metavar="FACTOR",
                      help="only problems without a tuned row of their own, and those whose row "
                           "the model expects another config to beat by this factor (1.02: 2 %%), "
                           "those with most to gain first")
    what.add_argument("--stale", action="store_true",
                      help="only problems whose tuned row was made with another Triton, driver or "
                           "kernel revision, the oldest first; with no problems named: all of them")
    add_count(what, "--finalists", default=9,
              help="configs measured again, interleaved with torch (default %(default)s)")
    what.add_argument("--seed", type=int, default=0,
                      help="seed of the operands, the order of rounds and --random")
    parser.add_argument("--plain", action="store_true",
                        help="print lines instead of the live display")


def run(args: argparse.Namespace) -> int:
    """Sweeps; 0, 1 where a problem got no winner, 130 on an interrupt."""
    from tritongemm.ops.float32 import default_precision

    args.precision = args.precision or ("ieee" if args.rungs else default_precision("fp32"))
    problems = _stale(args) if args.stale else [p for _, p in problems_from(args)]
    if args.stale and not problems:
        print("no row is stale")
        return 0
    if args.rungs and args.expected is not None:
        raise UsageError("--expected and --rungs exclude each other: the model does not predict "
                         "rungs")
    if args.resume and not args.journal:
        raise UsageError("--resume needs --journal FILE.jsonl, the journal to continue")
    if args.scheduler and (args.rungs or args.expected is not None or args.devices != "0"):
        raise UsageError("--scheduler excludes --rungs, --expected and --devices: each worker of "
                         "the cluster has one device")
    from tritongemm.records.run import new_run_id
    from tritongemm.tuning.sweep import RANDOM, sweep

    journal = args.journal or f"sweep-{new_run_id()}.jsonl"
    check_file(journal)
    devices = devices_of(args.devices)
    kernels = None if args.kernels is None else listed(args.kernels)
    if args.expected is not None:
        problems = _promising(problems, args.expected, first_gpu(args.devices))
        if not problems:
            return 0
    if args.rungs and args.search == "model":
        raise UsageError("--search model and --rungs exclude each other: no model knows rungs")
    if not 0 < args.gain < 100:
        raise UsageError(f"--gain {args.gain:g} is not a percentage between 0 and 100, such as 1")
    options = {
        "search": args.search, "gain": args.gain / 100, "devices": devices, "top": args.top,
        "subset": RANDOM if args.random is None and args.search == "random" else args.random,
        "budget_s": args.budget, "resume": args.resume, "compile_workers": args.compile_workers,
        "per_config_timeout_s": args.timeout, "compile_timeout_s": args.compile_timeout,
        "finalists": args.finalists, "seed": args.seed, "progress": progress_of(args.plain)}
    try:
        if args.rungs:
            return _sweep_rungs(args.rungs, problems, journal, kernels, options)
        if args.scheduler:
            from tritongemm.tuning.cluster import sweep_on_cluster

            del options["devices"]
            report = sweep_on_cluster(problems, journal, args.scheduler, kernels=kernels,
                                      **options)  # type: ignore[arg-type]
        else:
            report = sweep(problems, journal, kernels=kernels, **options)
    except KeyboardInterrupt:
        print(f"tritongemm sweep: interrupted; {journal} holds every outcome so far. Go on with "
              f"the same command and --resume --journal {shlex.quote(str(journal))}",
              file=sys.stderr)
        return 130
    _summarise(report, " --force" if args.stale else "")
    return _status(report)


def _stale(args: argparse.Namespace) -> list[GemmProblem]:
    """The problems with a stale row on the device that is swept; of those named, if any are."""
    if args.rungs or args.expected is not None or args.scheduler:
        raise UsageError("--stale excludes --rungs, --expected and --scheduler")
    from tritongemm.device import cuda_device
    from tritongemm.tuning.stale import stale_problems

    found = stale_problems(cuda_device(first_gpu(args.devices)).slug)
    if not (args.suites or args.shapes or args.m or args.n or args.k or args.batch):
        return found
    named = {problem for _, problem in problems_from(args)}
    return [problem for problem in found if problem in named]


def _promising(problems: list[GemmProblem], factor: float,
               first: int) -> list[GemmProblem]:
    """The problems whose row the model expects another config to beat by ``factor`` on the GPU with
    the index ``first``, those with the largest gain first, then those without a row."""
    if not factor > 0:
        raise UsageError(f"--expected {factor} is not a positive factor, such as 1.02")
    from tritongemm.device import cuda_device
    from tritongemm.selection import expected_gain

    device = cuda_device(first)
    gains = {problem: expected_gain(problem, device) for problem in problems}
    tuned = {problem: gain for problem, gain in gains.items() if gain is not None}
    kept = sorted((p for p, gain in tuned.items() if gain >= factor), key=tuned.__getitem__,
                  reverse=True)
    new = [problem for problem in gains if problem not in tuned]
    print(f"of {len(tuned)} tuned rows, the device's own or its sibling's, the model expects "
          f"{len(kept)} to be beaten by {factor:g} or more; {len(new)} problems have no row")
    return [*kept, *new]


def _sweep_rungs(text: str, problems: list, journal: str, kernels: object,
                 options: dict[str, object]) -> int:
    """Sweeps the rungs one after another. Returns the worst of their statuses."""
    from tritongemm.ladder.rung_sweep import sweep_rungs, sweepable

    if kernels:
        raise UsageError("--kernels and --rungs exclude each other")
    rungs = sweepable() if text == "all" else listed(text)
    reports = sweep_rungs(problems, Path(journal), rungs, **options)  # type: ignore[arg-type]
    for report in reports:
        _summarise(report)
    return max(map(_status, reports))


def _status(report: SweepReport) -> int:
    return 0 if all(p.winner is not None or p.note == "measured before"
                    for p in report.problems) and not report.stopped else 1


def progress_of(plain: bool) -> Progress:
    """The live display on a terminal; lines elsewhere or if ``plain``."""
    from tritongemm.tuning.progress import Live, Plain

    if not plain and sys.stdout.isatty():
        try:
            from rich.console import Console
        except ImportError:
            pass  # the lines say the same
        else:
            return Live(Console())
    return Plain(lambda text: print(text, flush=True))


def _summarise(report: SweepReport, publish: str = "") -> None:
    for line in report.prune.lines():
        print(line)
    text = (f"{report.measured} configs measured in {report.wall_s:.1f} s on {report.device}; "
            f"GPU busy {report.gpu_busy_s:.1f} s, waiting for compilers "
            f"{report.gpu_waited_s:.1f} s; compiled for {report.compile_s:.1f} s")
    if report.resumed:
        text += f"; {report.resumed} taken over from the journal"
    print(text)
    if report.failures:
        print("failed: " + ", ".join(f"{status} {count}"
                                     for status, count in sorted(report.failures.items())))
    if report.stopped:
        print(f"stopped by the {report.stopped}; continue with --resume --journal "
              f"{shlex.quote(str(report.journal))}{publish}")
    print(f"journal: {report.journal}")
    if report.measured or report.resumed:
        print(f"next: tritongemm publish {shlex.quote(str(report.journal))}{publish}")
