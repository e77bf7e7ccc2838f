"""The registered ops: torch's own checks, compilers, gradients. Torch runs them here, which changes
nothing of what a compiler sees."""

from __future__ import annotations

import shutil

import pytest

torch = pytest.importorskip("torch")

from replaced import numpy_plan  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.errors import UnsupportedError, UsageError  # noqa: E402
from tritongemm.ops import plans as kept  # noqa: E402
from tritongemm.ops import registered  # noqa: E402
from tritongemm.ops.execute import ACTIVATIONS  # noqa: E402

ops = torch.ops.tritongemm
COUNTERS = torch._dynamo.utils.counters


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def samples(dtype: torch.dtype = torch.float32) -> dict[str, tuple]:
    def made(*shape: int) -> torch.Tensor:
        return leaf(*shape, dtype=dtype)

    return {
        "mm": (ops.mm, (made(3, 4), made(4, 5)), {}),
        "mm transposed": (ops.mm, (made(3, 4), made(5, 4).mT), {}),
        "mm empty": (ops.mm, (made(0, 4), made(4, 5)), {}),
        "bmm": (ops.bmm, (made(2, 3, 4), made(2, 4, 5)), {}),
        "matmul": (ops.matmul, (made(2, 1, 3, 4), made(3, 4, 2)), {}),
        "matmul of heads": (ops.matmul, (made(2, 3, 2, 4).transpose(1, 2), made(4, 2)), {}),
        "matmul by a vector": (ops.matmul, (made(2, 3, 4, 5), made(5)), {}),
        "matmul of a vector": (ops.matmul, (made(4), made(2, 4, 5)), {}),
        "matmul of two vectors": (ops.matmul, (made(4), made(4)), {}),
        "matmul by an empty vector": (ops.matmul, (made(3, 2, 0), made(0)), {}),
        "addmm": (ops.addmm, (made(3, 5), made(3, 4), made(4, 5)), dict(beta=0.5, alpha=2.0)),
        "addmm of a bias": (ops.addmm, (made(5), made(3, 4), made(4, 5)), {}),
        "addmm without input": (ops.addmm, (made(5), made(3, 4), made(4, 5)), dict(beta=0)),
        "baddbmm": (ops.baddbmm, (made(3, 5), made(2, 3, 4), made(2, 4, 5)), dict(alpha=0.5)),
        **{f"addmm {name}": (ops.addmm, (made(5), made(3, 4), made(4, 5)),
                             dict(activation=name, alpha=1.5)) for name in ACTIVATIONS[1:]},
        "mulmm": (ops.mulmm, (made(3, 5), made(3, 4), made(4, 5)), dict(alpha=2.0)),
        "mulmm of rows": (ops.mulmm, (made(3, 1), made(3, 4), made(4, 5)), {}),
        **{f"mulmm {name}": (ops.mulmm, (made(3, 5).detach(), made(3, 4), made(4, 5)),
                             dict(gradient_of=name)) for name in ACTIVATIONS[1:]},
    }


@pytest.mark.parametrize("name", samples())
def test_opcheck(name):
    op, args, kwargs = samples()[name]
    torch.library.opcheck(op.default, tuple(x.detach().requires_grad_(x.requires_grad)
                                            for x in args), kwargs)


@pytest.mark.parametrize(("name", "needed"), [
    pytest.param(name, needed, marks=() if needed is None else pytest.mark.thorough)
    for name, (_, args, _) in samples().items() if "empty" not in name
    for needed in (*(i for i, x in enumerate(args) if x.requires_grad), None)])
def test_gradients_of_both_orders_in_float64(name, needed):
    op, args, kwargs = samples(torch.float64)[name]
    args = [x.detach().requires_grad_(x.requires_grad and needed in (None, i))
            for i, x in enumerate(args)]
    wanted = [x for x in args if x.requires_grad]

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        given = iter(tensors)
        return op(*(next(given) if x.requires_grad else x for x in args), **kwargs)

    assert torch.autograd.gradcheck(call, wanted)
    assert torch.autograd.gradgradcheck(call, wanted)


REJECTED = {
    "shapes": (ops.mm, torch.mm, ((3, 4), (3, 4))), "ranks": (ops.mm, torch.mm, ((3, 4), (4,))),
    "batches": (ops.bmm, torch.bmm, ((2, 3, 4), (3, 4, 5))),
    "batches that do not broadcast": (ops.matmul, torch.matmul, ((2, 3, 4), (3, 4, 5))),
    "the input": (ops.addmm, torch.addmm, ((2, 2), (3, 4), (4, 5))),
    "the batched input": (ops.baddbmm, torch.baddbmm, ((7,), (2, 3, 4), (2, 4, 5))),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_torch_rejects_is_rejected_alike(name):
    op, theirs, shapes = REJECTED[name]
    operands = [torch.ones(shape) for shape in shapes]
    for device in ("cpu", "meta"):
        moved = [x.to(device) for x in operands]
        with pytest.raises(Exception) as expected:
            theirs(*moved)
        with pytest.raises(type(expected.value)) as found:
            op(*moved)
        assert str(found.value) == str(expected.value)


def test_an_unknown_activation():
    with pytest.raises(UsageError, match="'selu' is not known; use one of none, relu"):
        ops.addmm(torch.ones(5), torch.ones(3, 4), torch.ones(4, 5), activation="selu")


@pytest.mark.parametrize("name", samples())
def test_under_the_strict_setting_an_op_never_calls_torch(name):
    op, args, kwargs = samples()[name]
    with settings.override(strict=True), pytest.raises(UnsupportedError, match=(
            rf"tritongemm\.{op.__name__} would call torch: operands are on cpu")):
        op(*args, **kwargs)


def test_the_op_of_a_derivative_says_that_its_argument_has_no_gradient():
    x = leaf(3, 5)
    with pytest.raises(UnsupportedError, match="no gradient for the argument of silu's derivative"):
        ops.mulmm(x, torch.ones(3, 4), torch.ones(4, 5), gradient_of="silu").sum().backward()


def test_the_results_of_an_op_share_no_memory():
    done, total = ops.linear_aux(torch.ones(3, 4), torch.ones(5, 4), None, "none")
    assert torch.equal(done, total) and done.data_ptr() != total.data_ptr()


def test_under_the_strict_setting_an_op_runs_what_is_torchs_by_choice(monkeypatch, products):
    made = []

    def make_plan(*arguments):
        made.append(arguments)
        return numpy_plan(*arguments)

    monkeypatch.setattr(kept, "make_plan", make_plan)
    monkeypatch.setattr(kept, "torch_wins", lambda *_: "torch takes half the time")
    for op, shapes in ((ops.mm, ((3, 4), (4, 5))), (ops.bmm, ((2, 3, 4), (2, 4, 5))),
                       (ops.matmul, ((2, 1, 3, 4), (3, 4, 5))),
                       (ops.addmm, ((5,), (3, 4), (4, 5))),
                       (ops.mulmm, ((5,), (3, 4), (4, 5))),
                       (ops.baddbmm, ((5,), (2, 3, 4), (2, 4, 5)))):
        operands = [torch.randn(shape) for shape in shapes]
        expected = op(*operands)
        assert not made
        with settings.override(strict=True):
            torch.testing.assert_close(op(*operands), expected)
        assert made.pop()


def test_every_schema_is_atens_and_the_activation():
    for name, schema in registered.SCHEMAS.items():
        theirs = str(getattr(torch.ops.aten, name).default._schema).partition("(")[2]
        ours = schema[1:].replace(', str activation="none"', "")
        assert ours == theirs


# -- through the public functions, compiled --------------------------------------------------------

@pytest.fixture
def ours():
    """CPU operands are this package's, so that compiled calls are its ops; torch runs them, for
    what it is told about plans is that there are none."""
    torch._dynamo.reset()
    COUNTERS.clear()
    with settings.override(interpret=True, disable=True):
        yield
    torch._dynamo.reset()


def network(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = tg.linear(x, w, b, activation="gelu_tanh")
    return tg.addmm(b, y, tg.matmul(w, w.mT)) if y.dim() == 2 else tg.matmul(
        y, w.expand(y.shape[0], *w.shape))


def gradients(run, *tensors: torch.Tensor) -> list[torch.Tensor]:
    result = run(*tensors)
    return [result, *torch.autograd.grad(result.square().sum(), tensors)]


def seen_ops(run, *args: torch.Tensor) -> tuple[list[str], object]:
    """The registered ops in the graphs that a compiler is handed."""
    found: list[str] = []

    def backend(module: torch.fx.GraphModule, _: list) -> object:
        found.extend(str(node.target) for node in module.graph.nodes
                     if "tritongemm" in str(node.target))
        return module

    compiled = torch.compile(run, fullgraph=True, backend=backend)
    return found, compiled(*args)


def test_the_functions_become_registered_ops(ours):
    a, b, d = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    x, y = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    found, _ = seen_ops(lambda: (tg.matmul(a, b), tg.matmul(x[:, None], b[None, None]),
                                 tg.mm(a, b), tg.matmul(x, b), tg.bmm(x, y),
                                 tg.matmul(x, y), tg.addmm(d, a, b, alpha=2),
                                 tg.baddbmm(d, x, y), tg.linear(a, b.mT, d, activation="silu")))
    assert [name.removeprefix("tritongemm.") for name in found] == [
        "mm", "matmul", "mm", "mm", "bmm", "bmm", "addmm", "baddbmm", "addmm"]


def test_nothing_but_the_op_is_in_a_graph(ours):
    graphs = []

    def backend(module: torch.fx.GraphModule, _: list) -> object:
        graphs.append([node.op for node in module.graph.nodes])
        return module

    a, b = torch.randn(3, 4), torch.randn(4, 5)
    torch.compile(tg.mm, fullgraph=True, backend=backend)(a, b)
    assert [op for op in graphs[0] if op.startswith("call_function")] == ["call_function"]


COLD = {
    "matmul": lambda a, b: tg.matmul(a, b),
    "bias": lambda a, b: tg.linear(a, b.mT, b[0]),
    "residual": lambda a, b: tg.linear(a, b.mT, residual=a),
    "gated": lambda a, b: tg.gated_linear(a, b, activation="silu"),
    "torch's": lambda a, b: tg.matmul(a, b[0]),
    "out": lambda a, b: tg.matmul(a, b, out=torch.empty(4, 4)),
    "transformed": lambda a, b: torch.func.vmap(tg.mm, (0, None))(a[None], b),
}


@pytest.mark.parametrize("name", COLD)
def test_a_compiled_call_may_be_the_first_of_a_process(name, ours, monkeypatch):
    """The environment is read while it is traced, and a later change of a setting is seen."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("TRITONGEMM_DISABLE", "1")
    torchs = name in ("torch's", "out", "transformed")
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    torch._dynamo.reset()
    settings._put(None, tell=False)
    found, first = seen_ops(COLD[name], a, b)
    assert bool(found) != torchs
    torch.testing.assert_close(first, COLD[name](a, b))
    compiled = torch.compile(COLD[name], fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(a, b), first)
    if torchs:
        with settings.override(strict=True), pytest.raises(Exception, match="UnsupportedError"):
            compiled(a, b)


@pytest.mark.parametrize("call, shapes", [
    (lambda a, b: tg.linear(a, b), ((3, 4), (4,))),
    (lambda a, b: tg.matmul(a, b), ((3, 0), (0, 4))),
    (lambda a, b: tg.linear(a, b, activation="relu"), ((3, 0), (4, 0))),
    (lambda a, b: tg.addmm(b, a, b, alpha=torch.tensor(2.0)), ((4, 4), (4, 4))),
    (lambda a, b, d: tg.linear(a, b, d), ((2, 3, 4), (5, 4), (3, 5))),
    (lambda a, b, d: tg.linear(a, b, d, activation="relu"), ((2, 3, 4), (5, 4), (2, 1, 5))),
    (lambda a, b: torch.func.grad(lambda x: tg.matmul(x, b).sin().sum())(a), ((3, 4), (4, 5))),
    (lambda a, b: torch.func.vmap(tg.mm, (0, None))(a, b), ((2, 3, 4), (4, 5)))],
    ids=("vector-weight", "inner-0", "inner-0-relu", "tensor-alpha", "matrix-bias", "batch-bias",
         "torch.func.grad", "torch.func.vmap"))
def test_what_no_op_is_for_compiles_as_torchs(call, shapes, ours):
    operands = [torch.randn(shape) for shape in shapes]
    found, result = seen_ops(call, *operands)
    assert not found
    torch.testing.assert_close(result, call(*operands))


@pytest.mark.parametrize("call", [tg.matmul, lambda x, w: tg.addmm(w[0], x, w),
                                  lambda x, w: tg.linear(x, w.mT, activation="relu")],
                         ids=("matmul", "addmm", "linear-relu"))
def test_a_compiled_call_has_its_tangent(call, ours):
    """Also where it was compiled outside of forward mode, and where it is used there again."""
    x, w, t = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 4)

    def tangent(run) -> torch.Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(run(forward_ad.make_dual(x, t), w)).tangent

    def compiled_of(function):
        return torch.compile(function, fullgraph=True, backend="aot_eager")

    compiled = compiled_of(call)
    torch.testing.assert_close(compiled(x, w), call(x, w))
    try:
        tangent(compiled_of(torch.matmul))
    except torch._dynamo.exc.Unsupported:  # torch 2.15 takes no dual tensors there
        with pytest.raises(torch._dynamo.exc.Unsupported, match="dual tensor"):
            tangent(compiled)
        return
    COUNTERS.clear()
    torch._dynamo.reset()
    for _ in range(2):
        torch.testing.assert_close(compiled(x, w), call(x, w))
        torch.testing.assert_close(tangent(compiled), tangent(call))
    assert COUNTERS["stats"]["unique_graphs"] == 2


def test_a_bias_of_the_folded_rows_is_wrong_as_in_torch(ours):
    x, w, bias = torch.randn(2, 3, 4), torch.randn(5, 4), torch.randn(6, 5)
    for home in (tg, torch.nn.functional):
        with pytest.raises(RuntimeError):
            seen_ops(lambda home=home: home.linear(x, w, bias))


def test_what_no_op_is_for_is_refused_where_the_call_is_strict(ours):
    a, b = torch.randn(3, 4), torch.randn(4)
    for call in (lambda: tg.mv(a, b, strict=True), lambda: tg.matmul(a, a.mT.double(), strict=True),
                 lambda: tg.mm(a, a.mT, out=torch.empty(3, 3), strict=True)):
        with pytest.raises(Exception, match="UnsupportedError"):
            seen_ops(call)
    with settings.override(interpret=True, strict=True), pytest.raises(
            Exception, match="UnsupportedError"):
        seen_ops(lambda: tg.mv(a, b))


@pytest.mark.parametrize("dynamic", (False, True), ids=("static", "dynamic"))
def test_compiled_gradients_are_those_of_eager_calls(ours, dynamic):
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    w, b = leaf(6, 5), leaf(6)
    for shape in ((3, 5), (4, 5), (2, 3, 5), (2, 4, 5)):
        x = leaf(*shape)
        torch.testing.assert_close(gradients(compiled, x, w, b), gradients(network, x, w, b))
    assert not COUNTERS["graph_break"]


def test_a_compiled_gradient_of_a_weight_has_the_weights_order(ours):
    """As torch's has: in the other one each step would transpose it in memory."""
    strides = []

    def forward(x, weight):
        return tg.linear(x, weight)

    def backend(module, inputs):
        def compiled(graph, inputs):
            outputs = next(node for node in graph.graph.nodes if node.op == "output").args[0]
            strides.append([x.meta["val"].stride() for x in outputs if x is not None])
            return graph.forward
        return torch._dynamo.backends.common.aot_autograd(
            fw_compiler=lambda graph, _: graph.forward, bw_compiler=compiled)(module, inputs)

    x, weight = leaf(24, 16, dtype=torch.bfloat16), leaf(40, 16, dtype=torch.bfloat16)
    torch.compile(forward, backend=backend)(x, weight).sum().backward()
    assert strides == [[(16, 1), (16, 1)]]


@pytest.mark.parametrize("shapes", [((0, 5), (6, 5)), ((3, 5), (0, 5)), ((2, 0, 5), (6, 5)),
                                    ((2, 3, 5), (0, 5)), ((3, 0), (6, 0))], ids=str)
@pytest.mark.parametrize("activation", ("none", "relu", "gelu"))
def test_gradients_of_empty_operands_compile(activation, shapes, ours):
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return tg.linear(x, w, activation=activation)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    operands = [leaf(*shape) for shape in shapes]
    torch.testing.assert_close(gradients(compiled, *operands), gradients(call, *operands))


def test_many_shapes_recompile_once(ours):
    """Automatic dynamic shapes: one graph for the first shape, one for all others."""
    compiled = torch.compile(lambda x, w, b: tg.linear(x, w, b, activation="relu"),
                             fullgraph=True, backend="aot_eager")
    w, b = leaf(6, 5), leaf(6)
    for rows in range(2, 40):
        compiled(leaf(rows, 5), w, b)
    assert COUNTERS["stats"]["unique_graphs"] == 2


def test_export_keeps_the_ops_and_a_dynamic_batch(ours):
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(5, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return tg.linear(x, self.layer.weight, self.layer.bias, activation="gelu")

    model = Model().eval()
    rows = torch.export.Dim("rows", min=2, max=1000)
    program = torch.export.export(model, (torch.randn(3, 5),), dynamic_shapes=({0: rows},))
    assert any("tritongemm" in str(node.target) for node in program.graph.nodes)
    x = torch.randn(17, 5)
    torch.testing.assert_close(program.module()(x), model(x))


def test_autocast_is_traced(ours):
    a, b = torch.randn(3, 4), torch.randn(4, 5)

    def cast() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return tg.matmul(a, b)

    found, result = seen_ops(cast)
    assert found == ["tritongemm.mm"] and result.dtype == torch.bfloat16
    torch.testing.assert_close(result, cast())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler here")
@pytest.mark.parametrize("dynamic", (False, True), ids=("static", "dynamic"))
def test_inductor_compiles_forward_and_backward(ours, dynamic):
    compiled = torch.compile(network, fullgraph=True, dynamic=dynamic)
    w, b = leaf(6, 5), leaf(6)
    for shape in ((3, 5), (4, 5), (2, 3, 5)):
        x = leaf(*shape)
        torch.testing.assert_close(gradients(compiled, x, w, b), gradients(network, x, w, b),
                                   rtol=1e-4, atol=1e-4)
