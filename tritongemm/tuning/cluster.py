"""A sweep over the GPUs of a Dask cluster.

Every worker has one GPU. Each problem is a task; if a worker dies, its task goes to another worker
of the same kind of device. The client assigns problems, and it alone writes the journal, from
records that the workers send (``cluster_worker.py``). If the cluster has several kinds of devices,
each problem is measured on each kind.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.errors import UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import problem_from_json, problem_to_json
from tritongemm.records.journal import Journal, read_journal
from tritongemm.records.run import new_run_id, utc_now
from tritongemm.tuning import cluster_worker
from tritongemm.tuning.candidates import PruneReport
from tritongemm.tuning.cluster_states import WorkerStates
from tritongemm.tuning.cluster_worker import Run, Swept
from tritongemm.tuning.progress import Progress, Snapshot
from tritongemm.tuning.sweep import SweepReport
from tritongemm.tuning.sweep_journal import check_journal
from tritongemm.tuning.task import ProblemReport
from tritongemm.workers.dask_pool import WORKER_TIMEOUT_S, Flight, Lost, Pool, connect

if TYPE_CHECKING:
    from distributed import Client

#: Attempts at a problem before it is reported as failed.
_TRIES = 3
#: Seconds to wait for records after the report of their problem; later ones count as lost.
_RECORDS_TIMEOUT_S = 15.0
_WAIT_S = 0.1
#: Fields of a record that resuming needs.
_KNOWN = ("kind", "problem", "config", "stage", "status", "reason", "limit_s", "time_us", "gain",
          "space_hash")
_KEPT = "every record received so far is in the journal; continue with --resume"


@dataclass(eq=False)
class _Kind:
    """One kind of device: the header of its records, and the problems queued for it."""

    header: Mapping[str, object]
    pending: deque[GemmProblem] = field(default_factory=deque)
    tries: Counter[GemmProblem] = field(default_factory=Counter)
    known: dict[GemmProblem, list[Mapping[str, object]]] = field(default_factory=dict)


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
        budget_s: seconds for the whole sweep; problems in progress are finished.
        worker_timeout_s: seconds to wait for a usable worker.
        options: options of :func:`tritongemm.tuning.sweep.sweep`, for each worker.

    Raises:
        DeviceError: no scheduler answers, the scheduler ends, or no worker can be used.
        UsageError: a bad argument, or a journal that exists. DataFileError: a journal that cannot
            be used or written. MissingDependencyError: Dask distributed is not installed.
        KeyboardInterrupt: on SIGINT or SIGTERM. The journal is intact in every case.
    """
    if budget_s is not None and not 0 < budget_s < math.inf:
        raise UsageError(f"budget_s={budget_s} is not a positive number of seconds")
    path = check_journal(journal, resume)
    one = _ClusterSweep(connect(address), address, list(dict.fromkeys(problems)), path,
                        Run(f"tritongemm-{new_run_id()}", options), budget_s,
                        progress or Progress(), worker_timeout_s)
    with _sigterm():
        return one.run()


@contextlib.contextmanager
def _sigterm() -> Iterator[None]:
    """Treats SIGTERM as an interrupt, as a local sweep does."""
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
        self._client, self._problems, self._path = client, problems, path
        self._run, self._progress = run, progress
        self._pool = Pool(client, address, run.topic, cluster_worker.identify, (run,),
                          progress.say, worker_timeout_s, _KEPT)
        self._started = time.monotonic()
        self._deadline = self._started + budget_s if budget_s is not None else math.inf
        self._resumes = path.exists() and path.stat().st_size > 0
        self._journal: Journal | None = None
        self._environment: object = None  # of the header that the journal's last records follow
        self._events: queue.SimpleQueue[Mapping[str, object]] = queue.SimpleQueue()
        self._received: Counter[str] = Counter()
        self._states = WorkerStates()
        self._kinds: dict[str, _Kind] = {}
        self._totals: dict[str, tuple[float, float, float]] = {}
        self._stopped, self._cut = "", False
        self._reports: list[ProblemReport] = []
        self._failures: Counter[str] = Counter()

    def run(self) -> SweepReport:
        """See :func:`sweep_on_cluster`."""
        try:
            self._client.subscribe_topic(self._run.topic,
                                         lambda event: self._events.put(event[1]))
            while not self._over():
                for slug in self._pool.update():
                    self._add_kind(slug)
                self._hand_out()
                self._take_events()
                self._collect()
                self._end_of_budget()
                self._show()
                time.sleep(_WAIT_S)
        except OSError as error:  # raised by calls to a scheduler that has ended
            raise self._pool.gone() from error
        finally:
            self._close()
        busy, waited, compiled = (sum(x) for x in zip((0.0, 0.0, 0.0), *self._totals.values()))
        return SweepReport(
            run_id=self._run.topic.partition("-")[2], journal=self._path,
            device=", ".join(sorted(self._kinds)), problems=tuple(self._reports),
            prune=PruneReport(), measured=sum(r.measured for r in self._reports),
            resumed=sum(r.note == "measured before" for r in self._reports),
            failures=dict(self._failures), wall_s=time.monotonic() - self._started,
            gpu_busy_s=busy, gpu_waited_s=waited, compile_s=compiled, stopped=self._stopped)

    def _over(self) -> bool:
        waiting = self._pool.probing or any(kind.pending for kind in self._kinds.values())
        return not self._pool.flights and (self._cut or (bool(self._kinds) and not waiting))

    def _close(self) -> None:
        self._progress.close()
        try:
            if self._client.status == "running":
                with contextlib.suppress(OSError, TimeoutError):
                    self._client.cancel([flight.future for flight in self._pool.flights])
                    self._pool.on_workers(cluster_worker.close)
            try:
                self._take_events()
            finally:
                if self._journal is not None:
                    self._journal.close()
        finally:
            self._client.close(timeout=2)

    # -- problems ---------------------------------------------------------------------------------

    def _add_kind(self, slug: str) -> None:
        """Adds a kind of device: reads its earlier results from the journal and queues its
        problems."""
        header = self._pool.kinds[slug].about
        assert isinstance(header, Mapping)
        kind = self._kinds[slug] = _Kind(header)
        if self._journal is None:
            self._journal = Journal.open(self._path, header)
            self._environment = header["environment"]
        if self._resumes:
            kind.known = _known(self._path, header)
        kind.pending.extend(self._problems)

    def _hand_out(self) -> None:
        for slug, kind in self._kinds.items():
            while (kind.pending and self._pool.room(slug) > 0
                   and time.monotonic() < self._deadline):
                problem, able = kind.pending.popleft(), len(self._pool.able(slug))
                kind.tries[problem] += 1
                share_s = None
                if self._deadline < math.inf:
                    share_s = (self._deadline - time.monotonic()) / math.ceil(
                        (len(kind.pending) + 1) / able)
                known = kind.known.get(problem, [])
                self._pool.submit(slug, problem, cluster_worker.measure, self._run, problem,
                                  [kind.header, *known] if known else [], share_s)

    def _collect(self) -> None:
        """Collects finished problems and queues lost ones again."""
        for one in self._pool.collect():
            if isinstance(one, Flight):
                self._finish(one)
            elif one.reason.startswith("died"):
                self._left_out(one.flight, one.reason)
            else:
                self._again(one)

    def _finish(self, flight: Flight) -> None:
        swept = flight.value
        assert isinstance(swept, Swept)
        missing = swept.sent - self._received[flight.attempt]
        if missing <= 0:
            self._pool.flights.remove(flight)
            self._totals[swept.worker] = (swept.gpu_busy_s, swept.gpu_waited_s, swept.compile_s)
            self._report(swept.report)
        elif time.monotonic() - flight.since > _RECORDS_TIMEOUT_S:
            self._pool.flights.remove(flight)
            self._again(Lost(flight, f"{missing} records were lost in transit", fault=True))

    def _again(self, lost: Lost) -> None:
        problem, kind = lost.flight.job, self._kinds[lost.flight.kind]
        assert isinstance(problem, GemmProblem)
        if not lost.fault:
            kind.tries[problem] -= 1
        if kind.tries[problem] >= _TRIES:
            self._left_out(lost.flight, f"failed {_TRIES} times: {lost.reason}")
        elif self._cut:  # nothing is handed out any more
            self._stopped = "budget"
            self._report(ProblemReport(problem, note=f"no time was left: {lost.reason}"))
        else:
            kind.pending.append(problem)

    def _left_out(self, flight: Flight, reason: str) -> None:
        assert self._journal is not None and isinstance(flight.job, GemmProblem)
        self._journal.append({"kind": "left_out", "problem": problem_to_json(flight.job),
                              "reason": reason, "utc": utc_now()})
        self._report(ProblemReport(flight.job, note=reason))

    def _report(self, report: ProblemReport) -> None:
        self._reports.append(report)
        self._failures.update(report.failures)
        self._progress.closed(report, len(self._reports), self._total())

    def _end_of_budget(self) -> None:
        """Drops queued problems; problems in progress are finished."""
        if time.monotonic() < self._deadline or self._cut:
            return
        self._cut = True
        if any(kind.pending for kind in self._kinds.values()) or not self._kinds:
            self._stopped = "budget"
        for kind in self._kinds.values():
            kind.pending.clear()
        self._pool.on_workers(cluster_worker.cut)

    def _total(self) -> int:
        return len(self._problems) * max(1, len(self._kinds))

    def _show(self) -> None:
        elapsed, done = time.monotonic() - self._started, len(self._reports)
        workers = self._pool.admitted
        self._progress.update(Snapshot(
            done, self._total(), sum(r.measured for r in self._reports), self._failures,
            self._states.compiling(workers), elapsed,
            elapsed * (self._total() - done) / done if done else None,
            self._states.devices(workers)))

    # -- events of the workers --------------------------------------------------------------------

    def _take_events(self) -> None:
        """Writes the records and keeps the states received. Raises DataFileError, e.g. for a full
        disk."""
        while not self._events.empty():
            message = self._events.get()
            if "records" in message:
                self._write(message)
            else:
                self._states.take(message)

    def _write(self, message: Mapping[str, object]) -> None:
        journal, records = self._journal, message["records"]
        assert journal is not None and isinstance(records, (list, tuple))
        environment = message["environment"]
        if environment != self._environment:  # of another kind of device
            journal.append(next(kind.header for kind in self._kinds.values()
                                if kind.header["environment"] == environment))
            self._environment = environment
        for record in records:
            journal.append(json.loads(record))
        self._received[str(message["attempt"])] += len(records)


def _known(path: Path, header: Mapping[str, object]
           ) -> dict[GemmProblem, list[Mapping[str, object]]]:
    """The results and winners of each problem in a journal, in the environment of ``header``."""
    found: dict[GemmProblem, list[Mapping[str, object]]] = {}
    ours = False
    for record in read_journal(path):
        if record["kind"] == "header":
            ours = record["environment"] == header["environment"]
        elif ours and record["kind"] in ("result", "winner"):
            found.setdefault(problem_from_json(record["problem"]), []).append(
                {name: record[name] for name in _KNOWN if name in record})
    return found
