"""A first call with shipped kernels: Triton is not imported, nothing is compiled or written.

Processes of their own run the call of ``perf/bench_first_call.py``: operands are on the CPU, the
driver's functions do nothing, everything else is real.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tritongemm
from tritongemm import settings
from tritongemm.device import device_named
from tritongemm.kernels import driver, pack
from tritongemm.kernels.compile import launch_key, launches_of
from tritongemm.kernels.launch import Descriptor
from tritongemm.kernels.store import Binary
from tritongemm.problem import GemmProblem
from tritongemm.selection import choose

ROOT = Path(tritongemm.__file__).resolve().parent.parent
H100 = device_named("nvidia-h100-80gb-hbm3")
CUBIN = (b"\x7fELF\x02\x01".ljust(18, b"\0") + b"\xbe\0").ljust(64, b"\0")


def binary_of(launch) -> Binary:
    """A binary that takes what the launch gives."""
    sizes = tuple((size, align) for size, align, _ in driver._fields(launch))
    maps = tuple({"swizzle": 3, "elem_type": 10, "block_size": list(x.box)}
                 for x in launch.arguments if isinstance(x, Descriptor))
    return Binary(launch.symbol, CUBIN, 4, 1, 1000, 32, 0, maps, (*sizes, (8, 8), (8, 8)))


def call(case: str, sides: tuple[int, ...], **environment: str) -> subprocess.CompletedProcess:
    sys.path.insert(0, str(ROOT / "perf"))
    try:
        from bench_first_call import CHILD
    finally:
        sys.path.remove(str(ROOT / "perf"))
    return subprocess.run(
        [sys.executable, "-c", CHILD, case, *map(str, sides)], cwd=ROOT, capture_output=True,
        text=True, timeout=120, check=False,
        env=settings.child_environment(TRITONGEMM_STRICT="1", CUDA_VISIBLE_DEVICES="",
                                       **environment))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """A pack for one aligned product, and an unaligned one of two or more launches."""
    folder, binaries = tmp_path_factory.mktemp("pack"), {}
    for sides in ((64, 4096, 4096), (1000, 777, 999)):
        problem = GemmProblem.contiguous(*sides, layout="nt")
        config = choose(problem, H100).config
        binaries |= {launch_key(x, 90): binary_of(x) for x in launches_of(problem, config, H100)}
    return pack.write(folder, 90, "3.6.0", {}, binaries.items())


@pytest.mark.parametrize("sides", [
    (64, 4096, 4096), pytest.param((1000, 777, 999), marks=pytest.mark.thorough)])
def test_the_first_call_imports_no_triton_and_compiles_nothing(shipped, tmp_path, sides):
    done = call("pack", sides, TRITONGEMM_CUBINS=str(shipped.folder),
                TRITONGEMM_CACHE_DIR=str(tmp_path), PATH="")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["loaded"] == []
    assert not (tmp_path / "binaries").exists() and not (tmp_path / "compilers").exists()


@pytest.mark.thorough
def test_without_the_pack_the_same_call_needs_triton(tmp_path):
    done = call("pack", (64, 4096, 4096), TRITONGEMM_CUBINS="off",
                TRITONGEMM_CACHE_DIR=str(tmp_path))
    assert done.returncode != 0 and "needs triton" in done.stderr
