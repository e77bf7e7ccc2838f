"""Which products a program runs: how often each, how long on the GPU, and by whose kernel.

A recording stands in the dispatcher as an override does, on the CPU too, so that a model's shapes
can be taken down where there is no GPU. Products that a CUDA graph replays are seen once, while it
is captured, and those are not timed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tritongemm import settings
from tritongemm.integration.entries import OPS, Policy, Watch
from tritongemm.integration.override import OverrideRequest, enter, leave
from tritongemm.ops.calls import NAMES, precision_setting
from tritongemm.ops.declined import Declined
from tritongemm.ops.execute import dispatch_keys
from tritongemm.ops.operands import StridedShape, form_of, problem_of_form
from tritongemm.problem import Epilogue
from tritongemm.records.suites import Shape

#: Pairs of events that may be outstanding; the oldest is then waited for.
_PENDING = 512


class _Kind(NamedTuple):
    """What calls have in common that become one row."""

    op: str
    m: int
    n: int
    k: int
    batch: int
    layout: str
    dtype: str
    dtype_out: str
    epilogue: str
    precision: str


@dataclass
class Seen:
    """Calls of one kind so far; ``time_us`` is the sum over those that were timed."""

    taken: int = 0
    left: int = 0
    timed: int = 0
    time_us: float = 0.0


class Recording(Watch):
    """What was seen; :meth:`shapes` makes a suite of it.

    Attributes:
        seen: by kind, in the order of first calls.
        others: calls that no suite can hold: other dtypes, an extent of 0, shapes torch refuses.
    """

    def __init__(self) -> None:
        self.seen: dict[_Kind, Seen] = {}
        self.others = 0
        self._pending: deque[tuple[Any, Any, Seen]] = deque()
        self._lock = threading.Lock()

    def __call__(self, name: str, taken: bool, run: Callable[..., Tensor | Declined], args: tuple,
                 kwargs: dict) -> Tensor | Declined:
        """Makes the call and takes it down, unless it raises or is declined."""
        where = args[1].device
        timed = where.type == "cuda" and not torch.cuda.is_current_stream_capturing()
        start = _event(where) if timed else None
        result = run(*args, **kwargs)
        if isinstance(result, Declined):
            return result
        end = _event(where) if timed else None
        kind = _kind(name.partition(".")[0].rstrip("_"), args, kwargs, result)
        with self._lock:
            if kind is None:
                self.others += 1
                return result
            seen = self.seen.setdefault(kind, Seen())
            if taken:
                seen.taken += 1
            else:
                seen.left += 1
            if timed:
                self._pending.append((start, end, seen))
                self._collect(_PENDING)
        return result

    def _collect(self, limit: int) -> None:
        """Reads the events that are due, so that at most ``limit`` pairs are outstanding."""
        while self._pending and (len(self._pending) > limit or self._pending[0][1].query()):
            start, end, seen = self._pending.popleft()
            end.synchronize()
            seen.timed += 1
            seen.time_us += 1000.0 * start.elapsed_time(end)

    def flops(self) -> tuple[float, float]:
        """Flops of all that was seen, and of those by kernels of this package."""
        work = [(2.0 * k.batch * k.m * k.n * k.k, s) for k, s in self.seen.items()]
        return (sum(each * (s.taken + s.left) for each, s in work),
                sum(each * s.taken for each, s in work))

    def shapes(self, suite: str = "") -> list[Shape]:
        """One row a kind: those that took most time, else most flops, first.

        The note says which of aten's operations it was, the kernels' part of the calls, and the
        time of one call where a GPU ran it.
        """
        with self._lock:
            self._collect(0)
            rows = sorted(self.seen.items(), key=_weight, reverse=True)
        return [Shape(k.m, k.n, k.k, k.batch, k.layout, k.dtype,
                      "" if k.epilogue == "none" else k.epilogue, s.taken + s.left,
                      _note(k, s), suite, k.precision) for k, s in rows]


@contextmanager
def recording(min_flops: float | None = None) -> Iterator[Recording]:
    """An override that takes down every product of a program inside the ``with`` block.

    Args:
        min_flops: as for :class:`tritongemm.override`; smaller products are taken down as well.
            None: each product is decided at its first call, as an override does once it was
            repeated.
    """
    seen = Recording()
    keys = tuple(dict.fromkeys((*dispatch_keys(), "CPU")))
    request = OverrideRequest(frozenset(OPS),
                              Policy((min_flops or 0.0) / 2, False, False, seen, keys))
    enter(request)
    try:
        yield seen
    finally:
        leave(request)


def _event(where: torch.device) -> torch.cuda.Event:
    return torch.cuda.current_stream(where).record_event(torch.cuda.Event(enable_timing=True))


def _kind(op: str, args: tuple, kwargs: dict, result: Tensor) -> _Kind | None:
    """The kind of a call that torch or a kernel has run; None: no suite can hold it."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    a, b = tensors[-2:]
    beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
    d = tensors[0] if len(tensors) == 3 and beta != 0 else None
    dtype = NAMES.get(a.dtype, "")
    if not dtype or result.dtype not in NAMES or a.dtype != b.dtype:
        return None
    try:
        form = form_of(StridedShape(a.shape, a.stride()), StridedShape(b.shape, b.stride()), None,
                       None if d is None else StridedShape(d.shape, d.stride()))
    except Declined:
        return None
    addend = "scale" if form.addend == "none" and alpha != 1 else form.addend
    problem, _ = problem_of_form(form, (0, 0, 0, 0), (dtype, dtype, NAMES[result.dtype]),
                                 str(Epilogue(addend, "none")), "ieee")
    return _Kind(op, problem.m, problem.n, problem.k, problem.batch, problem.layout, dtype,
                 problem.dtype_out, problem.epilogue, _precision(dtype))


def _precision(dtype: str) -> str:
    """What a call on CUDA tensors takes as its precision now; "" where that is the default of calls
    or the dtype has but one."""
    if dtype not in ("fp32", "c64"):
        return ""
    if precision_setting("cuda", "matmul") == "tf32":
        return "tf32"
    return "ieee" if settings.current().fp32 == "ieee" else ""


def _weight(item: tuple[_Kind, Seen]) -> tuple[float, float]:
    kind, seen = item
    calls = seen.taken + seen.left
    each_us = seen.time_us / seen.timed if seen.timed else 0.0
    return each_us * calls, float(kind.batch * kind.m * kind.n * kind.k * calls)


def _note(kind: _Kind, seen: Seen) -> str:
    parts = [kind.op, f"{seen.taken} of {seen.taken + seen.left} taken"]
    if kind.dtype_out != kind.dtype:
        parts.append(f"result {kind.dtype_out}")
    if seen.timed:
        parts.append(f"time_us={seen.time_us / seen.timed:.2f}")
    return "; ".join(parts)
