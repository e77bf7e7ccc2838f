"""Tests, and what they start, write to temporary folders only."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tritongemm import settings

TEMPORARY = Path(tempfile.gettempdir()).resolve()


def inside(path: str | Path) -> bool:
    return Path(path).resolve().is_relative_to(TEMPORARY)


def test_the_home_and_the_cache_of_the_tests_are_temporary():
    assert inside(Path.home()) and inside(settings.cache_root())


@pytest.mark.parametrize("variable", [{}, {"TRITONGEMM_CACHE_DIR": ""}], ids=["as it is", "unset"])
def test_a_process_that_a_test_starts_writes_there_too(variable):
    code = ("from pathlib import Path; from tritongemm import settings; "
            "print(Path.home()); print(settings.cache_root())")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env=settings.child_environment(**variable))
    home, cache = done.stdout.splitlines()
    assert inside(home) and inside(cache)


def test_triton_keeps_what_it_compiles_there():
    triton = pytest.importorskip("triton")
    assert inside(triton.knobs.cache.dir)


@pytest.mark.parametrize(("worker", "gpus", "taken"), [
    ("gw0", "0,1", "0"), ("gw1", "0,1", "1"), ("gw2", "0,1", "0"), ("gw11", "2,5,7", "7"),
    ("", "0,1", ""), ("gw3", "", "")])
def test_workers_take_the_gpus_in_turn(worker, gpus, taken, request):
    (conftest,) = (x for x in request.config.pluginmanager.get_plugins()
                   if getattr(x, "gpu_of", None) is not None)
    assert conftest.gpu_of(worker, gpus) == taken
