"""The time that the package adds to a program's start, and the time of ``tritongemm --help``.

Each time is of a new process; the two kinds alternate, ROUNDS times each. Medians are printed. The
goals: ``import tritongemm`` adds at most 50 ms to ``import torch`` and touches no CUDA; ``--help``
under 0.5 s.

    python perf/bench_import.py [ROUNDS]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Prints the seconds of the second import, in a process that has already imported torch.
ADDED = """
import sys, time, torch
before = set(sys.modules)
start = time.perf_counter()
import tritongemm
seconds = time.perf_counter() - start
assert "triton" not in set(sys.modules) - before and not torch.cuda.is_initialized()
print(seconds)
"""


def added_s() -> float:
    """Seconds that ``import tritongemm`` takes after ``import torch``."""
    done = subprocess.run([sys.executable, "-c", ADDED], cwd=ROOT, check=True,
                          capture_output=True, text=True)
    return float(done.stdout)


def command_s(*words: str) -> float:
    """Seconds of a whole ``python -m tritongemm ...``, including the start of Python."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tritongemm", *words], cwd=ROOT, check=True,
                   stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    rounds = parser.parse_args().rounds
    kinds = {"import tritongemm after import torch": added_s,
             "tritongemm --help": lambda: command_s("--help"),
             "tritongemm sweep --help": lambda: command_s("sweep", "--help"),
             "tritongemm report --help": lambda: command_s("report", "--help")}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, measure in kinds.items():
            times[name].append(measure())
    for name, seconds in times.items():
        print(f"{statistics.median(seconds) * 1e3:8.1f} ms  {name}")


if __name__ == "__main__":
    main()
