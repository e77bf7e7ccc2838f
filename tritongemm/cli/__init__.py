"""The command line: one file for each verb, imported only when that verb runs."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from tritongemm import plugins, settings
from tritongemm.errors import TritonGemmError, printable

#: Verb -> its line in ``tritongemm --help``. The verb ``x`` lives in ``tritongemm.cli.x``.
VERBS = {
    "sweep": "find the fastest config of each shape and journal every outcome",
    "tune": "from a program or a suite to its tuned table: record, sweep, publish, compare",
    "worker": "serve this host's GPUs to `sweep --scheduler`, one Dask worker per GPU",
    "publish": "merge the winners of sweep journals into the tuned tables",
    "tables": "list tuned tables and rows by age and origin, and which are stale",
    "calibrate": "fit the selection's model to the timings of sweep journals",
    "regret": "how close the model's choices are to the best config, on journals or fresh shapes",
    "warmup": "compile the kernels that calls of these shapes need; needs no GPU",
    "cubins": "build the package of compiled kernels that first calls load; needs no GPU",
    "native": "build the C++ dispatcher, which makes repeated calls cheaper on the host",
    "record": "run a program and write its matrix products as a suite",
    "bench": "measure providers against torch.matmul and append CSV rows",
    "models": "measure whole programs of published sizes: tritongemm.override against torch",
    "ladder": "measure the teaching kernels, one technique each, against torch.matmul",
    "accuracy": "measure the errors of float32 products against cuBLAS's",
    "profile": "read the hardware counters of one kernel's launch with ncu",
    "report": "tables, plots and one HTML page from bench CSVs",
    "compare": "judge each row of two CSVs: SAME, FASTER, SLOWER or AMBIGUOUS",
    "explain": "show what tritongemm.matmul would run for one shape, and why",
    "doctor": "show what works here, what is missing, and the command that fixes it",
    "demo": "the whole workflow on a small suite: sweep, publish, bench, report",
}


def parser_of(verb: str) -> argparse.ArgumentParser:
    """The argument parser of one verb of :data:`VERBS`."""
    parser = argparse.ArgumentParser(prog=f"tritongemm {verb}", description=VERBS[verb])
    importlib.import_module(f"tritongemm.cli.{verb}").add_arguments(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. Returns the exit status: 0 success, 1 a negative result, 2 a wrong argument or
    unusable input, 130 interrupted."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="tritongemm", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Autotuned Triton GEMM: sweep, measure against torch.matmul, report.",
        epilog="verbs:\n" + "\n".join(f"  {verb:<10}{text}" for verb, text in VERBS.items())
        + "\n\n`tritongemm VERB --help` says what a verb takes.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("verb", nargs="?", metavar="VERB", help="see below")
    if argv and argv[0] not in VERBS and not argv[0].startswith("-"):
        close = get_close_matches(argv[0], VERBS, n=1)
        parser.error(f"{argv[0]!r} is not a verb; "
                     + (f"did you mean {close[0]}? " if close else "")
                     + "`tritongemm --help` lists them")
    head = parser.parse_args(argv[:1])
    if head.version:
        from tritongemm import __version__

        print(f"tritongemm {__version__}")
        return 0
    if head.verb is None:
        parser.print_help()
        return 2
    try:
        plugins.load()  # before the arguments, which may name what plugins register
        module = importlib.import_module(f"tritongemm.cli.{head.verb}")
        args = parser_of(head.verb).parse_args(argv[1:])
        # A command shows warnings; the library does not configure logging.
        with settings.override(log=settings.current().log or "warning"):
            status = int(module.run(args) or 0)
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where an error can be reported
            return status
    except TritonGemmError as error:
        print(printable(f"tritongemm {head.verb}: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"tritongemm {head.verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `tritongemm ... | head`
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        print(f"tritongemm {head.verb}: the output cannot be written: {error.strerror}; free some "
              "space, or write it elsewhere", file=sys.stderr)
        _drop_output()
        return 2


def _drop_output() -> None:
    """What standard output still holds is not written at the end of the process, where it would
    fail again."""
    with contextlib.suppress(OSError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
