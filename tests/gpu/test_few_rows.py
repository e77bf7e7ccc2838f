"""The kernels that stream the weights past few rows or columns, on a real device."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from proving import hopper, prove, prove_repeats  # noqa: E402

from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import current_device  # noqa: E402
from tritongemm.kernels import SPECS, violation  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.ops.plan import bind_config  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("kernel", "layout"), (("gemv", "nt"), ("gemv", "nn"), ("skinny", "nt")))
def test_a_stream_of_more_than_two_to_the_31_elements_is_right(kernel, layout):
    problem = GemmProblem.contiguous(2, 66560, 32832, layout=layout)
    prove(problem, SPECS[kernel].default(problem, current_device()))


@pytest.mark.parametrize("split", (1, 4))
@pytest.mark.parametrize("stages", (1, 2, 3))
def test_a_stream_repeats_bit_for_bit(split, stages):
    problem = GemmProblem.contiguous(3, 4096, 4096, layout="nt")
    prove_repeats(problem, KernelConfig("gemv", 4, 16, 256, num_stages=stages, split_k=split), 20)


def skinny(rows: int, block_n: int = 16, block_k: int = 256, **more: int) -> KernelConfig:
    """The config of ``rows``; fewer stages where more do not fit the registers."""
    block_m = next(block for block in (8, 16, 32) if rows <= block)
    return KernelConfig("skinny", block_m, block_n, block_k,
                        **{"num_stages": 2 if block_m == 32 else 3, **more})


#: What is changed in a config, and the batch.
SKINNY = {
    "plain": ({}, 1), "batched": ({}, 3), "split": ({"split_k": 2}, 1),
    "swapped": ({"swap_ab": 1}, 1), "swapped-split-batched": ({"swap_ab": 1, "split_k": 3}, 3),
    "wide": ({"block_n": 64, "num_warps": 8, "num_stages": 2}, 1),
    "one-warp": ({"block_k": 32, "num_warps": 1, "num_stages": 8}, 1),
    "sixteen-warps": ({"block_k": 512, "num_warps": 16, "num_stages": 1}, 1),
}


@pytest.mark.parametrize("way", SKINNY)
@pytest.mark.parametrize("rows", (1, 5, 8, 9, 16, 17, 32))
def test_few_rows_are_right_at_every_tail(rows, way):
    (changes, batch), proved = SKINNY[way], 0
    config = skinny(rows, **changes)
    for columns in (1, 5, 15, 17, 1000):
        m, n = (columns, rows) if config.swap_ab else (rows, columns)
        for k in (8, 24, 520, 1032, 2048):
            dtype = ("bf16", "fp16")[(columns + k // 8) % 2]
            problem = GemmProblem.contiguous(m, n, k, batch=batch, dtype=dtype, layout="nt")
            broken = violation(problem, config, current_device())
            if broken is None:
                prove(problem, config, seed=rows + columns + k)
                proved += 1
            else:
                assert (broken.rule, k <= 24) == ("split_k", True), broken
    assert proved >= 15


@pytest.mark.parametrize("k", (4096, 4104))
@pytest.mark.parametrize("way", SKINNY)
def test_few_rows_repeat_bit_for_bit(way, k):
    changes, batch = SKINNY[way]
    for rows in (5, 16, 32):
        m, n = (3000, rows) if changes.get("swap_ab") else (rows, 3000)
        prove_repeats(GemmProblem.contiguous(m, n, k, batch=batch, layout="nt"),
                      skinny(rows, **changes), 100)


#: Products that start before the kernel that writes their weights has ended.
CHAINED = (skinny(8), skinny(8, 32, 512, num_stages=1, split_k=2),
           KernelConfig("gemv", 8, 8, 256, num_stages=2),
           KernelConfig("gemv", 8, 8, 1024, num_stages=3, split_k=2),
           hopper(64, 64), hopper(64, 16, num_stages=8, cluster_k=2, swap_ab=1))


@pytest.mark.parametrize("release", (0, 1))
@pytest.mark.parametrize("config", CHAINED, ids=str)
def test_weights_that_the_kernel_before_has_just_written_are_what_is_read(config, release):
    m, n, k, rounds, device = 8, 4096, 2048, 20, current_device()
    making = GemmProblem.contiguous(n, k, 64, layout="nt")
    problem = GemmProblem.contiguous(m, n, k, layout="nt")
    config = replace(config, dependent_launch=release)
    write = bind_config(making, SPECS["tiled"].default(making, device), device)
    read = bind_config(problem, config, device)
    drawn = [draw(making, sets=1, seed=seed, device=torch.device("cuda"))[0]
             for seed in range(rounds)]
    weights = torch.empty(n, k, dtype=torch.bfloat16, device="cuda")
    rows = draw(problem, sets=1, seed=0, device=torch.device("cuda"))[0].a
    found = torch.full((2, rounds, m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
    for alone, results in enumerate(found):
        for one, result in zip(drawn, results, strict=True):
            write(one.a, one.b, weights)
            if alone:
                torch.cuda.synchronize()
            read(rows, weights.t(), result)
            if alone:
                torch.cuda.synchronize()
    assert torch.equal(*found) and not torch.equal(found[0, 0], found[0, 1])
