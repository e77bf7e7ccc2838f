"""Epilogues in torch: the float64 reference, and torch's own implementations of each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from tritongemm import activations
from tritongemm.problem import Epilogue, GemmProblem, epilogue_of

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
                rows: torch.Tensor | None = None, epilogue: Epilogue | None = None,
                ) -> torch.Tensor:
    """Computes ``alpha * product + beta * D`` for ``rows``, in place in the float64 ``product``.
    Of an ``epilogue`` with a factor, the product times that; with a residual, its columns
    ``alpha * product + bias``, then those of ``beta * D``."""
    product.mul_(operands.alpha)
    d = operands.d
    if d is not None:
        # A bias has no rows to choose from.
        part = d if rows is None or d.dim() == 1 else d[..., rows, :]
        if epilogue is not None and epilogue.multiplies:
            return product.mul_(factor_of(epilogue)(part.double()))
        if epilogue is not None and epilogue.residual:
            if operands.bias is not None:
                product.add_(operands.bias)
            return torch.cat((product, part.double() * operands.beta), -1)
        product.add_(part, alpha=operands.beta)
    return product


def factor_of(epilogue: Epilogue) -> Callable[[torch.Tensor], torch.Tensor]:
    """What of D an ``epilogue`` multiplies by: D itself, or an activation's derivative."""
    one = activations.BY_NAME[epilogue.gradient_of]
    return one.functional() if epilogue.gradient_of == "none" else one.derivative


def finish_of(problem: GemmProblem) -> Callable[[torch.Tensor], torch.Tensor]:
    """What makes the result of what :func:`linear_part` gives."""
    epilogue = epilogue_of(problem.epilogue)
    activate = ACTIVATIONS[epilogue.activation]
    if epilogue.gated:
        return lambda x: activate(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1]
    if epilogue.residual:
        return lambda x: activate(x.chunk(2, -1)[0]) + x.chunk(2, -1)[1]
    return activate


def torch_ways(problem: GemmProblem, plain: Bind, compiles: bool = False) -> dict[str, Bind]:
    """torch's implementations of an epilogue by name; without an epilogue only ``plain``.

    ``unfused`` writes the product, then applies the epilogue in separate passes. ``addmm`` fuses
    the addition (as ``F.linear`` does). ``addmm_activation`` also fuses the activation in cuBLASLt,
    whose gelu is the tanh approximation. ``compiled`` runs all that follows a product that is
    gated, has a residual or an auxiliary output as one kernel of ``torch.compile``, where that
    ``compiles``. Each writes into ``out``.
    """
    epilogue = epilogue_of(problem.epilogue)
    if problem.epilogue == "none":
        return {"": plain}
    if not epilogue.plain:
        return _further_ways(problem, plain, compiles)
    if epilogue.multiplies:
        return {"unfused": partial(_times, plain, epilogue.gradient_of)}
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


def _times(plain: Bind, gradient_of: str, operands: OperandSet) -> Call:
    """The product, then one kernel that multiplies it."""
    multiply, out, d = plain(operands), operands.out, operands.d
    assert d is not None
    one = activations.BY_NAME[gradient_of]
    times = torch.Tensor.mul_ if gradient_of == "none" else one.write_gradient

    def run() -> None:
        multiply()
        times(out, d)
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


def _further_ways(problem: GemmProblem, plain: Bind, compiles: bool) -> dict[str, Bind]:
    """The product, with a bias added by ``addmm``, then what follows it: in torch's kernels, or
    compiled to one."""
    epilogue = epilogue_of(problem.epilogue)
    finish = {"gated": _gate, "residual": _add_residual}.get(
        "gated" if epilogue.gated else "residual" if epilogue.residual else "", _activate_into)
    ways = {"unfused": partial(_in_two_steps, plain, _Scratch(), epilogue,
                               lambda: partial(finish, epilogue.activation))}
    if compiles:
        ways["compiled"] = partial(_in_two_steps, plain, _Scratch(), epilogue,
                                   functools.cache(partial(_compiled, problem)))
    return ways


class _Scratch:
    """Memory for the product of one call after the other, where the epilogue does not keep it."""

    def __init__(self) -> None:
        self._kept: torch.Tensor | None = None

    def like(self, operands: OperandSet) -> torch.Tensor:
        shape = (*operands.out.shape[:-1], operands.b.shape[-1])
        if self._kept is None or self._kept.shape != shape:
            self._kept = operands.out.new_empty(shape)
        return self._kept


#: (product with its bias, D, out): computes the result.
Finish = Callable[[torch.Tensor, "torch.Tensor | None", torch.Tensor], object]


def _in_two_steps(plain: Bind, scratch: _Scratch, epilogue: Epilogue,
                  finish: Callable[[], Finish], operands: OperandSet) -> Call:
    out, a, b = operands.out, operands.a, operands.b
    bias, d = (operands.bias, operands.d) if epilogue.residual else (operands.d, None)
    total = operands.aux if operands.aux is not None else scratch.like(operands)
    last = finish()
    if bias is not None and a.dim() == 2 and out.dtype == a.dtype:
        def run() -> None:
            torch.addmm(bias, a, b, out=total)
            last(total, d, out)
        return run
    multiply = plain(replace(operands, out=total))

    def run_separately() -> None:
        multiply()
        if bias is not None:
            total.add_(bias)
        last(total, d, out)
    return run_separately


def _gate(activation: str, total: torch.Tensor, d: torch.Tensor | None, out: torch.Tensor) -> None:
    gate, other = total.chunk(2, -1)
    torch.mul(ACTIVATIONS[activation](gate), other, out=out)


def _activate_into(activation: str, total: torch.Tensor, d: torch.Tensor | None,
                   out: torch.Tensor) -> None:
    one = activations.BY_NAME[activation]
    getattr(torch.ops.aten, one.aten).out(total, **one.options, out=out)


def _add_residual(activation: str, total: torch.Tensor, d: torch.Tensor | None,
                  out: torch.Tensor) -> None:
    activate = _IN_PLACE.get(activation)
    torch.add(total if activate is None else activate(total), d, out=out)


def _compiled(problem: GemmProblem) -> Finish:
    """One compiled kernel. Code of earlier problems is dropped: past a few sizes of one function
    Dynamo would stop compiling."""
    torch._dynamo.reset()
    finish = finish_of(problem)
    activate = ACTIVATIONS[epilogue_of(problem.epilogue).activation]

    def whole(total: torch.Tensor, d: torch.Tensor | None, out: torch.Tensor) -> None:
        out.copy_(finish(total) if d is None else activate(total) + d)

    return torch.compile(whole, fullgraph=True, dynamic=False)
