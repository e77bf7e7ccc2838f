"""The compile pool: processes that build configs ahead of the GPU. Equal builds run once.

A build that hangs is ended with everything it started. A build that kills its process becomes an
outcome, and the configs queued behind it continue in a new process. :class:`CompilePool` is for an
event loop with other tasks; :func:`compile_all` builds a list and returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait

from tritongemm.config import KernelConfig
from tritongemm.errors import CompileError
from tritongemm.problem import GemmProblem
from tritongemm.workers.messages import COMPILE, Call, Outcome, Request, one_line
from tritongemm.workers.worker import Event, Failed, Finished, Ready, Refused, Returned, Worker

#: The default object that a compile process serves, and the limit of one build in seconds.
BUILDER = "tritongemm.workers.builder:Builder"
COMPILE_TIMEOUT_S = 120.0

#: Configs sent to a process at once: few round trips, and still balanced.
_MOST_AT_ONCE = 8
_TRIES = 3
#: The ticket of a build that nothing waits for yet: it gets no answer.
AHEAD = object()
_WAIT_S = 0.2


@dataclass
class _Build:
    key: str
    problem: GemmProblem
    config: KernelConfig
    waiting: list[Hashable] = field(default_factory=list)
    tries: int = 0


class CompilePool:
    """Builds configs in ``workers`` processes that serve ``target``.

    Tickets belong to the caller: :meth:`read` and :meth:`check` return them with their outcomes.
    Configs with equal keys are built once. If the outcome is already known, :meth:`want` returns it
    at once.
    """

    def __init__(self, target: str, arguments: Mapping[str, object], *, workers: int,
                 timeout_s: float) -> None:
        self._workers = [Worker(f"compile {i}", target, arguments) for i in range(workers)]
        self._timeout_s = timeout_s
        self._queue: deque[_Build] = deque()
        self._open: dict[str, _Build] = {}
        self._running: dict[Worker, dict[int, _Build]] = {}
        self._known: dict[str, Outcome] = {}
        self._refused = 0
        self.compile_s = 0.0

    @property
    def queued(self) -> int:
        """Builds that no process has begun."""
        return len(self._queue)

    @property
    def outstanding(self) -> int:
        """Builds queued or begun."""
        return len(self._open)

    @property
    def workers(self) -> int:
        """The largest number of processes."""
        return len(self._workers)

    def want(self, ticket: Hashable, key: str, problem: GemmProblem,
             config: KernelConfig) -> Outcome | None:
        """Queues a build; returns its outcome if that is known already."""
        known = self._known.get(key)
        if known is not None:
            self._known[key] = _without_time(known)
            return known
        build = self._open.get(key)
        if build is None:
            build = self._open[key] = _Build(key, problem, config)
            self._queue.append(build)
        build.waiting.append(ticket)
        return None

    def has(self, key: str) -> bool:
        """Whether a build of ``key`` was asked for; its outcome may be known."""
        return key in self._known or key in self._open

    def drop(self, unwanted: Callable[[Hashable], bool]) -> None:
        """Drops tickets. Builds without a ticket that have not begun are cancelled."""
        for build in self._open.values():
            build.waiting = [t for t in build.waiting if not unwanted(t)]
        left = [build for build in self._queue if not build.waiting]
        for build in left:
            del self._open[build.key]
        self._queue = deque(build for build in self._queue if build.waiting)

    def feed(self) -> None:
        """Sends work to idle processes, and starts processes as needed."""
        for worker in self._workers:
            if not self._queue:
                return
            if not worker.alive:
                starting = sum(s.alive and not s.ready for s in self._workers)
                if starting < len(self._queue):
                    worker.start()
            elif worker.idle:
                self._send(worker)

    def _send(self, worker: Worker) -> None:
        count = max(1, min(_MOST_AT_ONCE, len(self._queue) // (2 * len(self._workers))))
        problem = self._queue[0].problem
        builds = []
        while self._queue and len(builds) < count and self._queue[0].problem == problem:
            builds.append(self._queue.popleft())
        self._running[worker] = dict(enumerate(builds))
        worker.send(Request(tuple(Call("one", (b.problem, b.config), self._timeout_s, COMPILE)
                                  for b in builds)))

    def connections(self) -> dict[Connection, Worker]:
        """The connections to wait on, each with its worker."""
        return {s.connection: s for s in self._workers if s.connection is not None}

    def deadline(self) -> float:
        """The earliest deadline of any worker."""
        return min(s.deadline for s in self._workers)

    def read(self, worker: Worker) -> list[tuple[Hashable, Outcome]]:
        """The outcomes that are ready in a worker's pipe. Raises as :meth:`check` does."""
        return self._settle(worker, worker.read())

    def check(self) -> list[tuple[Hashable, Outcome]]:
        """Ends builds that exceed their limit; returns their outcomes.

        Raises:
            CompileError: no compile process can start at all.
        """
        return [done for s in self._workers for done in self._settle(s, s.check())]

    def _settle(self, worker: Worker, events: Iterable[Event]
                ) -> list[tuple[Hashable, Outcome]]:
        answers: list[tuple[Hashable, Outcome]] = []
        for event in events:
            if isinstance(event, Ready):
                self._refused = 0
            elif isinstance(event, Refused):
                self._refused += 1
                if event.final or self._refused >= _TRIES:
                    raise CompileError(f"no compile process can start: {one_line(event.reason)}")
            elif isinstance(event, Returned):
                assert isinstance(event.value, Outcome)
                answers += self._answer(self._running[worker].pop(event.index), event.value)
            elif isinstance(event, Failed):
                answers += self._answer(self._running[worker].pop(event.index), event.outcome)
            elif isinstance(event, Finished):
                for build in reversed(list(self._running.pop(worker, {}).values())):
                    build.tries += 1
                    if build.tries < _TRIES:
                        self._queue.appendleft(build)
                    else:
                        answers += self._answer(build, Outcome(
                            "died", f"the compiling process died {build.tries} times before it "
                            "began"))
        return answers

    def _answer(self, build: _Build, outcome: Outcome) -> list[tuple[Hashable, Outcome]]:
        del self._open[build.key]
        seconds = outcome.values.get("compile_s", 0.0)
        self.compile_s += seconds if isinstance(seconds, float) else 0.0
        # Only the first config that waited, or that asks later, reports the compile time.
        waiting = [ticket for ticket in build.waiting if ticket is not AHEAD]
        later = _without_time(outcome)
        self._known[build.key] = later if waiting else outcome
        return [(ticket, later if i else outcome) for i, ticket in enumerate(waiting)]

    def close(self) -> None:
        """Ends every process."""
        for worker in self._workers:
            worker.kill()


def _without_time(outcome: Outcome) -> Outcome:
    """The outcome of a build that another config reports the time of."""
    return replace(outcome, values={name: value for name, value in outcome.values.items()
                                    if name != "compile_s"})


def compile_all(builds: Iterable[tuple[str, GemmProblem, KernelConfig]],
                arguments: Mapping[str, object], *, target: str = BUILDER, workers: int,
                timeout_s: float = COMPILE_TIMEOUT_S,
                progress: Callable[[int, int], None] = lambda done, total: None
                ) -> dict[str, Outcome]:
    """Compiles ``builds``, each a distinct key, a problem and a config. Returns key -> outcome.

    Args:
        arguments: the arguments of ``target``.
        workers: the most processes.
        progress: called with (done, total).

    Raises:
        CompileError: no compile process can start at all.
    """
    todo = list(builds)
    found: dict[str, Outcome] = {}
    if not todo:
        return found
    pool = CompilePool(target, arguments, workers=min(workers, len(todo)), timeout_s=timeout_s)
    try:
        for key, problem, config in todo:
            pool.want(key, key, problem, config)
        while len(found) < len(todo):
            pool.feed()
            processes = pool.connections()
            answers = [answer for connection in wait(list(processes), _WAIT_S)
                       for answer in pool.read(processes[connection])]  # type: ignore[index]
            for key, outcome in [*answers, *pool.check()]:
                found[str(key)] = outcome
                progress(len(found), len(todo))
    finally:
        pool.close()
    return found
