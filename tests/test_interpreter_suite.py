"""The interpreter's tests, in a process where Triton was told to interpret before its import."""

import subprocess
import sys
from pathlib import Path

import pytest

from tritongemm import settings
from tritongemm.cli.doctor import interpreter_obstacle

HERE = Path(__file__).resolve().parent


@pytest.mark.long
def test_kernels_are_right_in_the_interpreter(request):
    if obstacle := interpreter_obstacle():
        pytest.skip(obstacle)
    thorough = ["--thorough"] if request.config.getoption("--thorough") else []
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/interpreter",
         *thorough],
        cwd=HERE.parent, env=settings.child_environment(TRITON_INTERPRET="1"),
        capture_output=True, text=True, timeout=900)
    if done.returncode:
        pytest.fail(f"pytest ended with {done.returncode}\n{done.stdout}\n{done.stderr}",
                    pytrace=False)
    assert " passed" in done.stdout and " skipped" not in done.stdout, done.stdout
