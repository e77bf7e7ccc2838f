"""What the Python path has answered, offered to the native dispatcher (:mod:`tritongemm.native`).

The Python path stays the reference: the native table holds only calls that it has answered, with
the same key, and is emptied whenever the Python path forgets its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tritongemm import settings
from tritongemm.errors import LaunchError
from tritongemm.native import load
from tritongemm.ops.declined import Declined
from tritongemm.problem import NOTHING_TO_MULTIPLY

if TYPE_CHECKING:
    from tritongemm.ops.plan import Plan

FEWER_FLOPS = "fewer flops than min_flops"
#: In the order that ``dispatcher.cpp`` counts them in.
_REASONS = [FEWER_FLOPS, NOTHING_TO_MULTIPLY, "other reasons"]


class Bound(NamedTuple):
    """What a call of the Python path launches, as the native table keeps it.

    Attributes:
        plan: one launch for the whole call, on the only device.
        shape, strides, dtype: of a fresh result.
        spans: bytes of A, B, C and D, and whether D may be C itself; None for a fresh result.
    """

    plan: Plan
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    spans: tuple[int, int, int, int, bool] | None = None


#: run(number of the op, a, b[, bias]) -> the result, or None where the Python path has to answer.
#: None where the native dispatcher is off.
run: Callable[..., Tensor | None] | None = None
module: ModuleType | None = None
#: Counts how often the table was emptied.
generation = 0


def offer(generation: int, number: int, call: Callable[..., object], result: Tensor | Declined,
          a: Tensor, b: Tensor, d: Tensor | None = None, out: Tensor | None = None,
          alpha: float = 1.0, beta: float = 0.0, dtype_out: torch.dtype | None = None) -> None:
    """Offers the answer to a call like this, of the op with this ``number``. ``call`` has run once,
    so the tensor maps of its launches are made. ``generation``: of when the answer was sought."""
    if module is None:
        return
    if isinstance(result, Declined):
        if result.lasting:
            module.refuse(generation, number, a, b, d, out, alpha, beta, dtype_out, str(result))
        return
    bound: Bound | None = getattr(call, "bound", None)
    if bound is None or settings.current().profile:
        return
    try:
        plan = module.plan(*bound.plan.native_launches())
    except LaunchError:  # this time another plan ran, without scratch
        return
    module.offer(generation, number, a, b, d, out, alpha, beta, dtype_out, plan, bound.shape,
                 bound.strides, bound.dtype, bound.spans)


def refuse(number: int, reason: str, a: Tensor, b: Tensor, d: Tensor | None = None,
           out: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Calls like this are torch's, for a reason that any call with the same key has."""
    if module is not None:
        module.refuse(generation, number, a, b, d, out, alpha, beta, None, reason)


def forget() -> None:
    """Empties the table, and follows TRITONGEMM_NATIVE."""
    global generation, run, module
    module = load()
    if module is None:
        run = None
        return
    module.set_reasons(_REASONS)
    generation = module.clear(settings.current().plan_cache_size)
    run = module.run


def _after_fork() -> None:
    if module is not None:
        module.after_fork()


settings.when_changed(forget)
forget()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
