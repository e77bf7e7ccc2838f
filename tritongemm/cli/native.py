"""``tritongemm native``: build the C++ dispatcher for the installed torch."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from tritongemm import settings
from tritongemm.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("--again", action="store_true",
                        help="build again even if the library for this torch exists")
    parser.add_argument("--wheel", type=Path, metavar="WHEEL",
                        help="add the library to this wheel of the package (pip wheel --no-deps .),"
                             " which becomes one for this machine. Run it in several environments "
                             "for several versions of torch and Python")
    parser.add_argument("--into", type=Path, metavar="FOLDER",
                        help="of the new wheel (default that of WHEEL)")


def run(args: argparse.Namespace) -> int:
    """Builds; says where the library is and whether it is on. Raises CompileError, UsageError."""
    from tritongemm.native import build, find, loading
    from tritongemm.native.wheels import add, check

    if args.into is not None and args.wheel is None:
        raise UsageError("--into needs --wheel, the wheel to add the library to")
    if args.wheel is not None:
        check(args.wheel)
    path = None if args.again or args.wheel is not None else find().path
    if path is not None and path.is_relative_to(loading.PREBUILT):
        print(f"the package has one that fits: {path}")
    else:
        start = time.perf_counter()
        library = build(again=args.again)
        print(f"built in {time.perf_counter() - start:.1f} s: {library.path}")
    if args.wheel is not None:
        print(f"for torch {library.abi.torch}, {library.abi.python}: "
              f"{add(args.wheel, library, args.into or args.wheel.parent)}")
    if settings.current().native == "off":
        print("it is off: TRITONGEMM_NATIVE=0")
    return 0
