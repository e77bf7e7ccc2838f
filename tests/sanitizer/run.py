"""CUDA rungs and production kernels under compute-sanitizer.

    python tests/sanitizer/run.py [--tools memcheck,racecheck] [--names naive,warp_tiled_async]

Every rung under memcheck, racecheck, initcheck and synccheck; every kernel under memcheck; and
where a tool understands the kernel also under the others: racecheck and initcheck know nothing of
TMA's writes to shared memory, so they see the pointer kernels, the pass that adds split
parts, and, racecheck only, the copies that pad operands. (Parts that a kernel out of its sight has
written look unwritten to initcheck, so it sees the pass beside pointer kernels only. racecheck
itself fails on a kernel in clusters, even one that it is told to leave out.)

The tools run side by side, each in one process of its own. torch's caching allocator is switched
off, or an overrun would land in a valid slab and not be seen. Exit status: 0 all clean, 1 something
found, 2 compute-sanitizer or a GPU is missing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import shutil
import subprocess
import sys
import time
from pathlib import Path

from workload import KERNELS

from tritongemm import settings
from tritongemm.baselines import CUDA_RUNGS

WORKLOAD = Path(__file__).with_name("workload.py")
_POINTERS = (*CUDA_RUNGS, "tiled", "simt", "gemv", "skinny")
#: Kernels by a part of their symbol that racecheck must not look at.
_COPY_ENGINE = "warp_specialized"
TOOLS: dict[str, tuple[str, ...]] = {
    "memcheck": (*CUDA_RUNGS, *KERNELS),
    "racecheck": (*_POINTERS, "warp_specialized"),
    "initcheck": _POINTERS,
    "synccheck": tuple(CUDA_RUNGS),
}


def command(sanitizer: str, tool: str, names: list[str]) -> list[str]:
    """The command line of one tool over some of its names."""
    words = [sanitizer, "--tool", tool, "--error-exitcode", "99"]
    if tool == "memcheck":  # bindings probe the driver for functions that it does not have
        words += ["--report-api-errors", "no"]
    if tool == "racecheck":
        words += ["--kernel-regex-exclude", f"kns={_COPY_ENGINE}"]
    return [*words, sys.executable, str(WORKLOAD), *names]


def main() -> int:
    known = tuple(dict.fromkeys((*CUDA_RUNGS, *KERNELS)))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--names", default=",".join(known), help="rungs and kernels")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a tool")
    args = parser.parse_args()
    tools, names = args.tools.split(","), args.names.split(",")
    for given, right in ((tools, TOOLS), (names, known)):
        for name in given:
            if name not in right:
                parser.error(f"{name!r} is not one of {', '.join(right)}")
    sanitizer = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin")
    if sanitizer is None:
        print("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit",
              file=sys.stderr)
        return 2
    import torch

    if not torch.cuda.is_available():
        print("torch sees no CUDA device", file=sys.stderr)
        return 2
    environment = settings.child_environment(
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
        PYTHONPATH=str(WORKLOAD.parents[2]))
    # Compiled once outside: the tools slow the compiler down too.
    if subprocess.run([sys.executable, WORKLOAD, *names], env=environment).returncode:
        print("results are wrong even without a sanitizer", file=sys.stderr)
        return 1

    def watch(tool: str) -> tuple[int, float, str]:
        chosen, begun = [n for n in TOOLS[tool] if n in names], time.monotonic()
        try:
            done = subprocess.run(command(sanitizer, tool, chosen), env=environment,
                                  capture_output=True, text=True, timeout=args.timeout)
        except subprocess.TimeoutExpired:
            return -1, time.monotonic() - begun, f"took longer than {args.timeout:g} s"
        return done.returncode, time.monotonic() - begun, done.stdout + done.stderr

    found = []
    with concurrent.futures.ThreadPoolExecutor(len(tools)) as pool:
        for tool, (status, seconds, said) in zip(tools, pool.map(watch, tools)):
            clean = status == 0
            print(f"{tool:10} {'clean' if clean else f'FOUND (exit {status})'} after "
                  f"{seconds:.0f} s", flush=True)
            if not clean:
                found.append(tool)
                print(said[-6000:])
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
