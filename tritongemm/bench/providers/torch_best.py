"""torch itself, the baseline: preallocated output and the faster of its BLAS libraries.

The measuring module builds the baseline (it must choose the library, and needs a second copy as
the control), so there is no contender to hand over: this class only stands for the name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tritongemm.bench.providers import Prepared
from tritongemm.measure import torch_baseline
from tritongemm.measure.contender import Contender
from tritongemm.records.control import BASELINE

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.problem import GemmProblem


class TorchBest:
    """``torch.mm`` or ``torch.bmm`` with ``out=``, and an epilogue after it."""

    name = BASELINE

    def available(self, target: Target) -> str | None:
        return None

    def build(self, problem: GemmProblem, target: Target) -> None:
        return None

    def prepare(self, problem: GemmProblem, target: Target) -> Prepared:
        return Prepared(Contender(self.name, torch_baseline.any_way(problem)))
