"""One mutant, or none, tried in a forked child: the tests that run its line, until one fails."""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from .operators import Mutant

#: Seconds in which tests that wait for each other for ever use no CPU time.
IDLE_S = 25


class Lines:
    """What ``covering.py`` wrote: which tests run a line, and how long they take."""

    def __init__(self, file: Path) -> None:
        found = json.loads(file.read_text(encoding="utf-8"))
        self.tests: list[str] = found["tests"]
        self.seconds: list[float] = found["seconds"]
        self.lines: dict[str, dict[str, list[int]]] = found["lines"]

    def of_line(self, mutant: Mutant, source: bytes) -> set[int]:
        """Those that run the statement; outside functions, and where none does, of the file."""
        lines = self.lines.get(mutant.file, {})
        span = _statement(source, mutant.line)
        found = {test for line in span for test in lines.get(str(line), ())}
        return found or self.of_file(mutant)

    def of_file(self, mutant: Mutant) -> set[int]:
        """Those that run any of the file's lines."""
        return {test for tests in self.lines.get(mutant.file, {}).values() for test in tests}

    def of_folder(self, mutant: Mutant) -> set[int]:
        """Those of the folder that mirrors the file's."""
        folder = f"tests/{mutant.file.split('/')[0]}/"
        return {i for i, name in enumerate(self.tests) if name.startswith(folder)}

    def cheapest(self, tests: set[int], seconds: float) -> list[int]:
        """As many as take that long together, the quickest first."""
        chosen, spent = [], 0.0
        for test in sorted(tests, key=lambda i: self.seconds[i]):
            spent += self.seconds[test]
            if spent > seconds and chosen:
                break
            chosen.append(test)
        return chosen


def _statement(source: bytes, line: int) -> range:
    """The lines of the innermost statement in a function that covers the line; of a compound one
    the lines of its head. Empty outside functions."""
    best = range(0)
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.stmt):
                continue
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            if isinstance(node, ast.FunctionDef):
                # Its default values: whatever calls it.
                span = range(node.lineno, last + 1)
                if line in span:
                    inner = range(body[0].lineno, (node.end_lineno or 0) + 1)
                    best = inner if not best else best
            elif node.lineno <= line <= last and (not best or node.lineno >= best.start):
                best = range(node.lineno, last + 1)
    return best


@dataclass(frozen=True)
class Outcome:
    """``killed`` by ``test``, ``survived``, or ``timeout`` (killed as well)."""

    verdict: str
    test: str = ""
    detail: str = ""
    seconds: float = 0.0
    tests: int = 0


class _Chosen:
    """Of the files that are collected, the chosen tests in their order, the quickest first."""

    def __init__(self, tests: list[str]) -> None:
        self.place = {name: index for index, name in enumerate(tests)}
        self.failed: tuple[str, str] | None = None
        self.ran = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((x for x in items if x.nodeid in self.place),
                          key=lambda x: self.place[x.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and self.failed is None:
            text = str(report.longrepr).strip()
            self.failed = report.nodeid, text[-400:]


def _in_child(copy: Path, temporary: Path, tests: list[str], write: int, stop: bool) -> None:
    os.setsid()
    log = os.open(temporary / "log", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    faulthandler.register(signal.SIGUSR1, log, all_threads=True)  # says where it waits
    os.chdir(copy)
    os.environ.update(TMPDIR=str(temporary), PYTHONPATH=str(copy), OMP_NUM_THREADS="1")
    tempfile.tempdir = None
    sys.path[:0] = [str(copy)]
    chosen = _Chosen(tests)
    from hypothesis import HealthCheck, settings
    # A busy machine is not a mistake; examples are the same in each trial.
    settings.register_profile("mutation", deadline=None, derandomize=True, database=None,
                              suppress_health_check=list(HealthCheck))
    settings.load_profile("mutation")
    files = sorted({name.split("::")[0] for name in tests})
    status = pytest.main(["-q", "-p", "no:cacheprovider", *(["-x"] if stop else []), *files],
                         plugins=[chosen])
    failed = chosen.failed
    if failed is None and status != pytest.ExitCode.OK:
        failed = "", f"pytest ended with {status!r}"
    os.write(write, json.dumps({"failed": failed, "ran": chosen.ran}).encode())


def _cpu_ticks(process: int) -> int:
    """CPU time of a process and of those below it, together."""
    ticks, parents = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            one = int(file.parent.name)
            parents[one], ticks[one] = int(fields[1]), int(fields[11]) + int(fields[12])
    below = {process}
    while more := {one for one, parent in parents.items() if parent in below} - below:
        below |= more
    return sum(ticks.get(one, 0) for one in below)


def run(copy: Path, tests: list[str], cpu_s: float, stop: bool = True) -> Outcome:
    """Runs tests of the copy in a forked child that has this process's imports, with its own
    temporary folder, at most ``cpu_s`` seconds of its CPU time, which a busy machine does not
    shorten; it also ends once its processes have stood still for ``IDLE_S``, or after four times
    ``cpu_s`` on the clock."""
    temporary = Path(tempfile.mkdtemp(prefix="mutation-"))
    read, write = os.pipe()
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 5))
            _in_child(copy, temporary, tests, write, stop)
        except BaseException as error:  # the parent must not run twice
            os.write(write, json.dumps({"failed": ["", repr(error)], "ran": 0}).encode())
        finally:
            os._exit(0)
    os.close(write)
    status, ticks, moved = None, 0, begun
    try:
        while (status is None and time.monotonic() - moved < IDLE_S
               and time.monotonic() - begun < 4 * cpu_s):
            pid, found = os.waitpid(child, os.WNOHANG)
            status = found if pid else None
            time.sleep(0.05 if status is None else 0)
            if time.monotonic() - moved > 1 and ticks != (ticks := _cpu_ticks(child)):
                moved = time.monotonic()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    os.set_blocking(read, False)
    try:
        text = os.read(read, 1 << 16)
    except BlockingIOError:
        text = b""
    os.close(read)
    seconds = time.monotonic() - begun
    shutil.rmtree(temporary, ignore_errors=True)
    if status is None:
        return Outcome("timeout", "", f"idle for {IDLE_S} s, or {4 * cpu_s:.0f} s on the clock",
                       seconds)
    if not text:
        limit = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return Outcome("timeout" if limit else "killed", "", f"the process ended with {status}",
                       seconds)
    said = json.loads(text)
    if said["failed"] is None:
        return Outcome("survived", seconds=seconds, tests=said["ran"])
    return Outcome("killed", *said["failed"], seconds=seconds, tests=said["ran"])


@contextlib.contextmanager
def planted(copy: Path, mutant: Mutant):
    """The copy with the mistake; Python's caches of the module cannot hide it."""
    file = copy / "tritongemm" / mutant.file
    source = file.read_bytes()
    cached = list(file.parent.glob(f"__pycache__/{file.stem}.*.pyc"))
    for one in cached:
        one.unlink()
    file.write_bytes(mutant.of(source))
    os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True
    try:
        yield
    finally:
        file.write_bytes(source)
        del os.environ["PYTHONDONTWRITEBYTECODE"]
        sys.dont_write_bytecode = False
