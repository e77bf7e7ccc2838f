"""What the graph pass makes, by real kernels in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from tritongemm.integration import fused_gates
from tritongemm.integration.inductor import backend_without_codegen
from tritongemm.ops import registered

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize("function", [
    lambda x, w, b, r: F.gelu(F.linear(x, w, b)),
    lambda x, w, b, r: F.silu(x @ w.t() + r),
    lambda x, w, b, r: F.relu(x @ w.t()),
    lambda x, w, b, r: r + F.linear(x, w),
    lambda x, w, b, r: F.relu(F.linear(x, w) * -0.5),
], ids=["bias and gelu", "residual and silu", "relu", "residual", "factor and relu"])
def test_fused_products_are_torchs(function, monkeypatch):
    torch.manual_seed(0)
    operands = torch.randn(2, 9, 24), torch.randn(17, 24), torch.randn(17), torch.randn(2, 9, 17)
    seen = []
    real = registered.execute.fused
    monkeypatch.setattr(registered.execute, "fused",
                        lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    torch._dynamo.reset()
    run = torch.compile(lambda *x: function(*x), backend=backend_without_codegen())
    torch.testing.assert_close(run(*operands), function(*operands), rtol=1e-4, atol=1e-4)
    assert len(seen) == 1 and isinstance(seen[0], torch.Tensor)  # not declined


def _two_weights(x, w, v, b):
    return F.silu(F.linear(x, w[:17])) * F.linear(x, v[:17])


def _one_weight(x, w, v, b):
    gate, other = F.linear(x, w, b).chunk(2, -1)
    return F.gelu(gate) * other


def _gate_last(x, w, v, b):
    other, gate = F.linear(x, w, b).chunk(2, -1)
    return F.gelu(gate) * other


@pytest.mark.parametrize("function", (_two_weights, _one_weight, _gate_last))
def test_fused_gates_are_torchs(function, monkeypatch):
    torch.manual_seed(0)
    operands = [torch.randn(*shape) for shape in ((2, 9, 24), (34, 24), (34, 24), (34,))]
    monkeypatch.setattr(fused_gates, "faster_apart", lambda *a, **k: None)
    seen = []
    real = registered.fused_linear.run
    monkeypatch.setattr(registered.fused_linear, "run",
                        lambda *a, **k: seen.append(real(*a, **k)) or seen[-1])
    torch._dynamo.reset()
    run = torch.compile(function, backend=backend_without_codegen())
    with torch.no_grad():
        torch.testing.assert_close(run(*operands), function(*operands), rtol=1e-4, atol=1e-4)
    assert len(seen) == 1 and isinstance(seen[0], tuple)  # not declined
