"""Activations that a kernel may apply to a sum, as torch has them.

To add one: a row and a name here, and its formula and derivative in ``kernels/device/epilogue.py``.
Nothing else knows an activation by its name. Importing this loads no torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    Function = Callable[[Tensor], Tensor]


def _no_gradient(grad: Tensor, x: Tensor) -> Tensor:
    return grad


def _relu_gradient(grad: Tensor, result: Tensor) -> Tensor:
    import torch

    return torch.ops.aten.threshold_backward(grad, result, 0)


def _gelu_gradient(approximate: str, grad: Tensor, x: Tensor) -> Tensor:
    import torch

    return torch.ops.aten.gelu_backward(grad, x, approximate=approximate)


def _silu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """Of x s(x): s(x) (1 + x (1 - s(x))). (``aten.silu_backward`` has no gradient of its own.)"""
    import torch

    if not torch.is_grad_enabled():  # no gradient of this one is asked for
        return torch.ops.aten.silu_backward(grad, x)
    s = torch.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


@dataclass(frozen=True, slots=True)
class Activation:
    """An activation, by its name in epilogues.

    Attributes:
        aten: torch's name of it: ``torch.nn.functional.<aten>``, ``torch.ops.aten.<aten>`` and,
            written over its argument, ``<aten>_``; empty: the identity.
        gradient: (gradient of the result, argument) -> gradient of the argument. It can be
            differentiated again.
        of_result: ``gradient`` takes the result in place of the argument.
        options: further arguments of torch's functions.
        backward: torch's name of ``gradient``: ``torch.ops.aten.<backward>``; empty: it has none.
        numbers: what ``backward`` takes after the argument.
    """

    name: str
    aten: str
    gradient: Callable[[Tensor, Tensor], Tensor]
    of_result: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    backward: str = ""
    numbers: tuple[float, ...] = ()

    def functional(self) -> Function:
        """torch's own function, which modes and autograd see."""
        import torch

        return self._with_options(torch.nn.functional, self.aten)

    def op(self) -> Function:
        """The same as an operator, below ``torch.overrides``."""
        import torch

        return self._with_options(torch.ops.aten, self.aten)

    def in_place(self) -> Function:
        """The same, written over its argument, by torch's fastest way of calling it."""
        import torch

        name = self.aten + "_"
        home = next((x for x in (torch, torch._C._nn) if hasattr(x, name)), torch.ops.aten)
        return self._with_options(home, name)

    def derivative(self, x: Tensor) -> Tensor:
        """The derivative at what :attr:`gradient` takes."""
        return self.gradient(x.new_ones(()).expand_as(x), x)

    def write_gradient(self, grad: Tensor, x: Tensor) -> Tensor:
        """:attr:`gradient`, written over ``grad``, by one kernel of torch where it has one."""
        import torch

        if not self.backward:
            return grad.copy_(self.gradient(grad, x))
        run = getattr(torch.ops.aten, self.backward).grad_input
        return run(grad, x, *self.numbers, **self.options, grad_input=grad)

    def _with_options(self, home: object, name: str) -> Function:
        if not self.aten:
            return _identity
        function = getattr(home, name)
        return functools.partial(function, **self.options) if self.options else function


def _identity(x: Tensor) -> Tensor:
    return x


#: Every activation by its name.
BY_NAME = {a.name: a for a in (
    Activation("none", "", _no_gradient, of_result=True),
    Activation("relu", "relu", _relu_gradient, of_result=True, backward="threshold_backward",
               numbers=(0,)),
    Activation("gelu", "gelu", functools.partial(_gelu_gradient, "none"),
               backward="gelu_backward"),
    Activation("gelu_tanh", "gelu", functools.partial(_gelu_gradient, "tanh"),
               options={"approximate": "tanh"}, backward="gelu_backward"),
    Activation("silu", "silu", _silu_gradient, backward="silu_backward"),
)}
#: Their names, for type checkers.
Name = Literal["none", "relu", "gelu", "gelu_tanh", "silu"]
