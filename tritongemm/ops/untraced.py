"""Functions that Dynamo leaves alone: it neither inlines them nor compiles what they call.

A compiled function runs this package's Python as it is where Dynamo gives a frame up: around a
``with`` block it cannot trace, under a transform of ``torch.func``, in a kernel that torch's
dispatcher calls. Without these marks Dynamo would then compile each frame on the way, down to the
selection's arithmetic. What it should trace, the public functions, has no mark.

``torch.compiler.disable`` does the same, loads Dynamo, and adds a Python call to each call. The
marks cost a call nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])


def untraced(function: _Function) -> _Function:
    """Marks a function: Dynamo breaks the graph where it is called, runs it, and compiles nothing
    inside."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "tritongemm runs this as it is")
    return uncompiled(function)


def uncompiled(function: _Function) -> _Function:
    """Marks a function that Dynamo may inline where it traces a caller, and does not compile by
    itself, nor what it calls."""
    if _skip is not None:
        _skip(function.__code__)
    return function


def _skipping() -> Callable[[Any], None] | None:
    """What makes Dynamo skip a code object and all frames below it (torch 2.10 to 2.13)."""
    try:
        eval_frame = torch._C._dynamo.eval_frame
        strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP,
                                                 eval_frame._FrameAction.SKIP)
        mark = eval_frame.set_code_exec_strategy
    except AttributeError:  # another torch: Dynamo compiles the frames, or gives them up
        return None
    return lambda code: mark(code, strategy)


_skip = _skipping()
