"""What every test relies on: markers that skip with their reason, and settings of its own.

Triton reads TRITON_INTERPRET when a kernel is decorated, so one process either interprets or
compiles. ``tests/interpreter`` is collected only under TRITON_INTERPRET=1, and then nothing else
is; ``tests/test_interpreter_suite.py`` runs that folder in a process of its own.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from tritongemm import settings
from tritongemm.cli.doctor import interpreter_obstacle

HERE = Path(__file__).resolve().parent
INTERPRETING = settings.current().interpret


def pytest_configure(config: pytest.Config) -> None:
    """Tests see no TRITONGEMM_* of the user's, and keep compiled kernels beside pytest's cache."""
    for variable in settings.VARIABLES:
        if variable.name.startswith("TRITONGEMM_"):
            os.environ.pop(variable.name, None)
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
        # Before torch is imported: workers that each take every core wait for each other.
        cores = len(os.sched_getaffinity(0))
        os.environ.setdefault("OMP_NUM_THREADS", str(max(cores // workers, 1)))
    os.environ["TRITONGEMM_USER_DIR"] = str(HERE / "no-tables-of-a-user")
    cache = getattr(config, "cache", None)
    if cache is not None:
        os.environ["TRITONGEMM_CACHE_DIR"] = str(cache.mkdir("tritongemm"))
    settings.reload()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means: a worker a core, but no more than four, each of which holds torch."""
    return min(4, len(os.sched_getaffinity(0)))


def pytest_report_header() -> str:
    if INTERPRETING:
        return "TRITON_INTERPRET=1: only tests/interpreter is collected"
    return "tests/interpreter runs in a process of its own (tests/test_interpreter_suite.py)"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """One process interprets or compiles, never both."""
    folder = HERE / "interpreter"
    inside = collection_path == folder or folder in collection_path.parents
    if INTERPRETING and not inside and collection_path != HERE and HERE in collection_path.parents:
        return True
    return True if inside and not INTERPRETING else None


@functools.cache
def _no_gpu() -> str | None:
    """Why no test can use a GPU, or None."""
    try:
        import torch
    except ImportError as error:
        return f"needs a CUDA device: torch cannot be imported ({error})"
    if not torch.cuda.is_available():
        return "needs a CUDA device: torch sees none"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves slow tests out unless ``-m`` names them; skips gpu and interpreter ones in vain."""
    asked_for_slow = "slow" in (config.getoption("markexpr") or "")
    slow = [] if asked_for_slow else [i for i in items if i.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [i for i in items if not i.get_closest_marker("slow")]
    obstacle = interpreter_obstacle() if INTERPRETING else "needs TRITON_INTERPRET=1"
    for item in items:
        if item.get_closest_marker("gpu") and (reason := _no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
        inside = (HERE / "interpreter") in item.path.parents
        if obstacle and (inside or item.get_closest_marker("interpreter")):
            item.add_marker(pytest.mark.skip(reason=obstacle))


@pytest.fixture(autouse=True)
def _settings_of_its_own():
    """Forgets what a test made of the settings (it runs after monkeypatch has put all back)."""
    yield
    settings.reload()
