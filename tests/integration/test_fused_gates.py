"""Gated layers in graphs that Inductor traced: which become one product, which stay, and what both
compute."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ops"))

import faked  # noqa: E402
from test_inductor import BF16, K, M, N, compiled, epilogues, graph_of, h100  # noqa: E402, F401
from torch.nn import functional as F  # noqa: E402

from tritongemm import inductor  # noqa: E402
from tritongemm.errors import UnsupportedError  # noqa: E402
from tritongemm.integration import fused_gates  # noqa: E402
from tritongemm.integration import inductor as made  # noqa: E402
from tritongemm.selection import choose  # noqa: E402

plans = faked.plans  # a fixture
aten = torch.ops.aten
ONE = torch.ops.tritongemm.gated_linear.default
TWO = torch.ops.tritongemm.gated_pair.default
X, ROWS, W, BOTH, B = (M, K), (2, M, K), (N, K), (2 * N, K), (2 * N,)
GATES = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu,
         "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


@pytest.fixture(autouse=True)
def one_launch_is_faster(monkeypatch):
    monkeypatch.setattr(fused_gates, "faster_apart", lambda *a, **k: None)


def pair(x, w, v):
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def first(x, w, b=None):
    gate, other = F.linear(x, w, b).chunk(2, -1)
    return F.silu(gate) * other


def last(x, w, b=None):  # as GEGLU in diffusion models
    other, gate = F.linear(x, w, b).chunk(2, -1)
    return other * F.gelu(gate)


def part(x, begin, end, axis=-1):  # indexing asks for the device, which tests do without
    return aten.slice.Tensor(x, axis, begin, end)


def sliced(x, w):
    total = F.linear(x, w)
    return part(total, N, 2**63 - 1) * F.silu(part(total, 0, N))


CASES = {
    **{f"two weights, {name}": (lambda x, w, v, f=f: f(x @ w.t()) * (x @ v.t()), (X, W, W), TWO,
                                name) for name, f in GATES.items()},
    "two weights, the other half first": (lambda x, w, v: (x @ v.t()) * F.silu(x @ w.t()),
                                          (X, W, W), TWO, "silu"),
    "two weights and a batch of rows": (pair, (ROWS, W, W), TWO, "silu"),
    "weights stored along N": (lambda x, w, v: F.silu(x @ w) * (x @ v), (X, (K, N), (K, N)), TWO,
                               "silu"),
    "the gate's columns first": (first, (X, BOTH), ONE, "silu"),
    "with a bias and a batch of rows": (first, (ROWS, BOTH, B), ONE, "silu"),
    "the gate's columns last": (last, (ROWS, BOTH), TWO, "gelu"),
    "the gate's columns last, with a bias": (last, (X, BOTH, B), TWO, "gelu"),
    "slices": (sliced, (ROWS, BOTH), ONE, "silu"),
    "halves of a weight that the graph makes": (
        lambda x, w: last(x, -w), (X, BOTH), TWO, "gelu"),
    "parts of one tensor": (
        lambda x, w: pair(x, *w.unbind(0)), (X, (2, N, K)), TWO, "silu"),
    "slices with arguments left out": (
        lambda x, w: F.silu(aten.slice.Tensor(t := x @ w.t(), 1, None, N))
        * aten.slice.Tensor(t, 1, N), (X, BOTH), ONE, "silu"),
    "read by a norm": (lambda x, w, v: F.layer_norm(pair(x, w, v), (N,)), (X, W, W), TWO, "silu"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_gated_layer_becomes_one_product(name, h100):  # noqa: F811
    function, shapes, op, activation = CASES[name]
    module = graph_of(function, *shapes)
    assert made.fuse(module.graph, 0.0) == 1
    module.graph.lint()
    targets = [node.target for node in module.graph.nodes]
    assert not {aten.mm.default, aten.addmm.default, aten.mul.Tensor} & set(targets) - (
        {aten.mul.Tensor} if "norm" in name else set())
    call, = (node for node in module.graph.nodes if node.target is op)
    assert activation in call.args
    assert tuple(call.meta["val"].shape) == (M * (2 if ROWS in shapes else 1), N)
    result = next(node for node in module.graph.nodes if node.op == "output").args[0]
    expected = function(*(torch.empty(s, device="meta", dtype=BF16) for s in shapes))
    assert result.meta["val"].shape == expected.shape


SQUARE = (N, N)
LEFT = {
    "the operand as the weight of the gate": (
        lambda x, w, v: F.silu(v @ x) * (x @ w), (SQUARE, SQUARE, SQUARE)),
    "the operand as the weight of the other half": (
        lambda x, w, v: F.silu(x @ w) * (v @ x), (SQUARE, SQUARE, SQUARE)),
    "weights that the graph makes": (
        lambda x, w, v: F.silu(x @ (2 * w).t()) * (x @ (2 * v).t()), (X, W, W)),
    "one weight that the graph makes": (
        lambda x, w, v: F.silu(x @ w.t()) * (x @ (2 * v).t()), (X, W, W)),
    "a slice of what is no product": (lambda x, v: aten.slice.Tensor(x, 0) * v, (X, X)),
    "a slice of all columns": (lambda x, w: F.silu(t := x @ w.t()) * aten.slice.Tensor(t, 1),
                               (X, W)),
    "every second column": (lambda x, w: F.silu(aten.slice.Tensor(t := x @ w.t(), 1, 0, None, 2))
                            * aten.slice.Tensor(t, 1, 1, None, 2), (X, BOTH)),
    "another operand": (lambda x, w, v, y: F.silu(x @ w.t()) * (y @ v.t()), (X, W, W, X)),
    "weights of other strides": (lambda x, w, v: F.silu(x @ w.t()) * (x @ v), (X, W, (K, N))),
    "a bias of each": (lambda x, w, v, b: F.silu(F.linear(x, w, b)) * F.linear(x, v, b),
                       (X, W, W, (N,))),
    "an activation that is none of ours": (
        lambda x, w, v: F.leaky_relu(x @ w.t()) * (x @ v.t()), (X, W, W)),
    "a half that is read again": (
        lambda x, w, v: (F.silu(x @ w.t()) * (y := x @ v.t()), y), (X, W, W)),
    "another factor": (lambda x, w, v: F.silu(x @ w.t()) * v, (X, W, (M, N))),
    "a number": (lambda x, w: F.silu(x @ w.t()) * 2, (X, W)),
    "the same half twice": (lambda x, w: F.silu(part(t := x @ w.t(), 0, N)) * part(t, 0, N),
                            (X, BOTH)),
    "three parts": (lambda x, w: F.silu((t := (x @ w.t()).split(N, -1))[0]) * t[1],
                    (X, (3 * N, K))),
    "uneven parts": (lambda x, w: F.silu(part(t := x @ w.t(), 0, N - 8)) * part(t, 8, N),
                     (X, (2 * N - 8, K))),
    "parts of rows": (lambda x, w: F.silu((t := (x @ w.t()).chunk(2, 0))[0]) * t[1], (X, W)),
    "a matrix added": (lambda x, w, r: F.silu((t := torch.addmm(r, x, w.t()).chunk(2, -1))[0])
                       * t[1], (X, BOTH, (M, 2 * N))),
    "a sum with a factor": (lambda x, w, b: F.silu(
        (t := torch.addmm(b, x, w.t(), alpha=2).chunk(2, -1))[0]) * t[1], (X, BOTH, B)),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_no_gated_layer_of_ours_stays(name, h100):  # noqa: F811
    function, shapes = LEFT[name]
    before = str(graph_of(function, *shapes).graph)
    module = graph_of(function, *shapes)
    assert made.fuse(module.graph, 0.0) == 0 and str(module.graph) == before


def test_an_activation_that_is_read_again_is_fused_without_the_gate(h100):  # noqa: F811
    module = graph_of(lambda x, w, v: ((y := F.silu(x @ w.t())) * (x @ v.t()), y), X, W, W)
    assert made.fuse(module.graph, 0.0) == 1
    assert not {ONE, TWO} & {node.target for node in module.graph.nodes}


def test_what_is_faster_apart_stays(h100, monkeypatch):  # noqa: F811
    asked = []
    monkeypatch.setattr(fused_gates, "faster_apart",
                        lambda problem, device, **how: asked.append((problem, how)) or "faster")
    for function, shapes in ((pair, (X, W, W)), (first, (X, BOTH, B))):
        assert made.fuse(graph_of(function, *shapes).graph, 0.0) == 0
    (one, how), (two, how_two) = asked
    assert (one.n, one.epilogue, how) == (2 * N, "gated_silu", {"products": 2, "fused": True})
    assert (two.n, two.epilogue, how_two) == (2 * N, "bias+gated_silu",
                                              {"products": 1, "fused": True})


def test_a_layer_that_no_kernel_computes_stays(h100, monkeypatch):  # noqa: F811
    def none_is_found(problem, device):
        if problem.gated:
            raise UnsupportedError("no kernel")
        return choose(problem, device)

    monkeypatch.setattr(fused_gates, "choose", none_is_found)
    assert made.fuse(graph_of(pair, X, W, W).graph, 0.0) == 0


def test_fewer_flops_than_asked_for_stay(h100):  # noqa: F811
    assert made.fuse(graph_of(pair, X, W, W).graph, 2.0 * M * N * K + 1) == 0
    assert made.fuse(graph_of(pair, X, W, W).graph, 2.0 * M * N * K) == 1


@pytest.mark.parametrize(("function", "shapes"), (
    (pair, ((3, 5, 8), (12, 8), (12, 8))), (first, ((5, 8), (24, 8), (24,))),
    (last, ((3, 5, 8), (24, 8), (24,))), (last, ((5, 8), (24, 8)))))
def test_values_are_torchs(function, shapes, plans):
    torch.manual_seed(0)
    tensors = [torch.randn(shape) for shape in shapes]
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(*tensors), function(*tensors))
    assert any("gated" in epilogue for epilogue in epilogues(plans))


def test_what_backward_needs_stays(plans):
    tensors = [torch.randn(shape, requires_grad=True) for shape in ((5, 8), (12, 8), (12, 8))]
    pair(*tensors).sum().backward()
    wanted = [t.grad.clone() for t in tensors]
    for t in tensors:
        t.grad = None
    compiled(pair)(*tensors).sum().backward()
    for t, gradient in zip(tensors, wanted):
        torch.testing.assert_close(t.grad, gradient)
    assert not any("gated" in epilogue for epilogue in epilogues(plans))


def test_rows_of_any_number_share_one_graph(plans):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up = (torch.nn.Linear(8, 12, bias=False) for _ in range(2))

        def forward(self, x):
            return F.silu(self.gate(x)) * self.up(x)

    model = Layer()
    run = compiled(model, dynamic=True)
    with torch.no_grad():
        for rows in (5, 9, 7):
            x = torch.randn(3, rows, 8)
            torch.testing.assert_close(run(x), model(x))
    assert any("gated" in epilogue for epilogue in epilogues(plans))


@pytest.mark.thorough
@pytest.mark.parametrize(("function", "shapes", "op"), (
    (pair, ((3, 5, 8), (12, 8), (12, 8)), "gated_pair"),
    (first, ((5, 8), (24, 8), (24,)), "gated_linear"),
    (last, ((3, 5, 8), (24, 8), (24,)), "gated_pair")))
def test_inductor_compiles_what_the_pass_made(function, shapes, op, plans):
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    torch._dynamo.reset()
    tensors = [torch.randn(shape) for shape in shapes]
    run = torch.compile(function, options=inductor.options(min_flops=0))
    with torch.no_grad():
        found, (code,) = run_and_get_code(run, *tensors)
        torch.testing.assert_close(found, function(*tensors))
    assert code.count(f"torch.ops.tritongemm.{op}.default(") == 1
    assert "extern_kernels.mm(" not in code and "extern_kernels.addmm(" not in code
