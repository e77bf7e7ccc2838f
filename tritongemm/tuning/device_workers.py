"""The devices of a sweep: their workers, their identity, and which of them can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tritongemm.device import DeviceSpec
from tritongemm.errors import DeviceError, UsageError
from tritongemm.measure.environment import differences
from tritongemm.tuning.task import Task
from tritongemm.workers.messages import Outcome, one_line
from tritongemm.workers.worker import Event, Ready, Refused, Worker

_TRIES = 3
#: After this many configs in a row that hang or die, the device is taken to be at fault.
_SICK_AFTER = 25


@dataclass(eq=False)
class DeviceWorker:
    """A device, its worker, and the last problem that it measured.

    ``lost`` says why it can no longer be used; ``waited_s`` counts seconds without work while
    configs were being compiled.
    """

    index: int | None
    worker: Worker
    task: Task | None = None
    lost: str = ""
    waited_s: float = 0.0
    refused: int = 0
    failed_in_a_row: int = 0
    #: Whether the current request has failed as a whole.
    broken: bool = False

    @property
    def name(self) -> str:
        """``device 0``."""
        return self.worker.name


@dataclass(frozen=True)
class DeviceIdentity:
    """The device that is measured, as the first ready worker reports it; ``name`` is the
    worker's."""

    name: str
    spec: DeviceSpec
    environment: Mapping[str, object]
    fingerprint: str


class DeviceWorkers:
    """The devices of a sweep, one worker each, all of the same kind.

    Args:
        target, arguments: the object that each worker serves (see ``workers/child.py``); ``index``
            is added to the arguments.
        indices: CUDA indices; None: all devices that the first worker counts.
        say: called with a message for each device that is left out.
    """

    def __init__(self, target: str, arguments: Mapping[str, object],
                 indices: Sequence[int | None] | None, say: Callable[[str], None]) -> None:
        self._target, self._arguments, self._say = target, dict(arguments), say
        self._all = indices is None
        self.identity: DeviceIdentity | None = None
        self._devices: list[DeviceWorker] = []
        self._add([0] if indices is None else indices)

    def __iter__(self) -> Iterator[DeviceWorker]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def _add(self, indices: Sequence[int | None]) -> None:
        for index in indices:
            if not any(d.index == index for d in self._devices):
                name = "cpu" if index is None else f"device {index}"
                self._devices.append(DeviceWorker(index, Worker(
                    name, self._target, {**self._arguments, "index": index})))

    def start(self) -> None:
        """Starts the workers that are not running, including those that died."""
        for device in self._devices:
            if not device.lost and not device.worker.alive:
                device.worker.start()

    def close(self) -> None:
        """Ends every worker."""
        for device in self._devices:
            device.worker.kill()

    def connections(self) -> dict[Connection, DeviceWorker]:
        """The connections to wait on, each with its device."""
        return {d.worker.connection: d for d in self._devices if d.worker.connection}

    def deadline(self) -> float:
        """The earliest deadline of any worker."""
        return min(d.worker.deadline for d in self._devices)

    def read(self, device: DeviceWorker) -> list[Event]:
        """The events of a worker's current request. Raises as :meth:`check` does."""
        return self._of_requests(device, device.worker.read())

    def check(self) -> list[tuple[DeviceWorker, Event]]:
        """Ends workers that exceed their deadline; returns the resulting events.

        Raises:
            DeviceError: no device is left. UsageError: the devices are not of one kind.
        """
        return [(d, event) for d in self._devices
                for event in self._of_requests(d, d.worker.check())]

    def note(self, device: DeviceWorker, outcome: Outcome) -> None:
        """Counts consecutive configs that hang or die.

        Raises:
            DeviceError: there were too many; the device is taken to be at fault.
        """
        sick = outcome.status in ("died", "timeout")
        device.failed_in_a_row = device.failed_in_a_row + 1 if sick else 0
        if device.failed_in_a_row >= _SICK_AFTER:
            raise DeviceError(f"{device.name}: {_SICK_AFTER} configs in a row hung or died; last: "
                              f"{outcome.reason}. `tritongemm doctor` may say more; then continue "
                              "with --resume")

    def _of_requests(self, device: DeviceWorker, events: list[Event]) -> list[Event]:
        rest: list[Event] = []
        for event in events:
            if isinstance(event, Ready):
                self._ready(device, event.info)
            elif isinstance(event, Refused):
                self._refused(device, event)
            else:
                rest.append(event)
        return rest

    def _ready(self, device: DeviceWorker, info: object) -> None:
        device.refused = 0
        assert isinstance(info, Mapping)
        spec, environment = info["device"], info["environment"]
        assert isinstance(spec, DeviceSpec) and isinstance(environment, Mapping)
        fingerprint = str(info["fingerprint"])
        if self.identity is None:
            self.identity = DeviceIdentity(device.name, spec, environment, fingerprint)
            if self._all:
                self._add(range(int(info["device_count"])))
        elif fingerprint != self.identity.fingerprint:
            differs = differences(environment, self.identity.environment, self.identity.name)
            raise UsageError(f"{device.name} ({spec.name}) is not like {self.identity.name} "
                             f"({self.identity.spec.name}): {', '.join(differs)}; sweep one kind "
                             "at a time with --devices")

    def _refused(self, device: DeviceWorker, event: Refused) -> None:
        device.refused += 1
        if not event.final and device.refused < _TRIES:
            return  # the next start() tries again
        device.lost = one_line(event.reason)
        if all(d.lost for d in self._devices):
            others = "; name the other devices with --devices" if self._all else ""
            raise DeviceError(f"{device.name} cannot be used: {device.lost}{others}")
        self._say(f"{device.name} is left out: {device.lost}")
