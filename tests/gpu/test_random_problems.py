"""Two minutes of the fuzzer on a GPU: every function, by drawn configs and by those that selection
chooses, against float64 (``python -m tests.fuzz`` for more).

Its binaries, at most 2,000, are built first: ``pytest -m "gpu and slow"`` without ``-n``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
SEED, SECONDS, MOST_PROCESSES = 20261121, 120, 14


def test_random_calls_are_right_on_a_gpu():
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--device", "cuda", "--seconds", str(SECONDS),
         "--procs", str(processes), "--seed", str(SEED)],
        cwd=Path(__file__).resolve().parents[2], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
