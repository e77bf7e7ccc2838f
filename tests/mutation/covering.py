"""A pytest plugin that writes which tests run each line of the package, and how long they take.

``pytest -p tests.mutation.covering`` with the file's name in ``MUTATION_LINES``. Lines that run
while modules are imported belong to no test. Needs ``coverage``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import coverage
import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tritongemm"


class Covering:
    """Switches coverage's context to each test while it runs."""

    def __init__(self, out: str) -> None:
        self.out = out
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.coverage = coverage.Coverage(data_file=None, config_file=False,
                                          include=[f"{PACKAGE}/*"])
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Tests are numbered in the file; failed and skipped ones are left out."""
        self.coverage.stop()
        data = self.coverage.get_data()
        tests = [name for name in self.seconds if name not in self.failed]
        number = {name: index for index, name in enumerate(tests)}
        lines = {}
        for file in sorted(data.measured_files()):
            lines[Path(file).relative_to(PACKAGE).as_posix()] = {
                line: sorted(number[name] for name in names if name in number)
                for line, names in data.contexts_by_lineno(file).items()}
        seconds = [round(self.seconds[name], 4) for name in tests]
        Path(self.out).write_text(json.dumps(
            {"tests": tests, "seconds": seconds, "lines": lines}), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Covering(os.environ["MUTATION_LINES"]), "covering")
