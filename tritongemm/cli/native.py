"""``tritongemm native``: build the C++ dispatcher for the installed torch."""

from __future__ import annotations

import argparse
import time

from tritongemm import settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("--again", action="store_true",
                        help="build again even if the library for this torch exists")


def run(args: argparse.Namespace) -> int:
    """Builds; says where the library is and whether it is on. Raises CompileError."""
    from tritongemm.native import build

    start = time.perf_counter()
    path = build(again=args.again)
    print(f"built in {time.perf_counter() - start:.1f} s: {path}")
    if settings.current().native == "off":
        print("it is off: TRITONGEMM_NATIVE=0")
    return 0
