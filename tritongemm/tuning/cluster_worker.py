"""The worker's side of a cluster sweep: one sweep per process, which receives problems while it
runs.

The first call starts a thread with a :class:`~tritongemm.tuning.loop.Loop` for the worker's GPU.
Its measuring and compiling processes serve all later problems, so no process starts per problem,
and the next problem is compiled while the current one is timed. Records go to the client in
batches, and the state of the device at intervals, as events of the scheduler.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tritongemm import plugins, settings
from tritongemm.config import KernelConfig
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import problem_from_json
from tritongemm.records.resume import DoneKeys, done_among
from tritongemm.tuning.cluster_states import StateSender
from tritongemm.tuning.loop import Loop
from tritongemm.tuning.progress import Progress, Snapshot
from tritongemm.tuning.sweep import sweep
from tritongemm.tuning.sweep_journal import RowSink
from tritongemm.tuning.task import ProblemReport, Task
from tritongemm.workers.dask_pool import WorkerFault, WorkerIdentity

#: Records are sent when there are this many, or when the oldest has waited this many seconds.
BATCH, BATCH_S = 32, 0.5
#: After this many seconds without a problem a worker ends its processes: its client may be gone.
IDLE_S = 600.0
#: Seconds to start and identify the device; the measuring process itself may take three minutes.
IDENTITY_TIMEOUT_S = 240.0
_POLL_S = 0.2
#: Seconds to wait for the loop to end: it polls its feed five times a second.
_JOIN_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Run:
    """One run of a client: ``topic`` names its events, ``options`` are those of
    :func:`~tritongemm.tuning.sweep.sweep`."""

    topic: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Swept:
    """What a task returns.

    Attributes:
        worker: the address of the Dask worker.
        sent: records that were sent under ``attempt``.
        gpu_busy_s, gpu_waited_s, compile_s: totals of the worker in this run so far; see
            :class:`~tritongemm.tuning.sweep.SweepReport`.
    """

    attempt: str
    worker: str
    report: ProblemReport
    sent: int
    gpu_busy_s: float
    gpu_waited_s: float
    compile_s: float


# -- tasks: the client submits these --------------------------------------------------------------

def identify(run: Run) -> WorkerIdentity:
    """The identity of this worker; ``about`` is the header of its records.

    Raises:
        WorkerFault: it has no usable GPU, or cannot start its processes.
    """
    plugins.load()  # before the first problem, which may use a format that a plugin registers
    header = _sweep_here(run).header()
    return WorkerIdentity.here(str(header["device"]), str(header["environment"]),
                               header["versions"], header)  # type: ignore[arg-type]


def measure(attempt: str, run: Run, problem: GemmProblem, known: list[Mapping[str, object]],
            share_s: float | None) -> Swept:
    """Sweeps one problem.

    Args:
        attempt: the id under which the problem's records are sent.
        known: records of earlier runs, headers included, that need not be repeated.
        share_s: seconds after which no further config is begun; None: no limit.

    Raises:
        WorkerFault: this worker cannot measure any more; another one may.
    """
    return _sweep_here(run).measure(problem, attempt, known, share_s)


def cut(topic: str) -> None:
    """Ends the budget of the run ``topic``: configs that no device has begun are left out."""
    for one in list(_sweeps.values()):
        if one.run.topic == topic:
            one.feed.cut = True


def close(topic: str) -> None:
    """Ends the processes of the run ``topic``."""
    with _lock:
        for address in [a for a, one in _sweeps.items() if one.run.topic == topic]:
            _sweeps.pop(address).close()


# -- the sweep of this process --------------------------------------------------------------------

@dataclass(eq=False)
class _Job:
    """A problem in progress: the task that waits for it, and its records that were not sent yet."""

    attempt: str
    share_s: float | None
    over: threading.Event = field(default_factory=threading.Event)
    report: ProblemReport | None = None
    records: list[Mapping[str, object]] = field(default_factory=list)
    since: float = 0.0
    sent: int = 0


class _Feed:
    """Passes problems from the tasks' threads to the loop's thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.new: list[GemmProblem] = []
        self.jobs: dict[GemmProblem, _Job] = {}
        self.known: dict[GemmProblem, DoneKeys] = {}
        self.closed = self.cut = False
        self.last_used = time.monotonic()

    def take(self) -> list[GemmProblem]:
        """The problems added since the last call."""
        with self.lock:
            new, self.new = self.new, []
        return new


class _FedLoop(Loop):
    """A loop that receives problems while it runs, until the feed is closed."""

    def __init__(self, *arguments: object, feed: _Feed) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._feed = feed

    def _open_tasks(self) -> None:
        self.problems.add(self._feed.take())
        super()._open_tasks()

    def _over(self) -> bool:
        return self._feed.closed or (
            not self._feed.jobs and time.monotonic() - self._feed.last_used > IDLE_S)

    def _share_budget(self, task: Task) -> None:
        job = self._feed.jobs.get(task.problem)
        if job is not None and job.share_s is not None:
            task.deadline = time.monotonic() + job.share_s

    def _advance_tasks(self) -> None:
        if self._feed.cut:
            for task in self.problems.tasks:
                task.deadline = time.monotonic()
        super()._advance_tasks()


class _KnownOfFeed(DoneKeys):
    """What earlier runs measured, by problem, as passed with the tasks."""

    def __init__(self, feed: _Feed) -> None:
        super().__init__()
        self._of, self._nothing = feed.known, DoneKeys()

    def has(self, problem: GemmProblem, config: KernelConfig, stage: str = "coarse",
            limit_s: float = 0.0) -> bool:
        return self._of.get(problem, self._nothing).has(problem, config, stage, limit_s)

    def retries(self, problem: GemmProblem, config: KernelConfig, stage: str = "coarse",
                limit_s: float = 0.0) -> bool:
        return self._of.get(problem, self._nothing).retries(problem, config, stage, limit_s)

    def time_us(self, problem: GemmProblem, config: KernelConfig, stage: str = "coarse"
                ) -> float | None:
        return self._of.get(problem, self._nothing).time_us(problem, config, stage)

    def has_winner(self, problem: GemmProblem) -> bool:
        return self._of.get(problem, self._nothing).has_winner(problem)

    def searched_to(self, problem: GemmProblem, space_hash: object) -> float | None:
        return self._of.get(problem, self._nothing).searched_to(problem, space_hash)

    def fastest(self, problem: GemmProblem, count: int = 16) -> list[tuple[float, KernelConfig]]:
        return self._of.get(problem, self._nothing).fastest(problem, count)


class _FeedSink(RowSink):
    """A journal that sends its records to the client, and knows the earlier records passed with the
    tasks."""

    def __init__(self, take: Callable[[Mapping[str, object]], object], feed: _Feed) -> None:
        super().__init__(take)
        self._feed = feed

    def done_keys(self, environment: object) -> DoneKeys:
        return _KnownOfFeed(self._feed)


class _Remote(Progress):
    """Passes on finished problems and the state, and says at intervals that records may be due."""

    def __init__(self, here: _Sweep) -> None:
        self._here = here

    def closed(self, report: ProblemReport, done: int, problems: int) -> None:
        self._here.closed(report)

    def update(self, snapshot: Snapshot) -> None:
        self._here.send_old()
        self._here.states.send(snapshot)


class _Sweep:
    """The sweep of one Dask worker: a thread with a loop. ``emit`` sends one event."""

    def __init__(self, run: Run, address: str, emit: Callable[[object], None]) -> None:
        self.run, self.feed = run, _Feed()
        self._address, self._emit = address, emit
        self.states = StateSender(address, emit)
        self._header: Mapping[str, object] | None = None
        self._identified = threading.Event()
        self._error: BaseException | None = None
        self._loop: Loop | None = None
        self.thread = threading.Thread(target=self._main, name="tritongemm-sweep", daemon=True)
        self.thread.start()

    def header(self) -> Mapping[str, object]:
        """The header of the records, once the device is known."""
        if not self._identified.wait(IDENTITY_TIMEOUT_S):
            raise WorkerFault(self._address, f"did not start within {IDENTITY_TIMEOUT_S:.0f} s")
        self.check()
        assert self._header is not None
        return self._header

    def measure(self, problem: GemmProblem, attempt: str, known: list[Mapping[str, object]],
                share_s: float | None) -> Swept:
        """See :func:`measure`."""
        job = _Job(attempt, share_s)
        header = self.header()
        with self.feed.lock:
            self.feed.last_used = time.monotonic()
            self.feed.known[problem] = done_among(known, header["environment"])
            self.feed.jobs[problem] = job
            self.feed.new.append(problem)
        while not job.over.wait(_POLL_S):
            self.check()
            if not self.thread.is_alive() and not job.over.is_set():
                raise WorkerFault(self._address, "its sweep ended; the run was closed")
        assert job.report is not None and self._loop is not None
        return Swept(attempt, self._address, job.report, job.sent, self._loop.gpu_busy_s,
                     self._loop.gpu_waited_s, self._loop.compile_s)

    def close(self) -> None:
        """Ends the loop; its processes end with it."""
        self.feed.closed = True

    def check(self) -> None:
        """Raises :class:`WorkerFault` if the sweep has failed."""
        if self._error is not None:
            raise WorkerFault(self._address, str(self._error)) from self._error

    def _main(self) -> None:
        try:
            sweep((), _FeedSink(self._take, self.feed),
                  devices=(None if settings.current().interpret else 0,), progress=_Remote(self),
                  loop_type=self._make_loop, **self.run.options)  # type: ignore[arg-type]
        except BaseException as error:  # the waiting tasks raise it
            self._error = error
        finally:
            self._identified.set()

    def _make_loop(self, *words: object) -> Loop:
        self._loop = _FedLoop(*words, feed=self.feed)
        return self._loop

    # -- in the loop's thread ---------------------------------------------------------------------

    def _take(self, record: Mapping[str, object]) -> None:
        if record["kind"] == "header":
            self._header = record
            self._identified.set()
            return
        job = self.feed.jobs.get(problem_from_json(record["problem"]))  # type: ignore[arg-type]
        if job is not None:
            job.since = job.since if job.records else time.monotonic()
            job.records.append(record)
            if len(job.records) >= BATCH:
                self._send(job)

    def send_old(self) -> None:
        """Sends what has waited for :data:`BATCH_S`."""
        for job in list(self.feed.jobs.values()):
            if job.records and time.monotonic() - job.since >= BATCH_S:
                self._send(job)

    def closed(self, report: ProblemReport) -> None:
        """Sends the remaining records of a finished problem, then passes on its report."""
        with self.feed.lock:
            job = self.feed.jobs.pop(report.problem, None)
            self.feed.known.pop(report.problem, None)
            self.feed.last_used = time.monotonic()
        if job is not None:
            self._send(job)
            job.report = report
            job.over.set()

    def _send(self, job: _Job) -> None:
        if job.records:
            job.sent += len(job.records)
            assert self._header is not None
            self._emit({"attempt": job.attempt, "environment": self._header["environment"],
                        "records": [json.dumps(one, allow_nan=False) for one in job.records]})
            job.records = []


_sweeps: dict[str, _Sweep] = {}
_lock = threading.Lock()


def _sweep_here(run: Run) -> _Sweep:
    """The sweep of the Dask worker that runs this task; a new one for a new run."""
    from distributed import get_worker

    worker = get_worker()
    with _lock:
        known = _sweeps.get(worker.address)
        if known is not None and (known.run.topic != run.topic or not known.thread.is_alive()):
            if known.run.topic == run.topic:
                known.check()  # a sweep that failed in this run would fail again
            known.close()
            known.thread.join(_JOIN_TIMEOUT_S)
            known = None
        if known is None:
            topic = run.topic
            known = _sweeps[worker.address] = _Sweep(
                run, worker.address, lambda message: worker.log_event(topic, message))
        return known
