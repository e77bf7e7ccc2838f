"""cuBLASLt with every candidate of its heuristics timed, by nvmath-python: what cuBLAS can do.

The candidates are timed once a problem, on the first operand set; the others take its winner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tritongemm.bench.providers.rival import Rival

if TYPE_CHECKING:
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem

#: Timed executions of each candidate.
_ITERATIONS = 5
#: Candidates asked for: more than the heuristics offer, where nvmath's own limit is 8.
_CANDIDATES = 256


class CublasLtTuned(Rival):
    """nvmath-python 1.0: ``Matmul.autotune``; some seconds a problem."""

    name, package = "cublaslt-tuned", "nvmath"
    dtypes = ("bf16", "fp16", "fp32")
    source = "every candidate timed"

    def __init__(self) -> None:
        """The extra to install is that of torch's CUDA."""
        import torch

        self.install = f"'nvmath-python[cu{(torch.version.cuda or '12').partition('.')[0]}]'"

    def refusal(self, problem: GemmProblem) -> str | None:
        """Also TF32, which needs another compute type. Beside products of parts it is measured in
        float32, as torch is."""
        if problem.compute.input_precision != "ieee":
            return f"precision {problem.precision} is not offered"
        return super().refusal(problem)

    def binder(self, problem: GemmProblem) -> Callable[[OperandSet], Callable[[], object]]:
        """One plan an operand set, one winner a problem."""
        from nvmath.linalg.advanced import Matmul, MatmulOptions, MatmulPlanPreferences

        winner: list[Any] = []

        def bind(operands: OperandSet) -> Callable[[], object]:
            # inplace: the result is written over C, which beta = 0 leaves unread.
            product = Matmul(operands.a, operands.b, c=operands.out, beta=0.0,
                             options=MatmulOptions(inplace=True))
            if winner:
                product.plan(algorithms=winner)
            else:
                product.plan(preferences=MatmulPlanPreferences(limit=_CANDIDATES))
                product.autotune(iterations=_ITERATIONS, prune=1)
                winner.append(product.algorithms[0])
            algorithm = product.algorithms[0]
            return lambda: product.execute(algorithm=algorithm)
        return bind
