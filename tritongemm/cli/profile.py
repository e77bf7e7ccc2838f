"""``tritongemm profile M N K --kernel NAME``: one call's hardware counters, by ncu."""

from __future__ import annotations

import argparse
from pathlib import Path

from tritongemm.cli.outputs import check_file, file_argument
from tritongemm.cli.shapes import PRECISION_OF_CALLS
from tritongemm.compute import precision_for
from tritongemm.errors import UsageError
from tritongemm.formats import format_of
from tritongemm.problem import DTYPES, LAYOUTS, MAX_EXTENT, PRECISIONS, GemmProblem

DEFAULT_OUT = Path("results/counters.jsonl")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verb's arguments."""
    for axis, meaning in (("M", "rows of A and of the result"),
                          ("N", "columns of B and of the result"),
                          ("K", "columns of A, rows of B")):
        parser.add_argument(axis.lower(), metavar=axis, type=int, help=meaning)
    parser.add_argument("--kernel", required=True, metavar="NAME",
                        help="a rung of the ladder (with parameters behind it, as in "
                             "warp_tiled+block_k=16), a kernel of tritongemm, or torch")
    parser.add_argument("--dtype", choices=tuple(DTYPES), metavar="NAME",
                        help="dtype of the operands (default: fp32 for CUDA rungs, else bf16)")
    parser.add_argument("--layout", default="nn", choices=LAYOUTS,
                        help="how A and B are stored (default %(default)s)")
    parser.add_argument("--precision", choices=PRECISIONS,
                        help="precision of fp32 products (default of a rung ieee, else "
                             f"{PRECISION_OF_CALLS})")
    parser.add_argument("--out", type=file_argument, default=DEFAULT_OUT, metavar="FILE.jsonl",
                        help="append the counters here (default %(default)s)")


def run(args: argparse.Namespace) -> int:
    """Prints and stores the counters of every launch; 0. Raises :class:`TritonGemmError`."""
    from tritongemm.bench import counters, profiled
    from tritongemm.ladder import catalog
    from tritongemm.ops.float32 import default_precision

    for axis in ("m", "n", "k"):
        if not 1 <= getattr(args, axis) <= MAX_EXTENT:
            raise UsageError(f"{axis.upper()}={getattr(args, axis)} is outside 1 to {MAX_EXTENT}")
    profiled.known(args.kernel)
    head = args.kernel.partition("+")[0]
    fp32 = any(r.name == head and r.kind != catalog.TRITON for r in catalog.RUNGS)
    if fp32 and catalog.rung(head).kind == catalog.HOST:
        raise UsageError(f"{head} runs on the CPU; ncu reads a GPU's counters")
    dtype = args.dtype or ("fp32" if fp32 else "bf16")
    rung = any(r.name == head for r in catalog.RUNGS)
    precision = args.precision or ("ieee" if rung else default_precision(dtype))
    problem = GemmProblem.contiguous(args.m, args.n, args.k, dtype=dtype, layout=args.layout,
                                     precision=precision_for(precision, format_of(dtype)))
    check_file(args.out)
    ncu = counters.find_ncu()
    launches = counters.profile(problem, args.kernel, ncu=ncu)
    from tritongemm.device import current_device

    counters.store(args.out, problem, args.kernel, launches, device=current_device().slug)
    for one in launches:
        print(f"{one.kernel}  grid {one.grid}  block {one.block}")
        for name, value in one.values.items():
            if not name.startswith("stall_"):
                print(f"  {name:<20}{value:>16,.2f}")
        for reason, value in counters.stalls(one.values)[:5]:
            print(f"  waits: {reason:<20}{value:>9.2f} warps for each that issues")
    print(f"counters: {args.out}")
    return 0
