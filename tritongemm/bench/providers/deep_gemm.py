"""DeepGEMM's dense bf16 kernel; it compiles with NVCC at first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tritongemm.bench.providers.rival import Rival

if TYPE_CHECKING:
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem


class DeepGemm(Rival):
    """``deep_gemm.bf16_gemm_nt`` and its kin; rows must be multiples of 16 bytes."""

    name, package, install = "deep_gemm", "deep_gemm", "sgl-deep-gemm"
    dtypes = ("bf16",)

    def refusal(self, problem: GemmProblem) -> str | None:
        """Also unaligned operands, which its tensor maps cannot describe."""
        if min(problem.align_a, problem.align_b, problem.align_c) < 16:
            return "it needs bases and rows of multiples of 16 bytes"
        return super().refusal(problem)

    def binder(self, problem: GemmProblem) -> Callable[[OperandSet], Callable[[], object]]:
        """The function of the problem's layout, which takes operands as they are stored."""
        import deep_gemm

        run = getattr(deep_gemm, f"bf16_gemm_{problem.layout}")
        first, second = (letter == "t" for letter in problem.layout)

        def bind(operands: OperandSet) -> Callable[[], object]:
            a = operands.a.mT if first else operands.a
            b = operands.b.mT if second else operands.b
            out = operands.out
            return lambda: run(a, b, out)
        return bind
