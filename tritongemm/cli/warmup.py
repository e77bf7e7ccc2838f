"""``tritongemm warmup``: compiles the kernels that calls of these problems need."""

from __future__ import annotations

import argparse

from tritongemm.cli.options import add_count
from tritongemm.cli.shapes import add_shape_arguments, problems_from
from tritongemm.cli.waiting import counting
from tritongemm.cli.where import add_device_name, or_named
from tritongemm.device import current_device

_SHOWN = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    add_shape_arguments(parser)
    add_device_name(parser, "a device of configs/devices, e.g. nvidia-h200: compile without a GPU "
                            "here (default: the current CUDA device)")
    add_count(parser, "--workers", help="compiling processes (default one a core)")


def run(args: argparse.Namespace) -> int:
    """Compiles. Returns 0, or 1 if a build failed."""
    from tritongemm.ops.float32 import default_precision

    args.precision = args.precision or default_precision("fp32")
    problems = [problem for _, problem in problems_from(args)]
    from tritongemm.tuning.warmup import warmup

    if args.device_name is None:
        with or_named("compile"):
            current_device()
    report = warmup(problems, device=args.device_name, workers=args.workers,
                    progress=counting("configs compiled"))
    print(report)
    for title, entries in (("goes to torch", report.torchs), ("failed", report.failed)):
        for problem, reason in entries[:_SHOWN]:
            print(f"{title}: {problem}: {reason}")
        if len(entries) > _SHOWN:
            print(f"{title}: {len(entries) - _SHOWN} more")
    return 1 if report.failed else 0
