"""torch.compile with max-autotune, Triton templates only: the rival that torch ships itself.

With cuBLAS among its choices it would often be torch against torch. The product is written as
``out=``, whose copy inductor fuses into the template's store, so that every provider writes the
same buffers; an epilogue is pointwise code behind the product, which inductor fuses likewise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from tritongemm.bench.providers import Prepared
from tritongemm.errors import UnsupportedError
from tritongemm.measure.contender import Contender
from tritongemm.measure.torch_epilogue import ACTIVATIONS, factor_of
from tritongemm.problem import epilogue_of

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem

_OPTIONS = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON",
            "triton.cudagraphs": False}


class Inductor:
    """One compiled function a problem, for exactly its sizes."""

    name = "inductor"

    def available(self, target: Target) -> str | None:
        if target.kind != "cuda":
            return "its Triton templates need a CUDA device"
        return None

    def build(self, problem: GemmProblem, target: Target) -> None:
        return None

    def prepare(self, problem: GemmProblem, target: Target) -> Prepared:
        # Compiled code of earlier problems is dropped: past a few sizes of one function dynamo
        # would stop compiling, or make the sizes dynamic.
        torch._dynamo.reset()
        run = torch.mm if problem.batch == 1 else torch.bmm

        epilogue = epilogue_of(problem.epilogue)
        if not epilogue.plain:
            raise UnsupportedError(f"not supported by {self.name}: the epilogue {epilogue} is not "
                                   "offered")
        activate = ACTIVATIONS[epilogue.activation]
        factor = factor_of(epilogue) if epilogue.multiplies else None

        def product(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
            run(a, b, out=out)

        def fused(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
                  d: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0) -> None:
            x = alpha * run(a, b)
            if d is not None:
                x = x + beta * d if factor is None else x * factor(d)
            out.copy_(activate(x))

        compiled = torch.compile(product if problem.epilogue == "none" else fused,
                                 fullgraph=True, dynamic=False, options=_OPTIONS)

        def bind(operands: OperandSet) -> Callable[[], None]:
            arguments = operands.arguments
            return lambda: compiled(*arguments)

        return Prepared(Contender(self.name, bind), {"kernel": "inductor triton template",
                                                     "selection_source": "max-autotune"})
