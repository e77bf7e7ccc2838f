"""Runs every CUDA rung under compute-sanitizer: memcheck, racecheck, initcheck, synccheck.

    python tests/sanitizer/run.py [--tools memcheck,racecheck] [--rungs naive,warp_tiled_async]

Exit status: 0 all clean, 1 something found, 2 compute-sanitizer or a GPU is missing. torch's
caching allocator is switched off, or an overrun would land in a valid slab and not be seen.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tritongemm import settings
from tritongemm.baselines import CUDA_RUNGS

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
WORKLOAD = Path(__file__).with_name("workload.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--rungs", default=",".join(CUDA_RUNGS))
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a tool")
    args = parser.parse_args()
    tools, rungs = args.tools.split(","), args.rungs.split(",")
    for given, known in ((tools, TOOLS), (rungs, CUDA_RUNGS)):
        for name in given:
            if name not in known:
                parser.error(f"{name!r} is not one of {', '.join(known)}")
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
    if subprocess.run([sys.executable, WORKLOAD, *rungs], env=environment).returncode:
        print("the rungs are wrong even without a sanitizer", file=sys.stderr)
        return 1
    found = []
    for tool in tools:
        done = subprocess.run([sanitizer, "--tool", tool, "--error-exitcode", "99",
                               sys.executable, WORKLOAD, *rungs], env=environment,
                              capture_output=True, text=True, timeout=args.timeout)
        clean = done.returncode == 0
        print(f"{tool:10} {'clean' if clean else f'FOUND (exit {done.returncode})'}", flush=True)
        if not clean:
            found.append(tool)
            print((done.stdout + done.stderr)[-6000:])
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
