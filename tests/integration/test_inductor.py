"""The graph pass: what it fuses and what it leaves, on graphs made as Inductor makes them; values,
shapes and gradients of what it made; its options and its id in Inductor's cache."""

from __future__ import annotations

import shutil
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ops"))

import faked  # noqa: E402
from torch._inductor import config as inductor_config  # noqa: E402
from torch._inductor.decomposition import select_decomp_table  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm import inductor, settings  # noqa: E402
from tritongemm.activations import BY_NAME  # noqa: E402
from tritongemm.device import device_named  # noqa: E402
from tritongemm.errors import UsageError  # noqa: E402
from tritongemm.integration import (  # noqa: E402
    broadcast_batches,
    fused_factors,
    fused_gates,
    fused_sums,
    graph_nodes,
    graph_problem,
)
from tritongemm.integration import inductor as made  # noqa: E402

plans = faked.plans  # a fixture
aten = torch.ops.aten
OURS = torch.ops.tritongemm.addmm.default
TIMES = torch.ops.tritongemm.mulmm.default
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu,
               "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}
M, N, K = 64, 512, 256
BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture
def h100(monkeypatch):
    """Fake CUDA tensors are of an H100, whose kernels selection prefers to torch's."""
    monkeypatch.setattr(graph_problem, "device_of",
                        lambda where: device_named("nvidia-h100-80gb-hbm3"))
    monkeypatch.setattr(graph_problem, "precision_setting", lambda *a: "ieee")
    torch_is_faster(monkeypatch, lambda *a: None)


def torch_is_faster(monkeypatch, decide):
    """Lets ``decide`` stand for what selection says of a product."""
    for module in (fused_sums, fused_gates, fused_factors, broadcast_batches):
        monkeypatch.setattr(module, "torch_wins", decide)


def graph_of(function, *shapes, dtype=BF16, device="cuda", mode="fake"):
    """The graph that Inductor's passes see of ``function``."""
    with FakeTensorMode() if mode == "fake" else nullcontext():
        tensors = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    return make_fx(lambda *x: function(*x), decomposition_table=select_decomp_table(),
                   tracing_mode=mode)(*tensors)


def fused(function, *shapes, min_flops=0.0, **how):
    """(calls of this package's op, how many the pass made, the graph) after the pass."""
    module = graph_of(function, *shapes, **how)
    count = made.fuse(module.graph, min_flops)
    module.graph.lint()
    calls = [node for node in module.graph.nodes if node.target in (OURS, TIMES)]
    assert len(calls) == count
    assert all(isinstance(n.meta.get("val"), torch.Tensor) for n in calls)
    return calls, module.graph


@dataclass(frozen=True)
class Case:
    id: str
    function: object
    shapes: tuple
    activation: str = "none"
    beta: int = 1
    count: int = 1
    alpha: float = 1
    without: tuple = (aten.mm.default, aten.addmm.default, aten.add.Tensor)


X, W, B, R = (M, K), (N, K), (N,), (M, N)
CASES = (
    *(Case(f"linear {name}", lambda x, w, b, f=f: f(F.linear(x, w, b)), (X, W, B), name)
      for name, f in ACTIVATIONS.items()),
    *(Case(f"mm {name}", lambda x, w, f=f: f(x @ w.t()), (X, W), name, 0)
      for name, f in ACTIVATIONS.items()),
    Case("mm + bias", lambda x, w, b: x @ w.t() + b, (X, W, B)),
    Case("bias + mm, relu", lambda x, w, b: F.relu(b + x @ w.t()), (X, W, B), "relu"),
    Case("residual", lambda x, w, r: r + x @ w.t(), (X, W, R)),
    Case("residual, silu", lambda x, w, r: F.silu(x @ w.t() + r), (X, W, R), "silu"),
    Case("a factor", lambda x, w: (x @ w.t()) * 0.25, (X, W), beta=0, alpha=0.25),
    Case("a divisor, relu", lambda x, w: F.relu((x @ w.t()) / 8), (X, W), "relu", 0, alpha=0.125),
    Case("a factor and a residual", lambda x, w, r: r + 2 * F.linear(x, w),
         ((2, M, K), W, (2, M, N)), alpha=2),
    Case("batch of rows", lambda x, w, b: F.gelu(F.linear(x, w, b)), ((2, M, K), W, B), "gelu"),
    Case("residual of a batch", lambda x, w, r: r + F.linear(x, w), ((2, M, K), W, (2, M, N))),
    Case("before a product", lambda x, w, b, v: F.relu(F.linear(x, w, b)) @ v,
         (X, W, B, (N, 48)), "relu", without=(aten.addmm.default, aten.relu.default)),
    Case("a residual that is added to again", lambda x, w, r, v: (
        (y := r + x @ w.t()) + F.layer_norm(y, (N,)) @ v), (X, W, R, (N, N)), count=2,
         without=(aten.mm.default, aten.addmm.default)),
)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_a_product_and_what_follows_become_one(case, dtype, h100):
    calls, graph = fused(case.function, *case.shapes, dtype=dtype)
    assert [call.kwargs for call in calls] == [
        {"beta": case.beta, "alpha": case.alpha, "activation": case.activation}] * case.count
    assert not {node.target for node in graph.nodes} & set(case.without)
    expected = case.function(*(torch.empty(s, device="meta") for s in case.shapes)).shape
    last, = next(node for node in graph.nodes if node.op == "output").all_input_nodes
    assert last.meta["val"].shape == expected


def gradient(name):
    """What backward makes of an activation's gradient, as aten has it."""
    return lambda g, w, x: BY_NAME[name].gradient(g @ w, x)


FACTORS = (
    Case("a matrix", lambda x, w, r: (x @ w.t()) * r, (X, W, R)),
    Case("a gain", lambda x, w, b: b * (x @ w.t()), (X, W, B)),
    Case("rows", lambda x, w, y: (x @ w.t()) * y, (X, W, (M, 1))),
    Case("rows of a batch", lambda x, w, y: F.linear(x, w) * y, ((2, M, K), W, (2, M, 1))),
    Case("a number and a matrix", lambda x, w, r: (F.linear(x, w) * 0.5) * r,
         ((2, M, K), W, (2, M, N)), alpha=0.5),
    Case("of two products", lambda x, w, v: (x @ w.t()) * (x @ v.t()), (X, W, W)),
    Case("before another product", lambda x, w, b, v: (b * (x @ w.t())) @ v, (X, W, B, (N, 48))),
    *(Case(f"the gradient of {name}", gradient(name), (X, (K, N), R), name)
      for name in ACTIVATIONS),
    *(Case(f"the gradient of {name}, its result used too", lambda g, w, x, v, name=name: (
        BY_NAME[name].gradient(g @ w, x) @ v + BY_NAME[name].op()(x).sum()), (X, (K, N), R, (N, K)),
        name) for name in ACTIVATIONS),
)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("case", FACTORS, ids=lambda c: c.id)
def test_a_product_and_its_factor_become_one(case, dtype, h100):
    # torch decomposes silu's gradient of fake tensors on the CPU only.
    with torch.no_grad(), settings.override(interpret=True):
        call, = fused(case.function, *case.shapes, dtype=dtype, device="cpu")[0]
    assert call.target is TIMES
    assert call.kwargs == {"alpha": case.alpha, "gradient_of": case.activation}


LEFT = {
    "a product alone": (lambda x, w: x @ w.t(), (X, W)),
    "an activation before a norm": (
        lambda x, w: F.layer_norm(F.gelu(x @ w.t()), (N,)), (X, W)),
    "a residual before a norm": (
        lambda x, w, r: F.layer_norm(r + x @ w.t(), (N,)), (X, W, R)),
    "a sum that is read twice": (lambda x, w, b: (y := F.linear(x, w, b), F.relu(y)),
                                 (X, W, B)),
    "an activation that is none of ours": (lambda x, w, b: F.leaky_relu(F.linear(x, w, b)),
                                           (X, W, B)),
    "a bias of rows": (lambda x, w, b: x @ w.t() + b.unsqueeze(1), (X, W, (M,))),
    "two addends": (lambda x, w, b, r: F.linear(x, w, b) + r, (X, W, B, R)),
    "an addition with a factor": (lambda x, w, r: torch.add(x @ w.t(), r, alpha=2), (X, W, R)),
    "a factor that pointwise code makes": (lambda x, w, r: (x @ w.t()) * r.exp(), (X, W, R)),
    "a factor before a norm": (
        lambda x, w, b: F.layer_norm(b * (x @ w.t()), (N,)), (X, W, B)),
    "a gradient at what pointwise code makes": (
        lambda g, w, x: aten.gelu_backward(g @ w, x.exp()), (X, (K, N), R)),
    "another dtype added": (lambda x, w, r: x @ w.t() + r.float(), (X, W, R)),
    "a factor of zero": (lambda x, w: (x @ w.t()) * 0, (X, W)),
    "a factor that makes another dtype": (lambda x, w, y: (x @ w.t()) * y.float(), (X, W, R)),
    "a number added": (lambda x, w: x @ w.t() + 1, (X, W)),
    "no product": (lambda x, y: F.relu(x + y), (X, X)),
    "twice itself": (lambda x, w: (y := x @ w.t()) + y, (X, W)),
    "nothing to multiply": (lambda x, w: F.relu(x @ w.t()), ((0, K), W)),
    "a view that joins columns": (lambda x, w, r: F.relu((x @ w.t()).view(-1) ), (X, W, R)),
}


@pytest.mark.parametrize("name", LEFT)
def test_a_graph_that_it_does_not_know_is_left_alone(name, h100):
    function, shapes = LEFT[name]
    before = str(graph_of(function, *shapes).graph)
    calls, graph = fused(function, *shapes)
    assert not calls and str(graph) == before


def test_float64_and_the_cpu_are_torchs(h100):
    function = CASES[0].function
    assert not fused(function, X, W, B, dtype=torch.float64)[0]
    assert not fused(function, X, W, B, device="cpu")[0]


def test_the_choice_is_that_of_override(h100, monkeypatch):
    function, shapes = CASES[0].function, CASES[0].shapes
    assert not fused(function, *shapes, min_flops=2.0 * M * N * K + 1)[0]
    assert fused(function, *shapes, min_flops=2.0 * M * N * K)[0]
    seen = []
    torch_is_faster(monkeypatch, lambda problem, *a: seen.append(problem) or "faster")
    assert not fused(function, *shapes)[0]
    problem, = seen
    assert (problem.m, problem.n, problem.k, problem.layout, problem.epilogue) == (
        M, N, K, "nt", "bias+relu")
    torch_is_faster(monkeypatch, lambda *a: None)
    with settings.override(disable=True):
        assert not fused(function, *shapes)[0]


def test_without_the_device_nothing_is_fused(monkeypatch):
    monkeypatch.setattr(graph_problem, "precision_setting", lambda *a: "ieee")
    if torch.cuda.is_available():
        pytest.skip("there is a device")
    assert not fused(CASES[0].function, *CASES[0].shapes)[0]


def test_symbolic_sizes_are_judged_by_their_hints(h100):
    how = dict(mode="symbolic", device="cpu")
    with settings.override(interpret=True):  # so that the CPU's are not declined
        calls, graph = fused(CASES[0].function, *CASES[0].shapes, **how)
        assert len(calls) == 1 and not isinstance(calls[0].meta["val"].shape[0], int)
        assert not fused(CASES[0].function, *CASES[0].shapes, **how, min_flops=1e12)[0]


def test_host_time_counts_unless_inductor_captures_graphs(h100, monkeypatch):
    seen = []
    torch_is_faster(monkeypatch, lambda problem, choice, device, path: seen.append(path.name))
    for captured in (False, True):
        with torch._inductor.config.patch("triton.cudagraphs", captured):
            assert fused(CASES[0].function, *CASES[0].shapes, min_flops=None)[0]
            seen.append(made.FusePass().uuid())
    assert (seen[0], seen[2]) == (graph_problem.host_path().name, "CUDA graph")
    assert seen[1] != seen[3]


def test_small_products_of_sizes_that_may_change_stay_unless_asked_for(h100):
    how = dict(mode="symbolic", device="cpu")
    with settings.override(interpret=True):
        assert not fused(CASES[0].function, *CASES[0].shapes, **how, min_flops=None)[0]
        assert fused(CASES[0].function, *CASES[0].shapes, **how, min_flops=0.0)[0]


# -- what it made ----------------------------------------------------------------------------------

class Layer(torch.nn.Module):
    def __init__(self, activation=F.relu):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 24), torch.nn.Linear(24, 8, bias=False)
        self.norm, self.activation = torch.nn.LayerNorm(8), activation

    def forward(self, x):
        x = x + self.down(self.activation(self.up(x)))
        return self.norm(x) @ self.down.weight + x.sum()


def compiled(model, dynamic=False):
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, dynamic=dynamic,
                         backend=made.backend_without_codegen(aux=True))


def epilogues(plans):
    return sorted(problem.epilogue for problem, _ in plans.made)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_are_torchs(name, plans):
    torch.manual_seed(0)
    model, x = Layer(ACTIVATIONS[name]), torch.randn(3, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x))
    assert f"bias+{name}" in epilogues(plans)


def test_gradients_are_torchs_and_a_sum_that_backward_needs_is_written_too(plans):
    for activation, expected in ((F.relu, ["bias+relu"]), (F.gelu, ["bias+gelu+aux", "dgelu"])):
        torch.manual_seed(0)
        model, x = Layer(activation), torch.randn(3, 5, 8)
        model(x).sum().backward()
        wanted = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        plans.made.clear()
        tg_ops = compiled(model)
        tg_ops(x).sum().backward()
        for parameter, grad in zip(model.parameters(), wanted):
            torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-5)
        assert [e for e in epilogues(plans) if "relu" in e or "gelu" in e] == expected


def test_dynamic_sizes_compile_once(plans):
    model = Layer()
    run = compiled(model, dynamic=True)
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        for rows in (3, 5, 7, 9):
            x = torch.randn(2, rows, 8)
            torch.testing.assert_close(run(x), model(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert "bias+relu" in epilogues(plans)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_inductor_takes_the_pass(plans, monkeypatch):
    model, x = Layer(), torch.randn(3, 5, 8)
    torch._dynamo.reset()
    with torch.no_grad():
        run = torch.compile(model, fullgraph=True, options=inductor.options(min_flops=0))
        torch.testing.assert_close(run(x), model(x))
    assert "bias+relu" in epilogues(plans)


# -- options, and the id in the cache --------------------------------------------------------------

def test_options_are_inductors_with_the_pass():
    found = inductor.options(min_flops=3, max_autotune=True)
    assert found.keys() == {"post_grad_custom_pre_pass", "max_autotune"}
    one = found["post_grad_custom_pre_pass"]
    assert isinstance(one, inductor.FusePass) and one.min_flops == 3
    assert inductor.options()["post_grad_custom_pre_pass"].min_flops is None


@pytest.mark.parametrize(("wrong", "words"), [
    ({"min_flop": 3}, "min_flop"), ({"min_flops": -1}, "-1"), ({"min_flops": float("nan")}, "nan"),
    ({"min_flops": "many"}, "many")], ids=str)
def test_a_wrong_option_is_named(wrong, words):
    with pytest.raises(UsageError, match=words):
        inductor.options(**wrong)


def test_enable_stands_until_it_is_disabled():
    slot = made._SLOT

    def standing():
        return getattr(inductor_config, slot)

    before = standing()
    with inductor.enable(min_flops=5):
        assert standing().min_flops == 5
        inner = inductor.enable(min_flops=7)
        assert standing().min_flops == 7
        inductor.disable()
        assert standing().min_flops == 5
    assert standing() is before and inner is not None
    outer, later = inductor.enable(min_flops=1), inductor.enable(min_flops=2)
    outer.__exit__(None, None, None)  # in another order
    assert standing().min_flops == 2 and standing().before is before
    later.__exit__(None, None, None)
    assert standing() is before
    with pytest.raises(UsageError, match="no enable"):
        inductor.disable()


def test_another_pass_in_the_same_place_runs_first():
    seen = []
    one = inductor.options(post_grad_custom_pre_pass=seen.append)["post_grad_custom_pre_pass"]
    graph = torch.fx.Graph()
    one(graph)
    assert seen == [graph] and one.uuid() is None  # of which Inductor cannot know a change
    first = inductor.FusePass(1)
    assert inductor.FusePass(2, first).uuid() not in (None, inductor.FusePass(2).uuid())


def test_the_id_changes_with_whatever_changes_the_graph(monkeypatch):
    first = inductor.FusePass(1).uuid()
    assert inductor.FusePass(1).uuid() == first != inductor.FusePass(2).uuid()
    assert inductor.FusePass(1, aux=True).uuid() != first
    with settings.override(policy="own"):
        assert inductor.FusePass(1).uuid() != first
    monkeypatch.setattr(made, "_sources", lambda: "another text")
    assert inductor.FusePass(1).uuid() != first
    monkeypatch.undo()
    monkeypatch.setattr(tg, "__version__", "9.9")
    assert inductor.FusePass(1).uuid() != first


@pytest.mark.parametrize("number", [
    lambda x: x * 1e39, lambda x: x / 1e-39, lambda x: x / 1e-320, lambda x: x * float("inf")])
def test_a_factor_that_float32_does_not_hold_stays(number, h100):
    assert not fused(lambda x, w: number(x @ w.t()), X, W)[0]
    calls, _ = fused(lambda x, w: F.relu(number(x @ w.t())), X, W)
    assert all(call.kwargs.get("alpha", 1) == 1 for call in calls)


@pytest.mark.parametrize("function", [lambda x, w, r: r.t() * (x @ w.t()),
                                      lambda x, w, r: r.t() + (x @ w.t())], ids=["times", "plus"])
def test_a_result_that_would_lie_otherwise_in_memory_stays(function, h100):
    assert not fused(function, X, W, (N, M))[0]
    assert len(fused(lambda x, w, r: function(x, w, r.t()), X, W, (M, N))[0]) == 1


def test_training_fuses_the_gradient_of_an_activation(plans):
    for activation in (F.relu, F.gelu, F.silu):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.Linear(24, 8))
        x = torch.randn(15, 8, requires_grad=True)

        def run(x):
            return model[1](activation(model[0](x)))  # noqa: B023 - it runs in this turn

        run(x).sum().backward()
        wanted = [p.grad.clone() for p in (x, *model.parameters())]
        x.grad = None
        model.zero_grad()
        plans.made.clear()
        compiled(run)(x).sum().backward()
        for found, grad in zip((x, *model.parameters()), wanted):
            torch.testing.assert_close(found.grad, grad, rtol=1e-4, atol=1e-5)
        assert f"d{activation.__name__}" in epilogues(plans)


def test_every_activation_has_a_trace():
    for name in BY_NAME:
        if name != "none":
            for dtype in (BF16, FP32, torch.float16):
                assert len(graph_nodes.trace(name, dtype).nodes) >= 3
