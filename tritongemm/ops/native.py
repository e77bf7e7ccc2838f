"""Fills the native dispatcher (:mod:`tritongemm.native`) with calls that the Python path resolved.

The Python path is the reference: the native table holds only calls that it has resolved, under the
same key, and is emptied whenever the Python path clears its own cache.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from enum import IntEnum
from types import ModuleType
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from tritongemm import settings
from tritongemm.errors import LaunchError, UsageError
from tritongemm.native import load
from tritongemm.ops.declined import Declined
from tritongemm.ops.sights import PATIENCE, SEEN_TOO_LITTLE, Patience
from tritongemm.problem import NOTHING_TO_MULTIPLY
from tritongemm.selection.hosttime import NATIVE

if TYPE_CHECKING:
    from tritongemm.ops.plan import Plan

FEWER_FLOPS = "fewer flops than min_flops"
#: In the order that ``dispatcher.cpp`` counts them in.
_REASONS = [FEWER_FLOPS, NOTHING_TO_MULTIPLY, "other reasons", SEEN_TOO_LITTLE]


class Form(IntEnum):
    """How ``dispatcher.cpp`` finds the operands of an op; its enum of that name."""

    (PRODUCT, PRODUCT_OUT, SUM, SUM_OUT, SUM_IN_PLACE, SUM_ACTIVATED, GATED,
     GATED_PAIR, FACTOR) = range(9)


class Bound(NamedTuple):
    """What a call of the Python path launches, in the form that the native table stores.

    Attributes:
        plan: one launch for the whole call, on the only device.
        shape, strides, dtype: of a newly allocated result.
        spans: bytes of A, B, C and D, and whether D may be C itself; None for a newly allocated
            result.
    """

    plan: Plan
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    spans: tuple[int, int, int, int, bool] | None = None


#: run(number of the op, a, b[, d[, beta, alpha[, out]]]) -> the result, False if the call goes to
#: torch, or None if the Python path must run it. d may be None. None while the native dispatcher is
#: off, and before the first call.
run: Callable[..., Tensor | None | Literal[False]] | None = None
#: The same for a call that is already below autograd, autocast and modes; never False.
run_below: Callable[..., Tensor | None] | None = None
_generation = 0
_followers: list[Callable[[ModuleType | None], None]] = []
#: Called when a library was built in the background, so that all calls are asked for again.
on_ready: list[Callable[[], None]] = []
_module: ModuleType | None = None
_looked = False
_lock = threading.RLock()


def table() -> ModuleType | None:
    """The native dispatcher, or None if it is off. Reads the settings at the first call, as the
    Python path does."""
    if not _looked:
        forget()
    return _module


def generation() -> int:
    """How often the table was emptied. Asked before an answer is sought, so that one from before
    a change does not get into the table."""
    table()  # the first look empties it
    return _generation


def offer(found_in: int, number: int, call: Callable[..., object], result: Tensor | Declined,
          a: Tensor, b: Tensor, d: Tensor | None = None, out: Tensor | None = None,
          alpha: float = 1.0, beta: float = 0.0, dtype_out: torch.dtype | None = None,
          up: Tensor | None = None) -> None:
    """Adds a call of the op with this ``number`` to the native table. ``call`` has run once, so its
    tensor maps exist. ``found_in``: the generation of the table when the call was looked up.
    ``up``: the other half of a gated layer's B, where ``b`` is the gate's."""
    native = table()
    if native is None or a.is_complex():  # its keys do not tell a lazy conjugate
        return
    bound: Bound | None = getattr(call, "bound", None)
    if isinstance(result, Declined):
        # A call with a plan was declined because of how its memory overlaps.
        if result.lasting and bound is None:
            native.refuse(found_in, number, a, b, d, out, alpha, beta, dtype_out, up, str(result))
        return
    if bound is None or settings.current().profile:
        return
    try:
        plan = native.plan(*bound.plan.native_launches())
    except LaunchError:  # this call ran another plan, without scratch
        return
    native.offer(found_in, number, a, b, d, out, alpha, beta, dtype_out, up, plan, bound.shape,
                 bound.strides, bound.dtype, bound.spans)


def refuse(number: int, reason: str, a: Tensor, b: Tensor, d: Tensor | None = None,
           out: Tensor | None = None, alpha: float = 1.0, beta: float = 0.0) -> None:
    """Adds a declined call; the reason holds for every call with the same key."""
    native = table()
    if native is not None:
        native.refuse(_generation, number, a, b, d, out, alpha, beta, None, None, reason)


def forget(sights: bool = False) -> None:
    """Empties the table, and follows TRITONGEMM_NATIVE. ``sights``: small products wait again."""
    global _looked, _module, _generation, run, run_below
    with _lock:
        before, limit, invariant = _module, 1, False
        try:
            _module, limit = load(_ready), settings.current().plan_cache_size
            invariant = settings.current().batch_invariant  # no call waits: see execute.py
        except UsageError:  # a variable that cannot be parsed; the call that reads it says so
            _module = None
        run, run_below = (None, None) if _module is None else (_module.run, _module.run_below)
        for native in dict.fromkeys((before, _module)):  # an override may use the first
            if native is not None:
                native.set_reasons(_REASONS)
                native.set_patience(*(Patience(1) if invariant else PATIENCE[NATIVE]))
                _generation = native.clear(limit)
                if sights:
                    native.forget_sights()
        if _module is not before:
            for call in _followers:
                call(_module)
        _looked = True


def follow(call: Callable[[ModuleType | None], None]) -> None:
    """Calls ``call`` with the module that is in use, if one is, and with the next one, or None,
    whenever that changes."""
    with _lock:
        _followers.append(call)
        if _module is not None:
            call(_module)


def _ready() -> None:
    for call in on_ready:
        call()


def empty(sights: bool = False) -> None:
    """Empties the table, if it is in use. :mod:`~tritongemm.ops.execute` calls this whenever it
    clears its own cache, which includes every change of settings."""
    if _looked:
        forget(sights)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # the parent's may be held
    if _module is not None:
        _module.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
