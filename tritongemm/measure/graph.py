"""The default timer: calls captured into CUDA graphs, replayed between events.

Each contender's calls become one graph: a linear chain that rotates over the operand sets, at least
one rotation and :data:`MIN_REPLAY_US` long. A graph has no launch cost between its calls. An eager
loop over calls of 3 us would measure mostly launch cost.

Two constraints: replays are enqueued behind a spinning kernel, so that the GPU never waits for the
host. And torch keeps one cuBLAS workspace for each stream, captures its address, and frees it when
any graph of that stream is destroyed. All graphs are therefore destroyed together
(:meth:`GraphTimer.clear`), superseded ones included.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from tritongemm.errors import TritonGemmError
from tritongemm.measure.host import gc_paused

#: Least duration of a replay: event cost and the gap between graphs are below 1 % of it.
MIN_REPLAY_US = 300.0
#: Largest number of graph nodes up to which rotations are added.
_MOST_CALLS = 4000
#: Cycles of the spin before the first replay, about 1 ms at 2 GHz.
SPIN_CYCLES = 2_000_000


class CaptureError(TritonGemmError, RuntimeError):
    """Calls that cannot be captured into a CUDA graph."""


@dataclass
class CapturedCalls:
    """One contender's graph. ``calls`` counts the calls in it."""

    name: str
    calls: int
    graph: torch.cuda.CUDAGraph
    estimate_us: float = 0.0


@functools.cache
def measuring_stream(index: int) -> torch.cuda.Stream:
    """The stream of device ``index`` for warm-up, capture and replay."""
    return torch.cuda.Stream(device=index)


class Events:
    """A pool of reusable timing events."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []

    def take(self, count: int) -> list[torch.cuda.Event]:
        """``count`` events that nothing else uses."""
        while len(self._events) < count:
            self._events.append(torch.cuda.Event(enable_timing=True))
        return self._events[:count]


class GraphTimer:
    """Times contenders by replaying their graphs, all on one stream of one device."""

    kind = "graph"

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        self.stream = stream or measuring_stream(device.index)
        self._events = Events()
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def load(self, name: str, calls: Sequence[Callable[[], None]], *,
             context: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
             expected_us: float | None = None) -> CapturedCalls:
        """Warms up and captures ``calls`` (one for each operand set), uploads the graph and replays
        it once.

        Args:
            context: entered around warm-up and capture.
            expected_us: estimated time of a call, so that one capture is enough.

        Raises:
            CaptureError: a call cannot be captured, though it runs outside a capture.
            Exception: what a call raised during warm-up.
        """
        with context():
            with torch.cuda.stream(self.stream):
                for _ in range(2):
                    for call in calls[:2]:
                        call()
            self.stream.synchronize()
            rotations = _rotations(len(calls), expected_us)
            captured = self._capture(name, calls, rotations)
            captured.estimate_us = self.run([captured])[0]  # this one uploads the graph
            if expected_us is None:
                captured.estimate_us = self.run([captured])[0]
            wanted = _rotations(len(calls), captured.estimate_us)
            if wanted > 1.5 * rotations:
                captured = self._capture(name, calls, wanted)
                captured.estimate_us = self.run([captured])[0]
        return captured

    def _capture(self, name: str, calls: Sequence[Callable[[], None]],
                 rotations: int) -> CapturedCalls:
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        self._graphs.append(graph)
        self.stream.synchronize()
        # Not torch.cuda.graph(): that empties the allocator's cache at every capture.
        with torch.cuda.stream(self.stream), gc_paused():
            # "thread_local": other threads (a clock sampler, a compiler) may use CUDA during the
            # capture.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for _ in range(rotations):
                    for call in calls:
                        call()
                graph.capture_end()
            except BaseException as error:
                self._abandon(graph, pool)
                if not isinstance(error, Exception):
                    raise
                raise CaptureError(f"{name} cannot be captured into a CUDA graph: "
                                   f"{type(error).__name__}: {error}") from error
        return CapturedCalls(name, rotations * len(calls), graph)

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: tuple[int, int]) -> None:
        """Ends a failed capture. Only the first error is reported; later ones follow from it."""
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        # Before torch 2.12 a capture_end that raises leaves the allocator in its capturing state,
        # in which it cannot empty its cache (pytorch pull request 180395).
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(self.stream.device.index, pool)
        # Nor does it tell the random generator, whose next draw outside a capture then raises; a
        # capture that ends does.
        with contextlib.suppress(RuntimeError):
            whole = torch.cuda.CUDAGraph()
            self._graphs.append(whole)
            whole.capture_begin(capture_error_mode="thread_local")
            try:
                torch.cuda._sleep(1)  # torch warns of a graph with nothing in it
            finally:
                whole.capture_end()

    def run(self, order: Sequence[CapturedCalls],
            while_busy: Callable[[], None] | None = None) -> list[float]:
        """Replays each item once, all enqueued before the first runs. Returns microseconds per call
        of each item.

        ``while_busy`` is called once everything is enqueued, before the host waits.
        """
        events = self._events.take(2 * len(order))
        with torch.cuda.stream(self.stream), gc_paused():
            torch.cuda._sleep(SPIN_CYCLES)
            for i, item in enumerate(order):
                events[2 * i].record(self.stream)
                item.graph.replay()
                events[2 * i + 1].record(self.stream)
            if while_busy is not None:
                while_busy()
            self.stream.synchronize()
        return [events[2 * i].elapsed_time(events[2 * i + 1]) * 1e3 / item.calls
                for i, item in enumerate(order)]

    def block(self, item: CapturedCalls, replays: int,
              while_busy: Callable[[], None] | None = None) -> float:
        """Runs ``replays`` replays of one item back to back. Returns microseconds per call."""
        start, end = self._events.take(2)
        with torch.cuda.stream(self.stream), gc_paused():
            torch.cuda._sleep(SPIN_CYCLES)
            start.record(self.stream)
            for _ in range(replays):
                item.graph.replay()
            end.record(self.stream)
            if while_busy is not None:
                while_busy()
            self.stream.synchronize()
        return start.elapsed_time(end) * 1e3 / (item.calls * replays)

    def closing(self, item: CapturedCalls, sets: Sequence[int]) -> float:
        """Runs one more timed replay, which writes the outputs of every operand set."""
        return self.run([item])[0]

    def clear(self) -> None:
        """Destroys every graph, and with them their private memory pools."""
        self.stream.synchronize()
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()


def _rotations(sets: int, call_us: float | None) -> int:
    """Rotations over ``sets`` that last :data:`MIN_REPLAY_US`."""
    if not call_us or call_us <= 0:
        return 1
    wanted = -int(-MIN_REPLAY_US // (sets * call_us))
    return max(1, min(wanted, _MOST_CALLS // sets))
