"""Marks functions that Dynamo must neither inline nor compile, nor what they call.

Where Dynamo skips a frame (around a ``with`` block that it cannot trace, under a ``torch.func``
transform, in a kernel that torch's dispatcher calls), a compiled function runs this package's
Python code. Without these marks Dynamo would then compile every frame below, down to the arithmetic
of selection. The public functions, which it should trace, have no mark.

``torch.compiler.disable`` does the same, but imports Dynamo and adds a Python call to each call.
These marks add no cost to a call.
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
    """Marks a function that Dynamo may inline into a traced caller, but must not compile on its
    own, nor what it calls."""
    if _skip is not None:
        _skip(function.__code__)
    return function


def _skipping() -> Callable[[Any], None] | None:
    """The function that makes Dynamo skip a code object and all frames below it (torch 2.10 to
    2.13)."""
    try:
        eval_frame = torch._C._dynamo.eval_frame
        strategy = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP,
                                                 eval_frame._FrameAction.SKIP)
        mark = eval_frame.set_code_exec_strategy
    except AttributeError:  # another torch: Dynamo compiles these frames, or skips them itself
        return None
    return lambda code: mark(code, strategy)


_skip = _skipping()
