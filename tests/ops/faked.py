"""Calls that reach a plan with no GPU and no interpreter: torch computes in the plan's place."""

from __future__ import annotations

import copy
import logging

import pytest

torch = pytest.importorskip("torch")

from tritongemm import settings  # noqa: E402
from tritongemm.measure.torch_epilogue import factor_of  # noqa: E402
from tritongemm.ops import execute  # noqa: E402
from tritongemm.ops import plans as kept  # noqa: E402
from tritongemm.ops.autograd import ACTIVATE  # noqa: E402
from tritongemm.problem import epilogue_of  # noqa: E402


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

        epilogue = epilogue_of(problem.epilogue)

        def plan(a, b, c, d=None, alpha=1.0, beta=1.0, **others):
            if self.launch_error is not None:
                raise copy.copy(self.launch_error)
            assert (d is not None) == epilogue.reads_d
            # Unseen, as a kernel's stores.
            if epilogue.plain:
                c.data.copy_(computed(epilogue, a, b, d, alpha, beta))
            else:
                c.data.copy_(further(epilogue, a, b, d, **others))
        return plan


def further(epilogue, a, b, d, bias=None, aux=None):
    """What a kernel of an epilogue that is not plain computes; it fills ``aux``."""
    total = torch.matmul(a.double(), b.double())
    if d is not None and not epilogue.residual:
        total = total + d.double()
    if bias is not None:
        total = total + bias.double()
    if aux is not None:
        aux.data.copy_(total)
    activate = ACTIVATE.get(epilogue.activation, torch.clone)
    if epilogue.gated:
        return activate(total[0]) * total[1]
    return activate(total) + d.double() if epilogue.residual else activate(total)


def computed(epilogue, a, b, d, alpha, beta):
    """What a kernel of ``epilogue`` computes; a bare product to the bit as torch does."""
    if str(epilogue) == "none":
        return torch.matmul(a, b)
    result = torch.matmul(a.double(), b.double())
    if epilogue.scales:
        result = alpha * result
    if epilogue.multiplies:
        return result * factor_of(epilogue)(d.double())
    if epilogue.reads_d:
        result = result + beta * d.double()
    return ACTIVATE.get(epilogue.activation, torch.clone)(result)


@pytest.fixture
def plans(monkeypatch):
    """Every CPU call is ours, run by a fake plan; no plan is known before or after."""
    fake = FakePlans()
    monkeypatch.setattr(kept, "make_plan", fake)
    with settings.override(interpret=True):
        yield fake
    execute.clear_plans()


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
    lines, level = Lines(), kept.log.level
    kept.log.addHandler(lines)
    yield lines
    kept.log.removeHandler(lines)
    kept.log.setLevel(level)
