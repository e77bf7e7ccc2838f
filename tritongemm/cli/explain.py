"""``tritongemm explain M N K``: what ``tritongemm.matmul`` would run for one shape, and why."""

from __future__ import annotations

import argparse
from dataclasses import replace

from tritongemm.cli.shapes import (
    PRECISION_OF_CALLS,
    add_operand_arguments,
    is_mixed,
    operand_words,
)
from tritongemm.cli.where import add_device_name, or_named
from tritongemm.device import DeviceSpec, current_device, device_named
from tritongemm.errors import UsageError
from tritongemm.problem import DTYPES, LAYOUTS, PRECISIONS, GemmProblem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``tritongemm explain``."""
    meanings = {"m": "rows of A and of the result", "n": "columns of B and of the result",
                "k": "columns of A, rows of B"}
    for name, meaning in meanings.items():
        parser.add_argument(f"in_place_{name}", type=int, metavar=name.upper(), nargs="?",
                            help=meaning)
    for name in meanings:
        parser.add_argument(f"--{name}", type=int, help=f"the same as {name.upper()} in its place")
    parser.add_argument("--batch", type=int, default=1, help="products at once (default 1)")
    parser.add_argument("--dtype", default="bf16", choices=tuple(DTYPES),
                        help="dtype of the operands and the result (default bf16)")
    parser.add_argument("--layout", default="nn", choices=LAYOUTS,
                        help="how A and B are stored; nt is what nn.Linear does (default nn)")
    parser.add_argument("--epilogue", default="none", metavar="NAME",
                        help="what is fused after the product, e.g. bias+gelu (default none)")
    parser.add_argument("--precision", choices=PRECISIONS,
                        help=f"precision of fp32 products (default {PRECISION_OF_CALLS})")
    add_operand_arguments(parser)
    add_device_name(parser, "a device of configs/devices, e.g. nvidia-h200; needs no GPU "
                            "(default: the GPU of this machine)")


def run(args: argparse.Namespace) -> int:
    """Prints the explanation. Raises :class:`ProblemError` for a shape that cannot exist and
    :class:`DeviceError` where there is no GPU and no ``--device-name``."""
    from tritongemm.ops.float32 import default_precision

    words, dtype = operand_words(args), args.dtype
    mixed = is_mixed(dtype, words)
    if mixed:  # a product of float32
        dtype, words = "fp32", {name: word for name, word in words.items()
                                if not name.startswith("dtype")}
    precision = args.precision or default_precision(dtype)
    problem = GemmProblem.contiguous(*_extents(args), batch=args.batch, dtype=dtype,
                                     layout=args.layout, precision=precision,
                                     epilogue=args.epilogue, **words)
    device = device_named(args.device_name) if args.device_name else _here()

    from tritongemm.ops.explain import explain_problem

    found = explain_problem(problem, device)
    print(found)
    if mixed:
        print(f"mixed      with mixed=True {_of_mixed(problem, args.dtype, device)}")
    return 0


def _of_mixed(problem: GemmProblem, stored: str, device: DeviceSpec) -> str:
    """How a float32 product reads an A that memory holds as ``stored``."""
    from tritongemm.kernels.launch import Geometry
    from tritongemm.selection import choose
    from tritongemm.selection.hosttime import usual_path
    from tritongemm.selection.mixed import why_converted

    if problem.precision == "fp16x3":
        choice = choose(problem, device)
        geometry = replace(Geometry.contiguous(problem), stored_a=stored)
        if why_converted(problem, choice, geometry, device, usual_path()) is None:
            return (f"A is read as {stored}, by {choice.config.config_id}; torch's side would "
                    "convert it, which counts")
    return f"A is converted from {stored} first, then as above"


def _extents(args: argparse.Namespace) -> tuple[int, int, int]:
    """M, N and K, in their places or by name. Raises :class:`UsageError` unless each is given
    once."""
    places = [args.in_place_m, args.in_place_n, args.in_place_k]
    names = [args.m, args.n, args.k]
    given = [x for x in (*places, *names) if x is not None]
    if len(given) != 3 or None in places and None in names:
        raise UsageError("name the extents once each: `tritongemm explain M N K`, or --m M --n N "
                         "--k K")
    m, n, k = given
    return m, n, k


def _here():
    with or_named("explain a choice"):
        return current_device()
