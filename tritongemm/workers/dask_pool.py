"""The workers of a Dask cluster, one GPU each: which may take part, and which jobs they run.

:class:`Pool` watches the cluster. It probes each worker that joins, admits it or refuses it with a
reason, submits jobs to the workers of one kind of device, and reports which jobs are done or must
be submitted again. Dask itself moves a task whose worker died to another worker.
"""

from __future__ import annotations

import importlib.metadata
import math
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritongemm import __version__, settings
from tritongemm.device import INTERPRETER
from tritongemm.errors import DeviceError, TritonGemmError, UsageError, missing
from tritongemm.measure.environment import differences

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_TIMEOUT_S = 15.0
#: Seconds to wait for a first worker, or for another one after all have left.
WORKER_TIMEOUT_S = 300.0
#: Jobs that a worker has at once.
AT_ONCE = 2
_LOOK_EVERY_S = 1.0


class WorkerFault(DeviceError):
    """A worker cannot measure; ``address`` is the worker's, ``reason`` says why."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address, self.reason = address, reason

    def __reduce__(self):
        return (WorkerFault, (self.address, self.reason))


@dataclass(frozen=True)
class WorkerIdentity:
    """A worker's description of itself.

    Attributes:
        kind: slug of its device.
        fingerprint: times of equal fingerprints are comparable.
        environment: the record that the fingerprint is made of.
        software: see :func:`software`.
        gpu: CUDA_VISIBLE_DEVICES.
        about: further facts, for the caller.
    """

    kind: str
    fingerprint: str
    environment: Mapping[str, object]
    software: Mapping[str, str]
    gpu: tuple[str, ...]
    about: object

    @classmethod
    def here(cls, kind: str, fingerprint: str, environment: Mapping[str, object], about: object
             ) -> WorkerIdentity:
        """The identity of this process."""
        return cls(kind, fingerprint, environment, software(), settings.current().visible_devices,
                   about)


def software() -> dict[str, str]:
    """The versions that must be equal on the client and every worker. The digest of the device code
    distinguishes checkouts with the same version."""
    from tritongemm.kernels.revision import device_code_digest

    found = {"device code": device_code_digest()[:12],
             "Python": ".".join(platform.python_version_tuple()[:2]), "tritongemm": __version__}
    for package in ("torch", "triton"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


#: A host and a port after the protocol, or a scheduler in this process. ``Client`` waits for any
#: other word until its time limit.
_ADDRESS = re.compile(r"(?:[a-z]+://)?[^\s:/]+:\d+|[a-z]+://\[[^\s\]]+\]:\d+|inproc://\S+")


def connect(address: str) -> Client:
    """Connects to the scheduler at ``address``.

    Raises:
        MissingDependencyError: Dask distributed is not installed.
        UsageError: not an address.
        DeviceError: no scheduler answers there, or Dask's event loop does not start here.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise missing("distributed", "cluster", "--scheduler") from error
    if not _ADDRESS.fullmatch(address):
        raise UsageError(f"{address!r} is not the address of a Dask scheduler; give what `dask "
                         "scheduler` prints, such as tcp://10.0.0.1:8786")
    late = False
    while True:
        try:
            return Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False,
                          name="tritongemm")
        except AssertionError as error:
            # Dask asserts that the thread of its event loop has started within 10 s. A host whose
            # cores are all busy, or that was suspended meanwhile, can take longer once.
            if late:
                raise DeviceError("the event loop of Dask did not start within 10 s, tried twice; "
                                  "this host is too busy. End what else runs on it, and try again"
                                  ) from error
            late = True
        except (OSError, TimeoutError, ValueError, TypeError) as error:
            raise DeviceError(
                f"no Dask scheduler can be reached at {address!r} within "
                f"{CONNECT_TIMEOUT_S:.0f} s: {error}. Start one with `dask scheduler`, and name "
                "the address that it prints, such as tcp://10.0.0.1:8786") from error


@dataclass(eq=False)
class PoolWorker:
    """A Dask worker; ``kind`` is the slug of its device once it is admitted."""

    address: str
    name: str
    threads: int
    probe: Future | None
    kind: str = ""
    gpu: str = ""
    refused: str = ""

    def __str__(self) -> str:
        return f"worker {self.name} at {self.address}"


@dataclass(eq=False)
class Flight:
    """A submitted job: one of ``workers`` runs it. ``attempt`` is unique.

    ``value`` is what it returned, once it is ``over``.
    """

    kind: str
    job: object
    attempt: str
    workers: tuple[str, ...]
    future: Future
    value: object = None
    over: bool = False
    since: float = 0.0


@dataclass(frozen=True)
class Lost:
    """A job that returned nothing. ``fault``: the job killed its workers or raised an error.
    Otherwise a worker was at fault and the job may be submitted again."""

    flight: Flight
    reason: str
    fault: bool


class Pool:
    """The workers of one cluster.

    Args:
        client, address: of the scheduler.
        topic: unique to this run; keys of tasks begin with it.
        identify: a function that is run once on each worker and returns its
            :class:`WorkerIdentity`.
        arguments: the arguments of ``identify``.
        say: called with a message when a worker joins, leaves or is refused.
        worker_timeout_s: seconds to wait for a usable worker.
        kept: what an error says about earlier results.
    """

    def __init__(self, client: Client, address: str, topic: str,
                 identify: Callable[..., WorkerIdentity], arguments: tuple[object, ...],
                 say: Callable[[str], None], worker_timeout_s: float, kept: str) -> None:
        self.client, self.address, self.topic = client, address, topic
        self._identify, self._arguments, self._say = identify, arguments, say
        self._worker_timeout_s, self._kept = worker_timeout_s, kept
        self._workers: dict[str, PoolWorker] = {}
        #: Kind of device -> identity of its first worker, and that worker.
        self.kinds: dict[str, WorkerIdentity] = {}
        self._first: dict[str, PoolWorker] = {}
        self.flights: list[Flight] = []
        self._usable = time.monotonic()
        self._looked = -math.inf
        self._attempts = 0

    @property
    def probing(self) -> bool:
        """Whether a worker that joined was not admitted or refused yet."""
        return any(worker.probe for worker in self._workers.values())

    @property
    def admitted(self) -> list[PoolWorker]:
        """The workers that take part."""
        return [worker for worker in self._workers.values() if worker.kind]

    def able(self, kind: str) -> list[PoolWorker]:
        """The workers with a device of ``kind``."""
        return [worker for worker in self.admitted if worker.kind == kind]

    def update(self) -> list[str]:
        """Updates the state of the cluster. Returns the kinds of device that are new.

        Raises:
            DeviceError: the scheduler is gone, no worker can be used, or none joined in time.
        """
        if self.client.status != "running":
            raise self.gone()
        before = set(self.kinds)
        try:
            self._look()
        except OSError as error:  # raised by calls to a scheduler that has ended
            raise self.gone() from error
        self._admit()
        return [kind for kind in self.kinds if kind not in before]

    def gone(self) -> DeviceError:
        """The error for a scheduler that is gone."""
        return DeviceError(f"the Dask scheduler at {self.address} is gone; {self._kept}")

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_EVERY_S:
            return
        self._looked = now
        there = self.client.scheduler_info(n_workers=-1)["workers"]
        for address in self._workers.keys() - there.keys():
            worker = self._workers.pop(address)
            if worker.kind:
                self._say(f"{worker} has left")
        for address in there.keys() - self._workers.keys():
            probe = self.client.submit(self._identify, *self._arguments, workers=[address],
                                       allow_other_workers=False, pure=False)
            about = there[address]
            self._workers[address] = PoolWorker(address, str(about["name"]), about["nthreads"],
                                                probe)
        if any(worker.kind or worker.probe for worker in self._workers.values()):
            self._usable = now
            return
        refused = [f"{worker}: {worker.refused}" for worker in self._workers.values()]
        if refused and not self.flights:
            raise DeviceError(f"no worker of {self.address} can be used. " + "; ".join(refused))
        if now - self._usable > self._worker_timeout_s:
            raise DeviceError(
                f"no worker has joined {self.address} for {self._worker_timeout_s:.0f} s; start "
                f"`tritongemm worker {self.address}` on each host with a GPU"
                + (f". {self._kept.capitalize()}" if self.kinds else ""))

    def _admit(self) -> None:
        """Admits or refuses the workers whose probes are done."""
        for worker in list(self._workers.values()):
            probe = worker.probe
            if probe is None or not probe.done():
                continue
            worker.probe = None
            if probe.status == "error":
                error = probe.exception(timeout=CONNECT_TIMEOUT_S)
                self._refuse(worker, getattr(error, "reason", None)
                             or f"{type(error).__name__}: {error}")
                continue
            try:
                found = probe.result(timeout=CONNECT_TIMEOUT_S)
            except (OSError, TimeoutError, CancelledError):
                del self._workers[worker.address]  # it left meanwhile
            else:
                self._judge(worker, found)

    def _judge(self, worker: PoolWorker, found: WorkerIdentity) -> None:
        differs = [f"{name} {found.software.get(name)} there and {version} here"
                   for name, version in software().items()
                   if found.software.get(name) != version]
        known = self.kinds.get(found.kind)
        if known is not None and found.fingerprint != known.fingerprint:
            differs += differences(found.environment, known.environment, self._first[found.kind])
        if differs:
            self._refuse(worker, "versions differ: " + ", ".join(differs)
                         + "; install the same ones on every host")
            return
        # The address without its port identifies the host. Workers that were not pinned all use GPU
        # 0.
        worker.gpu = f"{worker.address.rpartition(':')[0]} {found.gpu[0] if found.gpu else 0}"
        for other in self._workers.values():
            if found.kind != INTERPRETER and other.kind and other.gpu == worker.gpu:
                self._refuse(worker, f"it has the same GPU as {other}; start one worker a GPU, as "
                             "`tritongemm worker` does")
                return
        if known is None:
            self.kinds[found.kind], self._first[found.kind] = found, worker
        worker.kind = found.kind
        self._say(f"{worker} has joined: {found.kind}")

    def _refuse(self, worker: PoolWorker, reason: str) -> None:
        worker.kind, worker.refused = "", reason
        self._say(f"{worker} is left out: {reason}")

    # -- jobs -------------------------------------------------------------------------------------

    def room(self, kind: str) -> int:
        """The number of further jobs that the workers of ``kind`` can take."""
        return (sum(min(AT_ONCE, worker.threads) for worker in self.able(kind))
                - sum(flight.kind == kind for flight in self.flights))

    def submit(self, kind: str, job: object, function: Callable[..., object],
               *arguments: object) -> None:
        """Submits ``function(attempt, *arguments)`` to a worker of ``kind``."""
        self._attempts += 1
        attempt = f"{self.topic}-{self._attempts}"
        addresses = tuple(worker.address for worker in self.able(kind))
        future = self.client.submit(function, attempt, *arguments, key=attempt, workers=addresses,
                                    allow_other_workers=False, pure=False)
        self.flights.append(Flight(kind, job, attempt, addresses, future))

    def collect(self) -> Iterator[Flight | Lost]:
        """Yields finished and lost jobs. Lost jobs leave the pool. A finished job stays in
        :attr:`flights`, and is yielded again, until the caller removes it.

        Raises:
            TritonGemmError: raised by a job, other than the fault of a worker.
        """
        for flight in list(self.flights):
            future = flight.future
            if not flight.over and future.status == "finished":
                try:
                    flight.value = future.result(timeout=CONNECT_TIMEOUT_S)
                except (OSError, TimeoutError, CancelledError):
                    continue  # its worker died with the result; the scheduler runs it again
                flight.over, flight.since = True, time.monotonic()
            if flight.over:
                yield flight
            elif future.status == "error":
                self.flights.remove(flight)
                yield self._failed(flight, future.exception(timeout=CONNECT_TIMEOUT_S))
            elif future.status in ("cancelled", "lost") or not any(
                    address in self._workers for address in flight.workers):
                self.flights.remove(flight)
                self.client.cancel([future])
                yield Lost(flight, "all workers that could run it have left", fault=False)

    def _failed(self, flight: Flight, error: BaseException) -> Lost:
        if isinstance(error, WorkerFault):
            worker = self._workers.get(error.address)
            if worker is not None and not worker.refused:
                self._refuse(worker, error.reason)
            return Lost(flight, error.reason, fault=False)
        if isinstance(error, TritonGemmError):
            raise error
        reason = ("died: the worker that measured it ended, several times over"
                  if type(error).__name__ == "KilledWorker" else f"{type(error).__name__}: {error}")
        return Lost(flight, reason, fault=True)

    def on_workers(self, function: Callable[[str], None]) -> None:
        """Runs ``function(topic)`` on the admitted workers that are there now. The scheduler would
        try for 30 s to reach one that has just died."""
        there = self.client.scheduler_info(n_workers=-1)["workers"]
        self.client.run(function, self.topic, on_error="ignore",
                        workers=[w.address for w in self.admitted if w.address in there])
