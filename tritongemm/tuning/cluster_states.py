"""What the workers of a cluster are measuring, for the client's display.

Each worker sends its state as it changes; the client keeps the last one of each worker.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace

from tritongemm.tuning.progress import OnDevice, Snapshot
from tritongemm.workers.dask_pool import PoolWorker

#: A worker sends its state at most so often, in seconds: every event goes through the scheduler.
EVERY_S = 1.0


class StateSender:
    """The worker's side. ``emit`` sends one event to the client."""

    def __init__(self, address: str, emit: Callable[[object], None]) -> None:
        self._address, self._emit = address, emit
        self._last, self._due = "", -math.inf

    def send(self, snapshot: Snapshot) -> None:
        """Sends the state if it has changed and the last one is :data:`EVERY_S` old."""
        now = time.monotonic()
        if now < self._due:
            return
        state = json.dumps({"compiling": snapshot.compiling,
                            "devices": [asdict(one) for one in snapshot.devices]}, default=float)
        if state != self._last:
            self._last, self._due = state, now + EVERY_S
            self._emit({"worker": self._address, "state": state})


class WorkerStates:
    """The client's side: the last state of each worker."""

    def __init__(self) -> None:
        self._compiling: dict[str, int] = {}
        self._devices: dict[str, list[OnDevice]] = {}

    def take(self, message: Mapping[str, object]) -> None:
        """Takes an event of a :class:`StateSender`."""
        address, state = str(message["worker"]), json.loads(str(message["state"]))
        self._compiling[address] = state["compiling"]
        self._devices[address] = [OnDevice(**one) for one in state["devices"]]

    def compiling(self, workers: Iterable[PoolWorker]) -> int:
        """How many configs ``workers`` have still to compile."""
        return sum(self._compiling.get(worker.address, 0) for worker in workers)

    def devices(self, workers: Iterable[PoolWorker]) -> list[OnDevice]:
        """What ``workers`` are measuring, under their names: each calls its own device 0."""
        return [replace(one, device=f"worker {worker.name}") for worker in workers
                for one in self._devices.get(worker.address, [])]
