"""``tritongemm exercise``: a verb that was added as CONTRIBUTING says."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("--size", type=int, default=8, help="of the square that is multiplied")


def run(args: argparse.Namespace) -> int:
    """Prints the operations."""
    from tritongemm.problem import GemmProblem

    print(GemmProblem.contiguous(args.size, args.size, args.size).flops())
    return 0
