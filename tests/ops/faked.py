"""Calls that reach a plan with no GPU and no interpreter: torch computes in the plan's place."""

from __future__ import annotations

import copy
import logging

import pytest

torch = pytest.importorskip("torch")

from tritongemm import settings  # noqa: E402
from tritongemm.ops import matmul as ops  # noqa: E402


class FakePlans:
    """Replaces ``make_plan``: counts what is made, and may fail as a real one does."""

    def __init__(self) -> None:
        self.made: list = []
        self.error: Exception | None = None
        self.launch_error: Exception | None = None

    def __call__(self, problem, config, device, geometry, where):
        self.made.append((problem, geometry))
        if self.error is not None:
            raise copy.copy(self.error)  # raised again, one would gather tracebacks

        def plan(a, b, c):
            if self.launch_error is not None:
                raise copy.copy(self.launch_error)
            torch.matmul(a, b, out=c)
        return plan


@pytest.fixture
def plans(monkeypatch):
    """Every CPU call is ours, run by a fake plan; no plan is known before or after."""
    fake = FakePlans()
    monkeypatch.setattr(ops, "make_plan", fake)
    ops.clear_plans()
    with settings.override(interpret=True):
        yield fake
    ops.clear_plans()


class Lines(logging.Handler):
    """Keeps what is logged: (level, text)."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelname, record.getMessage()))


@pytest.fixture
def logged():
    """The package's log lines, at whatever level it has."""
    lines, level = Lines(), ops.log.level
    ops.log.addHandler(lines)
    yield lines
    ops.log.removeHandler(lines)
    ops.log.setLevel(level)
