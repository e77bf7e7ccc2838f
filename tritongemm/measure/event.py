"""The event timer, for calls that cannot be captured: CUDA events around eager calls behind a
spinning kernel.

The kernel keeps the GPU busy while the host enqueues the calls, which hides their launch cost if it
is short. A call that makes the host wait is not hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from tritongemm.measure.graph import MIN_REPLAY_US, Events, measuring_stream
from tritongemm.measure.host import gc_paused

#: The driver queues about a thousand launches; a call may be several.
_MOST_CALLS = 200
_CYCLES_PER_US = 2000
#: Margin: the host may be this many times slower than when it was measured.
_SPIN_MARGIN = 1.5
_LONGEST_SPIN_US = 50_000


@dataclass
class EagerCalls:
    """One contender's calls and the number of calls in a replay. ``position`` is the next operand
    set."""

    name: str
    calls: int
    functions: Sequence[Callable[[], None]]
    context: Callable[[], AbstractContextManager[object]]
    host_us: float
    position: int = 0
    estimate_us: float = 0.0


class EventTimer:
    """Times contenders with events around eager calls, all on one stream of one device."""

    kind = "event"

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self.stream = stream or measuring_stream(device.index)
        self._events = Events()

    def load(self, name: str, calls: Sequence[Callable[[], None]], *,
             context: Callable[[], AbstractContextManager[object]] = nullcontext,
             expected_us: float | None = None) -> EagerCalls:
        """Warms up ``calls`` (one for each operand set) and measures their host time."""
        count = min(max(len(calls), 2), 10)
        with context(), torch.cuda.stream(self.stream):
            for call in calls[:2]:
                call()
            self.stream.synchronize()
            start = time.perf_counter_ns()
            for i in range(count):
                calls[i % len(calls)]()
            host_us = (time.perf_counter_ns() - start) * 1e-3 / count
            self.stream.synchronize()
        item = EagerCalls(name, count, calls, context, host_us)
        item.estimate_us = self.run([item])[0]
        item.calls = max(2, min(int(MIN_REPLAY_US / max(item.estimate_us, 0.1)) + 1, _MOST_CALLS))
        return item

    def run(self, order: Sequence[EagerCalls],
            while_busy: Callable[[], None] | None = None) -> list[float]:
        """Runs each item's calls once behind a spinning kernel. Returns microseconds per call of
        each item."""
        events = self._events.take(2 * len(order))
        with torch.cuda.stream(self.stream), gc_paused():
            for i, item in enumerate(order):
                with item.context():
                    spin_us = min(_SPIN_MARGIN * item.host_us * item.calls + 20, _LONGEST_SPIN_US)
                    torch.cuda._sleep(int(spin_us * _CYCLES_PER_US))
                    events[2 * i].record(self.stream)
                    for _ in range(item.calls):
                        item.functions[item.position]()
                        item.position = (item.position + 1) % len(item.functions)
                    events[2 * i + 1].record(self.stream)
            if while_busy is not None:
                while_busy()
            self.stream.synchronize()
        return [events[2 * i].elapsed_time(events[2 * i + 1]) * 1e3 / item.calls
                for i, item in enumerate(order)]

    def closing(self, item: EagerCalls, sets: Sequence[int]) -> float:
        """Runs the calls of ``sets`` once more, timed in the same way."""
        once = EagerCalls(item.name, len(sets), [item.functions[i] for i in sets], item.context,
                          item.host_us)
        return self.run([once])[0]

    def clear(self) -> None:
        """Does nothing: no state outlives a run."""
