"""Overrides with no GPU and no interpreter: numpy computes in the place of plans."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.integration import override as in_force  # noqa: E402
from tritongemm.measure.torch_epilogue import factor_of  # noqa: E402
from tritongemm.ops import plans as kept  # noqa: E402
from tritongemm.ops.autograd import ACTIVATE  # noqa: E402
from tritongemm.problem import epilogue_of  # noqa: E402


def numpy_plan(problem, config, device, geometry, where):
    """A plan that no entry in torch's dispatcher sees."""
    def plan(a, b, c, d=None, alpha=1.0, beta=1.0):
        product = alpha * (a.detach().double().numpy() @ b.detach().double().numpy())
        epilogue = epilogue_of(problem.epilogue)
        if epilogue.multiplies:
            product = product * factor_of(epilogue)(d.detach().double()).numpy()
        elif d is not None:
            product = product + beta * d.detach().double().numpy()
        result = torch.from_numpy(product)
        if epilogue.gated:  # a matrix for each half
            result = ACTIVATE[epilogue.activation](result[0]) * result[1]
        c.copy_(result)
    return plan


def taken() -> dict[str, int]:
    """Calls that kernels ran, by overload."""
    return {calls.name: calls.taken for calls in tg.override_report().calls if calls.taken}


def declined() -> dict[str, int]:
    """Calls that torch ran, by reason."""
    return {reason: count for calls in tg.override_report().calls
            for reason, count in calls.declined.items()}


@pytest.fixture
def products(monkeypatch):
    """Every CPU product is ours; afterwards no override stands, whatever the test did."""
    monkeypatch.setattr(kept, "make_plan", numpy_plan)
    tg.override_report(clear=True)
    with settings.override(interpret=True):
        yield
        left = list(in_force._active)
        for request in left:
            in_force.leave(request)
        assert not left, "the test left an override in force"
