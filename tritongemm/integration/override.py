"""``tritongemm.override``: torch's own products by this package's kernels, for a whole process.

aten's ``mm, bmm, addmm, baddbmm`` are what matmul, linear, einsum and their gradients come down to,
so a program needs no other change. It is process-wide, for backward runs in threads of torch's own;
several may be in force at once, from any thread and in any order, and each operation obeys the one
entered last that names it. When the last one that names it leaves, torch's kernel is back.

Each new kind of call is decided once, and the plan cache keeps the decision: torch's kernel runs
where the host and GPU times of both sides say that it is faster (``selection.torch_wins``). A small
product is torch's until it was repeated often enough to pay for that
(:mod:`tritongemm.ops.sights`).

``mv`` and ``dot`` stay torch's: they are bound by memory, which torch reads as fast as can be. So
does ``_addmm_activation``, which a linear and a gelu after it do not come down to. Code made by
``torch.compile`` calls the same operations; products that Inductor makes itself are not seen.

An override that others install on top of this one while it stands, and keep after it has gone,
holds a kernel that is no more, and torch raises when it is called: leave in the order of entering.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from tritongemm import settings
from tritongemm.errors import UsageError
from tritongemm.integration.entries import OPS, Entries, Policy, Watch, tallies
from tritongemm.notebook import table
from tritongemm.ops.blocks import Block
from tritongemm.ops.execute import dispatch_keys
from tritongemm.ops.untraced import untraced


@dataclass(frozen=True, eq=False, slots=True)
class OverrideRequest:
    """What one override asks for; in force as often as it stands in the list."""

    ops: frozenset[str]
    policy: Policy


class override(Block):
    """Runs torch's matrix products by this package's kernels, inside a ``with`` block or a
    decorated function. A decorated generator or coroutine is inside while its body runs.

    Args:
        ops: of ``mm, bmm, addmm, baddbmm``; None: all of them.
        min_flops: products of fewer flops (2 * batch * M * N * K) stay torch's, and the others are
            decided at their first call. None: any size is decided, small products once they were
            repeated; with ``strict`` at their first call.
        strict: raise :class:`UnsupportedError`, naming the reason, in the place of every call that
            would go to torch. Also TRITONGEMM_STRICT=1, read when the override is made.

    Raises:
        UsageError: an unknown operation, or a ``min_flops`` that is no number of at least 0.
    """

    def __init__(self, ops: str | Iterable[str] | None = None, *, min_flops: float | None = None,
                 strict: bool = False) -> None:
        self._request = _request(ops, min_flops, strict)

    def __enter__(self) -> override:
        enter(self._request)
        return self

    def __exit__(self, *error: object) -> None:
        leave(self._request)


def enable(ops: str | Iterable[str] | None = None, *, min_flops: float | None = None,
           strict: bool = False) -> None:
    """Overrides torch's matrix products from now on, as :class:`override` does in its block.

    Every call needs a call of :func:`disable`, which ends the last one.

    Args and errors: as :class:`override`.
    """
    request = _request(ops, min_flops, strict)
    enter(request)
    _enabled.append(request)


def disable() -> None:
    """Ends the last :func:`enable`. Raises :class:`UsageError` where there is none."""
    try:
        request = _enabled.pop()
    except IndexError:
        raise UsageError("tritongemm.disable() has no tritongemm.enable() to end") from None
    leave(request)


@dataclass(frozen=True)
class Calls:
    """Calls of one overload of aten: by kernels of this package, and by torch with the reasons."""

    name: str
    taken: int
    declined: dict[str, int]


@dataclass(frozen=True)
class OverrideReport:
    """What became of the calls that overrides have seen. ``str()`` is a table.

    Attributes:
        active: operations overridden now.
        calls: overloads that were called, in the order of :data:`OVERLOADS`.
    """

    active: tuple[str, ...]
    calls: tuple[Calls, ...]

    @property
    def taken(self) -> int:
        """Calls by kernels of this package."""
        return sum(calls.taken for calls in self.calls)

    @property
    def declined(self) -> int:
        """Calls that went to torch."""
        return sum(sum(calls.declined.values()) for calls in self.calls)

    def __str__(self) -> str:
        lines = [f"tritongemm.override: {', '.join(self.active) or 'nothing'} overridden now; "
                 f"{self.taken} calls taken, {self.declined} left to torch"]
        if not self.calls:
            lines.append("  no product of CUDA tensors was seen; those of the CPU are torch's")
        for calls in self.calls:
            lines.append(f"  aten::{calls.name:<20}{calls.taken:>10} taken"
                         f"{sum(calls.declined.values()):>10} torch's")
            reasons = sorted(calls.declined.items(), key=lambda item: -item[1])
            lines += [f"  {count:>16} x {reason}" for reason, count in reasons]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = [(f"aten::{calls.name}", calls.taken, sum(calls.declined.values()), "; ".join(
            f"{count} x {reason}" for reason, count in sorted(
                calls.declined.items(), key=lambda item: -item[1]))) for calls in self.calls]
        return table(("operation", "tritongemm", "torch", "why torch"), rows,
                     f"overridden now: {', '.join(self.active) or 'nothing'}")


def override_report(*, clear: bool = False) -> OverrideReport:
    """The calls that overrides of this process have seen so far, or since the last ``clear``."""
    with _lock:
        for standing in _standing.values():
            standing.count()
        report = OverrideReport(
            tuple(op for op in OPS if op in _standing),
            tuple(Calls(name, tally.taken, dict(tally.declined))
                  for name, tally in tallies.items() if tally.taken or tally.declined))
        if clear:
            for tally in tallies.values():
                tally.taken, tally.declined = 0, {}
    return report


def _request(ops: str | Iterable[str] | None, min_flops: float | None, strict: bool,
             watch: Watch | None = None, keys: tuple[str, ...] | None = None) -> OverrideRequest:
    if ops is not None and not isinstance(ops, Iterable):
        raise UsageError(f"ops={ops!r} names no operations; use some of {', '.join(OPS)}; a "
                         "decorator is written @override()")
    names = frozenset((ops,) if isinstance(ops, str) else OPS if ops is None else ops)
    if not names or names - set(OPS):
        wrong = ", ".join(sorted(map(repr, names - set(OPS)))) or "nothing"
        raise UsageError(f"ops names {wrong}; use some of {', '.join(OPS)}")
    strict = strict or settings.current().strict
    patient = min_flops is None and not strict and watch is None
    if min_flops is None:
        min_flops = 0.0
    if not isinstance(min_flops, (int, float)) or math.isnan(min_flops) or min_flops < 0:
        raise UsageError(f"min_flops={min_flops!r} is not a number of at least 0")
    return OverrideRequest(names, Policy(min_flops / 2, patient, strict, watch,
                                         dispatch_keys() if keys is None else keys))


# -- what is in force ------------------------------------------------------------------------------

_lock = threading.RLock()
_active: list[OverrideRequest] = []
_enabled: list[OverrideRequest] = []
_standing: dict[str, Entries] = {}


@untraced
def enter(request: OverrideRequest) -> None:
    """``request`` is in force from now on; where torch refuses it, nothing has changed."""
    with _lock:
        _active.append(request)
        try:
            _settle()
        except BaseException:  # Ctrl-C too
            del _active[-1]
            _settle()
            raise


@untraced
def leave(request: OverrideRequest) -> None:
    """``request``, entered before, is in force once less."""
    with _lock:
        for i in reversed(range(len(_active))):
            if _active[i] is request:
                del _active[i]
                break
        try:
            _settle()
        except BaseException:
            _settle()
            raise


def _settle() -> None:
    """Makes every operation obey the last request that names it."""
    for op in OPS:
        policy = next((r.policy for r in reversed(_active) if op in r.ops), None)
        standing = _standing.get(op)
        if standing is not None and standing.policy != policy:
            standing.remove()
            del _standing[op]
        if policy is not None and op not in _standing:
            _standing[op] = Entries(op, policy)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # the parent's may be held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
