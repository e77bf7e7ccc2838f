"""``tritongemm accuracy``: measures errors of float32 products, cuBLAS's included; writes CSV and
charts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.cli.options import only_with
from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.cli.shapes import integers, names
from tritongemm.errors import DeviceError, UsageError
from tritongemm.problem import LAYOUTS

if TYPE_CHECKING:
    from tritongemm.bench.accuracy_rows import Row

DEFAULT_OUT = Path("results/accuracy.csv")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    parser.add_argument("--distributions", metavar="LIST",
                        help="a comma list of distributions (default: all eight)")
    parser.add_argument("--algorithms", metavar="LIST",
                        help="a comma list of sgemm, cublas_tf32; ieee, split, tf32: the kernel "
                             "that selection takes there; split_product, tiled_bf16x6, simt: that "
                             "kernel (default: all)")
    parser.add_argument("--m", metavar="SIZES", help="M = N, a comma list or FROM:TO:STEP "
                                                     "(default: the published study)")
    parser.add_argument("--k", metavar="SIZES", help="K, likewise; goes with --m")
    parser.add_argument("--layout", choices=LAYOUTS, help="layout of the sizes of --m (default nn)")
    parser.add_argument("--seed", type=int, help="seed of the operands (default 0)")
    parser.add_argument("--read", type=Path, metavar="FILE.csv",
                        help="measure nothing: take the rows of this CSV, of the distributions and "
                             "algorithms that are listed; needs no GPU")
    parser.add_argument("--out", type=file_argument, default=DEFAULT_OUT, metavar="FILE.csv",
                        help="replaces this file; charts go into its folder (default %(default)s)")
    parser.add_argument("--no-pictures", action="store_true", help="write the CSV only")


def run(args: argparse.Namespace) -> int:
    """Prints one line for each product, then the results above the limit. Returns 1 if a result is
    missing or has stray elements, else 0. The CSV is written however the measuring ends."""
    _check(args)
    from tritongemm.bench.accuracy_limit import LIMITED, misses
    from tritongemm.bench.accuracy_rows import ALGORITHMS, write_csv
    from tritongemm.measure.distributions import DISTRIBUTIONS

    distributions = (names(args.distributions, tuple(DISTRIBUTIONS), "distribution")
                     if args.distributions else tuple(DISTRIBUTIONS))
    algorithms = (names(args.algorithms, tuple(ALGORITHMS), "algorithm")
                  if args.algorithms else tuple(ALGORITHMS))
    rows: list[Row] = []
    try:
        for row in (_measured(args, distributions, algorithms) if args.read is None
                    else _read(args.read, distributions, algorithms)):
            rows.append(row)
            print(f"{row.distribution:<20}{row.m:>6}{row.n:>6}{row.k:>7} {row.layout} "
                  f"{row.algorithm:<14}{row.max_error:>10.2e}{row.norm_error:>10.2e} "
                  f"{f' {row.flagged} rows by the guard' if row.flagged else ''}"
                  f"{'' if row.status == 'ok' else f' {row.status}'}")
    finally:
        if rows:
            print(f"wrote {write_csv(args.out, rows)}")
    if above := misses(rows):
        print(f"above the limit, SGEMM's error, of {', '.join(LIMITED)}:")
        for miss in above:
            print(f"  {miss}")
    if not args.no_pictures:
        from tritongemm.report.accuracy import write_picture

        for measure in ("max_error", "norm_error"):
            name = args.out.with_name(f"{args.out.stem}-{measure.replace('_', '-')}.png")
            print(f"wrote {write_picture(map(asdict, rows), name, measure)}")
    return int(any(row.failed for row in rows))


def _check(args: argparse.Namespace) -> None:
    if (args.m is None) != (args.k is None):
        raise UsageError("--m and --k go together: M = N of --m, each with every K of --k")
    if args.m is None:
        only_with("--m and --k", {"--layout": args.layout})
    if args.read is not None:
        if args.m is not None or args.seed is not None:
            raise UsageError("--read takes all sizes and seeds of a CSV; leave out --m, --k and "
                             "--seed")
        if args.out.resolve() == args.read.resolve():
            raise UsageError(f"--out {args.out} is the file that --read reads, and would keep only "
                             "the rows that are listed; name another --out")
    check_file(args.out)


def _read(path: Path, distributions: Sequence[str], algorithms: Sequence[str]) -> list[Row]:
    from tritongemm.bench.accuracy_rows import read_csv

    rows = [row for row in read_csv(path)
            if row.distribution in distributions and row.algorithm in algorithms]
    if not rows:
        raise UsageError(f"{path} has no row of these distributions and algorithms")
    return rows


def _measured(args: argparse.Namespace, distributions: Sequence[str],
              algorithms: Sequence[str]) -> Iterator[Row]:
    import torch

    from tritongemm.bench import accuracy

    if args.m is None:
        points = [p for p in accuracy.default_points() if p.distribution in distributions]
    else:
        sides, depths = integers(args.m, "m"), integers(args.k, "k")
        if min(*sides, *depths) < 1:
            raise UsageError("a size of 0 has no error to measure; use sizes of at least 1")
        points = [accuracy.Point(name, side, side, k, args.layout or "nn")
                  for name in distributions for side in sides for k in depths]
    if not torch.cuda.is_available():
        raise DeviceError("accuracy compares CUDA kernels, and torch sees no CUDA device; run it "
                          "on a machine with a GPU")
    return accuracy.measure(points, algorithms, args.seed or 0)
