"""The functions that are called: ours, torch's, and what a limit on the error needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import tritongemm as tg
from tritongemm.measure.torch_epilogue import ACTIVATIONS
from tritongemm.ops.formulas import multiplied

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
        strict: ours takes ``strict=``.
    """

    ours: Callable[..., torch.Tensor] | None
    theirs: Callable[..., torch.Tensor]
    plain: Callable[..., torch.Tensor]
    adds: bool = False
    takes_out: bool = True
    strict: bool = True


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


def _residual(ours: bool) -> Callable[..., torch.Tensor]:
    linear = _linear(ours)

    def call(residual: torch.Tensor, *tensors: torch.Tensor, activation: str,
             **more: object) -> torch.Tensor:
        if ours:
            return linear(*tensors, activation=activation, residual=residual, **more)
        return linear(*tensors, activation=activation) + residual
    return call


def gate_of(total: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The gate's columns and the others."""
    if interleaved:
        return total[..., ::2], total[..., 1::2]
    first, second = total.chunk(2, -1)
    return first, second


def _gated(ours: bool) -> Callable[..., torch.Tensor]:
    def call(*tensors: torch.Tensor, activation: str, interleaved: bool, apart: bool,
             **more: object) -> torch.Tensor:
        bias, (x, weight) = (tensors[0] if len(tensors) == 3 else None), tensors[-2:]
        linear, activate = torch.nn.functional.linear, ACTIVATIONS[activation]
        if apart:
            up, gate = (half.clone().transpose(0, -1) for half in reversed(
                gate_of(weight.transpose(0, -1), interleaved)))
            biases = (None, None) if bias is None else gate_of(bias, interleaved)
            if ours:
                return tg.gated_linear(x, gate, bias if bias is None else torch.cat(biases), up=up,
                                       activation=activation, **more)
            return activate(linear(x, gate, biases[0])) * linear(x, up, biases[1])
        if ours:
            return tg.gated_linear(x, weight, bias, activation=activation,
                                   interleaved=interleaved, **more)
        gate, up = gate_of(linear(x, weight, bias), interleaved)
        return activate(gate) * up
    return call


def _factor(ours: bool) -> Callable[..., torch.Tensor]:
    def call(d: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, activation: str,
             **more: object) -> torch.Tensor:
        if ours:
            return tg.mulmm(d, a, b, gradient_of=activation, **more)
        return multiplied(torch.mm(a, b), d, activation)
    return call


def _op(name: str, adds: bool = False) -> Function:
    """A registered op, which a compiled program calls."""
    torchs = getattr(torch, name)

    def ours(*tensors: torch.Tensor, **more: object) -> torch.Tensor:
        import tritongemm.ops.registered  # noqa: F401 (it registers them)

        return getattr(torch.ops.tritongemm, name)(*tensors, **more)
    return Function(ours, torchs, torchs, adds, takes_out=False, strict=False)


def _in_place(name: str) -> Callable[..., torch.Tensor]:
    return lambda d, a, b, **more: getattr(d, name)(a, b, **more)


FUNCTIONS = {
    **{name: _of(name) for name in ("matmul", "mm", "bmm", "mv", "dot")},
    **{name: _of(name, adds=True) for name in ("addmm", "baddbmm")},
    "linear": Function(_linear(True), _linear(False), _linear(False), takes_out=False),
    "residual": Function(_residual(True), _residual(False), _residual(False), takes_out=False),
    "gated": Function(_gated(True), _gated(False), _gated(False), takes_out=False),
    "mulmm": Function(_factor(True), _factor(False), _factor(False), takes_out=False),
    **{f"ops.{name}": _op(name) for name in ("matmul", "mm", "bmm")},
    **{f"ops.{name}": _op(name, adds=True) for name in ("addmm", "baddbmm")},
    "@": Function(None, lambda a, b: a @ b, torch.matmul, takes_out=False),
    "addmm_": Function(None, _in_place("addmm_"), torch.addmm, True, False),
    "baddbmm_": Function(None, _in_place("baddbmm_"), torch.baddbmm, True, False),
}


def keywords(case: Case) -> dict[str, object]:
    """What a call takes by name, but ``out`` and ``strict``."""
    if FUNCTIONS[case.function].adds:
        return {"alpha": case.alpha, "beta": case.beta}
    if case.function == "gated":
        return {"activation": case.activation, "interleaved": case.interleaved,
                "apart": case.apart}
    if case.function in ("linear", "residual", "mulmm"):
        return {"activation": case.activation}
    return {}
