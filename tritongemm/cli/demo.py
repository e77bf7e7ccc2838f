"""``tritongemm demo``: runs the whole workflow on a small suite and lists the files to open.

Each step is a command that is printed before it runs. With a GPU: sweep, publish into separate
tuned tables, bench, report. Without a GPU: the report of an H100 from committed rows, explanations
of its choices, kernels compiled for it, kernels verified in Triton's interpreter, and host products
timed against ``torch.matmul`` on the CPU.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tritongemm import settings
from tritongemm.cli.options import add_seconds
from tritongemm.cli.where import no_gpu
from tritongemm.errors import TritonGemmError, UsageError

#: Marker file of a folder that a demo created; only such a folder is cleared.
_MARKER = ".tritongemm-demo"
#: (batch, m, n, k): small enough for the interpreter; covers all masks and tails.
_PROVED = ((1, 1, 1, 1), (1, 64, 64, 64), (1, 33, 65, 17), (1, 1, 128, 96), (1, 127, 3, 200),
           (1, 128, 128, 256), (3, 20, 50, 40))
_HOST = ((1, 256, 256, 256), (1, 512, 512, 512), (1, 768, 768, 768), (1, 1024, 1024, 1024),
         (1, 16, 1024, 1024), (1, 1000, 999, 1001))
_SWEPT = ((1, 512, 512, 512), (1, 1024, 1024, 1024), (1, 2048, 2048, 2048), (1, 4096, 4096, 4096),
          (1, 16, 4096, 4096), (1, 1000, 1000, 1000))
_H100 = "nvidia-h100-80gb-hbm3"
_EXPLAINED = ((4096, 4096, 4096), (1, 4096, 4096), (4095, 4097, 4099))
#: One thread for each product: on a busy machine the time of several would include waiting for
#: cores.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("--out", type=Path, default=Path("demo-output"), metavar="DIR",
                        help="where everything goes; an earlier demo's folder is cleared "
                             "(default %(default)s)")
    add_seconds(parser, "--budget", default=90.0,
                help="budget of the sweep, with a GPU (default %(default)g)")
    parser.add_argument("--no-gpu", action="store_true", help="as if there were no GPU")


def run(args: argparse.Namespace) -> int:
    """Returns 0, or 1 if a result was wrong. Raises :class:`TritonGemmError` for a step that cannot
    run."""
    began = time.monotonic()
    _clear(args.out)
    reason = "--no-gpu was given" if args.no_gpu else no_gpu()
    try:
        good = _without_gpu(args.out, reason) if reason else _with_gpu(args.out, args.budget)
    except KeyboardInterrupt:
        print(f"\ninterrupted; what was done so far is in {args.out}", file=sys.stderr)
        return 130
    _files(args.out)
    print(f"{time.monotonic() - began:.0f} s in all.")
    return 0 if good else 1


def _without_gpu(out: Path, reason: str) -> bool:
    from tritongemm.cli.doctor import interpreter_obstacle

    print(f"No GPU ({reason}): steps 1 to 3 show an H100 from its measured rows, tables and model, "
          "steps 4\nand 5 check kernels and measure on this CPU.")
    _heading("1. The report of an H100, from the rows that were measured there")
    _measured(out)
    _heading("2. What matmul would run on an H100, and why: a square, a token, an odd size")
    for m, n, k in _EXPLAINED:
        _step(["explain", m, n, k, "--layout", "nt", "--device-name", _H100])
        print()
    _heading("3. Warm-up: the kernels of these shapes compiled for an H100, without one")
    shapes = _suite(out / "shapes" / "explained.csv", [(1, *size) for size in _EXPLAINED])
    _step(["warmup", shapes, "--layout", "nt", "--device-name", _H100])
    rows, good, proved = out / "demo.csv", True, False
    obstacle = interpreter_obstacle()
    _heading("4. Triton kernels in the interpreter: right or wrong, no times")
    if obstacle:
        print(f"left out: {obstacle}.")
    else:
        shapes = _suite(out / "shapes" / "interpreter.csv", _PROVED)
        good = proved = _step(
            ["bench", "--shapes", shapes, "--dtype", "fp16,bf16,fp32", "--layout", "nn,nt",
             "--providers", "torch,tritongemm", "--tag", "demo", "--out", rows],
            TRITON_INTERPRET="1")
    _heading("5. A blocked NumPy product against torch.matmul on the CPU, one thread each")
    shapes = _suite(out / "shapes" / "host.csv", _HOST)
    quiet = _step(["bench", "--shapes", shapes, "--dtype", "fp32", "--device", "cpu",
                   "--providers", "torch,numpy_blocked", "--budget", 1, "--tag", "demo",
                   "--out", rows], TRITON_INTERPRET="0", **_ONE_THREAD)
    _report(rows, out)
    print("\nNot done, because there is no GPU:\n"
          "  - nothing was swept: there is no journal, no tuned table, no heat map;\n"
          "  - no Triton kernel was timed: the rows of step 4 have no time;\n"
          "  - the ratios of step 5 are of NumPy to torch on this CPU: they say nothing about "
          "tritongemm.")
    if not proved and not obstacle:
        print("  ! A kernel's result was WRONG in the interpreter; its row says how far.")
    if not quiet:
        print("  ! This machine was too busy to time anything: torch against itself was not 1, so "
              "the\n    report leaves the host rows out. Run the demo again when it is quiet.")
    return good


def _measured(out: Path) -> None:
    """Writes the report of the committed rows of an H100."""
    rows = Path(__file__).resolve().parents[2] / "perf" / "results" / _H100
    if not rows.is_dir():
        print(f"left out: the measured rows are in the repository (perf/results/{_H100}), not in "
              "the installed package.")
        return
    _step(["report", os.path.relpath(rows), "--out", out / "h100", "--title",
           "tritongemm on an H100"])


def _with_gpu(out: Path, budget_s: float) -> bool:
    configs = out / "configs"
    configs.mkdir()
    journal, rows = out / "sweep.jsonl", out / "demo.csv"
    shapes = _suite(out / "shapes" / "demo.csv", _SWEPT)
    problems = ["--shapes", shapes, "--dtype", "bf16", "--layout", "nt"]
    print(f"Tuned tables of this demo go to {configs}; the shipped ones stay as they are.")
    _heading("1. Sweep: try configurations, keep every outcome in a journal")
    _step(["sweep", *problems, "--journal", journal, "--budget", f"{budget_s:g}"],
          TRITONGEMM_CONFIG_DIR=str(configs))
    _heading("2. Publish: the winners become tuned tables")
    _step(["publish", journal], TRITONGEMM_CONFIG_DIR=str(configs))
    _heading("3. Bench: those tables against torch.matmul, in a run of its own")
    good = _step(["bench", *problems, "--providers", "torch,tritongemm", "--tag", "demo",
                  "--out", rows], TRITONGEMM_CONFIG_DIR=str(configs))
    _heading("4. The report")
    _report(rows, out, journal)
    if not good:
        print("\n! A result was wrong or torch against itself was not 1; the lines of step 3 say "
              "which.")
    return good


def _report(rows: Path, out: Path, journal: Path | None = None) -> None:
    extra = ["--journal", journal] if journal is not None else []
    _step(["report", rows, "--out", out / "report", "--title", "tritongemm demo", *extra])


def _heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _step(words: Sequence[object], **environment: str) -> bool:
    """Runs ``tritongemm WORDS``. Returns True for exit status 0, False for 1.

    Raises:
        TritonGemmError: any other exit status.
    """
    arguments = [str(word) for word in words]
    shown = [f"{name}={shlex.quote(value)}" for name, value in environment.items()
             if value != "0" and name not in _ONE_THREAD]
    print("$ " + " ".join([*shown, "tritongemm", *map(shlex.quote, arguments)]), flush=True)
    child = subprocess.Popen([sys.executable, "-m", "tritongemm", *arguments],
                             env=settings.child_environment(**environment))
    try:
        status = child.wait()
    except KeyboardInterrupt:
        child.wait()  # it received Ctrl-C too, and saves its rows
        raise
    if status == 130:
        raise KeyboardInterrupt
    if status not in (0, 1):
        raise TritonGemmError(f"`tritongemm {arguments[0]}` ended with status {status}; its last "
                              "lines say why")
    return status == 0


def _suite(path: Path, sizes: Sequence[tuple[int, int, int, int]]) -> Path:
    from tritongemm.records.suites import Shape, write_suite

    write_suite(path, [Shape(m=m, n=n, k=k, batch=batch, suite=path.stem)
                       for batch, m, n, k in sizes])
    return path


def _clear(out: Path) -> None:
    """Creates ``out`` or clears it; only a folder that a demo created is cleared."""
    if out.exists():
        if not out.is_dir():
            raise UsageError(f"--out {out} is a file; name a folder")
        if any(out.iterdir()) and not (out / _MARKER).exists():
            raise UsageError(f"--out {out} holds files that are not a demo's; name another folder")
        shutil.rmtree(out)
    try:
        out.mkdir(parents=True)
        (out / _MARKER).touch()
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from error


def _files(out: Path) -> None:
    """Prints the files to open that exist."""
    what = {"h100/report.html": "what an H100 measured: start here",
            "report/report.html": "the page: plots, sortable tables, environment",
            "report/summary.md": "the same tables in markdown",
            "demo.csv": "every row measured",
            "sweep.jsonl": "every configuration tried",
            "configs/tuned": "the tuned tables that the sweep wrote"}
    print("\nOpen:")
    for name, meaning in what.items():
        if (out / name).exists():
            print(f"  {out / name!s:<36} {meaning}")
    for picture in sorted((out / "report").glob("*.png")):
        print(f"  {picture}")
