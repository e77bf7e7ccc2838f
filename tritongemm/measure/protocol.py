"""The one entry point of measuring: :func:`measure`. Sweep, bench and ladder all use it.

A caller with many candidates of one problem opens a :class:`ProblemBench` itself, so that operands
and references are made once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tritongemm.errors import UsageError
from tritongemm.measure.contender import TORCH, Contender, Measurement, failure_kind
from tritongemm.measure.operands import OperandSet, draw
from tritongemm.measure.power import PowerBlocks
from tritongemm.measure.problem_bench import ProblemBench
from tritongemm.measure.rounds import Rounds
from tritongemm.problem import GemmProblem
from tritongemm.records.control import CONTROL

__all__ = ["CONTROL", "TORCH", "Contender", "Measurement", "OperandSet", "PowerBlocks",
           "ProblemBench", "Rounds", "draw", "failure_kind", "measure"]


def measure(problem: GemmProblem, contenders: Sequence[Contender], *, baseline: str = TORCH,
            seed: int = 0, budget_s: float | None = None,
            device: torch.device | str | int | None = None, coarse: bool = False,
            control: bool = True, power: str = "auto",
            blocks: PowerBlocks | None = None) -> dict[str, Measurement]:
    """Verifies and times ``contenders`` and torch on new random operands of ``problem``.

    A contender that raises or whose result is wrong has a status and a reason but no time. The
    others continue.

    Args:
        contenders: any names but ``torch`` and ``torch-control``.
        baseline: whose time is the numerator of the ratios.
        seed: of operands, samples and orders.
        budget_s: device time for the rounds; 3 s by default.
        device: by default the current CUDA device, or the CPU without CUDA.
        coarse: the sweep's fast mode: fewer proofs and replays, no pairing, no ratios.
        control: whether torch is measured a second time as ``torch-control``.
        power, blocks: ``auto``, ``always`` or ``never``: alternating blocks for large problems,
            and their length; see :meth:`ProblemBench.compare`.

    Returns:
        Measurements by name: ``torch``, ``torch-control`` (not when coarse), the contenders.

    Raises:
        UsageError, ProblemError: arguments that cannot be measured.
        UnsupportedError: torch itself cannot compute the problem.
        DeviceError: no such device, or one that a contender has broken.
    """
    names = [c.name for c in contenders]
    if coarse and (len(set(names)) < len(names) or {TORCH, CONTROL} & set(names)):
        raise UsageError(f"contenders must have names of their own other than {TORCH} and "
                         f"{CONTROL}: {', '.join(names)}")
    try:
        bench = ProblemBench(problem, device, seed)
    except (torch.OutOfMemoryError, MemoryError) as error:
        failed = Measurement.failed(error)
        return {name: failed for name in (TORCH, *names)}
    with bench:
        if coarse:
            return {TORCH: bench.torch_coarse(), **{c.name: bench.coarse(c) for c in contenders}}
        rounds = Rounds() if budget_s is None else replace(Rounds(), budget_s=budget_s)
        return bench.compare(contenders, baseline=baseline, rounds=rounds, control=control,
                             power=power, blocks=blocks)
