"""A bench over the GPUs of a Dask cluster.

Every worker has a measuring process, started anew for each pass. A problem is measured on one GPU,
torch and the providers in the same rounds, so that ratios are as they are on one machine. GPUs of
one kind share a run; kinds come one after another, each with a run of its own. The client alone
writes the CSV.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tritongemm import plugins
from tritongemm.bench.measuring import MeasuringProcess
from tritongemm.bench.runner import (
    BenchEvent,
    BenchPlan,
    BenchReport,
    BenchRun,
    Work,
    measure_apart,
)
from tritongemm.bench.session import Columns, Hello, Job, SessionSpec
from tritongemm.errors import TritonGemmError
from tritongemm.problem import GemmProblem
from tritongemm.records.control import BASELINE
from tritongemm.records.run import new_run_id
from tritongemm.workers.dask_pool import (
    WORKER_TIMEOUT_S,
    Flight,
    Pool,
    WorkerFault,
    WorkerIdentity,
    connect,
)

if TYPE_CHECKING:
    from distributed import Client

#: So often is a problem given to a worker before its rows say that it failed.
_TRIES = 3
_WAIT_S = 0.1
_KEPT = "every row that came before is in the CSV; continue with --resume"


@dataclass(frozen=True)
class Opened:
    """What the workers of one run open."""

    topic: str
    spec: SessionSpec
    opener: str


# -- on the workers: the client submits these -----------------------------------------------------

@dataclass(eq=False)
class _Held:
    """The measuring process of a worker, and the pass that it was started for."""

    opened: Opened
    process: MeasuringProcess
    hello: Hello
    index: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


_held: dict[str, _Held] = {}
_lock = threading.Lock()


def _process(opened: Opened) -> _Held:
    """The measuring process of the worker that runs this task. Raises :class:`WorkerFault`."""
    from distributed import get_worker

    address = get_worker().address
    with _lock:
        known = _held.get(address)
        if known is None or known.opened.topic != opened.topic:
            if known is not None:
                known.process.stop()
            process = MeasuringProcess(opened.spec, opened.opener)
            try:
                known = _held[address] = _Held(opened, process, process.start())
            except TritonGemmError as error:
                raise WorkerFault(address, str(error)) from error
        return known


def identify(opened: Opened) -> WorkerIdentity:
    """Of this worker; ``about`` is what its session says."""
    plugins.load()  # before any problem comes: it may be of a format that they register
    hello = _process(opened).hello
    return WorkerIdentity.here(hello.device.slug, hello.fingerprint, hello.environment, hello)


def measure(attempt: str, opened: Opened, index: int, job: Job, timeout_s: float
            ) -> tuple[Columns, list[str]]:
    """Measures ``job`` in pass ``index``: the columns of each provider, and why processes were
    replaced."""
    held = _process(opened)
    lost: list[str] = []
    with held.lock:
        if held.index != index:
            held.process.start()  # a fresh process each pass
            held.index = index
        return measure_apart(held.process, job, timeout_s, lost.append), lost


def close(topic: str) -> None:
    """Ends the processes of the run ``topic``."""
    with _lock:
        for address in [a for a, held in _held.items() if held.opened.topic == topic]:
            _held.pop(address).process.stop()


# -- on the client --------------------------------------------------------------------------------

def bench_on_cluster(plan: BenchPlan, address: str,
                     progress: Callable[[BenchEvent], None] = lambda event: None, *,
                     worker_timeout_s: float = WORKER_TIMEOUT_S) -> BenchReport:
    """Runs ``plan`` on every kind of device of a Dask cluster.

    Kernels are compiled by the measuring processes: the plan's ``compile_workers`` is not used.

    Args:
        address: of the scheduler, such as ``tcp://10.0.0.1:8786``.
        worker_timeout_s: seconds to wait for a usable worker.

    Raises:
        DeviceError: no scheduler answers, it ends, or no worker can be used.
        DataFileError: the CSV or a sidecar cannot be written or read.
        MissingDependencyError: Dask distributed is not installed.
    """
    client = connect(address)
    opened = Opened(f"tritongemm-{new_run_id()}", SessionSpec(plan.device, plan.providers),
                    plan.opener)
    pool = Pool(client, address, opened.topic, identify, (opened,),
                lambda text: progress(BenchEvent("said", message=text)), worker_timeout_s, _KEPT)
    reports: dict[str, BenchReport] = {}
    try:
        while not reports or pool.probing or pool.kinds.keys() - reports.keys():
            pool.update()
            for kind in pool.kinds.keys() - reports.keys():
                hello = pool.kinds[kind].about
                assert isinstance(hello, Hello)
                progress(BenchEvent("start", message=hello.device.name))
                reports[kind] = _OnPool(plan, pool, opened, kind, hello, progress).run()
            time.sleep(_WAIT_S)
    except OSError as error:  # what a call of the scheduler raises when it is gone
        raise pool.gone() from error
    finally:
        _end(client, pool)
    return _together(plan, reports)


def _end(client: Client, pool: Pool) -> None:
    if client.status == "running":
        with contextlib.suppress(OSError, TimeoutError):
            client.cancel([flight.future for flight in pool.flights])
            pool.on_workers(close)
    client.close(timeout=2)


def _together(plan: BenchPlan, reports: dict[str, BenchReport]) -> BenchReport:
    """One report; with several kinds of device, suites are named with theirs."""
    if len(reports) == 1:
        return next(iter(reports.values()))
    return BenchReport(
        plan.out, sum(r.written for r in reports.values()),
        sum(r.skipped for r in reports.values()),
        sum((Counter(r.statuses) for r in reports.values()), Counter()),
        {f"{suite} on {kind}": control for kind, report in reports.items()
         for suite, control in report.controls.items()},
        {f"{suite} on {kind}": run_id for kind, report in reports.items()
         for suite, run_id in report.run_ids.items()})


class _OnPool(BenchRun):
    """A bench whose problems are measured by the workers of one kind."""

    def __init__(self, plan: BenchPlan, pool: Pool, opened: Opened, kind: str, hello: Hello,
                 progress: Callable[[BenchEvent], None]) -> None:
        super().__init__(plan, None, hello, progress)
        self._pool, self._opened, self._kind = pool, opened, kind

    def _begin_pass(self) -> None:
        """The workers see from the pass's number that it is another."""

    def _compile(self, problems: Sequence[GemmProblem]) -> None:
        """The measuring processes compile."""

    def _measure_all(self, index: int, work: Sequence[Work]) -> Iterator[tuple[Work, Columns]]:
        pool, pending = self._pool, deque(work)
        tries: Counter[Work] = Counter()
        while pending or pool.flights:
            pool.update()
            while pending and pool.room(self._kind) > 0:
                one = pending.popleft()
                tries[one] += 1
                pool.submit(self._kind, one, measure, self._opened, index,
                            self._job(index, one[1]), self.plan.timeout_s)
            for found in pool.collect():
                if isinstance(found, Flight):
                    pool.flights.remove(found)
                    columns, lost = found.value  # type: ignore[misc]
                    for reason in lost:
                        self.progress(BenchEvent("lost", problem=found.job[1],  # type: ignore[index]
                                                 message=reason))
                    yield found.job, columns  # type: ignore[misc]
                    continue
                one = found.flight.job  # type: ignore[assignment]
                tries[one] -= not found.fault
                if tries[one] < _TRIES and not found.reason.startswith("died"):
                    pending.append(one)
                else:
                    ended: dict[str, object] = {"status": "died", "error": found.reason}
                    yield one, {name: dict(ended) for name in (BASELINE, *self.plan.providers[1:])}
            time.sleep(_WAIT_S)
