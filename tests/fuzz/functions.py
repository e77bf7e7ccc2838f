"""The functions that are called: ours, torch's, and what a limit on the error needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import tritongemm as tg
from tritongemm.measure.epilogue import ACTIVATIONS

from .case import Case


@dataclass(frozen=True)
class Function:
    """A function by its three callables, each of (operands, keywords).

    Attributes:
        ours: of this package; None: it has none, so that only an override reaches the kernels.
        theirs: torch's.
        plain: torch's that writes to memory of its own, where ``theirs`` works in place.
        adds: the first operand is what is added, and alpha and beta are taken.
        takes_out: it has an ``out=``.
    """

    ours: Callable[..., torch.Tensor] | None
    theirs: Callable[..., torch.Tensor]
    plain: Callable[..., torch.Tensor]
    adds: bool = False
    takes_out: bool = True


def _of(name: str, adds: bool = False) -> Function:
    torchs = getattr(torch, name)
    return Function(getattr(tg, name), torchs, torchs, adds)


def _linear(ours: bool) -> Callable[..., torch.Tensor]:
    def call(*tensors: torch.Tensor, activation: str = "none", **more: object) -> torch.Tensor:
        bias, (x, weight) = (tensors[0] if len(tensors) == 3 else None), tensors[-2:]
        if ours:
            return tg.linear(x, weight, bias, activation=activation, **more)
        return ACTIVATIONS[activation](torch.nn.functional.linear(x, weight, bias, **more))
    return call


def _in_place(name: str) -> Callable[..., torch.Tensor]:
    return lambda d, a, b, **more: getattr(d, name)(a, b, **more)


FUNCTIONS = {
    **{name: _of(name) for name in ("matmul", "mm", "bmm", "mv", "dot")},
    **{name: _of(name, adds=True) for name in ("addmm", "baddbmm")},
    "linear": Function(_linear(True), _linear(False), _linear(False), takes_out=False),
    "@": Function(None, lambda a, b: a @ b, torch.matmul, takes_out=False),
    "addmm_": Function(None, _in_place("addmm_"), torch.addmm, True, False),
    "baddbmm_": Function(None, _in_place("baddbmm_"), torch.baddbmm, True, False),
}


def keywords(case: Case) -> dict[str, object]:
    """What a call takes by name, but ``out`` and ``strict``."""
    if FUNCTIONS[case.function].adds:
        return {"alpha": case.alpha, "beta": case.beta}
    return {"activation": case.activation} if case.function == "linear" else {}
