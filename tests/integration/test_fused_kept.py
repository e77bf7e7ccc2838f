"""Activations in forward graphs, whose argument the backward needs: which are one launch with their
product, which stay, and what both compute."""

from __future__ import annotations

import functools
import shutil
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ops"))

import faked  # noqa: E402
from test_fused_gates import one_launch_is_faster  # noqa: E402, F401
from test_inductor import (  # noqa: E402, F401
    ACTIVATIONS,
    BF16,
    FP32,
    K,
    M,
    N,
    compiled,
    epilogues,
    graph_of,
    h100,
    torch_is_faster,
)
from torch.nn import functional as F  # noqa: E402

from tritongemm import inductor  # noqa: E402
from tritongemm.errors import UnsupportedError  # noqa: E402
from tritongemm.integration import fused_gates  # noqa: E402
from tritongemm.integration import inductor as made  # noqa: E402
from tritongemm.selection import choose  # noqa: E402

plans = faked.plans  # a fixture
aten = torch.ops.aten
ONE = torch.ops.tritongemm.linear_aux.default
GATED = torch.ops.tritongemm.gated_linear_aux.default
X, ROWS, W, BOTH, B, V = (M, K), (2, M, K), (N, K), (2 * N, K), (N,), (48, N)
KEPT = {name: f for name, f in ACTIVATIONS.items() if name != "relu"}
DTYPES = pytest.mark.parametrize("dtype", [BF16, torch.float16, FP32], ids=["bf16", "fp16", "fp32"])
fuse = functools.partial(made.fuse, aux=True)


def layer(activate):
    """What a forward graph of two layers returns: the result, and the sum for the backward."""
    def forward(x, w, v, b=None):
        rows = x if x.dim() == 2 else x.view(-1, K)
        total = rows @ w.t() if b is None else torch.addmm(b, rows, w.t())
        whole = total if x.dim() == 2 else total.view(*x.shape[:-1], N)
        return F.linear(activate(whole), v), total
    return forward


def gated(x, w, v, b=None):
    total = F.linear(x, w, b)
    gate, other = total.chunk(2, -1)
    return F.linear(F.silu(gate) * other, v), total


CASES = {f"{name}, {what}": (layer(f), (x, W, V, *bias), ONE, name)
         for name, f in KEPT.items()
         for what, x, bias in (("a matrix", X, ()), ("a bias", X, (B,)),
                               ("a batch of rows", ROWS, (B,)))}
CASES |= {f"a gate, {what}": (gated, (x, BOTH, V, *bias), GATED, "silu")
          for what, x, bias in (("a matrix", X, ()), ("a batch of rows", ROWS, ((2 * N,),)))}


@DTYPES
@pytest.mark.parametrize("name", CASES)
def test_both_results_are_of_one_launch(name, dtype, h100):  # noqa: F811
    function, shapes, op, activation = CASES[name]
    module = graph_of(function, *shapes, dtype=dtype)
    before = [node.meta["val"] for node in _results(module.graph)]
    assert fuse(module.graph, 0.0) == 1
    module.graph.lint()
    call, = (node for node in module.graph.nodes if node.target is op)
    assert activation in call.args
    targets = [node.target for node in module.graph.nodes]
    assert aten.addmm.default not in targets and targets.count(aten.mm.default) == 1
    for node, value in zip(_results(module.graph), before, strict=True):
        found = node.meta["val"]
        assert (found.shape, found.stride(), found.dtype) == (
            value.shape, value.stride(), value.dtype)


def _results(graph):
    return next(node for node in graph.nodes if node.op == "output").args[0]


def last_gated(x, w, v):
    total = F.linear(x, w)
    other, gate = total.chunk(2, -1)
    return F.linear(F.silu(gate) * other, v), total


def pair(x, w, v, u):
    gate, other = F.linear(x, w), F.linear(x, u)
    return F.linear(F.silu(gate) * other, v), gate, other


LEFT = {
    "relu, whose gradient needs the result": (layer(F.relu), (X, W, V)),
    "an activation that is none of ours": (layer(F.leaky_relu), (X, W, V)),
    "an activation before a norm, which Inductor fuses": (
        lambda x, w: (F.layer_norm(F.gelu(y := x @ w.t()), (N,)), y), (X, W)),
    "a sum that another product reads": (
        lambda x, w, v: (F.gelu(y := x @ w.t()) @ v.t(), y @ v.t(), y), (X, W, V)),
    "a sum that pointwise code reads": (
        lambda x, w, v: (F.gelu(y := x @ w.t()) @ v.t(), y.exp(), y), (X, W, V)),
    "a matrix added": (
        lambda x, w, v, r: (F.gelu(y := torch.addmm(r, x, w.t())) @ v.t(), y), (X, W, V, (M, N))),
    "a sum with a factor": (
        lambda x, w, v, b: (F.gelu(y := torch.addmm(b, x, w.t(), alpha=2)) @ v.t(), y),
        (X, W, V, B)),
    "a part of the activation": (
        lambda x, w, v: ((y := x @ w.t()) * (s := torch.sigmoid(y)) @ v.t(), y, s), (X, W, V)),
    "the gate's columns last": (last_gated, (X, BOTH, V)),
    "a gate of two weights": (pair, (X, W, V, W)),
}


@DTYPES
@pytest.mark.parametrize("name", LEFT)
def test_other_sums_stay(name, dtype, h100):  # noqa: F811
    function, shapes = LEFT[name]
    before = str(graph_of(function, *shapes, dtype=dtype).graph)
    module = graph_of(function, *shapes, dtype=dtype)
    assert fuse(module.graph, 0.0) == 0 and str(module.graph) == before


def test_the_choice_is_that_of_gates(h100, monkeypatch):  # noqa: F811
    """By what is predicted of one launch and of two, and by torch's product."""
    asked = []
    monkeypatch.setattr(fused_gates, "faster_apart",
                        lambda problem, device, **how: asked.append((problem, how)) or "faster")
    for name in ("gelu, a bias", "a gate, a matrix"):
        function, shapes, *_ = CASES[name]
        assert fuse(graph_of(function, *shapes).graph, 0.0) == 0
    assert [(x.n, x.epilogue, how) for x, how in asked] == [
        (N, "bias+gelu+aux", {"products": 1, "fused": True}),
        (2 * N, "gated_silu+aux", {"products": 1, "fused": True})]
    monkeypatch.setattr(fused_gates, "faster_apart", lambda *a, **k: None)
    paths = []
    torch_is_faster(monkeypatch, lambda *asked: paths.append(asked[-1].name) or "faster")
    function, shapes, *_ = CASES["gelu, a bias"]
    assert fuse(graph_of(function, *shapes).graph, 0.0) == 0
    assert paths == ["Python"]  # the native dispatcher does not know the op
    torch_is_faster(monkeypatch, lambda *a: None)
    assert fuse(graph_of(function, *shapes).graph, 2.0 * M * N * K + 1) == 0


def test_a_layer_that_no_kernel_computes_stays(h100, monkeypatch):  # noqa: F811
    def none_is_found(problem, device):
        if problem.epilogue.endswith("aux"):
            raise UnsupportedError("no kernel")
        return choose(problem, device)

    monkeypatch.setattr(fused_gates, "choose", none_is_found)
    for name in ("gelu, a bias", "a gate, a matrix"):
        function, shapes, *_ = CASES[name]
        assert fuse(graph_of(function, *shapes).graph, 0.0) == 0


# -- training --------------------------------------------------------------------------------------

class Layers(torch.nn.Module):
    def __init__(self, activation, gate=False, bias=True):
        super().__init__()
        self.up = torch.nn.Linear(16, 48 if gate else 24, bias=bias)
        self.down = torch.nn.Linear(24, 16)
        self.activation, self.gate = activation, gate

    def forward(self, x):
        total = self.up(x)
        if not self.gate:
            return self.down(self.activation(total))
        gate, other = total.chunk(2, -1)
        return self.down(self.activation(gate) * other)


def step(model, run, x):
    """The result and the gradients of one step."""
    model.zero_grad()
    x = x.detach().requires_grad_()
    result = run(x)
    (result * result.detach().cos()).sum().backward()
    return [result, x.grad, *(p.grad for p in model.parameters())]


@DTYPES
@pytest.mark.parametrize("gate", [False, True], ids=["plain", "gated"])
@pytest.mark.parametrize("name", KEPT)
def test_values_and_gradients_are_torchs(name, gate, dtype, plans):
    torch.manual_seed(0)
    for bias, shape in ((True, (3, 5, 16)), (False, (5, 16))):
        model = Layers(KEPT[name], gate, bias).to(dtype)
        x = torch.randn(shape).to(dtype)
        plans.made.clear()
        found, wanted = step(model, compiled(model), x), step(model, model, x)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, **(
                {"rtol": 1e-4, "atol": 1e-5} if dtype is FP32 else {"rtol": 3e-2, "atol": 3e-2}))
        word = f"gated_{name}" if gate else name
        assert ("bias+" if bias else "") + word + "+aux" in epilogues(plans)


@pytest.mark.parametrize("gate", [False, True], ids=["plain", "gated"])
def test_it_is_left_alone_unless_asked_for(gate, plans):
    torch.manual_seed(0)
    model, x = Layers(F.silu, gate), torch.randn(3, 5, 16)
    run = torch.compile(model, backend=made.backend_without_codegen())
    for one, other in zip(step(model, run, x), step(model, model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not any(epilogue.endswith("aux") for epilogue in epilogues(plans))


@pytest.mark.parametrize("gate", [False, True], ids=["plain", "gated"])
def test_dynamic_sizes_compile_once(gate, plans):
    model = Layers(F.silu, gate)
    run = compiled(model, dynamic=True)
    torch._dynamo.utils.counters.clear()
    for rows in (3, 5, 7, 9):
        x = torch.randn(2, rows, 16)
        for one, other in zip(step(model, run, x), step(model, model, x), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert any(epilogue.endswith("aux") for epilogue in epilogues(plans))


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize(("gate", "op"), [(False, "linear_aux"), (True, "gated_linear_aux")])
def test_inductor_compiles_what_the_pass_made(gate, op, plans):
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = Layers(F.gelu, gate), torch.randn(3, 5, 16)
    run = torch.compile(model, options=inductor.options(min_flops=0, aux=True))
    found, codes = run_and_get_code(lambda: step(model, run, x))
    for one, other in zip(found, step(model, model, x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert sum(code.count(f"torch.ops.tritongemm.{op}.default(") for code in codes) == 1
