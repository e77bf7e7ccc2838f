"""``tritongemm explain M N K``: what ``tritongemm.matmul`` would run for one shape, and why."""

from __future__ import annotations

import argparse

from tritongemm.cli.shapes import PRECISION_OF_CALLS, add_operand_arguments, operand_words
from tritongemm.device import current_device, device_named
from tritongemm.errors import DeviceError
from tritongemm.problem import DTYPES, LAYOUTS, PRECISIONS, GemmProblem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``tritongemm explain``."""
    parser.add_argument("m", type=int, metavar="M", help="rows of A and of the result")
    parser.add_argument("n", type=int, metavar="N", help="columns of B and of the result")
    parser.add_argument("k", type=int, metavar="K", help="columns of A, rows of B")
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
    parser.add_argument("--device-name", metavar="SLUG",
                        help="a device of configs/devices, e.g. nvidia-h200; needs no GPU "
                             "(default: the GPU of this machine)")


def run(args: argparse.Namespace) -> int:
    """Prints the explanation. Raises :class:`ProblemError` for a shape that cannot exist and
    :class:`DeviceError` where there is no GPU and no ``--device-name``."""
    from tritongemm.ops.float32 import default_precision

    precision = args.precision or default_precision(args.dtype)
    problem = GemmProblem.contiguous(args.m, args.n, args.k, batch=args.batch, dtype=args.dtype,
                                     layout=args.layout, precision=precision,
                                     epilogue=args.epilogue, **operand_words(args))
    device = device_named(args.device_name) if args.device_name else _here()

    from tritongemm.ops.explain import explain_problem

    print(explain_problem(problem, device))
    return 0


def _here():
    try:
        return current_device()
    except (DeviceError, ImportError) as error:
        raise DeviceError(f"{error}. To explain a choice for another machine's GPU, name it: "
                          "--device-name nvidia-h200") from error
