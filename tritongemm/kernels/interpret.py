"""Running a launch in Triton's interpreter, on CPU tensors (TRITON_INTERPRET=1)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tritongemm.errors import LaunchError
from tritongemm.kernels.launch import Descriptor, Launch, Pointer

if TYPE_CHECKING:
    import torch


def interpret(launch: Launch, operands: Mapping[str, torch.Tensor]) -> None:
    """Runs ``launch`` on ``operands`` (``a``, ``b``, ``c``, ``scratch``), program by program.

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
    values["SYMBOL"] = launch.symbol
    if "INTERPRETED" in values:
        values["INTERPRETED"] = True
    for x in launch.arguments:
        if isinstance(x, Pointer):
            values[x.name] = operands[x.operand]
        elif isinstance(x, Descriptor):
            values[x.name] = TensorDescriptor(operands[x.operand], list(x.shape),
                                              list(x.strides), list(x.box))
        else:
            values[x.name] = x.value
    function[launch.grid](**values)
