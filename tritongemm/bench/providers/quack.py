"""QuACK's product in the CuTe DSL, which autotunes each shape at its first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tritongemm.bench.providers.rival import Rival

if TYPE_CHECKING:
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem


class Quack(Rival):
    """``quack.gemm_interface.gemm``."""

    name, package, install = "quack", "quack", "quack-kernels"
    source = "autotuned"

    def binder(self, problem: GemmProblem) -> Callable[[OperandSet], Callable[[], object]]:
        """The same function for every set."""
        from quack.gemm_interface import gemm

        def bind(operands: OperandSet) -> Callable[[], object]:
            a, b, out = operands.a, operands.b, operands.out
            return lambda: gemm(a, b, out=out)
        return bind
