"""A sweep over the GPUs of a Dask cluster.

Every worker has one GPU. Each problem is a task; a worker that dies returns its task, which
another worker of the same kind of device takes. The client admits workers, hands out problems,
and alone writes the journal, from records that the workers send (``cluster_worker.py``). Where
devices of several kinds are in the cluster, each problem is measured on each kind.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.errors import DeviceError, TritonGemmError, UsageError, missing
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import problem_from_json, problem_to_json
from tritongemm.records.journal import Journal, read_journal
from tritongemm.records.run import new_run_id, utc_now
from tritongemm.tuning import cluster_worker
from tritongemm.tuning.candidates import PruneReport
from tritongemm.tuning.cluster_worker import Run, Swept, WorkerFault
from tritongemm.tuning.progress import Progress, Snapshot
from tritongemm.tuning.sweep import SweepReport
from tritongemm.tuning.sweep_journal import check_journal
from tritongemm.tuning.task import ProblemReport

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_TIMEOUT_S = 15.0
#: For a first worker to join, or for another one after all have left.
WORKER_TIMEOUT_S = 300.0
#: Problems with a worker at once: one is measured, the next one compiled.
_AT_ONCE = 2
#: So often is a problem given to a worker before it is reported as failed.
_TRIES = 3
#: Records come before the report of their problem; after this long they were lost on the way.
_RECORDS_TIMEOUT_S = 15.0
_WORKERS_EVERY_S, _WAIT_S = 1.0, 0.1
#: Fields of a record that resuming needs.
_KNOWN = ("kind", "problem", "config", "stage", "status", "time_us")
_RESUME = "every record that came before is in the journal; go on with --resume"


def connect(address: str) -> Client:
    """A client of the scheduler at ``address``.

    Raises:
        MissingDependencyError: Dask distributed is not installed.
        DeviceError: no scheduler answers there.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise missing("distributed", "cluster", "--scheduler") from error
    try:
        return Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False,
                      name="tritongemm")
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise DeviceError(
            f"no Dask scheduler can be reached at {address!r} within {CONNECT_TIMEOUT_S:.0f} s: "
            f"{error}. Start one with `dask scheduler`, and name the address that it prints, "
            "such as tcp://10.0.0.1:8786") from error


@dataclass(eq=False)
class _Worker:
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
class _Kind:
    """One kind of device: its records' header, and the problems that wait for it."""

    header: Mapping[str, object]
    first: _Worker
    pending: deque[GemmProblem]
    tries: Counter[GemmProblem] = field(default_factory=Counter)
    known: dict[GemmProblem, list[Mapping[str, object]]] = field(default_factory=dict)


@dataclass(eq=False)
class _Flight:
    """A problem that was handed out: to ``workers``, one of which takes it."""

    kind: str
    problem: GemmProblem
    attempt: str
    workers: tuple[str, ...]
    future: Future
    swept: Swept | None = None
    since: float = 0.0


def sweep_on_cluster(problems: Iterable[GemmProblem], journal: str | os.PathLike[str],
                     address: str, *, budget_s: float | None = None, resume: bool = False,
                     progress: Progress | None = None,
                     worker_timeout_s: float = WORKER_TIMEOUT_S,
                     **options: object) -> SweepReport:
    """Measures the candidates of each problem on the workers of a Dask cluster.

    Args:
        problems: each is measured on every kind of device that the cluster has; repeats are left
            out.
        journal: written by this process alone; see :func:`tritongemm.tuning.sweep.sweep`.
        address: of the scheduler, such as ``tcp://10.0.0.1:8786``.
        budget_s: seconds for everything; what was begun is finished.
        worker_timeout_s: seconds to wait for a usable worker.
        options: of :func:`tritongemm.tuning.sweep.sweep`, for each worker.

    Raises:
        DeviceError: no scheduler answers, it ends, or no worker can be used.
        UsageError: a bad argument, or a journal that exists. DataFileError: a journal that cannot
            be used or written. MissingDependencyError: Dask distributed is not installed.
        KeyboardInterrupt: on SIGINT or SIGTERM. The journal is whole in every case.
    """
    if budget_s is not None and not 0 < budget_s < math.inf:
        raise UsageError(f"budget_s={budget_s} is not a positive number of seconds")
    path = check_journal(journal, resume)
    client = connect(address)
    one = _ClusterSweep(client, address, list(dict.fromkeys(problems)), path,
                        Run(f"tritongemm-{new_run_id()}", options), budget_s,
                        progress or Progress(), worker_timeout_s)
    with _sigterm():
        return one.run()


@contextlib.contextmanager
def _sigterm() -> Iterator[None]:
    """SIGTERM is an interrupt, as for a sweep of this machine."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _ClusterSweep:
    """One run on one cluster; :meth:`run` once."""

    def __init__(self, client: Client, address: str, problems: list[GemmProblem], path: Path,
                 run: Run, budget_s: float | None, progress: Progress, worker_timeout_s: float
                 ) -> None:
        self._client, self._address, self._problems, self._path = client, address, problems, path
        self._run, self._progress, self._worker_timeout_s = run, progress, worker_timeout_s
        self._started = self._usable = time.monotonic()
        self._deadline = self._started + budget_s if budget_s is not None else math.inf
        self._resumes = path.exists() and path.stat().st_size > 0
        self._journal: Journal | None = None
        self._environment: object = None  # of the header that the journal's last records are under
        self._headers: dict[object, Mapping[str, object]] = {}
        self._events: queue.SimpleQueue[Mapping[str, object]] = queue.SimpleQueue()
        self._received: Counter[str] = Counter()
        self._workers: dict[str, _Worker] = {}
        self._kinds: dict[str, _Kind] = {}
        self._flights: list[_Flight] = []
        self._totals: dict[str, tuple[float, float, float]] = {}
        self._looked = -math.inf
        self._attempts = 0
        self._stopped, self._cut = "", False
        self._reports: list[ProblemReport] = []
        self._failures: Counter[str] = Counter()

    def run(self) -> SweepReport:
        """See :func:`sweep_on_cluster`."""
        reached = True
        try:
            self._client.subscribe_topic(self._run.topic,
                                         lambda event: self._events.put(event[1]))
            while not self._over():
                self._look_at_workers()
                self._admit()
                self._hand_out()
                self._write_records()
                self._collect()
                self._end_of_budget()
                self._show()
                time.sleep(_WAIT_S)
        except OSError as error:  # what a call of the scheduler raises when it is gone
            reached = False
            raise self._scheduler_gone() from error
        except DeviceError:
            reached = self._client.status == "running"
            raise
        finally:
            self._close(reached)
        busy, waited, compiled = (sum(x) for x in zip((0.0, 0.0, 0.0), *self._totals.values()))
        return SweepReport(
            run_id=self._run.topic.partition("-")[2], journal=self._path,
            device=", ".join(sorted(self._kinds)), problems=tuple(self._reports),
            prune=PruneReport(), measured=sum(r.measured for r in self._reports),
            resumed=sum(r.note == "measured before" for r in self._reports),
            failures=dict(self._failures), wall_s=time.monotonic() - self._started,
            gpu_busy_s=busy, gpu_waited_s=waited, compile_s=compiled, stopped=self._stopped)

    def _over(self) -> bool:
        if self._client.status != "running":
            raise self._scheduler_gone()
        waiting = any(kind.pending for kind in self._kinds.values()) or any(
            worker.probe for worker in self._workers.values())
        return not self._flights and (self._cut or (bool(self._kinds) and not waiting))

    def _scheduler_gone(self) -> DeviceError:
        return DeviceError(f"the Dask scheduler at {self._address} is gone after "
                           f"{len(self._reports)} problems; {_RESUME}")

    def _close(self, reached: bool) -> None:
        self._progress.close()
        try:
            if reached:
                with contextlib.suppress(OSError, TimeoutError):
                    self._client.cancel([flight.future for flight in self._flights])
                    self._on_workers(cluster_worker.close)
            try:
                self._write_records()
            finally:
                if self._journal is not None:
                    self._journal.close()
        finally:
            self._client.close(timeout=2)

    def _on_workers(self, function: Callable[[str], None]) -> None:
        self._client.run(function, self._run.topic, on_error="ignore",
                         workers=[w.address for w in self._workers.values() if w.kind])

    # -- workers ----------------------------------------------------------------------------------

    def _look_at_workers(self) -> None:
        """Probes workers that have joined, forgets those that have left."""
        now = time.monotonic()
        if now - self._looked < _WORKERS_EVERY_S:
            return
        self._looked = now
        there = self._client.scheduler_info(n_workers=-1)["workers"]
        for address in self._workers.keys() - there.keys():
            worker = self._workers.pop(address)
            if worker.kind:
                self._progress.say(f"{worker} has left")
        for address in there.keys() - self._workers.keys():
            probe = self._client.submit(cluster_worker.identify, self._run, workers=[address],
                                        allow_other_workers=False, pure=False)
            about = there[address]
            self._workers[address] = _Worker(address, str(about["name"]), about["nthreads"], probe)
        if any(worker.kind or worker.probe for worker in self._workers.values()):
            self._usable = now
            return
        refused = [f"{w}: {w.refused}" for w in self._workers.values()]
        if refused and not self._flights:
            raise DeviceError(f"no worker of {self._address} can be used. " + "; ".join(refused))
        if now - self._usable > self._worker_timeout_s:
            raise DeviceError(
                f"no worker has joined {self._address} for {self._worker_timeout_s:.0f} s; start "
                f"`tritongemm worker {self._address}` on each host with a GPU"
                + (f". {_RESUME.capitalize()}" if self._journal else ""))

    def _admit(self) -> None:
        """Takes what probes have found."""
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

    def _judge(self, worker: _Worker, found: Mapping[str, object]) -> None:
        header, software, gpu = found["header"], found["software"], found["gpu"]
        ours = cluster_worker.software()
        assert isinstance(header, Mapping) and isinstance(software, Mapping)
        differs = [f"{name} {software.get(name)} there and {version} here"
                   for name, version in ours.items() if software.get(name) != version]
        slug = str(header["device"])
        kind = self._kinds.get(slug)
        if kind is not None and header["environment"] != kind.header["environment"]:
            theirs, first = header["versions"], kind.header["versions"]
            assert isinstance(theirs, Mapping) and isinstance(first, Mapping)
            differs += [f"{name} {theirs.get(name)} there and {first.get(name)} on {kind.first}"
                        for name in ("device", "driver", "cuda", "torch", "triton", "cpu")
                        if theirs.get(name) != first.get(name)] or ["its environment"]
        if differs:
            return self._refuse(worker, "versions differ: " + ", ".join(differs)
                                + "; install the same ones on every host")
        # A host is known by the address without its port. Without pinning, all see GPU 0.
        host = worker.address.rpartition(":")[0]
        worker.gpu = f"{host} {gpu[0] if gpu else 0}"  # type: ignore[index]
        for other in self._workers.values():
            if slug != "interpreter" and other.kind and other.gpu == worker.gpu:
                return self._refuse(worker, f"it has the same GPU as {other}; start one worker a "
                                    "GPU, as `tritongemm worker` does")
        if kind is None:
            kind = self._kinds[slug] = _Kind(header, worker, deque())
            self._headers[header["environment"]] = header
            self._open_journal(header)
            self._fill(kind)
        worker.kind = slug
        self._progress.say(f"{worker} has joined: {slug}")

    def _refuse(self, worker: _Worker, reason: str) -> None:
        worker.kind, worker.refused = "", reason
        self._progress.say(f"{worker} is left out: {reason}")

    def _fill(self, kind: _Kind) -> None:
        """The problems of a kind that is new, without those that it has a winner of."""
        finished: set[GemmProblem] = set()
        if self._resumes:
            kind.known, finished = _known(self._path, kind.header)
        for problem in self._problems:
            if problem in finished:
                self._report(ProblemReport(problem, note="measured before"))
            else:
                kind.pending.append(problem)

    # -- problems ---------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        for slug, kind in self._kinds.items():
            able = [w for w in self._workers.values() if w.kind == slug]
            room = (sum(min(_AT_ONCE, w.threads) for w in able)
                    - sum(flight.kind == slug for flight in self._flights))
            while able and kind.pending and room > 0 and time.monotonic() < self._deadline:
                self._submit(slug, kind, kind.pending.popleft(), able)
                room -= 1

    def _submit(self, slug: str, kind: _Kind, problem: GemmProblem, able: list[_Worker]) -> None:
        kind.tries[problem] += 1
        self._attempts += 1
        attempt = f"{self._run.topic}-{self._attempts}"
        share_s = None
        if self._deadline < math.inf:
            share_s = (self._deadline - time.monotonic()) / math.ceil(
                (len(kind.pending) + 1) / len(able))
        known = kind.known.get(problem, [])
        addresses = tuple(worker.address for worker in able)
        future = self._client.submit(
            cluster_worker.measure, self._run, problem, attempt,
            [kind.header, *known] if known else [], share_s, key=attempt, workers=addresses,
            allow_other_workers=False, pure=False)
        self._flights.append(_Flight(slug, problem, attempt, addresses, future))

    def _collect(self) -> None:
        """Takes the problems that are over, and hands out again what was lost."""
        for flight in list(self._flights):
            future, kind = flight.future, self._kinds[flight.kind]
            if flight.swept is not None:
                self._finish(flight, flight.swept)
            elif future.status == "finished":
                try:
                    flight.swept = future.result(timeout=CONNECT_TIMEOUT_S)
                except (OSError, TimeoutError):
                    continue  # its worker died with the result; the scheduler runs it again
                flight.since = time.monotonic()
                self._finish(flight, flight.swept)
            elif future.status == "error":
                self._failed(flight, future.exception(timeout=CONNECT_TIMEOUT_S))
            elif future.status in ("cancelled", "lost") or not any(
                    address in self._workers for address in flight.workers):
                # All the workers that it was for have left: it waits for others.
                self._flights.remove(flight)
                self._client.cancel([future])
                kind.tries[flight.problem] -= 1
                kind.pending.appendleft(flight.problem)

    def _finish(self, flight: _Flight, swept: Swept) -> None:
        if self._received[flight.attempt] >= swept.sent:
            self._flights.remove(flight)
            self._totals[swept.worker] = (swept.gpu_busy_s, swept.gpu_waited_s, swept.compile_s)
            self._report(swept.report)
        elif time.monotonic() - flight.since > _RECORDS_TIMEOUT_S:
            self._again(flight, f"{swept.sent - self._received[flight.attempt]} records were lost "
                        "on the way")

    def _failed(self, flight: _Flight, error: BaseException) -> None:
        if isinstance(error, WorkerFault):
            worker = self._workers.get(error.address)
            if worker is not None and not worker.refused:
                self._refuse(worker, error.reason)
            self._kinds[flight.kind].tries[flight.problem] -= 1  # not the problem's fault
            self._again(flight, error.reason)
        elif type(error).__name__ == "KilledWorker":
            self._flights.remove(flight)
            self._left_out(flight.problem, "died: the worker that measured it ended, several "
                           "times over")
        elif isinstance(error, TritonGemmError):
            raise error
        else:
            self._again(flight, f"{type(error).__name__}: {error}")

    def _again(self, flight: _Flight, reason: str) -> None:
        self._flights.remove(flight)
        kind = self._kinds[flight.kind]
        if kind.tries[flight.problem] < _TRIES:
            kind.pending.append(flight.problem)
        else:
            self._left_out(flight.problem, f"failed {_TRIES} times: {reason}")

    def _left_out(self, problem: GemmProblem, reason: str) -> None:
        assert self._journal is not None
        self._journal.append({"kind": "left_out", "problem": problem_to_json(problem),
                              "reason": reason, "utc": utc_now()})
        self._report(ProblemReport(problem, note=reason))

    def _report(self, report: ProblemReport) -> None:
        self._reports.append(report)
        self._failures.update(report.failures)
        self._progress.closed(report, len(self._reports), self._total())

    def _end_of_budget(self) -> None:
        """Drops what was not handed out; what was is finished."""
        if time.monotonic() < self._deadline or self._cut:
            return
        self._cut = True
        if any(kind.pending for kind in self._kinds.values()) or not self._kinds:
            self._stopped = "budget"
        for kind in self._kinds.values():
            kind.pending.clear()
        self._on_workers(cluster_worker.cut)

    def _total(self) -> int:
        return len(self._problems) * max(1, len(self._kinds))

    def _show(self) -> None:
        elapsed, done = time.monotonic() - self._started, len(self._reports)
        self._progress.update(Snapshot(
            done, self._total(), sum(r.measured for r in self._reports), self._failures, 0,
            elapsed, elapsed * (self._total() - done) / done if done else None))

    # -- the journal ------------------------------------------------------------------------------

    def _open_journal(self, header: Mapping[str, object]) -> None:
        if self._journal is None:
            self._journal = Journal.open(self._path, header)
            self._environment = header["environment"]

    def _write_records(self) -> None:
        """Writes what has come. Raises DataFileError, e.g. for a full disk."""
        while not self._events.empty():
            self._write(self._events.get())

    def _write(self, message: Mapping[str, object]) -> None:
        journal, records = self._journal, message["records"]
        assert journal is not None and isinstance(records, (list, tuple))
        environment = message["environment"]
        if environment != self._environment:  # of another kind of device
            journal.append(self._headers[environment])
            self._environment = environment
        for record in records:
            journal.append(record)
        self._received[str(message["attempt"])] += len(records)


def _known(path: Path, header: Mapping[str, object]
           ) -> tuple[dict[GemmProblem, list[Mapping[str, object]]], set[GemmProblem]]:
    """Of a journal, in the environment of ``header``: the results of each problem, and the
    problems that have a winner."""
    results: dict[GemmProblem, list[Mapping[str, object]]] = {}
    finished: set[GemmProblem] = set()
    ours = False
    for record in read_journal(path):
        if record["kind"] == "header":
            ours = record["environment"] == header["environment"]
        elif ours and record["kind"] == "result":
            results.setdefault(problem_from_json(record["problem"]), []).append(
                {name: record[name] for name in _KNOWN if name in record})
        elif ours and record["kind"] == "winner":
            finished.add(problem_from_json(record["problem"]))
    return results, finished
