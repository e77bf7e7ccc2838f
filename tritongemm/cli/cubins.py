"""``tritongemm cubins``: builds packs of compiled kernels, and says what a pack serves."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.cli.options import add_count
from tritongemm.cli.waiting import counting
from tritongemm.cli.where import add_device_name
from tritongemm.errors import UsageError

if TYPE_CHECKING:
    from tritongemm.kernels.pack import Pack

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SHOWN = 5


def size_argument(text: str) -> int:
    """argparse type of a size: ``100MB`` -> bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?b?)", text.strip().lower())
    if match is None or match[2] not in _UNITS or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no size; write 100MB or 500kB")
    return int(float(match[1]) * _UNITS[match[2]])


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is no share; use a number above 0, at most 1")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("action", choices=("build", "count", "coverage"),
                        help="build: compile the binaries that most random problems need, into a "
                             "package below FOLDER; count: choose them and compile nothing; "
                             "coverage: the share of other random problems that the pack in FOLDER "
                             "serves. None needs a GPU")
    parser.add_argument("folder", type=Path, metavar="FOLDER",
                        help="folder of the package's project; build continues an interrupted one")
    parser.add_argument("--arch", type=int, default=90, metavar="SM",
                        help="architecture (default %(default)s)")
    add_device_name(parser, "a device of configs/devices, whose tables and model choose; may be "
                            "repeated (default all of the architecture that have measurements)",
                    action="append")
    add_count(parser, "--problems", default=20_000,
              help="number of random problems (default %(default)s; for a first try, --problems "
                   "1000). Choosing takes about 10 ms of a core for each problem and device; build "
                   "then compiles thousands of binaries, about a second of a core each")
    parser.add_argument("--seed", type=int, default=0, metavar="N",
                        help="seed of the random problems (default %(default)s)")
    parser.add_argument("--dtype", default="bf16", metavar="LIST",
                        help="dtypes of the problems, a comma list (default %(default)s)")
    parser.add_argument("--cover", type=_share, default=0.99, metavar="SHARE",
                        help="share of the problems to serve (default %(default)s)")
    parser.add_argument("--max-size", type=size_argument, default="100MB", metavar="SIZE",
                        help="largest size of the pack (default %(default)s)")
    add_count(parser, "--workers", help="compiling processes (default one a core)")
    parser.add_argument("--wheel", action="store_true",
                        help="build: also make the wheel, in FOLDER/dist, with setuptools")


def run(args: argparse.Namespace) -> int:
    """Builds or counts. Returns 0, or 1 if a build failed or less than --cover is served."""
    from tritongemm.cubins import choosing
    from tritongemm.device import device_named

    devices = ([device_named(slug) for slug in args.device_name or ()]
               or choosing.measured(args.arch))
    if wrong := [device.slug for device in devices if device.arch != args.arch]:
        raise UsageError(f"{', '.join(wrong)} is not sm_{args.arch}; use --arch")
    pack = _pack(args) if args.action == "coverage" else None  # before the work for nothing
    dtypes = [word.strip() for word in args.dtype.split(",") if word.strip()]
    if not dtypes:
        raise UsageError("--dtype names none")
    problems = [p for number, dtype in enumerate(dtypes)
                for p in choosing.drawn(max(1, (args.problems + number) // len(dtypes)), args.seed,
                                        dtype)]
    workers = args.workers or len(os.sched_getaffinity(0))
    found = choosing.choices(
        problems, devices, workers=workers, progress=counting("choices"),
        journal=args.folder / f"choices-seed{args.seed}.jsonl")
    print(f"{len(problems)} problems, seed {args.seed}, on "
          f"{', '.join(device.slug for device in devices)}")
    if pack is not None:
        return _coverage(args, pack, found)
    return _build(args, found, workers)


def _build(args: argparse.Namespace, found: list, workers: int) -> int:
    from tritongemm.cubins import building, choosing

    wanted = choosing.needed(found, args.cover)
    every = {key for choice in found for key in choice.keys}
    keys = {key for choice in wanted for key in choice.keys}
    if not every:
        raise UsageError("no kernel runs any of these problems: calls go to torch. For a GPU that "
                         "was never measured run `tritongemm calibrate --quick` on it, or set "
                         "TRITONGEMM_POLICY=own")
    print(f"{len(every)} distinct binaries; {len(keys)} of them serve "
          f"{choosing.coverage(found, keys)}")
    if args.action == "count":
        return 0
    built = building.build(wanted, found, args.folder, args.arch, max_bytes=args.max_size,
                           workers=workers, progress=counting("choices compiled"))
    print(f"{built.pack.folder}: {built.pack.entries} binaries, "
          f"{built.packed_bytes / 1e6:.1f} MB, Triton {built.pack.triton}"
          + (f", up to --max-size {args.max_size / 1e6:g} MB" if built.full else ""))
    print(f"serves {built.served}")
    for key, reason in built.failed[:_SHOWN]:
        print(f"failed: {key[:24]}: {reason}")
    if len(built.failed) > _SHOWN:
        print(f"failed: {len(built.failed) - _SHOWN} more")
    if args.wheel:
        print(building.wheel(args.folder))
    return 1 if built.failed else 0


def _pack(args: argparse.Namespace) -> Pack:
    """The pack in FOLDER: its package's, or FOLDER itself. Raises :class:`UsageError`."""
    from tritongemm.kernels.pack import MANIFEST, Pack, package_of

    folders = args.folder / package_of(args.arch), args.folder
    for folder in folders:
        if (folder / MANIFEST).exists():
            return Pack(folder)
    raise UsageError(f"{args.folder} holds no pack: there is no {MANIFEST} in it or in "
                     f"{folders[0]}. `tritongemm cubins build {args.folder}` makes one")


def _coverage(args: argparse.Namespace, pack: Pack, found: list) -> int:
    from tritongemm.cubins import choosing

    keys = {*pack.keys()}
    whole = choosing.coverage(found, keys)
    print(f"{pack.entries} binaries serve {whole}")
    for slug in dict.fromkeys(choice.device for choice in found):
        print(f"  {slug}: {choosing.coverage([x for x in found if x.device == slug], keys)}")
    return 0 if whole.share >= args.cover else 1
