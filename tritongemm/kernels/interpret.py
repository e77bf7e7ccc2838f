"""Running a launch in Triton's interpreter, on CPU tensors (TRITON_INTERPRET=1)."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tritongemm.errors import LaunchError
from tritongemm.formats import torch_dtype
from tritongemm.kernels.launch import Descriptor, Launch, Number, Pointer, Scalar
from tritongemm.records.installed import interpreter_obstacle

if TYPE_CHECKING:
    import torch

#: Triton's interpreter puts functions of its own into ``triton.language`` while a kernel runs.
_one_at_a_time = threading.RLock()
# A fork waits for the kernel that another thread runs: the child would have neither that thread,
# which holds the lock, nor ``triton.language`` as it was.
os.register_at_fork(before=_one_at_a_time.acquire, after_in_parent=_one_at_a_time.release,
                    after_in_child=_one_at_a_time.release)
_obstacle = functools.cache(interpreter_obstacle)


def interpret(launch: Launch, operands: Mapping[str, torch.Tensor],
              numbers: Mapping[str, float] | None = None) -> None:
    """Runs ``launch`` on ``operands`` (``a, b, c, d, scratch``) with ``numbers`` (``alpha, beta``),
    program by program.

    Raises:
        LaunchError: a Gluon kernel, which has no interpreter; a process in which the kernels were
            loaded without TRITON_INTERPRET=1; or a Triton whose interpreter does not work with
            the installed numpy.
    """
    if launch.gluon:
        raise LaunchError(f"{launch.symbol}: Gluon kernels have no interpreter")
    if reason := _obstacle():
        raise LaunchError(f"{launch.symbol}: {reason}")
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
            values[x.name] = _integer(x)
    with _one_at_a_time:
        function[launch.grid](**values)


def _integer(x: Scalar) -> object:
    """The value as the compiled kernel gets it. The interpreter makes 32 bits of an integer that
    fits, whatever the launch says, and products with it would overflow."""
    if x.type == "i32" or x.folded:
        return x.value
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.tensor(TensorHandle(np.array([x.value], dtype=np.int64), tl.int64), tl.int64)


def _at(operand: torch.Tensor, x: Pointer | Descriptor) -> torch.Tensor:
    """The operand itself, or scratch from the argument's offset on, as its dtype."""
    if operand.is_complex():  # kernels read the parts, as they are in memory
        import torch

        return torch.view_as_real(operand.conj() if operand.is_conj() else operand)
    if x.operand != "scratch":
        return operand
    return operand[x.offset // 4:].view(torch_dtype(x.dtype))
