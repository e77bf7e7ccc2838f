"""What the sanitizers are given is legal, covers every kernel, and is refused by name."""

import subprocess
import sys
from pathlib import Path

import pytest
from run import TOOLS, command
from workload import cases

from tritongemm.baselines import CUDA_RUNGS
from tritongemm.baselines.cuda.rungs import violation as rung_violation
from tritongemm.device import device_named
from tritongemm.kernels import SPECS, violation
from tritongemm.kernels.compile import launches_of

H200 = device_named("nvidia-h200")


@pytest.mark.parametrize("name", TOOLS["memcheck"])
def test_cases_are_legal(name):
    found = list(cases(name, H200))
    assert found
    for problem, config in found:
        broken = (rung_violation if name in CUDA_RUNGS else violation)(problem, config, H200)
        assert broken is None, (problem, config)


def test_every_rung_meets_every_tool_and_every_kernel_memcheck():
    assert all(set(CUDA_RUNGS) <= set(names) for names in TOOLS.values())
    assert set(SPECS) <= set(TOOLS["memcheck"])


def test_the_passes_around_a_product_are_watched_too():
    launched = {launch.function for name in SPECS for problem, config in cases(name, H200)
                for launch in launches_of(problem, config, H200)}
    assert {"tiled", "reduce_splits", "pad_operands", "persistent_tma",
            "warp_specialized", "gemv", "skinny", "split_product", "split_fp32",
            "guard"} <= launched


def test_tools_that_cannot_see_the_copy_engine_leave_its_kernels_out():
    assert "kns=warp_specialized" in command("cs", "racecheck", ["tiled"])
    assert "--kernel-regex-exclude" not in command("cs", "memcheck", ["tiled"])


def test_an_unknown_name_is_refused():
    done = subprocess.run([sys.executable, Path(__file__).with_name("run.py"), "--names", "v9"],
                          capture_output=True, text=True)
    assert done.returncode == 2 and "'v9' is not one of" in done.stderr
