"""Proofs of a config on a real device: what several files of tests ask of it."""

from __future__ import annotations

import torch

from tritongemm.config import KernelConfig
from tritongemm.device import current_device
from tritongemm.measure.numerics import check, poison, reference
from tritongemm.measure.operands import draw
from tritongemm.ops.plan import bind_config
from tritongemm.problem import GemmProblem


def hopper(block_m: int, block_n: int, **more: int) -> KernelConfig:
    return KernelConfig("warp_specialized", block_m, block_n, 64, num_warps=block_m // 16, **more)


def prove(problem: GemmProblem, config, seed: int = 0) -> None:
    """Runs ``config`` on fresh operands into a poisoned output and checks it."""
    operands = draw(problem, sets=1, seed=seed, device=torch.device("cuda"))[0]
    poison(operands.out)
    bind_config(problem, config, current_device())(operands.a, operands.b, operands.out)
    report = check(operands.out, operands.a, operands.b, reference(operands.a, operands.b),
                   precision=problem.precision)
    assert report.ok, f"{problem} {config}: {report.message}"


def prove_repeats(problem: GemmProblem, config, times: int) -> None:
    """Runs ``config`` again and again on the same operands: the same bits each time."""
    one = draw(problem, sets=1, seed=0, device=torch.device("cuda"))[0]
    launch = bind_config(problem, config, current_device())
    launch(one.a, one.b, one.out)
    first = one.out.clone()
    for _ in range(times):
        poison(one.out)
        launch(one.a, one.b, one.out)
        assert torch.equal(first, one.out)
