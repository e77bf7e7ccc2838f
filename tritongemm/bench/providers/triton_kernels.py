"""The plain product of OpenAI's triton_kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tritongemm.bench.providers.rival import Rival

if TYPE_CHECKING:
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem


class TritonKernels(Rival):
    """``triton_kernels.matmul.matmul`` without a bias, groups or scales."""

    name, package = "triton_kernels", "triton_kernels"
    install = "'git+https://github.com/triton-lang/triton#subdirectory=python/triton_kernels'"

    def binder(self, problem: GemmProblem) -> Callable[[OperandSet], Callable[[], object]]:
        """The same function for every set."""
        from triton_kernels.matmul import matmul

        def bind(operands: OperandSet) -> Callable[[], object]:
            a, b, out = operands.a, operands.b, operands.out
            return lambda: matmul(a, b, None, c=out)
        return bind
