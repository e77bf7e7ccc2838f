"""``tritongemm tune train.py ...``: from a program to its tuned table, and what that won.

A folder holds every step, so that ``--resume`` goes on after whatever stopped it:

    options.json    dtype, layout and precision of the suite, and the title of the page
    suite.csv       the products that were recorded
    before.json     what calls ran before
    sweep.jsonl     the sweep's journal
    compare.jsonl   the second run: winners against before and torch; what is published
    page.md         what was won
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm import settings
from tritongemm.cli.options import add_count, add_seconds, only_with
from tritongemm.cli.outputs import check_file, check_folder, file_argument
from tritongemm.cli.shapes import PRECISION_OF_CALLS
from tritongemm.cli.sweep import progress_of
from tritongemm.cli.where import devices_of, first_gpu
from tritongemm.errors import DataFileError, UsageError
from tritongemm.problem import PRECISIONS

if TYPE_CHECKING:
    from tritongemm.device import DeviceSpec
    from tritongemm.records.suites import Shape
    from tritongemm.tuning.gains import Gain, ProgramProduct

#: The sweep's part of the budget; the rest is for the second run.
_SWEEP_SHARE = 0.8
#: Seconds that the second run may take at the least, all products together, even if the sweep has
#: used up the budget: a short tuning then still publishes winners. More would break the budget;
#: --resume compares the winners that are left.
_LEAST_S = 10.0
_DTYPE, _LAYOUT = "bf16", "nt"


@dataclass(frozen=True)
class _SuiteOptions:
    """What --resume must know of the folder's suite besides its rows, so that they are the same
    problems as in the first run.

    Attributes:
        title: the program's name, or "a suite".
        dtype, layout: of rows that have none; precision: of fp32 rows.
    """

    title: str
    dtype: str
    layout: str
    precision: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb; what follows the program is the program's."""
    parser.add_argument("--suite", action="append", default=[], metavar="SUITE",
                        help="tune a suite instead of a program: a name or a CSV by path; may be "
                             "repeated")
    parser.add_argument("-m", dest="module", action="store_true",
                        help="the program is a module, as for python -m")
    add_seconds(parser, "--budget", default=240.0,
                help="for the sweep and the comparison after it, without the program's own "
                     "time; products that take most time come first (default "
                     "%(default)g)")
    parser.add_argument("--gain", type=float, default=1.0, metavar="PERCENT",
                        help="stop a product when the rest of its configs is expected to gain less "
                             "(default %(default)s %%)")
    parser.add_argument("--devices", default="0", metavar="LIST",
                        help="`all`, or CUDA indices such as 0,1 (default %(default)s)")
    parser.add_argument("--dir", type=Path, metavar="DIR",
                        help="folder of the journals and the page (default tune-RUN)")
    parser.add_argument("--resume", action="store_true",
                        help="continue in --dir, with the products that are recorded there")
    parser.add_argument("--to", type=Path, metavar="DIR",
                        help="write DIR/tuned (default: TRITONGEMM_CONFIG_DIR, else your own "
                             "folder, which is read without a setting)")
    parser.add_argument("--out", type=file_argument, metavar="FILE.md",
                        help="write the page here too")
    parser.add_argument("--dtype", help=f"where a suite has none (default {_DTYPE})")
    parser.add_argument("--layout", help=f"where a suite has none (default {_LAYOUT})")
    parser.add_argument("--precision", choices=PRECISIONS,
                        help="precision of fp32 products, where a suite has none (default "
                             f"{PRECISION_OF_CALLS})")
    add_count(parser, "--compile-workers", help="compiling processes (default one a core)")
    parser.add_argument("--seed", type=int, default=0, help="seed of operands and orders")
    parser.add_argument("--plain", action="store_true",
                        help="print lines instead of the live display")
    parser.add_argument("program", nargs="?", help="a Python script, or with -m a module")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...",
                        help="its own arguments")


def run(args: argparse.Namespace) -> int:
    """Tunes; 0, 1 where nothing was tuned, 130 on an interrupt.

    Raises:
        UsageError: neither or both of a program and a suite, bad arguments, or a program that
            fails. DataFileError, DeviceError: as ``sweep`` and ``publish``.
    """
    folder = _check(args)
    try:
        return _tune(args, folder)
    except KeyboardInterrupt:
        text = "interrupted before any product was recorded"
        if (folder / "suite.csv").exists():
            text = (f"interrupted; {folder} keeps what was measured. Go on with tritongemm tune "
                    f"--resume --dir {shlex.quote(str(folder))}")
        print(f"tritongemm tune: {text}", file=sys.stderr)
        return 130


def _check(args: argparse.Namespace) -> Path:
    """The folder to work in; nothing is made yet."""
    from tritongemm.records.run import new_run_id

    of_suites = {f"--{name}": getattr(args, name) for name in ("dtype", "layout", "precision")}
    if args.resume:
        if args.dir is None or not (args.dir / "suite.csv").exists():
            raise UsageError("--resume needs --dir DIR, a folder in which `tritongemm tune` has "
                             "recorded products (suite.csv)")
        given = [name for name, value in (
            (args.program, args.program), ("-m", args.module), ("--suite", args.suite),
            *of_suites.items()) if value]
        if given:
            raise UsageError(f"--resume takes no {' or '.join(given)}: it continues with the "
                             f"products of {args.dir / 'suite.csv'}. Leave it out, or start "
                             "another tuning without --resume and with another --dir")
    elif bool(args.suite) == bool(args.program):
        raise UsageError("name either a program or --suite: tritongemm tune train.py ARGS..., or "
                         "tritongemm tune --suite mine.csv")
    elif args.program and not args.module and not Path(args.program).exists():
        raise UsageError(f"there is no script {args.program!r}; for a module say -m")
    if args.program:  # its products have their own
        only_with("--suite", of_suites)
    if not 0 < args.gain < 100:
        raise UsageError(f"--gain {args.gain:g} is not a percentage between 0 and 100, such as 1")
    folder = args.dir or Path(f"tune-{new_run_id()}")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--dir {folder} is a file; name a folder")
    if not args.resume and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} holds files; use --resume to continue there, or another --dir")
    for path in (folder, args.to):
        if path is not None:
            check_folder(path)
    if args.out is not None:
        check_file(args.out)
    if args.suite:  # refused before anything is made
        for shape in _suite_shapes(args.suite):
            shape.problem(args.dtype or _DTYPE, args.layout or _LAYOUT)
    return folder.absolute()


def _tune(args: argparse.Namespace, folder: Path) -> int:
    from tritongemm.device import cuda_device
    from tritongemm.ops.float32 import default_precision
    from tritongemm.records.suites import read_suite, write_suite
    from tritongemm.tuning.gains import products_of

    devices = devices_of(args.devices)
    device = cuda_device(first_gpu(args.devices))  # before the program is run for nothing
    folder.mkdir(parents=True, exist_ok=True)
    suite, kept = folder / "suite.csv", folder / "options.json"
    if args.resume and kept.exists():  # an older version wrote none
        options = _read_options(kept)
    else:
        options = _SuiteOptions("a suite" if args.program is None else Path(args.program).name,
                                args.dtype or _DTYPE, args.layout or _LAYOUT,
                                args.precision or default_precision("fp32"))
    if args.suite:
        _write_options(kept, options)
        write_suite(suite, _suite_shapes(args.suite))
    elif not args.resume:
        try:
            status = _record(args, suite)
        finally:
            if suite.exists():  # a program that is interrupted leaves what it has run
                _write_options(kept, options)
        if status:
            raise UsageError(f"{args.program} ended with status {status} while it was recorded; "
                             + (f"what it had run by then is in {suite} (tritongemm tune --suite)"
                                if suite.exists() else "it had run no product"))
        if not suite.exists():
            print(f"{args.program} ran no product that can be tuned; nothing was changed")
            return 1
    products = products_of(read_suite(suite), dtype=options.dtype, layout=options.layout,
                           precision=options.precision)
    if not products:
        print(f"{suite} holds no product with work to do; nothing was changed")
        return 1
    gains, lines = _measure(args, folder, products, devices, device)
    return _present(args, folder, options.title, products, gains, lines)


def _read_options(path: Path) -> _SuiteOptions:
    from tritongemm.records.reading import read_json

    found = read_json(path)
    names = {field.name for field in fields(_SuiteOptions)}
    if not (isinstance(found, dict) and found.keys() == names
            and all(isinstance(value, str) for value in found.values())):
        raise DataFileError(path, "does not hold the options of a tuning")
    return _SuiteOptions(**found)


def _write_options(path: Path, options: _SuiteOptions) -> None:
    from tritongemm.records.atomic import write_atomic

    write_atomic(path, json.dumps(asdict(options)) + "\n")


def _suite_shapes(names: Sequence[str]) -> list[Shape]:
    from tritongemm.records.suites import read_suite, suite_path

    return [shape for name in names for shape in read_suite(suite_path(name))]


def _record(args: argparse.Namespace, suite: Path) -> int:
    """Runs the program in a process of its own, whose memory is free afterwards; its status."""
    words = ["record", "--out", str(suite), *(["-m"] if args.module else []), args.program,
             *args.words]
    print("recording " + shlex.join([args.program, *args.words]), flush=True)
    child = subprocess.Popen([sys.executable, "-m", "tritongemm", *words],
                             env=settings.child_environment())
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.wait()  # it got Ctrl-C too, and writes what it has seen
        raise


def _measure(args: argparse.Namespace, folder: Path, products: Sequence[ProgramProduct],
             devices: tuple[int | None, ...] | None,
             device: DeviceSpec) -> tuple[list[Gain], list[str]]:
    """Sweeps, compares and publishes; the gains, and lines on what was done."""
    from tritongemm import selection
    from tritongemm.tuning import sweep as sweeping
    from tritongemm.tuning.gains import (
        Pairs,
        choices,
        gains_in,
        read_choices,
        winners_in,
        write_choices,
    )
    from tritongemm.tuning.publish import publish

    kept, journal, second = (folder / name for name in ("before.json", "sweep.jsonl",
                                                        "compare.jsonl"))
    problems = [product.problem for product in products]
    if not kept.exists():
        write_choices(kept, choices(problems, device))
    before = read_choices(kept, problems)
    common = {"share_budget": False, "compile_workers": args.compile_workers}
    began = time.monotonic()
    swept = sweeping.sweep(problems, journal, devices=devices, search="model",
                           gain=args.gain / 100, budget_s=_SWEEP_SHARE * args.budget,
                           resume=journal.exists(), seed=args.seed,
                           progress=progress_of(args.plain), **common)
    winners, space_hash = winners_in(journal)
    lines = [f"swept on {swept.device} in {swept.wall_s:.0f} s, {swept.measured} configs measured; "
             f"journals in {folder}"]
    resume = f"continue with tritongemm tune --resume --dir {shlex.quote(str(folder))}"
    if swept.stopped or len(winners) < len(problems):
        lines.append(f"{len(problems) - len(winners)} products have no winner yet; {resume}")
    if not winners:
        return [], lines
    left = max(_LEAST_S, args.budget - (time.monotonic() - began))
    print(f"comparing {len(winners)} winners with what ran before", flush=True)
    sweeping.sweep([p for p in problems if p in winners], second,
                   devices=devices[:1] if devices else (0,), budget_s=left,
                   candidates=Pairs(winners, before, space_hash), finalists=2,
                   resume=second.exists(), seed=args.seed + 1,
                   progress=progress_of(args.plain), **common)
    compared = winners_in(second)[0]
    if len(compared) < len(winners):
        lines.append(f"{len(winners) - len(compared)} winners are not compared and published yet; "
                     f"{resume}")
    root = args.to
    if root is None:
        root = (settings.config_root() if settings.current().config_dir is not None
                else settings.user_root())
    published = publish([second], to=root)
    selection.reload()
    lines.append(f"published to {root / 'tuned'}: {published.added} rows added, "
                 f"{published.replaced} replaced, {len(published.kept)} kept as they were")
    after = (choices(problems, device) if root in settings.config_roots()
             else dict(compared))
    return gains_in(second, products, before, after), lines


def _present(args: argparse.Namespace, folder: Path, title: str,
             products: Sequence[ProgramProduct], gains: Sequence[Gain], lines: Sequence[str]
             ) -> int:
    """Prints the page, and writes it as Markdown."""
    from tritongemm.records.atomic import write_atomic
    from tritongemm.tuning.gains import COLUMNS, cells, markdown, verdict

    page = markdown(f"Tuned tables of {title}", gains, products, lines)
    for path in (folder / "page.md", args.out):
        if path is not None:
            write_atomic(path, page)
    if gains and not args.plain and sys.stdout.isatty():
        _rich_table(COLUMNS, [cells(gain) for gain in gains])
    elif gains:
        print("\n".join("  ".join(cells(gain)) for gain in gains))
    for line in (*verdict(gains, products), *lines, f"page: {args.out or folder / 'page.md'}"):
        print(line)
    return 0 if gains else 1


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:  # the lines say the same
        print("\n".join("  ".join(row) for row in rows))
        return
    table = Table(box=None)
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if 0 < place < len(columns) - 1 else "left",
                         overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
