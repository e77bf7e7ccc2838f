"""``tritongemm record script.py ...``: runs a program and writes its matrix products as a suite for
``sweep`` and ``bench``."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.errors import UsageError
from tritongemm.records.suites import write_suite

if TYPE_CHECKING:
    from tritongemm.integration.record import Recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``tritongemm record``; what follows the program is the program's."""
    parser.add_argument("--out", type=file_argument, default=Path("recorded.csv"), metavar="FILE",
                        help="the suite to write (default recorded.csv)")
    parser.add_argument("--min-flops", type=float, metavar="N",
                        help="products of fewer flops run on torch; they are recorded too "
                             "(default: as tritongemm.override)")
    parser.add_argument("-m", dest="module", action="store_true",
                        help="the program is a module, as for python -m")
    parser.add_argument("program", help="a Python script, or with -m a module")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...",
                        help="its own arguments")


def run(args: argparse.Namespace) -> int:
    """Runs the program and writes the recorded products, however the program ends.

    Returns:
        The program's exit status: 1 where it raised.

    Raises:
        UsageError: no such script. DataFileError: the suite cannot be written. SystemExit,
        KeyboardInterrupt: the program's.
    """
    if not args.module and not Path(args.program).exists():
        raise UsageError(f"there is no script {args.program!r}; for a module use -m")
    if args.min_flops is not None and not args.min_flops >= 0:
        raise UsageError(f"--min-flops {args.min_flops} is not a number of at least 0")
    out = args.out.absolute()  # the program may change the working directory
    check_file(out)  # now rather than after hours of the program

    from tritongemm.integration.record import recording

    with recording(args.min_flops) as seen:
        try:
            return _run_program(args)
        finally:
            _write(seen, out)


def _run_program(args: argparse.Namespace) -> int:
    """Runs the program as Python would. Returns 0, or 1 if it raised; prints its traceback."""
    words, path = sys.argv, list(sys.path)
    sys.argv = [args.program, *args.words]
    sys.path.insert(0, str(Path.cwd() if args.module else Path(args.program).absolute().parent))
    try:
        if args.module:
            runpy.run_module(args.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(args.program, run_name="__main__")
    except Exception as error:
        traceback.print_exception(type(error), error, _own_frames(error))
        return 1
    finally:
        sys.argv, sys.path[:] = words, path
    return 0


def _own_frames(error: Exception) -> object:
    """The traceback from the program's first frame on."""
    frames = error.__traceback__
    ours = {__file__, runpy.__file__}
    while frames is not None and (frames.tb_frame.f_code.co_filename in ours
                                  or frames.tb_frame.f_code.co_filename == "<frozen runpy>"):
        frames = frames.tb_next
    return frames


def _write(seen: Recording, out: Path) -> None:
    """Writes the suite and prints a summary to standard error."""
    shapes = seen.shapes()
    others = f"; {seen.others} calls that no suite can hold" if seen.others else ""
    if not shapes:
        print(f"tritongemm record: no product was seen, nothing is written{others}",
              file=sys.stderr)
        return
    write_suite(out, shapes)
    flops, taken = seen.flops()
    print(f"tritongemm record: {sum(s.count for s in shapes)} products of {len(shapes)} kinds in "
          f"{out}, {100 * taken / flops:.1f} % of their flops by tritongemm's kernels{others}",
          file=sys.stderr)
