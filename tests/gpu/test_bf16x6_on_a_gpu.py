"""float32 by bf16 parts in one launch on a real device, against float64."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from test_float32_on_a_gpu import aligned, assert_near, operands  # noqa: E402

from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.kernels import spec_named, violation  # noqa: E402
from tritongemm.ops.plan import bind_config  # noqa: E402
from tritongemm.problem import LAYOUTS, GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu
SMALL = KernelConfig("tiled_bf16x6", 32, 32, 32, num_warps=4, num_stages=3)
CONFIGS = (SMALL, replace(SMALL, block_m=16, num_warps=2, num_stages=4, split_k=3),
           replace(SMALL, block_m=64, block_n=64), replace(SMALL, block_m=16, block_n=64,
                                                           block_k=64))
#: What an element of C may be off, of (|A| |B|).
LIMIT = 1e-6


def problem_of(m: int, n: int, k: int, layout: str, batch: int = 1) -> GemmProblem:
    return GemmProblem.contiguous(m, n, k, batch=batch, dtype="fp32", layout=layout,
                                  precision="fp16x3")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("shape", "batch", "gap"), (
    ((64, 64, 64), 1, 0), ((300, 333, 417), 1, 0), ((100, 520, 1000), 1, 4),
    ((57, 129, 4100), 1, 3), ((130, 200, 300), 3, 0), ((1, 5, 3), 1, 0), ((16, 4096, 2000), 1, 0)))
def test_products_are_within_the_bound(shape, batch, gap, layout):
    problem = aligned(problem_of(*shape, layout, batch), gap)
    device, ran = current_device(), 0
    for config in (*CONFIGS, spec_named("tiled_bf16x6").default(problem, device)):
        if violation(problem, config, device) is None:
            a, b, out = operands(problem, gap)
            bind_config(problem, config, device)(a, b, out)
            assert_near(out, a, b, LIMIT)
            ran += 1
    assert ran


@pytest.mark.parametrize("uniform", (False, True))
@pytest.mark.parametrize("k", (32, 512, 4096))
def test_errors_are_no_larger_than_those_of_torch(k, uniform):
    problem = problem_of(128, 128, k, "nt")
    a, b, out = operands(problem)
    if uniform:
        a.uniform_(), b.uniform_()
    reference, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    ran = 0
    for config in CONFIGS:
        if violation(problem, config, current_device()) is None:
            bind_config(problem, config, current_device())(a, b, out)
            ours, torchs = (((x.double() - reference).abs() / size).max().item()
                            for x in (out, a @ b))
            # cuBLAS splits K here: its chains of additions are short, which uniform data shows.
            short = k <= 512 or uniform
            assert ours <= max(2.5 * torchs if short else torchs, 2.0**-23)
            ran += 1
    assert ran >= 2


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_planted_values_give_what_float32_gives(layout, config):
    rng, tried = random.Random(f"{layout} {config}"), 0
    for _ in range(40):
        problem = problem_of(rng.randint(1, 200), rng.randint(1, 200), rng.randint(1, 700), layout)
        if violation(problem, config, current_device()) is not None:
            continue
        a, b, out = operands(problem)
        for x in (a, b):
            for value in (float("inf"), float("nan"), 2.0**-140, 2.0**-115, 2.0**90):
                if rng.random() < 0.3:
                    x[rng.randrange(x.shape[0]), rng.randrange(x.shape[1])] = value
        if (a.double() @ b.double()).abs().nan_to_num(0, 0, 0).max() > 1e38:
            continue  # float32 itself overflows, where and when is a matter of the order
        bind_config(problem, config, current_device())(a, b, out)
        assert_near(out, a, b, LIMIT)
        tried += 1
    assert tried >= 10


def test_rows_beside_one_that_is_computed_again_keep_their_bits():
    problem = problem_of(64, 96, 512, "nn")
    a, b, out = operands(problem)
    run = bind_config(problem, SMALL, current_device())
    run(a, b, out)
    alone = out.clone()
    a[5, 7], a[40, 1] = 2.0**-130, float("inf")
    run(a, b, out)
    others = [row for row in range(64) if row not in (5, 40)]
    assert torch.equal(out[others], alone[others]) and not bool(out[40].isfinite().any())
    for _ in range(20):
        again = torch.empty_like(out)
        run(a, b, again)
        assert torch.equal(again.nan_to_num(0), out.nan_to_num(0))
