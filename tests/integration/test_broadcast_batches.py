"""Products of operands that broadcast along the batch, in graphs that Inductor traced: which read
them where they are, which keep a copy, and what both compute."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ops"))

import faked  # noqa: E402
from test_inductor import (  # noqa: E402, F401
    BF16,
    FP32,
    compiled,
    graph_of,
    h100,
    torch_is_faster,
)

from tritongemm import inductor, settings  # noqa: E402
from tritongemm.errors import UnsupportedError  # noqa: E402
from tritongemm.integration import broadcast_batches  # noqa: E402
from tritongemm.integration import inductor as made  # noqa: E402
from tritongemm.selection import choose  # noqa: E402

plans = faked.plans  # a fixture
aten = torch.ops.aten
OURS = torch.ops.tritongemm.matmul.default
COPY, BMM = aten.clone.default, aten.bmm.default
M, N, K = 64, 32, 256


def heads(keys, times):
    """[B, H, rows, width] with each head so often, as models repeat the heads of keys."""
    b, h, rows, width = keys.shape
    return keys.unsqueeze(2).expand(b, h, times, rows, width).reshape(b, h * times, rows, width)


def copied(x):
    """Written without gaps; ``contiguous`` would ask for the device, which tests do without."""
    return x.clone(memory_format=torch.contiguous_format)


def scores(q, k):
    return torch.matmul(q, heads(k, 4).mT)


def attention(q, k, v):
    return torch.matmul(torch.softmax(scores(q, k), -1), heads(v, 4))


def of_views(q, k):
    """Of [B, rows, H, width], heads second."""
    return torch.matmul(q.transpose(1, 2), k.transpose(1, 2).mT)


#: name: function, shapes, and those of what the product reads.
CASES = {
    "A": (torch.matmul, (5, 1, M, K), (5, 3, K, N)),
    "B": (torch.matmul, (5, 3, M, K), (3, K, N)),
    "both": (torch.matmul, (5, 1, M, K), (1, 3, K, N)),
    "both, of other ranks": (torch.matmul, (5, 1, M, K), (3, K, N)),
    "A, of three axes": (torch.matmul, (2, 1, 3, M, K), (2, 4, 3, K, N)),
    "both, of three axes": (torch.matmul, (2, 1, 3, M, K), (4, 1, K, N)),
    "B, of four axes": (torch.matmul, (2, 2, 3, 2, M, K), (2, 1, 2, K, N)),
    "both, of four axes": (torch.matmul, (2, 1, 3, 1, M, K), (1, 2, 1, 2, K, N)),
    "transposed": (lambda a, b: torch.matmul(a.mT, b.mT), (5, 1, K, M), (1, 3, N, K)),
    "views of heads": (of_views, (2, M, 4, K), (2, N, 1, K)),
    "fewer heads of keys": (scores, (2, 8, M, K), (2, 2, N, K)),
    "fewer heads of values": (lambda p, v: torch.matmul(p, heads(v, 4)), (2, 8, M, K),
                              (2, 2, K, N)),
    "what pointwise code makes": (lambda a, b: torch.matmul(a.sin(), b), (5, 1, M, K),
                                  (5, 3, K, N)),
    "one axis": (lambda a, b: torch.bmm(copied(a.expand(5, M, K)), b), (M, K), (5, K, N)),
    "swapped after the copy": (
        lambda a, b: torch.bmm(copied(a.expand(5, K, M)).mT, b), (1, K, M), (5, K, N)),
    "swapped before the copy": (
        lambda a, b: torch.bmm(copied(a.expand(5, K, M).mT), b), (1, K, M), (5, K, N)),
    "both along one axis, A copied": (
        lambda a, b: torch.bmm(copied(a.expand(5, M, K)), b.expand(5, K, N)), (M, K), (1, K, N)),
    "both along one axis, B copied": (
        lambda a, b: torch.bmm(a.expand(5, M, K), copied(b.expand(5, K, N))), (M, K), (1, K, N)),
    "both along one axis, both copied": (
        lambda a, b: torch.bmm(*(copied(x.expand(5, -1, -1)) for x in (a, b))), (M, K), (1, K, N)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_operand_is_copied(name, h100):  # noqa: F811
    function, *shapes = CASES[name]
    module = graph_of(function, *shapes)
    assert COPY in [node.target for node in module.graph.nodes]
    assert made.fuse(module.graph, 0.0) == 1
    module.graph.lint()
    targets = [node.target for node in module.graph.nodes]
    assert targets.count(COPY) == (name == "both along one axis, both copied")
    assert BMM not in targets
    call, = (node for node in module.graph.nodes if node.target is OURS)
    result = next(node for node in module.graph.nodes if node.op == "output").args[0]
    expected = function(*(torch.empty(s, device="meta", dtype=BF16) for s in shapes))
    assert result.meta["val"].shape == expected.shape
    assert call.meta["val"].numel() == expected.numel()
    if "both along" not in name:  # of which one has the batch
        assert [node.meta["val"].numel() for node in call.args] == [
            torch.Size(shape).numel() for shape in shapes]


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("name", CASES)
def test_values_are_torchs(name, dtype, plans):
    torch.manual_seed(0)
    function, *shapes = CASES[name]
    tensors = [(torch.randn(shape) / 16).to(dtype) for shape in shapes]
    with torch.no_grad():
        torch.testing.assert_close(compiled(function)(*tensors), function(*tensors))
    assert plans.made


@pytest.mark.parametrize("seed", [
    pytest.param(seed, marks=pytest.mark.thorough if seed > 9 else ()) for seed in range(30)])
def test_random_batches_keep_values(seed, plans):
    """Of operands of random ranks, broadcast anywhere, rows or columns first."""
    rng, torch_rng = random.Random(seed), torch.Generator().manual_seed(seed)
    whole = [rng.choice((2, 3, 4)) for _ in range(rng.choice((1, 2, 2, 3, 4)))]
    operands, swapped = [], []
    for matrix in ((3, 5), (5, 4)):
        batch = [size if rng.random() < 0.6 else 1 for size in whole]
        batch = batch[rng.choice((0, 0, 1)):]
        swapped.append(rng.random() < 0.3)
        shape = (*batch, *(matrix[::-1] if swapped[-1] else matrix))
        operands.append(torch.randn(shape, generator=torch_rng))

    def product(*tensors):
        return torch.matmul(*(x.mT if swap else x for x, swap in zip(tensors, swapped)))

    with torch.no_grad():
        found = compiled(product, dynamic=seed % 3 == 2)(*operands)
        torch.testing.assert_close(found, product(*operands))


def test_heads_are_rows_of_one_product(plans):
    torch.manual_seed(0)
    tensors = [torch.randn(shape) for shape in ((2, 8, 5, 16), (2, 2, 7, 16), (2, 2, 7, 16))]
    with torch.no_grad():
        torch.testing.assert_close(compiled(attention)(*tensors), attention(*tensors))
    assert [(x.batch, x.m, x.n, x.k) for x, _ in plans.made] == [(4, 20, 7, 16), (4, 20, 16, 7)]


LEFT = {
    "nothing broadcasts": (torch.matmul, (5, 3, M, K), (5, 3, K, N)),
    "views of heads, none fewer": (of_views, (2, M, 4, K), (2, N, 4, K)),
    "no copy, a stride of 0": (torch.matmul, (M, K), (5, 3, K, N)),
    "a matrix of weights": (torch.matmul, (5, 3, M, K), (K, N)),
    "a copy that is a result too": (
        lambda a, b: (torch.bmm(x := copied(a.expand(5, M, K)), b), x), (1, M, K), (5, K, N)),
    "a copy that another product reads": (
        lambda a, b: torch.bmm(torch.bmm(x := copied(a.expand(5, M, M)), b).mT, x),
        (1, M, M), (5, M, M)),
    "a copy of broadcast rows": (
        lambda a, b: torch.bmm(copied(a.expand(5, M, K)), b), (5, 1, K), (5, K, N)),
    "a copy of broadcast rows, joined": (
        lambda a, b: torch.bmm(copied(a.expand(5, 3, M, K)).view(5, 3 * M, K), b),
        (5, 1, M, K), (5, K, N)),
    "a copy whose batch is transposed": (
        lambda a, b: torch.bmm(copied(copied(a.expand(5, 3, M, K)).permute(1, 0, 2, 3)).view(
            15, M, K), b), (5, 1, M, K), (15, K, N)),
    "a copy of something else": (
        lambda a, b: torch.bmm(copied(a.permute(1, 0, 2)), b), (M, 5, K), (5, K, N)),
    "more launches than are made": (torch.matmul, (3, 1, 3, 1, M, K), (1, 3, 1, 3, K, N)),
    "nothing to multiply": (torch.matmul, (5, 1, 0, K), (5, 3, K, N)),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_products_stay(name, h100):  # noqa: F811
    function, *shapes = LEFT[name]
    before = str(graph_of(function, *shapes).graph)
    module = graph_of(function, *shapes)
    assert made.fuse(module.graph, 0.0) == 0 and str(module.graph) == before


def test_float64_and_the_cpu_are_torchs(h100):  # noqa: F811
    function, *shapes = CASES["both"]
    for how in ({"dtype": torch.float64}, {"dtype": torch.complex64}, {"device": "cpu"}):
        assert made.fuse(graph_of(function, *shapes, **how).graph, 0.0) == 0
    with settings.override(disable=True):
        assert made.fuse(graph_of(function, *shapes).graph, 0.0) == 0


def test_what_reads_a_copy_for_nothing_does_not_count(h100):  # noqa: F811
    function, *shapes = CASES["both"]
    module = graph_of(function, *shapes)
    for copy in [node for node in module.graph.nodes if node.target is COPY]:
        with module.graph.inserting_after(copy):
            module.graph.call_function(torch.ops.prims.convert_element_type.default, (copy, FP32))
    assert made.fuse(module.graph, 0.0) == 1
    module.graph.lint()
    assert not {COPY, torch.ops.prims.convert_element_type.default} & {
        node.target for node in module.graph.nodes}


def test_an_operand_that_has_its_copy_anyway_is_read_there(h100):  # noqa: F811
    function, *shapes = CASES["both"]

    def kept(a, b):
        copy = copied(a.expand(5, 3, M, K))
        return function(copy, b), copy

    module = graph_of(kept, *shapes)
    assert made.fuse(module.graph, 0.0) == 1
    call, = (node for node in module.graph.nodes if node.target is OURS)
    assert [node.meta["val"].shape for node in call.args] == [(5, 3, M, K), (1, 3, K, N)]
    assert [node.target for node in module.graph.nodes].count(COPY) == 1


def test_the_choice_is_that_of_a_call_of_matmul(h100, monkeypatch):  # noqa: F811
    """By the problem that the call has; of float32 first by a few launches of one stride each."""
    function, *shapes = CASES["both"]
    flops = 2.0 * 5 * 3 * M * N * K
    assert made.fuse(graph_of(function, *shapes).graph, flops + 1) == 0
    assert made.fuse(graph_of(function, *shapes).graph, flops) == 1
    asked = []
    torch_is_faster(monkeypatch, lambda problem, *a: asked.append(problem) or "faster")
    for dtype, strides in ((BF16, ["ab", "none"]), (FP32, ["none", "ab"])):
        asked.clear()
        assert made.fuse(graph_of(function, *shapes, dtype=dtype).graph, 0.0) == 0
        assert [x.two_strides for x in asked] == strides
        assert {(x.m, x.n, x.k, x.layout, x.epilogue) for x in asked} == {(M, N, K, "nn", "none")}
    torch_is_faster(monkeypatch, lambda problem, *a: (
        None if problem.two_strides == "none" else "faster"))
    assert made.fuse(graph_of(function, *shapes).graph, 0.0) == 1


def test_a_reading_that_no_kernel_has_is_passed_over(h100, monkeypatch):  # noqa: F811
    def without_two_strides(problem, device):
        if problem.two_strides != "none":
            raise UnsupportedError("no kernel")
        return choose(problem, device)

    monkeypatch.setattr(broadcast_batches, "choose", without_two_strides)
    function, *shapes = CASES["both"]
    assert made.fuse(graph_of(function, *shapes).graph, 0.0) == 1


def test_small_products_of_sizes_that_may_change_stay_unless_asked_for(h100):  # noqa: F811
    function, *shapes = CASES["both"]
    how = dict(mode="symbolic", device="cpu")
    with settings.override(interpret=True):
        assert made.fuse(graph_of(function, *shapes, **how).graph, None) == 0
        assert made.fuse(graph_of(function, *shapes, **how).graph, 0.0) == 1


@pytest.mark.parametrize("name", ["A", "B", "both", "both, of three axes", "transposed"])
def test_dynamic_sizes_compile_once(name, plans):
    function, *shapes = CASES[name]
    run = compiled(function, dynamic=True)
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        for larger in range(3):
            tensors = [torch.randn([size if size == 1 else size + larger for size in shape])
                       for shape in shapes]
            torch.testing.assert_close(run(*tensors), function(*tensors), rtol=1e-4, atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert len(plans.made) >= 3


def test_keys_of_any_length_share_one_graph(plans):
    run = compiled(attention, dynamic=None)
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        for rows in (5, 6, 9):
            tensors = [torch.randn(3, count, rows, 16) for count in (8, 2, 2)]
            for one in tensors:
                torch._dynamo.mark_dynamic(one, 2)
            torch.testing.assert_close(run(*tensors), attention(*tensors))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert {x.batch for x, _ in plans.made} == {6}


def test_a_batch_is_not_split_by_symbols(plans):
    """Inductor would copy the other operand for it."""
    tensors = [torch.randn(3, count, 5, 16) for count in (8, 2)]
    with torch.no_grad():
        torch.testing.assert_close(compiled(scores, dynamic=True)(*tensors), scores(*tensors))
    assert not plans.made


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("name", ["A", "B", "both", "views of heads", "fewer heads of keys"])
def test_gradients_are_torchs(name, wanted, plans):
    torch.manual_seed(0)
    function, *shapes = CASES[name]
    mine, theirs = ([torch.randn(shape, generator=torch.Generator().manual_seed(i)) / 16
                     for i, shape in enumerate(shapes)] for _ in range(2))
    for tensors in (mine, theirs):
        for x, need in zip(tensors, wanted):
            x.requires_grad_(need)
    found, expected = compiled(function)(*mine), function(*theirs)
    torch.testing.assert_close(found, expected)
    for result in (found, expected):
        (result * result.detach().cos()).sum().backward()
    for one, other in zip(mine, theirs):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad)


def test_a_copy_that_backward_needs_stays(plans):
    function, *shapes = CASES["A"]
    a, b = (torch.randn(shape) for shape in shapes)
    compiled(function)(a, b.requires_grad_())  # whose gradient is a product with the copy of A
    assert not plans.made
    compiled(function)(a.requires_grad_(), b.detach())
    assert len(plans.made) == 1


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["A", "both", "views of heads", "fewer heads of keys",
                                  "what pointwise code makes"])
def test_inductor_compiles_what_the_pass_made(name, dynamic, plans):
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    torch._dynamo.reset()
    function, *shapes = CASES[name]
    tensors = [torch.randn(shape) / 16 for shape in shapes]
    if dynamic:
        for one in tensors:
            torch._dynamo.mark_dynamic(one, 0)
    run = torch.compile(function, options=inductor.options(min_flops=0))
    with torch.no_grad():
        found, (code,) = run_and_get_code(run, *tensors)
        torch.testing.assert_close(found, function(*tensors))
    assert code.count("torch.ops.tritongemm.matmul.default(") == 1
    assert "extern_kernels.bmm(" not in code and "_clone" not in code
    # Nothing is written but the result, and what pointwise code makes of A.
    body = code[code.index("def call("):code.index("runner = ")]
    assert body.count("empty_strided") == (name == "what pointwise code makes")
