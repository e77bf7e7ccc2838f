"""Fused epilogues of every kernel on a real device, against float64."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.kernels import SPECS, violation  # noqa: E402
from tritongemm.measure.numerics import check, reference  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.measure.torch_baseline import TorchBaseline, fp32_precision  # noqa: E402
from tritongemm.measure.torch_epilogue import (  # noqa: E402
    ACTIVATIONS,
    factor_of,
    linear_part,
)
from tritongemm.ops.plan import bind_config  # noqa: E402
from tritongemm.problem import PLAIN_EPILOGUES, GemmProblem, epilogue_of  # noqa: E402
from tritongemm.records.spaces import load_space  # noqa: E402

pytestmark = pytest.mark.gpu
SEED = 20261122


def ws(*block: int, **more: int) -> KernelConfig:
    return KernelConfig("warp_specialized", *block, **{"num_warps": 8, "num_stages": 4, **more})


SQUARE = GemmProblem.contiguous(512, 768, 512, layout="nt")
ODD = GemmProblem.contiguous(300, 332, 264, layout="nt")  # rows of C are no multiple of 16 bytes
ODD_FP32 = GemmProblem.contiguous(300, 333, 264, dtype="fp32", layout="nt")
THIN = GemmProblem.contiguous(16, 1000, 1024, layout="nt")
FEW = GemmProblem.contiguous(5, 1000, 1024, layout="nt")
TALL = GemmProblem.contiguous(1000, 2, 1024, layout="nt")
#: One of each way in which a kernel holds, finishes and stores a tile.
WAYS = {
    "tiled": (KernelConfig("tiled", 64, 64, 64, num_stages=3), ODD),
    "tiled-split": (KernelConfig("tiled", 64, 64, 64, num_stages=3, split_k=4), ODD),
    "simt": (KernelConfig("simt", 64, 128, 32, num_stages=2, thread_m=8, thread_n=8), ODD_FP32),
    "simt-across": (KernelConfig("simt", 32, 32, 32, num_warps=2, num_stages=3, thread_m=4,
                                 thread_n=4), replace(ODD_FP32, layout="nn")),
    "simt-split": (KernelConfig("simt", 64, 64, 16, num_warps=2, num_stages=3, split_k=4,
                                thread_m=8, thread_n=8), ODD_FP32),
    "tma-subtiled": (KernelConfig("persistent_tma", 128, 256, 64, num_warps=8, num_stages=2,
                                  epilogue_subtile=2), SQUARE),
    "tma-pointer-store": (KernelConfig("persistent_tma", 64, 64, 64, num_stages=3), ODD),
    "one-consumer": (ws(64, 128, 64, num_warps=4), SQUARE),
    "two-consumers": (ws(128, 128, 64), SQUARE),
    "two-tall": (ws(256, 128, 64, num_stages=3, epilogue_subtile=2), SQUARE),
    "three-consumers": (ws(192, 128, 64, num_warps=12), SQUARE),
    "subtiled-by-two": (ws(128, 256, 64, epilogue_subtile=2), SQUARE),
    "subtiled-by-four": (ws(128, 256, 64, epilogue_subtile=4), SQUARE),
    "any-width": (ws(128, 144, 64), SQUARE),
    "any-width-pointer-store": (ws(128, 80, 64), ODD),
    "cluster": (ws(128, 128, 64, cluster_k=4), SQUARE),
    "cluster-pointer-store": (ws(64, 64, 64, num_warps=4, cluster_k=2), ODD),
    "cluster-swapped": (ws(64, 16, 64, num_warps=4, cluster_k=2, swap_ab=1), THIN),
    "sharing": (ws(128, 256, 64, cluster_m=2, epilogue_subtile=2), SQUARE),
    "sharing-pointer-store": (ws(128, 80, 64, cluster_m=2, cluster_n=2), ODD),
    "turned": (ws(128, 144, 64, swap_ab=2), SQUARE),
    "turned-pointer-store": (ws(128, 80, 64, swap_ab=2), ODD),
    "turned-cluster": (ws(64, 64, 64, num_warps=4, cluster_k=2, swap_ab=2), SQUARE),
    "two-accumulators": (ws(256, 144, 64, num_stages=3, epilogue_subtile=2), SQUARE),
    "two-accumulators-pointer-store": (ws(256, 136, 64, num_stages=3), ODD),
    "two-accumulators-turned": (ws(256, 112, 64, num_stages=3, swap_ab=2), SQUARE),
    "two-accumulators-one-group": (ws(128, 104, 64, num_warps=4), SQUARE),
    "pingpong-any-width": (ws(128, 152, 64, pingpong=1), SQUARE),
    "pingpong": (ws(64, 256, 64, pingpong=1), SQUARE),
    "pingpong-tall": (ws(128, 128, 64, pingpong=1), SQUARE),
    "pointer-store": (ws(128, 128, 64), ODD),
    "swapped": (ws(64, 16, 64, num_warps=4, swap_ab=1), THIN),
    "swapped-split": (ws(64, 16, 64, num_warps=4, swap_ab=1, split_k=4), THIN),
    "split": (ws(64, 128, 64, num_warps=4, split_k=2), SQUARE),
    "stream": (KernelConfig("gemv", 8, 16, 256, num_stages=1), FEW),
    "stream-pipelined": (KernelConfig("gemv", 8, 8, 256, num_stages=3), FEW),
    "stream-split": (KernelConfig("gemv", 8, 16, 256, num_stages=1, split_k=4), FEW),
    "stream-swapped": (KernelConfig("gemv", 2, 16, 256, num_stages=2, swap_ab=1), TALL),
    "skinny": (KernelConfig("skinny", 8, 16, 256, num_stages=3), FEW),
    "skinny-wide": (KernelConfig("skinny", 16, 64, 256, num_warps=8, num_stages=3), THIN),
    "skinny-split": (KernelConfig("skinny", 8, 16, 256, num_stages=3, split_k=4), FEW),
    "skinny-swapped": (KernelConfig("skinny", 8, 16, 256, num_stages=3, swap_ab=1), TALL),
    "skinny-swapped-split": (KernelConfig("skinny", 32, 16, 256, num_stages=2, split_k=2,
                                          swap_ab=1), replace(TALL, n=20)),
    "padded": (ws(128, 128, 64, pad_operands=1), replace(SQUARE, align_a=4, align_b=2)),
}


def prove(problem: GemmProblem, config: KernelConfig, one, d=None, alpha: float = 1.0,
          beta: float = 1.0) -> None:
    """Runs ``config`` into a poisoned output and checks it."""
    kind = epilogue_of(problem.epilogue)
    one.out.fill_(math.nan)
    with fp32_precision(problem.precision):
        bind_config(problem, config, current_device())(one.a, one.b, one.out, d, alpha, beta)
    truth, added = reference(one.a, one.b), None
    size = alpha if kind.scales else 1.0
    if kind.scales:
        truth = alpha * truth
    if kind.multiplies:  # and each error with it
        factor = factor_of(kind)(d.double())
        truth, size = truth * factor, size * float(factor.abs().max())
    elif kind.reads_d:
        added = beta * d.double()
        truth = truth + added
    own = None
    if kind.activation != "none" and one.out.dtype == torch.float32:
        # An activation's own rounding is as large as float32's, which is all that the limit knows
        # of: what torch's makes of the sum, were that rounded but once. Its error is not less.
        own = ACTIVATIONS[kind.activation](truth.float())
    report = check(one.out, one.a, one.b, ACTIVATIONS[kind.activation](truth), own, addend=added,
                   alpha=size, precision=problem.precision)
    assert report.ok, f"{problem} {config} {alpha} {beta}: {report.message}"


def runs(problem: GemmProblem, config: KernelConfig) -> bool:
    return violation(problem, config, current_device()) is None


@pytest.mark.parametrize("epilogue", PLAIN_EPILOGUES)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_finishes_with_every_epilogue(way, epilogue):
    config, plain = WAYS[way]
    problem = replace(plain, epilogue=epilogue)
    if not runs(problem, config):
        pytest.skip(violation(problem, config, current_device()).message)
    one = draw(problem, seed=1, device="cuda")[0]
    prove(problem, config, one, one.d, -0.75, 1.5)
    if epilogue_of(epilogue).scales:
        prove(problem, config, one, one.d, 1.0, -2.0)


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_takes_its_own_d(way):
    config, plain = WAYS[way]
    for epilogue in ("bias+gelu", "add+relu", "gain", "dgelu"):
        problem = replace(plain, batch=3, epilogue=epilogue)
        if not runs(problem, config):
            pytest.skip(violation(problem, config, current_device()).message)
        one = draw(problem, seed=2, device="cuda")[0]
        prove(problem, config, one, one.d, 0.5, 1.0)


def strided(problem: GemmProblem) -> dict[str, torch.Tensor]:
    """Matrices D of every kind of strides, NaN wherever they do not lie."""
    m, n = problem.m, problem.n
    dtype = getattr(torch, {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[
        problem.dtype_out])
    whole = torch.full((2 * max(m, n) + 9, 2 * max(m, n) + 9), math.nan, device="cuda", dtype=dtype)
    found = {"gapped": whole[3:3 + m, 5:5 + n], "stepped": whole[1:1 + 2 * m:2, 2:2 + 2 * n:2],
             "transposed": whole[3:3 + n, 1:1 + m].t(), "aligned": whole[8:8 + m, 8:8 + n]}
    views = {}
    for name, view in found.items():
        own = whole.clone()
        views[name] = own.as_strided(view.shape, view.stride(), view.storage_offset())
        views[name].copy_(torch.randn(m, n))
    row, column = views["aligned"][:1], views["aligned"][:, :1]
    return {**views, "one-row": row.expand(m, n), "one-column": column.expand(m, n),
            "one-number": row[:, :1].expand(m, n)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("epilogue", ("add+silu", "mul"))
def test_any_strides_of_d_are_read_in_place_and_nothing_beside_it(way, epilogue):
    config, plain = WAYS[way]
    problem = replace(plain, epilogue=epilogue)
    if not runs(problem, config):
        pytest.skip(violation(problem, config, current_device()).message)
    one = draw(problem, seed=3, device="cuda")[0]
    for d in strided(problem).values():
        prove(problem, config, one, d, 1.0, 1.0)


@pytest.mark.parametrize("way", WAYS)
def test_d_may_be_the_memory_of_c(way):
    config, plain = WAYS[way]
    problem = replace(plain, epilogue="add")
    if not runs(problem, config):
        pytest.skip(violation(problem, config, current_device()).message)
    one = draw(problem, seed=4, device="cuda")[0]
    bound = bind_config(problem, config, current_device())
    bound(one.a, one.b, one.out, one.d, 1.0, 2.0)
    before = one.out.clone()
    one.out.copy_(one.d)
    bound(one.a, one.b, one.out, one.out, 1.0, 2.0)
    assert torch.equal(one.out, before)


@pytest.mark.parametrize("way", ["tiled", "tma-subtiled", "two-consumers", "swapped-split"])
def test_d_is_not_read_where_there_is_none(way):
    config, plain = WAYS[way]
    problem = replace(plain, epilogue="scale+gelu")
    if not runs(problem, config):
        pytest.skip(violation(problem, config, current_device()).message)
    one = draw(problem, seed=5, device="cuda")[0]
    prove(problem, config, one, torch.full_like(one.out, math.nan), 0.25, math.nan)


@pytest.mark.parametrize("kernel", SPECS)
def test_random_configs_of_the_space_finish_right(kernel):
    rng, tried = random.Random(f"{SEED} {kernel}"), 0
    configs = list(load_space(kernel).configs())
    for _ in range(600):
        dtype = rng.choice(("bf16", "fp16", "fp32"))
        m, n, k = (rng.choice((1, 8)) * rng.randint(1, 160) for _ in range(3))
        layouts = ("nn", "nt", "tn", "tt")
        if most := {"gemv": 8, "skinny": 32}.get(kernel):
            m, n = rng.choice(((rng.randint(1, most), n), (m, rng.randint(1, most))))
        if kernel == "skinny":
            k, layouts = -(-k // 8) * 8, ("nt",)
        problem = GemmProblem.contiguous(
            m, n, k, batch=rng.choice((1, 1, 2)), dtype=dtype,
            dtype_out=rng.choice((dtype, "fp32")), layout=rng.choice(layouts),
            precision="tf32" if dtype == "fp32" and rng.random() < 0.5 else "ieee",
            epilogue=rng.choice(tuple(PLAIN_EPILOGUES)))
        config = rng.choice(configs)
        if not runs(problem, config):
            continue
        one = draw(problem, seed=tried, device="cuda")[0]
        prove(problem, config, one, one.d, rng.uniform(-2, 2), rng.uniform(-2, 2))
        tried += 1
        if tried == 12:
            break
    if not tried and SPECS[kernel].supports(SQUARE, current_device()) is not None:
        pytest.skip(f"{kernel} does not run here")
    assert tried


def test_alpha_and_beta_are_of_the_call_not_of_the_plan():
    problem = replace(SQUARE, epilogue="add")
    config = next(c for c, p in WAYS.values() if runs(replace(p, epilogue="add"), c)
                  and p is SQUARE)
    one = draw(problem, seed=6, device="cuda")[0]
    for alpha, beta in ((1.0, 0.5), (0.0, 1.0), (-3.0, 1e-3), (1.0, 0.5)):
        prove(problem, config, one, one.d, alpha, beta)


def test_a_captured_graph_replays_the_epilogue():
    problem = replace(ODD, epilogue="bias+gelu")
    config, _ = WAYS["tiled-split"]
    one = draw(problem, seed=7, device="cuda")[0]
    bound = bind_config(problem, config, current_device())
    bound(one.a, one.b, one.out, one.d, 1.0, 1.0)
    expected = one.out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound(one.a, one.b, one.out, one.d, 1.0, 1.0)
    one.out.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(one.out, expected)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("epilogue", ["relu", "scale+silu", "bias", "bias+relu", "bias+gelu",
                                      "bias+gelu_tanh", "add+gelu", "gain", "mul", "drelu",
                                      "dgelu", "dgelu_tanh", "dsilu"])
def test_every_way_that_torch_is_measured_by_is_right(epilogue, dtype):
    problem = GemmProblem.contiguous(256, 384, 512, dtype=dtype, layout="nt", epilogue=epilogue)
    baseline = TorchBaseline(problem, torch.device("cuda"))
    for back_end in baseline.back_ends:
        operands = draw(problem, device="cuda")
        contender = baseline.contender(back_end)
        with contender.context():
            contender.bind(operands[0])()
        one = operands[0]
        truth = linear_part(reference(one.a, one.b), one, epilogue=epilogue_of(epilogue))
        truth = ACTIVATIONS[epilogue_of(epilogue).activation](truth)
        # Unfused, the sum is rounded before the activation: twice the error is torch's own.
        error = (one.out.double() - truth).abs().max() / truth.abs().max()
        assert error < (2.0**-7 if dtype == "bf16" else 1e-5), back_end
