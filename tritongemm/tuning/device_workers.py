"""The devices of a sweep: their workers, what they are, and which of them can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from tritongemm.device import DeviceSpec
from tritongemm.errors import DeviceError, UsageError
from tritongemm.tuning.task import Task
from tritongemm.workers.batch import Outcome
from tritongemm.workers.worker import Event, Ready, Refused, Station

_TRIES = 3
#: So many configs hanging or dying one after another are the device's fault, not theirs.
_SICK_AFTER = 25


@dataclass(eq=False)
class Device:
    """A device, its worker, and the problem it was last on.

    ``lost`` says why it can no longer be used; ``waited_s`` counts seconds without work while
    configs were being compiled.
    """

    index: int | None
    station: Station
    task: Task | None = None
    lost: str = ""
    waited_s: float = 0.0
    refused: int = 0
    failed_in_a_row: int = 0
    #: The job it is on has failed as a whole.
    broken: bool = False

    @property
    def name(self) -> str:
        """``device 0``."""
        return self.station.name


@dataclass(frozen=True)
class Identity:
    """What is measured on, as the first worker that was ready said it."""

    spec: DeviceSpec
    environment: Mapping[str, object]
    fingerprint: str


class Crew:
    """The devices; all alike.

    Args:
        target, arguments: what each worker serves (see ``child.py``); ``index`` is added.
        indices: CUDA indices; None: all that the first one's worker counts.
        say: told of devices that are left out.
    """

    def __init__(self, target: str, arguments: Mapping[str, object],
                 indices: Sequence[int | None] | None, say: Callable[[str], None]) -> None:
        self._target, self._arguments, self._say = target, dict(arguments), say
        self._all = indices is None
        self.identity: Identity | None = None
        self._devices: list[Device] = []
        self._add([0] if indices is None else indices)

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices)

    def __len__(self) -> int:
        return len(self._devices)

    def _add(self, indices: Sequence[int | None]) -> None:
        for index in indices:
            if not any(d.index == index for d in self._devices):
                name = "cpu" if index is None else f"device {index}"
                self._devices.append(Device(index, Station(
                    name, self._target, {**self._arguments, "index": index})))

    def start(self) -> None:
        """Starts workers that are not running, those that died among them."""
        for device in self._devices:
            if not device.lost and not device.station.alive:
                device.station.start()

    def close(self) -> None:
        """Ends every worker."""
        for device in self._devices:
            device.station.kill()

    def connections(self) -> dict[Connection, Device]:
        """What to wait on."""
        return {d.station.connection: d for d in self._devices if d.station.connection}

    def deadline(self) -> float:
        """The earliest deadline."""
        return min(d.station.deadline for d in self._devices)

    def read(self, device: Device) -> list[Event]:
        """News of a worker about its job. Raises as :meth:`check`."""
        return self._of_jobs(device, device.station.read())

    def check(self) -> list[tuple[Device, Event]]:
        """Ends workers that take too long; the news that this makes.

        Raises:
            DeviceError: no device is left. UsageError: the devices are not alike.
        """
        return [(d, event) for d in self._devices
                for event in self._of_jobs(d, d.station.check())]

    def note(self, device: Device, outcome: Outcome) -> None:
        """Counts configs that hang or die one after another.

        Raises:
            DeviceError: there were so many that the device must be at fault.
        """
        sick = outcome.status in ("died", "timeout")
        device.failed_in_a_row = device.failed_in_a_row + 1 if sick else 0
        if device.failed_in_a_row >= _SICK_AFTER:
            raise DeviceError(f"{device.name}: {_SICK_AFTER} configs in a row hung or died; last: "
                              f"{outcome.reason}. `tritongemm doctor` may say more; then go on "
                              "with --resume")

    def _of_jobs(self, device: Device, events: list[Event]) -> list[Event]:
        rest: list[Event] = []
        for event in events:
            if isinstance(event, Ready):
                self._ready(device, event.info)
            elif isinstance(event, Refused):
                self._refused(device, event)
            else:
                rest.append(event)
        return rest

    def _ready(self, device: Device, info: Mapping[str, object]) -> None:
        device.refused = 0
        spec, environment = info["device"], info["environment"]
        assert isinstance(spec, DeviceSpec) and isinstance(environment, Mapping)
        fingerprint = str(info["fingerprint"])
        if self.identity is None:
            self.identity = Identity(spec, environment, fingerprint)
            if self._all:
                self._add(range(int(info["device_count"])))  # type: ignore[call-overload]
        elif fingerprint != self.identity.fingerprint:
            raise UsageError(f"{device.name} ({spec.name}) is not like the first one "
                             f"({self.identity.spec.name}); sweep one kind at a time with "
                             "--devices")

    def _refused(self, device: Device, event: Refused) -> None:
        device.refused += 1
        if not event.final and device.refused < _TRIES:
            return  # the next start tries again
        device.lost = event.reason
        if all(d.lost for d in self._devices):
            raise DeviceError(f"{device.name} cannot be used: {event.reason}")
        self._say(f"{device.name} is left out: {event.reason}")
