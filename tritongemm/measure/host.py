"""Timing with the host clock: :class:`HostTimer` for CPU calls, and the host time of a GPU call.

A CPU call is timed from start to end. A GPU call returns before its work is done, and
:func:`host_time_us` measures how long it blocks the caller.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from tritongemm.measure.rounds import Quantiles, orders

#: Least duration of a timed item on the host.
MIN_ITEM_US = 3000.0


@dataclass
class HostCalls:
    """One contender's calls and the number of calls in a timed item. ``position`` is the next
    operand set."""

    name: str
    calls: int
    functions: Sequence[Callable[[], None]]
    context: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    position: int = 0
    estimate_us: float = 0.0


class HostTimer:
    """Times calls by the host's clock, rotating over the operand sets.

    Args:
        drain: waits for what calls have left running, on a device or in other processes; inside
            the time of an item, and once before it.
        least_us: an item lasts this long at least; by default :data:`MIN_ITEM_US`.
    """

    kind = "host"

    def __init__(self, drain: Callable[[], None] | None = None,
                 least_us: float | None = None) -> None:
        self._drain = drain
        self._least_us = least_us

    def load(self, name: str, calls: Sequence[Callable[[], None]], *,
             context: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
             expected_us: float | None = None) -> HostCalls:
        """Warms up ``calls`` (one for each operand set) and chooses the number of calls in an item.
        """
        with context():
            calls[0]()
        item = HostCalls(name, 1, calls, context)
        item.estimate_us = min(self.run([item, item]))
        least_us = MIN_ITEM_US if self._least_us is None else self._least_us
        item.calls = max(1, min(int(least_us / max(item.estimate_us, 0.1)) + 1, 10_000))
        return item

    def run(self, order: Sequence[HostCalls],
            while_busy: Callable[[], None] | None = None) -> list[float]:
        """Runs each item's calls once. Returns microseconds per call of each item."""
        if while_busy is not None:
            while_busy()
        times = []
        with gc_paused():
            for item in order:
                count = len(item.functions)
                todo = [item.functions[(item.position + i) % count] for i in range(item.calls)]
                item.position = (item.position + item.calls) % count
                with item.context():
                    if self._drain is not None:
                        self._drain()
                    start = time.perf_counter_ns()
                    for call in todo:
                        call()
                    if self._drain is not None:
                        self._drain()
                    times.append((time.perf_counter_ns() - start) * 1e-3 / item.calls)
        return times

    def closing(self, item: HostCalls, sets: Sequence[int]) -> float:
        """Runs the calls of ``sets`` once more, timed in the same way."""
        return self.run([HostCalls(item.name, len(sets), [item.functions[i] for i in sets],
                                   item.context)])[0]

    def clear(self) -> None:
        """Does nothing: no state outlives a run."""


@contextlib.contextmanager
def gc_paused() -> Iterator[None]:
    """No garbage collection inside the block: on a GPU it could also free memory under a
    capture."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def pinned() -> Iterator[None]:
    """Pins the calling thread to one of its CPUs inside the block, where the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def host_time_us(callables: Mapping[str, Callable[[], object]], *, blocks: int = 20,
                 calls: int = 1000, drain: Callable[[], None] | None = None,
                 contexts: Mapping[str, Callable[[], AbstractContextManager[object]]] | None = None,
                 seed: int = 0) -> dict[str, Quantiles]:
    """Host time of one call of each, in microseconds: quantiles over blocks.

    Blocks of ``calls`` calls of each callable alternate in balanced orders
    (:func:`~tritongemm.measure.rounds.orders`), with garbage collection off and the thread pinned.
    Use a problem small enough not to fill the GPU's queue;
    otherwise the result is the time that the host waits for the queue.

    Args:
        callables: name -> one asynchronous call.
        blocks: blocks of each callable.
        calls: calls a block.
        drain: waits until the device's queue is empty; called between blocks, untimed.
        contexts: entered around the blocks of a name, untimed.
    """
    contexts = contexts or {}
    names = list(callables)
    times: dict[str, list[float]] = {name: [] for name in names}
    with pinned(), gc_paused():
        for name in names:
            with contexts.get(name, contextlib.nullcontext)():
                for _ in range(10):
                    callables[name]()
        for order in orders(len(names), blocks, np.random.default_rng(seed)):
            for i in order:
                call = callables[names[i]]
                if drain is not None:
                    drain()
                with contexts.get(names[i], contextlib.nullcontext)():
                    start = time.perf_counter_ns()
                    for _ in range(calls):
                        call()
                    spent = time.perf_counter_ns() - start
                times[names[i]].append(spent * 1e-3 / calls)
        if drain is not None:
            drain()
    return {name: Quantiles.of(values) for name, values in times.items()}


def rotating(calls: Sequence[Callable[[], None]]) -> Callable[[], None]:
    """One callable that runs the next of ``calls`` each time: rotating pointers."""
    state = iter(_forever(calls))
    return lambda: next(state)()


def _forever(calls: Sequence[Callable[[], None]]) -> Iterator[Callable[[], None]]:
    while True:
        yield from calls


#: Last-level cache assumed where the system does not report it, bytes.
_CACHE_GUESS = 32 * 2**20


def cache_bytes() -> int:
    """The largest cache of the first CPU, bytes (read on Linux, a default elsewhere)."""
    folder = "/sys/devices/system/cpu/cpu0/cache"
    found = []
    with contextlib.suppress(OSError):
        for index in os.listdir(folder):
            with contextlib.suppress(OSError, ValueError), \
                    open(f"{folder}/{index}/size", encoding="ascii") as file:
                text = file.read().strip()
                scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
                found.append(int(text.rstrip("KMG")) * scale)
    return max(found, default=_CACHE_GUESS)
