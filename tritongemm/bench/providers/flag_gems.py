"""FlagGems' product, which autotunes each shape at its first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tritongemm.bench.providers.rival import Rival

if TYPE_CHECKING:
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem


class FlagGems(Rival):
    """FlagGems 5.0: its Hopper back end's ``mm_out``."""

    name, package, install = "flag_gems", "flag_gems", "flag_gems"
    source = "autotuned"

    def binder(self, problem: GemmProblem) -> Callable[[OperandSet], Callable[[], object]]:
        """The same function for every set."""
        from flag_gems.runtime.backend._nvidia.hopper.ops.mm import mm_out

        def bind(operands: OperandSet) -> Callable[[], object]:
            a, b, out = operands.a, operands.b, operands.out
            return lambda: mm_out(a, b, out=out)
        return bind
