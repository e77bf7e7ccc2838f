"""What every test relies on: markers that skip with their reason, and settings of its own.

Triton reads TRITON_INTERPRET when a kernel is decorated, so one process either interprets or
compiles. ``tests/interpreter`` is collected only under TRITON_INTERPRET=1, and then nothing else
is; ``tests/test_interpreter_suite.py`` runs that folder in a process of its own.
"""

from __future__ import annotations

import functools
import gc
import os
import site
import tempfile
import zlib
from pathlib import Path

import pytest
from skips import allowed, reason_of

from tritongemm import settings
from tritongemm.cli.doctor import interpreter_obstacle

HERE = Path(__file__).resolve().parent
INTERPRETING = settings.current().interpret


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true",
                     help="also the tests marked thorough, which `make test` leaves out")
    parser.addoption("--native", action="store_true",
                     help="with the native dispatcher, which is built first")
    parser.addoption("--gpus", default="", metavar="LIST",
                     help="CUDA indices such as 0,1: worker after worker of pytest-xdist takes one")


def pytest_configure(config: pytest.Config) -> None:
    """Tests see no TRITONGEMM_* of the user's, and write to temporary folders only."""
    for variable in settings.VARIABLES:
        if variable.name.startswith("TRITONGEMM_"):
            os.environ.pop(variable.name, None)
    if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
        # Before torch is imported: workers that each take every core wait for each other.
        cores = len(os.sched_getaffinity(0))
        os.environ.setdefault("OMP_NUM_THREADS", str(max(cores // workers, 1)))
    if gpu := gpu_of(os.environ.get("PYTEST_XDIST_WORKER", ""), config.getoption("--gpus")):
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    _home_of_the_tests()
    os.environ["TRITONGEMM_USER_DIR"] = str(HERE / "no-tables-of-a-user")
    # Nothing is built in the background of a test.
    os.environ["TRITONGEMM_NATIVE"] = "1" if config.getoption("--native") else "0"
    settings.reload()
    if config.getoption("--native"):
        from tritongemm.native import build

        build()


def gpu_of(worker: str, gpus: str) -> str:
    """The one of the comma-separated ``gpus`` for a worker of pytest-xdist (``gw0``, ``gw1``, ...);
    "" without workers."""
    if not (worker and gpus):
        return ""
    every = gpus.split(",")
    return every[int(worker.removeprefix("gw")) % len(every)]


def _home_of_the_tests() -> None:
    """A home for this process and those that it starts, one a checkout: compiled kernels, and
    what Triton, torch and matplotlib keep. It stays, so that the next run compiles less."""
    folder = Path(tempfile.gettempdir()) / (
        f"tritongemm-tests-{os.getuid()}-{zlib.crc32(str(HERE).encode()):08x}")
    # Packages of `pip install --user` are found by HOME.
    os.environ.setdefault("PYTHONUSERBASE", site.getuserbase())
    for name, place in (("HOME", "."), ("XDG_CACHE_HOME", ".cache"),
                        ("XDG_CONFIG_HOME", ".config"), ("XDG_DATA_HOME", ".local/share"),
                        ("TRITON_HOME", "."),
                        ("TORCHINDUCTOR_CACHE_DIR", ".cache/inductor"),
                        ("MPLCONFIGDIR", ".config/matplotlib"),
                        ("HYPOTHESIS_STORAGE_DIRECTORY", ".cache/hypothesis")):
        path = (folder / place).resolve()
        path.mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(path)
    os.environ["TRITONGEMM_CACHE_DIR"] = str(folder / ".cache" / "tritongemm")
    os.environ["TRITONGEMM_USER_DIR"] = str(folder / "no-tables-of-a-user")
    for name in ("TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"):
        os.environ.pop(name, None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` means: a worker a core, but no more than four, each of which holds torch."""
    return min(4, len(os.sched_getaffinity(0)))


def pytest_report_header(config: pytest.Config) -> list[str]:
    lines = [] if config.getoption("--thorough") else [
        "tests marked thorough are left out; --thorough (make test-all) runs them"]
    if INTERPRETING:
        return [*lines, "TRITON_INTERPRET=1: only tests/interpreter is collected"]
    return [*lines,
            "tests/interpreter runs in a process of its own (tests/test_interpreter_suite.py)"]


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
    """Leaves thorough and slow tests out unless asked for; skips gpu and interpreter ones in
    vain; runs the longest first, so that no worker is left with it at the end."""
    asked = config.getoption("markexpr") or ""
    left_out = {name for name in ("slow", "thorough") if name not in asked}
    if config.getoption("--thorough"):
        left_out -= {"thorough"}
    out = [item for item in items if any(map(item.get_closest_marker, left_out))]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if not any(map(item.get_closest_marker, left_out))]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    obstacle = interpreter_obstacle() if INTERPRETING else "needs TRITON_INTERPRET=1"
    for item in items:
        if item.get_closest_marker("gpu") and (reason := _no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
        inside = (HERE / "interpreter") in item.path.parents
        if obstacle and (inside or item.get_closest_marker("interpreter")):
            item.add_marker(pytest.mark.skip(reason=obstacle))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Takes what is imported and collected out of the garbage collector's sight: it stays, and a
    full collection over it takes some 0.3 s, dozens of times a run."""
    gc.collect()
    gc.freeze()


def _fail_unless_allowed(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turns a skip for a reason that ``skips.py`` does not list into a failure."""
    if report.skipped and not hasattr(report, "wasxfail"):
        reason, place = reason_of(report.longrepr)
        if not allowed(reason, place or str(report.nodeid)):
            report.outcome = "failed"
            report.longrepr = f"{place}: skipped, and tests/skips.py does not allow: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    """No test is skipped silently."""
    report = yield
    _fail_unless_allowed(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    """Nor is a file."""
    report = yield
    _fail_unless_allowed(report)
    return report


@pytest.fixture(autouse=True)
def _settings_of_its_own():
    """Forgets what a test made of the settings (it runs after monkeypatch has put all back)."""
    yield
    settings.reload()
