"""Running a launch in Triton's interpreter, on CPU tensors (TRITON_INTERPRET=1)."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tritongemm.errors import LaunchError
from tritongemm.formats import torch_dtype
from tritongemm.kernels.launch import Descriptor, Launch, Number, Pointer

if TYPE_CHECKING:
    import torch

#: Triton's interpreter puts functions of its own into ``triton.language`` while a kernel runs.
_one_at_a_time = threading.Lock()


def interpret(launch: Launch, operands: Mapping[str, torch.Tensor],
              numbers: Mapping[str, float] | None = None) -> None:
    """Runs ``launch`` on ``operands`` (``a, b, c, d, scratch``) with ``numbers`` (``alpha, beta``),
    program by program.

    Raises:
        LaunchError: a Gluon kernel, which has no interpreter, or a process in which the kernels
            were loaded without TRITON_INTERPRET=1.
    """
    if launch.gluon:
        raise LaunchError(f"{launch.symbol}: Gluon kernels have no interpreter")
    from triton.runtime.interpreter import InterpretedFunction
    from triton.tools.tensor_descriptor import TensorDescriptor

    function = getattr(importlib.import_module(launch.module), launch.function)
    if not isinstance(function, InterpretedFunction):
        raise LaunchError("TRITON_INTERPRET=1 must be set before the kernels are loaded")
    values: dict[str, object] = dict(launch.constants)
    values["SYMBOL"], values["DEPENDENT"] = launch.symbol, False
    if "INTERPRETED" in values:
        values["INTERPRETED"] = True
    for x in launch.arguments:
        if isinstance(x, Pointer):
            values[x.name] = _at(operands[x.operand], x)
        elif isinstance(x, Descriptor):
            values[x.name] = TensorDescriptor(_at(operands[x.operand], x), list(x.shape),
                                              list(x.strides), list(x.box))
        elif isinstance(x, Number):
            values[x.name] = float((numbers or {})[x.name])
        else:
            values[x.name] = x.value
    with _one_at_a_time:
        function[launch.grid](**values)


def _at(operand: torch.Tensor, x: Pointer | Descriptor) -> torch.Tensor:
    """The operand itself, or scratch from the argument's offset on, as its dtype."""
    if x.operand != "scratch":
        return operand
    return operand[x.offset // 4:].view(torch_dtype(x.dtype))
