"""``tritongemm ladder``: measures the teaching kernels, rung by rung, against torch.matmul."""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm import settings
from tritongemm.cli.doctor import interpreter_obstacle
from tritongemm.cli.options import add_count, add_seconds, joined_tags
from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.cli.shapes import integers
from tritongemm.cli.waiting import Waiting, starting
from tritongemm.cli.where import cpu_instead
from tritongemm.errors import (
    MissingDependencyError,
    TritonGemmError,
    UsageError,
    install_command,
)
from tritongemm.records.reading import read_text

if TYPE_CHECKING:
    from tritongemm.ladder.climbing import LadderPlan, Row, Size
    from tritongemm.ladder.experiments import Experiment

DEFAULT_OUT = Path("results/ladder.csv")
_KINDS = ("host", "cuda", "triton")
_SIZES = {"gpu": "512,1024,2048,4096", "cpu": "256,512", "interpreter": "32,64"}
#: Kind of rungs -> the package that they need, and its extra.
_NEEDS = {"host": ("numba", "cpu"), "cuda": ("cuda.core", "cuda")}
_DTYPES = ("bf16", "fp16", "fp32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    what = parser.add_argument_group("what")
    what.add_argument("--size", metavar="LIST", help="M = N = K, a comma list such as 512,1024 "
                      f"(default {_SIZES['gpu']}; on the CPU {_SIZES['cpu']})")
    for axis in ("m", "n", "k"):
        what.add_argument(f"--{axis}", metavar="LIST",
                          help="instead of --size: sizes of one axis; all three are needed, every "
                               "combination is measured")
    what.add_argument("--rungs", metavar="LIST",
                      help="a comma list of rungs, or of the kinds host, cuda and triton. "
                           "NAME+PARAMETER=VALUE changes a parameter (warp_tiled+block_k=16), "
                           "NAME+tuned takes all from its tuned table (default: cuda,triton; on "
                           "the CPU: host)")
    what.add_argument("--dtype", default="bf16", choices=_DTYPES,
                      help="dtype of the Triton rungs; CUDA and host rungs compute in fp32 "
                           "(default %(default)s)")
    what.add_argument("--tuned", action="store_true",
                      help="run every CUDA rung that has a tuned table with that table's "
                           "parameters")
    what.add_argument("--ablate", action="store_true",
                      help="run the Triton kernel with one technique left out, once for each "
                           "technique")
    what.add_argument("--experiment", metavar="NAME",
                      help="repeat an experiment of a published tutorial and print its "
                           "figures too: S1, S2, S2-sizes, S3 or S4; the experiment chooses rungs "
                           "and sizes")
    what.add_argument("--from", dest="source", type=Path, metavar="FILE.csv",
                      help="measure nothing: print tables, draw charts and write --markdown "
                           "from the rows of this CSV and the counters in its folder (default "
                           "sizes: all that it has)")
    what.add_argument("--list", action="store_true", help="list the rungs and exit")
    how = parser.add_argument_group("how")
    how.add_argument("--device", default="auto", metavar="NAME",
                     help="cuda, cuda:INDEX, or cpu for the host rungs (default: the GPU, or cpu "
                          "where there is none)")
    how.add_argument("--profile", action="store_true",
                     help="also read hardware counters with ncu: memory, DRAM and cache "
                          "throughput, bank conflicts, stall reasons")
    add_seconds(how, "--budget",
                help="GPU time to spend on the timed rounds of each size (default: as "
                     "perf/README.md says)")
    add_count(how, "--processes", default=1,
              help="measure in N new processes and keep the median row of each rung "
                   "(default 1)")
    add_seconds(how, "--timeout", least=1, default=1800.0,
                help="time limit for one size, all rungs together (default %(default)g)")
    add_count(how, "--seed", least=0, metavar="SEED", default=0,
              help="seed of the operands and of the order of the rungs (default 0)")
    out = parser.add_argument_group("output")
    out.add_argument("--out", type=file_argument, default=DEFAULT_OUT, metavar="FILE.csv",
                     help="append rows to this CSV; runs.json, counters and charts go into its "
                          "folder (default %(default)s)")
    out.add_argument("--tag", default="", metavar="WORD", help="write this word into every row")
    out.add_argument("--resume", action="store_true",
                     help="skip what the CSV already has from the same environment")
    out.add_argument("--no-pictures", action="store_true", help="draw no bar charts")
    out.add_argument("--markdown", type=Path, metavar="FILE.md",
                     help="also write the tables into this file, between its markers "
                          "ladder-SIZE, ladder-EXPERIMENT or ladder-ablation")
    out.add_argument("--draw", type=Path, metavar="DIR",
                     help="measure nothing: draw each rung's tile, threads and warps as SVG "
                          "files in DIR; --markdown also writes the table of data reuse (marker "
                          "ladder-reuse)")


def run(args: argparse.Namespace) -> int:
    """Returns 0; 1 where a result was wrong, nothing ran or torch against torch voids a run on a
    GPU; 130 when interrupted."""
    _check(args)
    if args.list:
        return _list()
    if args.draw:
        return _draw(args.draw, args.markdown)
    from tritongemm.ladder import experiments
    from tritongemm.ladder.climbing import climb, rows_of

    chosen = experiments.experiment(args.experiment) if args.experiment else None
    if args.source is None:
        check_file(args.out)
    cpu = _on_cpu(args)
    if cpu and not (args.source or args.rungs or chosen or args.ablate or args.tuned or args.m
                    or installed("numba")):
        return _interpreted(args)
    plan = _plan(args, cpu, chosen)
    if args.markdown:
        _check_markers(args.markdown, [marker for marker, _, _ in _tables(
            args, plan, chosen, (), {})])
    if args.profile:
        from tritongemm.bench.counters import find_ncu

        find_ncu()  # now rather than after the measuring
    waiting = starting()
    try:
        if args.source is None:
            waiting.start()
            climb(plan, _Lines(waiting))
    except KeyboardInterrupt:
        print(f"\ninterrupted. Every row so far is in {args.out}; the same command with --resume "
              "continues", file=sys.stderr)
        return 130
    finally:
        waiting.stop()
    rows = rows_of(plan)
    if args.source and not rows:
        raise UsageError(f"{args.source} has no rows of these rungs and sizes"
                         + (f" and tag {args.tag!r}" if args.tag else "")
                         + "; leave out --size or --rungs to see all that it has")
    counters = _counters(plan, args)
    return _report(args, plan, chosen, rows, counters)


def _check(args: argparse.Namespace) -> None:
    """Refuses options that what was asked for would ignore."""
    if args.list and args.draw:
        raise UsageError("--list and --draw exclude each other")
    if args.list or args.draw:
        given = [f"--{name}" for name in ("size", "m", "n", "k", "rungs", "tuned", "ablate",
                                          "experiment", "profile", "resume") if getattr(args, name)]
        if given := [*given, *(["--from"] if args.source else [])]:
            raise UsageError(f"--{'list' if args.list else 'draw'} measures nothing; leave out "
                             f"{', '.join(given)}")
    if args.source and args.resume:
        raise UsageError("--from measures nothing; leave out --resume")
    if args.tuned and args.ablate:
        raise UsageError("--ablate has configs of its own; leave out --tuned")


def _report(args: argparse.Namespace, plan: LadderPlan, chosen: Experiment | None,
            rows: Sequence[Row], counters: Mapping[tuple, Mapping[str, float]]) -> int:
    """Prints and writes the results; those of a void run on a GPU are not written into a page.
    Returns the exit status."""
    from tritongemm.ladder.climbing import void_runs

    void = void_runs(rows, plan.out)
    floor = _floor(chosen, rows) if chosen is not None and chosen.floor and rows else ""
    for marker, title, (heads, cells) in _tables(args, plan, chosen, rows, counters):
        print()
        show(title, heads, cells)
        if args.markdown and (plan.cpu or not void):
            _markdown(args.markdown, marker, title, heads, cells, note=floor)
    if floor:
        print(floor)
    print(f"\nrows: {plan.out}" + (f", those of {rows[0]['device']}" if rows else ""))
    if not args.no_pictures:
        _pictures(rows, plan, plan.out.parent)
    named = [row for row in rows if row["provider"] != "torch"]
    wrong = [row for row in named if row["status"] == "wrong"]
    for row in wrong:
        print(f"! {row['provider']} is WRONG at {row['m']}x{row['n']}x{row['k']}: {row['error']}")
    for run_id, reason in void.items():
        print(f"! VOID, run {run_id}: {reason}"
              + (f"; {args.markdown} stays as it is" if args.markdown and not plan.cpu else ""))
    # The host's clock on a CPU at work is no reason to fail.
    bad = wrong or void and not plan.cpu or not any(row["status"] == "ok" for row in named)
    return 1 if bad else 0


# -- what to run ----------------------------------------------------------------------------------

def installed(package: str) -> bool:
    """Whether ``package`` can be found. Imports only its parent packages."""
    try:
        return importlib.util.find_spec(package) is not None
    except ImportError:
        return False


def _on_cpu(args: argparse.Namespace) -> bool:
    if args.source:
        return args.device == "cpu"
    reason = cpu_instead(args.device)
    if reason is not None and args.device == "auto":
        print(f"{reason}: the host rungs run on the CPU")
    return reason is not None


def _interpreted(args: argparse.Namespace) -> int:
    """Runs the Triton rungs in the interpreter, in a new process: they need no Numba."""
    obstacle = interpreter_obstacle()
    if obstacle:
        raise UsageError(f"the host rungs need numba ({install_command('cpu')}), and {obstacle}")
    print(f"numba is not installed ({install_command('cpu')}), so no host rung can run. The "
          "Triton rungs run in the interpreter, which checks them without timing them:", flush=True)
    words = ["ladder", "--rungs", "triton", "--size", args.size or _SIZES["interpreter"], "--dtype",
             args.dtype, "--out", str(args.out), "--seed", str(args.seed), "--no-pictures"]
    words += ["--resume"] if args.resume else []
    words += ["--tag", args.tag] if args.tag else []
    print("$ TRITON_INTERPRET=1 tritongemm " + shlex.join(words), flush=True)
    return subprocess.run([sys.executable, "-m", "tritongemm", *words], check=False,
                          env=settings.child_environment(TRITON_INTERPRET="1")).returncode


def _plan(args: argparse.Namespace, cpu: bool, chosen: Experiment | None) -> LadderPlan:
    from tritongemm.ladder.climbing import Climb, LadderPlan
    from tritongemm.ladder.experiments import ablation

    if args.profile and cpu:
        raise UsageError("--profile reads the counters of a GPU; leave out --device cpu")
    if args.source and args.profile:
        raise UsageError("--from measures nothing; leave out --profile (stored counters in the "
                         "CSV's folder are shown)")
    if chosen is not None:
        for name in ("size", "m", "n", "k", "rungs", "ablate", "tuned"):
            if getattr(args, name):
                raise UsageError(f"--experiment {chosen.name} chooses its own rungs and sizes; "
                                 f"leave out --{name}")
        climbs = chosen.climbs
    elif args.ablate:
        if args.rungs:
            raise UsageError("--ablate chooses its own rungs; leave out --rungs")
        climbs = (Climb(_sizes(args, cpu), tuple(ablation(args.dtype).values())),)
    else:
        climbs = (Climb(_sizes(args, cpu), _rungs(args, cpu)),)
    return LadderPlan(climbs, args.source or args.out, dtype=args.dtype, cpu=cpu,
                      device=args.device, tags=joined_tags([args.tag]), budget_s=args.budget,
                      processes=args.processes, resume=args.resume, seed=args.seed,
                      timeout_s=args.timeout,
                      notes={"dtypes": args.dtype, "experiment": args.experiment or ""})


def _sizes(args: argparse.Namespace, cpu: bool) -> tuple[Size, ...]:
    axes = [args.m, args.n, args.k]
    if any(axes):
        if not all(axes) or args.size:
            raise UsageError("give --size, or --m, --n and --k together")
        m, n, k = (integers(text, axis) for axis, text in zip("mnk", axes))
        sizes = tuple((x, y, z) for x in m for y in n for z in k)
    elif args.source and not args.size:
        from tritongemm.ladder.climbing import sizes_in

        return sizes_in(args.source)
    else:
        text = args.size or _SIZES["cpu" if cpu else "gpu"]
        sizes = tuple((s, s, s) for s in integers(text, "size"))
    for size in sizes:
        if min(size) < 1:
            raise UsageError(f"size {'x'.join(map(str, size))}: there is nothing to measure")
    return sizes


def _rungs(args: argparse.Namespace, cpu: bool) -> tuple[str, ...]:
    from tritongemm.ladder import catalog
    from tritongemm.ladder.provider import parse

    # The interpreter runs only the Triton rungs.
    standard = "host" if cpu else "triton" if settings.current().interpret else "cuda,triton"
    words = (args.rungs or standard).split(",")
    texts: dict[str, None] = {}
    for word in (word.strip() for word in words):
        if word in _KINDS:
            package, extra = _NEEDS.get(word, ("", ""))
            if package and not installed(package) and len(words) > 1:
                print(f"the {word} rungs are left out: they need {package} "
                      f"({install_command(extra)})")
                continue
            texts.update(dict.fromkeys(r.name for r in catalog.rungs(word)))
        else:
            parse(word)
            texts[word] = None
    if not args.tuned:
        return tuple(texts)
    from tritongemm.records.spaces import rung_spaces

    known = rung_spaces()
    return tuple(f"{text}+tuned" if text in known else text for text in texts)


# -- tables ---------------------------------------------------------------------------------------

def _tables(args: argparse.Namespace, plan: LadderPlan, chosen: Experiment | None,
            rows: Sequence[Row], counters: Mapping[tuple, Mapping[str, float]]):
    """(marker, title, (heads, cells)) of each table."""
    from tritongemm.ladder import experiments
    from tritongemm.ladder.climbing import table

    if chosen is not None:
        told = {f"{text} {size[0]}": values for (text, size), values in counters.items()}
        yield f"ladder-{chosen.name}", chosen.title, experiments.table(chosen, rows, told)
        return
    (one,) = plan.climbs
    for size in one.sizes:
        name = str(size[0]) if len(set(size)) == 1 else "x".join(map(str, size))
        if args.ablate:
            yield ("ladder-ablation", f"One technique at a time at {name}, {args.dtype}",
                   experiments.ablation_table(args.dtype, rows, size))
            continue
        told = {text: values for (text, at), values in counters.items() if at == size}
        yield f"ladder-{name}", f"The ladder at {name}", table(rows, size, one.rungs, told)


def show(title: str, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Prints a table with rich, or in plain columns without it."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        wide = [max(len(row[i]) for row in (heads, *cells)) for i in range(len(heads))]
        print(title)
        for row in (heads, *cells):
            print("  ".join(cell.ljust(width) for cell, width in zip(row, wide)).rstrip())
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    for i, head in enumerate(heads):
        numeric = i > 0 and all(_is_number(row[i]) for row in cells)
        table.add_column(head, justify="right" if numeric else "left", no_wrap=True)
    for row in cells:
        table.add_row(*row)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(markup=False, highlight=False, width=240)
    console.print(table)


def _is_number(text: str) -> bool:
    return not text or text[0].isdigit() or text == "right"


def _markdown(path: Path, marker: str, title: str, heads: Sequence[str],
              cells: Sequence[Sequence[str]], note: str = "") -> None:
    from tritongemm.report import markdown
    from tritongemm.report.tables import Table

    numeric = tuple(i > 0 and all(_is_number(row[i]) for row in cells) for i in range(len(heads)))
    shown = Table(name=marker, title=title, heads=tuple(heads), numeric=numeric,
                  cells=tuple(tuple(row) for row in cells))
    text = markdown.table(shown)
    changed = markdown.write_between(path, marker, f"{text}\n\n{note}" if note else text)
    print(f"{path}: {marker} {'written' if changed else 'is as it was'}")


def _check_markers(path: Path, markers: Sequence[str]) -> None:
    """Before hours of measuring: whether the page has a place for each table."""
    text = read_text(path)
    for marker in markers:
        if f"<!-- tritongemm:{marker} -->" not in text:
            raise UsageError(f"{path} has no marker <!-- tritongemm:{marker} --> for the table; "
                             "add it and its closing <!-- /tritongemm:... -->, or leave out "
                             "--markdown")


def _floor(chosen: Experiment, rows: Sequence[Row]) -> str:
    from tritongemm.device import device_named
    from tritongemm.ladder.experiments import floor_text

    return floor_text(chosen, device_named(str(rows[0]["device"])))


def _pictures(rows: Sequence[Row], plan: LadderPlan, folder: Path) -> None:
    from tritongemm.report.bars import write_bars

    order = list(dict.fromkeys(text for one in plan.climbs for text in one.rungs))
    try:
        for path in write_bars(rows, order, folder):
            print(f"picture: {path}")
    except MissingDependencyError as error:
        print(f"no pictures: {error}")


# -- counters -------------------------------------------------------------------------------------

def _counters(plan: LadderPlan, args: argparse.Namespace) -> dict[tuple, dict[str, float]]:
    """(rung, size) -> counters of its main launch, profiled now or stored with the CSV of
    ``--from``."""
    from tritongemm.bench import counters

    path = plan.out.with_name(f"{plan.out.stem}.counters.jsonl")
    if args.source:
        return counters.latest(path) if path.exists() else {}
    return _profile(plan, path) if args.profile else {}


def _profile(plan: LadderPlan, path: Path) -> dict[tuple, dict[str, float]]:
    """Rungs that cannot be profiled are reported and left out."""
    from tritongemm.bench import counters
    from tritongemm.device import current_device

    ncu = counters.find_ncu()
    found: dict[tuple, dict[str, float]] = {}
    for one in plan.climbs:
        for size in one.sizes:
            for text in one.rungs:
                problem = plan.problem(size, plan.dtype_of(text))
                try:
                    launches = counters.profile(problem, text, ncu=ncu)
                except TritonGemmError as error:
                    print(f"  ! {text} at {size[0]}: {error}", flush=True)
                    if "administrators" in str(error):
                        return found
                    continue
                counters.store(path, problem, text, launches, device=current_device().slug)
                found[text, size] = dict(counters.main_launch(launches).values)
                print(f"profiled {text} at {'x'.join(map(str, size))}", flush=True)
    if found:
        print(f"counters: {path}")
    return found


# -- other answers --------------------------------------------------------------------------------

def _list() -> int:
    from tritongemm.ladder import catalog
    from tritongemm.ladder.experiments import EXPERIMENTS

    for one in catalog.RUNGS:
        print(f"{one.kind:<7}{one.name:<24}{', '.join(one.sources)}\n       {one.idea} "
              f"{one.lesson}")
        if one.parameters:
            print(f"       {one.parameters}")
        if one.limits:
            print(f"       limit: {one.limits}")
    print("experiments: " + "; ".join(f"{e.name}: {e.title}" for e in EXPERIMENTS.values()))
    return 0


def _draw(folder: Path, page: Path | None) -> int:
    from tritongemm.ladder.drawing import REUSE_HEADS, reuse_rows, write_drawings

    written = write_drawings(folder)
    print(f"{len(written)} drawings in {folder}")
    if page:
        _markdown(page, "ladder-reuse", "What a product costs", REUSE_HEADS, reuse_rows())
    return 0


class _Lines:
    """Prints one line for each size; the table has the rungs."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting

    def __call__(self, event) -> None:
        if event.stage == "start":
            self._waiting.stop()
            print(f"measuring on {event.message}", flush=True)
        elif event.stage == "row":
            good = sum(row["status"] == "ok" for row in event.rows)
            print(f"[{event.done}/{event.total}] {event.problem}: {good} of {len(event.rows)} rows "
                  "are right", flush=True)
        elif event.stage == "lost":
            print(f"  ! {event.message}; a new process continues", flush=True)
