"""Gated products, residuals and auxiliary outputs on a real device, against float64."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import tritongemm as tg  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.kernels import violation  # noqa: E402
from tritongemm.measure.contender import Contender  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.measure.proof import Proof  # noqa: E402
from tritongemm.measure.torch_baseline import product  # noqa: E402
from tritongemm.measure.torch_epilogue import ACTIVATIONS, torch_ways  # noqa: E402
from tritongemm.ops.plan import bind_config  # noqa: E402
from tritongemm.problem import EPILOGUES, LAYOUTS, GemmProblem, epilogue_of  # noqa: E402
from tritongemm.records.spaces import load_space  # noqa: E402

pytestmark = pytest.mark.gpu
SEED = 20261126
FURTHER = [name for name, kind in EPILOGUES.items() if not kind.plain]
SQUARE = GemmProblem.contiguous(512, 768, 512, layout="nt")
#: 1,000 rows: not a whole number of tiles; C of a gated product has 1,016 columns.
EDGE = GemmProblem.contiguous(1000, 2032, 264, layout="nt")
ODD = GemmProblem.contiguous(300, 332, 264, layout="nt")  # no TMA store


def ws(*block: int, **more: int) -> KernelConfig:
    return KernelConfig("warp_specialized", *block, 64, **{"num_warps": 8, "num_stages": 3, **more})


WAYS = {
    "tiled": (KernelConfig("tiled", 64, 64, 64, num_stages=3), ODD),
    "tiled-wide": (KernelConfig("tiled", 128, 128, 64, num_warps=8, num_stages=3), EDGE),
    "one-consumer": (ws(64, 128, num_warps=4), EDGE),
    "two-consumers": (ws(128, 128), EDGE),
    "subtiled": (ws(128, 256, epilogue_subtile=2), EDGE),
    "two-tall": (ws(256, 128, epilogue_subtile=2), SQUARE),
    "three-consumers": (ws(192, 128, num_warps=12), EDGE),
    "any-width": (ws(128, 144), EDGE),
    "any-width-subtiled": (ws(128, 224, epilogue_subtile=2), EDGE),
    "pingpong": (ws(64, 192, pingpong=1), EDGE),
    "pointer-store": (ws(128, 128), ODD),
    "sharing-m": (ws(128, 256, cluster_m=2, epilogue_subtile=2), EDGE),
    "sharing-n": (ws(128, 160, cluster_n=2), EDGE),
    "sharing-both": (ws(128, 128, cluster_m=2, cluster_n=2), EDGE),
    "turned": (ws(128, 144, swap_ab=2), EDGE),
    "cluster": (ws(128, 128, cluster_k=4, num_stages=4), EDGE),
}


def prove(problem: GemmProblem, config: KernelConfig, seed: int = 1) -> None:
    operands = draw(problem, sets=2, seed=seed, device="cuda")
    proof = Proof(problem, operands, seed)
    for one in operands:  # torch's own error widens the limits
        next(iter(torch_ways(problem, product).values()))(one)()
    proof.learn_from_torch()
    bound = bind_config(problem, config, current_device())
    operands.poison()
    for one in operands:
        bound(*one.arguments, **one.others)
    report = proof.check(f"{problem} {config}", everywhere=True)
    assert report.ok, report.message


#: One of each kind, which every way runs; one way runs them all.
FEW = ("gated_silu", "bias+gated_gelu+aux", "bias+gelu+residual", "bias+silu+aux")
CASES = [*((way, e) for way in WAYS for e in FEW),
         *(("subtiled", e) for e in FURTHER if e not in FEW)]


@pytest.mark.parametrize("way, epilogue", CASES)
def test_every_way_finishes_with_further_epilogues(way, epilogue):
    config, plain = WAYS[way]
    problem = GemmProblem.contiguous(plain.m, plain.n, plain.k, layout="nt", epilogue=epilogue)
    if reason := violation(problem, config, current_device()):
        pytest.skip(reason.message)
    prove(problem, config)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("epilogue", ("gated_silu", "bias+gated_gelu+aux", "bias+residual"))
def test_every_layout(layout, epilogue):
    for config in (ws(128, 256, epilogue_subtile=2), ws(128, 128, cluster_m=2),
                   KernelConfig("tiled", 64, 64, 64, num_stages=3)):
        problem = GemmProblem.contiguous(520, 2048, 256, layout=layout, epilogue=epilogue,
                                         dtype="fp16" if layout in ("nn", "tt") else "bf16")
        assert violation(problem, config, current_device()) is None
        prove(problem, config)


def test_random_problems_of_the_shipped_space():
    rng = random.Random(SEED)
    configs = [c for c in load_space("warp_specialized").configs()]
    done = 0
    for _ in range(4000):
        if done == 30:
            break
        n = 16 * rng.randint(1, 200)
        problem = GemmProblem.contiguous(rng.randint(1, 1500), n, 8 * rng.randint(1, 80),
                                         dtype=rng.choice(("bf16", "fp16")),
                                         layout=rng.choice(LAYOUTS), epilogue=rng.choice(FURTHER))
        config = rng.choice(configs)
        if violation(problem, config, current_device()) is None:
            prove(problem, config, done)
            done += 1
    assert done == 30


def test_results_are_the_same_bits_from_run_to_run():
    problem = GemmProblem.contiguous(1000, 2048, 1024, layout="nt",
                                     epilogue="bias+gated_silu+aux")
    one = draw(problem, device="cuda")[0]
    bound = bind_config(problem, ws(128, 256, epilogue_subtile=2), current_device())
    seen = []
    for _ in range(20):
        bound(*one.arguments, **one.others)
        seen.append((one.out.clone(), one.aux.clone()))
    for other in seen[1:]:
        assert all(torch.equal(x, y) for x, y in zip(seen[0], other))


# --- the functions -------------------------------------------------------------------------------

def reference(x, w, bias, activation, interleaved):
    total = F.linear(x, w, bias)
    gate, up = (total[..., ::2], total[..., 1::2]) if interleaved else total.chunk(2, -1)
    return ACTIVATIONS[activation](gate) * up


def compare(ours, theirs, *tensors) -> None:
    """Result and gradients: at most 1.5 times the error of torch's own way in bf16."""
    def run(f, cast):
        leaves = [None if t is None else cast(t.detach().clone()).requires_grad_()
                  for t in tensors]
        out = f(*leaves)
        out.backward(cast(torch.ones_like(out)))
        return [out.detach(), *(t.grad for t in leaves if t is not None)]

    found, torchs = run(ours, lambda t: t), run(theirs, lambda t: t)
    truth = run(theirs, torch.Tensor.double)
    for one, other, exact in zip(found, torchs, truth, strict=True):
        own = (other.double() - exact).square().mean().sqrt()
        assert (one.double() - exact).square().mean().sqrt() <= 1.5 * own + 1e-6


@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("activation, bias", [("silu", False), ("gelu", True)])
@pytest.mark.parametrize("extents", [(4, 200, 1024, 512), (1, 7, 250, 136), (1, 1, 1024, 512)],
                         ids=str)
def test_gated_linear(extents, activation, bias, interleaved):
    batch, m, n, k = extents
    x = torch.randn(batch, m, k, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(2 * n, k, device="cuda", dtype=torch.bfloat16) / k**0.5
    b = torch.randn(2 * n, device="cuda", dtype=torch.bfloat16) if bias else None
    compare(lambda *t: tg.gated_linear(*t, activation=activation, interleaved=interleaved,
                                       strict=True),
            lambda *t: reference(*t, activation, interleaved), x, w, b)


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("swapped", (False, True))
@pytest.mark.parametrize("extents", [(4, 200, 1024, 512), (1, 7, 250, 136), (1, 1000, 1024, 256)],
                         ids=str)
def test_gated_linear_of_two_weights(extents, swapped, bias):
    batch, m, n, k = extents
    x = torch.randn(batch, m, k, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) / k**0.5 for _ in range(2)]
    # Either may be the first in memory.
    w, up = sorted(weights, key=torch.Tensor.data_ptr, reverse=swapped)
    b = (torch.randn(2 * n, device="cuda", dtype=torch.bfloat16),) if bias else ()
    compare(lambda x, w, up, *b: tg.gated_linear(x, w, *b, up=up, strict=True),
            lambda x, w, up, *b: reference(x, torch.cat((w, up)), *(b or (None,)), "silu", False),
            x, w, up, *b)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16, torch.float32))
def test_two_weights_far_apart_are_read_in_place(dtype):
    x = torch.randn(100, 256, device="cuda", dtype=dtype)
    # More than 2^31 elements of float32 between them: 64-bit offsets.
    memory = torch.empty(2**31 + 2**22, device="cuda", dtype=dtype)
    w, up = (memory[at:at + 2**18].view(1024, 256).normal_() for at in (0, 2**31 + 2**21))
    for first, second in ((w, up), (up, w)):
        found = tg.gated_linear(x, first, up=second, strict=True)
        gate, other = (x.double() @ y.double().T for y in (first, second))
        exact = F.silu(gate) * other
        limit = {torch.float32: 1e-5, torch.float16: 1e-3}.get(dtype, 8e-3)
        assert (found.double() - exact).abs().max() <= limit * exact.abs().max()


def test_gated_layers_that_the_graph_pass_fuses_are_torchs():
    from tritongemm import inductor

    x = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)
    w, up = (torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16) / 32 for _ in range(2))
    down = torch.randn(1024, 4096, device="cuda", dtype=torch.bfloat16) / 64
    both = torch.cat((w, up))

    def llama(x):
        return F.linear(F.silu(F.linear(x, w)) * F.linear(x, up), down)

    def geglu(x):
        other, gate = F.linear(x, both).chunk(2, -1)
        return F.linear(other * F.gelu(gate), down)

    for layer in (llama, geglu):
        torch._dynamo.reset()
        run = torch.compile(layer, options=inductor.options(min_flops=0))
        with torch.no_grad(), tg.override():
            found, again = run(x), run(x)
        exact = layer(x)
        assert torch.equal(found, again)
        assert (found - exact).abs().max() <= 0.02 * exact.abs().max()


@pytest.mark.parametrize("activation", ("none", "gelu", "relu"))
@pytest.mark.parametrize("bias", (False, True))
def test_linear_with_a_residual(activation, bias):
    x = torch.randn(3, 171, 512, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(1024, 512, device="cuda", dtype=torch.bfloat16) / 20
    b = torch.randn(1024, device="cuda", dtype=torch.bfloat16) if bias else None
    residual = torch.randn(3, 171, 1024, device="cuda", dtype=torch.bfloat16)
    compare(lambda x, w, b, r: tg.linear(x, w, b, activation=activation, residual=r, strict=True),
            lambda x, w, b, r: ACTIVATIONS[activation](F.linear(x, w, b)) + r, x, w, b, residual)


@pytest.mark.parametrize("training", (False, True))
def test_under_torch_compile(training):
    x = torch.randn(300, 512, device="cuda", dtype=torch.bfloat16, requires_grad=training)
    w = torch.randn(2048, 512, device="cuda", dtype=torch.bfloat16, requires_grad=training)
    down = torch.randn(512, 1024, device="cuda", dtype=torch.bfloat16)

    def layer(x, w):
        return tg.linear(tg.gated_linear(x, w), down, residual=x)

    compiled = torch.compile(layer, fullgraph=True)
    torch.testing.assert_close(compiled(x, w), layer(x, w))
    if training:
        compiled(x, w).sum().backward()
        ours, w.grad = w.grad, None
        layer(x, w).sum().backward()
        torch.testing.assert_close(ours, w.grad, rtol=0.02, atol=0.02 * float(w.grad.abs().max()))


def test_under_a_cuda_graph_and_autocast():
    x = torch.randn(300, 512, device="cuda")
    w, residual = torch.randn(2048, 512, device="cuda"), torch.randn(300, 2048, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert tg.gated_linear(x, w, strict=True).dtype == torch.bfloat16
        assert tg.linear(x, w, residual=residual, strict=True).dtype == torch.bfloat16
    x, w = x.bfloat16(), w.bfloat16()
    expected = tg.gated_linear(x, w, strict=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tg.gated_linear(x, w, strict=True)
    out.zero_()
    graph.replay()
    assert torch.equal(out, expected)


def test_the_bench_measures_them_beside_torch():
    from tritongemm.measure.problem_bench import ProblemBench

    problem = GemmProblem.contiguous(512, 4096, 1024, layout="nt", epilogue="gated_silu")
    with ProblemBench(problem) as bench:
        assert bench.torch_backend.split()[-1] in ("unfused", "compiled")
        bound = bind_config(problem, ws(128, 256, epilogue_subtile=2), current_device())
        report = bench.prove(Contender("ours", lambda o: lambda: bound(*o.arguments, **o.others)))
        assert report.ok, report.message


def test_words_that_need_a_matrix_say_so():
    assert all(epilogue_of(e).d_is_matrix == e.endswith("residual") for e in FURTHER)
