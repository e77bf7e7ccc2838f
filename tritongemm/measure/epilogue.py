"""Epilogues in torch: the float64 reference, and torch's own implementations of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from tritongemm import activations
from tritongemm.problem import GemmProblem, epilogue_of

if TYPE_CHECKING:
    from tritongemm.measure.operands import OperandSet

Call = Callable[[], object]
#: An implementation: given an operand set, returns the call that writes ``out``.
Bind = Callable[["OperandSet"], Call]

#: Activation -> torch's function, of any dtype.
ACTIVATIONS = {name: one.functional() for name, one in activations.BY_NAME.items()}
#: The same in place; None for the identity.
_IN_PLACE = {name: one.in_place() for name, one in activations.BY_NAME.items() if one.aten}


def linear_part(product: torch.Tensor, operands: OperandSet,
                rows: torch.Tensor | None = None) -> torch.Tensor:
    """Computes ``alpha * product + beta * D`` for ``rows``, in place in the float64 ``product``."""
    product.mul_(operands.alpha)
    d = operands.d
    if d is not None:
        # A bias has no rows to choose from.
        part = d if rows is None or d.dim() == 1 else d[..., rows, :]
        product.add_(part, alpha=operands.beta)
    return product


def torch_ways(problem: GemmProblem, plain: Bind) -> dict[str, Bind]:
    """torch's implementations of an epilogue by name; without an epilogue only ``plain``.

    ``unfused`` writes the product, then applies the epilogue in separate passes. ``addmm`` fuses
    the addition (as ``F.linear`` does). ``addmm_activation`` also fuses the activation in cuBLASLt,
    whose gelu is the tanh approximation. Each writes into ``out``.
    """
    epilogue = epilogue_of(problem.epilogue)
    if problem.epilogue == "none":
        return {"": plain}
    ways = {"unfused": partial(_unfused, plain, epilogue.activation)}
    if epilogue.scales and problem.dtype_out == problem.dtype_a:
        ways["addmm"] = partial(_addmm, epilogue.activation)
        if epilogue.addend == "bias" and problem.batch == 1 \
                and epilogue.activation in ("relu", "gelu_tanh"):
            ways["addmm_activation"] = partial(_addmm_activation, epilogue.activation)
    return ways


def _unfused(plain: Bind, activation: str, operands: OperandSet) -> Call:
    multiply, activate = plain(operands), _IN_PLACE.get(activation)
    out, d, alpha, beta = operands.out, operands.d, operands.alpha, operands.beta

    def run() -> None:
        multiply()
        if alpha != 1.0:
            out.mul_(alpha)
        if d is not None:
            out.add_(d, alpha=beta)
        if activate is not None:
            activate(out)
    return run


def _addmm(activation: str, operands: OperandSet) -> Call:
    a, b, out, alpha = operands.a, operands.b, operands.out, operands.alpha
    # With beta 0 the first operand is not read.
    d, beta = (out, 0.0) if operands.d is None else (operands.d, operands.beta)
    run = torch.addmm if a.dim() == 2 else torch.baddbmm
    activate = _IN_PLACE.get(activation)
    if activate is None:
        return lambda: run(d, a, b, beta=beta, alpha=alpha, out=out)
    return lambda: activate(run(d, a, b, beta=beta, alpha=alpha, out=out))


def _addmm_activation(activation: str, operands: OperandSet) -> Call:
    a, b, out, d = operands.a, operands.b, operands.out, operands.d
    alpha, beta, gelu = operands.alpha, operands.beta, activation == "gelu_tanh"
    return lambda: torch._addmm_activation(d, a, b, beta=beta, alpha=alpha, use_gelu=gelu, out=out)
