"""The sweep's loop: one thread that watches pipes and clocks, and never waits for one child.

Problems are opened in order, a few ahead; their configs go to the compile pool, all at once or in
the batches that a search asks for; a device takes what is built as it comes, its own problem first,
the next one while stragglers compile. A problem whose configs are all settled, or whose search
expects no more, gets its finalists measured interleaved with torch.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import DeviceError, TritonGemmError
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import problem_key
from tritongemm.tuning.candidates import Candidates, PruneReport
from tritongemm.tuning.device_workers import DeviceWorker, DeviceWorkers
from tritongemm.tuning.progress import OnDevice, Progress, Snapshot
from tritongemm.tuning.search import BATCH, Search
from tritongemm.tuning.sweep_journal import RowSink, SweepJournal
from tritongemm.tuning.task import ProblemReport, Task
from tritongemm.workers.child import resolve
from tritongemm.workers.compile_pool import CompilePool
from tritongemm.workers.messages import (
    COARSE,
    COMPILE,
    FINAL,
    SETUP,
    Call,
    Outcome,
    Request,
    failure,
)
from tritongemm.workers.worker import Event, Failed, Finished, Returned

#: Problems opened beyond one a device, so that compiling never runs dry.
_AHEAD = 6
#: Configs handed to a device at once.
_BATCH = 16
#: Making operands and references may take this many times a config's limit.
_OPEN_FACTOR = 4.0
_WAIT_S = 0.2
_TRIES = 3


class Assignment(NamedTuple):
    """What a device is asked to measure of its problem: configs at one stage."""

    stage: str
    configs: tuple[KernelConfig, ...]


@dataclass(frozen=True)
class Options:
    """How a sweep runs; see :func:`tritongemm.tuning.sweep.sweep`. ``gain`` is what a search must
    still expect to go on; None: every candidate is measured."""

    devices: tuple[int | None, ...] | None
    budget_s: float | None
    compile_workers: int
    per_config_timeout_s: float
    compile_timeout_s: float
    finalists: int
    seed: int
    measurer: str
    measurer_arguments: Mapping[str, object]
    builder: str
    gain: float | None = None
    share_budget: bool = True


class Loop:
    """One run over ``problems``; :meth:`run` once."""

    def __init__(self, problems: Sequence[GemmProblem],
                 candidates: Callable[[GemmProblem, DeviceSpec], Candidates], space_hash: str,
                 journal: Path | RowSink, options: Options, progress: Progress) -> None:
        self._problems = list(dict.fromkeys(problems))
        self._candidates, self._space_hash = candidates, space_hash
        self._where, self._options, self.progress = journal, options, progress
        self._builder = resolve(options.builder)
        self._devices = DeviceWorkers(options.measurer,
                          {"seed": options.seed, **options.measurer_arguments},
                          options.devices, progress.say)
        self._spec: DeviceSpec | None = None
        self._pool: CompilePool | None = None
        self._journal: SweepJournal | None = None
        self._tasks: list[Task] = []
        self._next = 0
        self._started = time.monotonic()
        self._deadline = (self._started + options.budget_s
                          if options.budget_s is not None else None)
        self._interrupted = False
        self._shown = 0.0
        self.reports: list[ProblemReport] = []
        self.prune = PruneReport()
        self.failures: Counter[str] = Counter()
        self.measured = self.resumed = 0
        self.stopped = ""
        self.wall_s = 0.0

    # -- totals ---------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self._journal.run_id if self._journal else ""

    @property
    def device(self) -> str:
        return self._spec.slug if self._spec else ""

    @property
    def gpu_busy_s(self) -> float:
        return sum(d.worker.busy_s for d in self._devices)

    @property
    def gpu_waited_s(self) -> float:
        return sum(d.waited_s for d in self._devices)

    @property
    def compile_s(self) -> float:
        return self._pool.compile_s if self._pool else 0.0

    # -- the loop -------------------------------------------------------------------------------

    def run(self) -> None:
        """Runs to the end, the budget's end, or an interrupt.

        Raises:
            KeyboardInterrupt: SIGINT or SIGTERM came; children are ended, the journal is closed.
            DeviceError: no device can be used, or a worker's disk is full. DataFileError: the
                journal cannot be written.
        """
        with self._signals():
            try:
                while True:
                    if self._interrupted:
                        raise KeyboardInterrupt
                    if self._tasks or self._pool is None:
                        self._devices.start()
                    if self._pool is not None:
                        self._open_tasks()
                        self._pool.feed()
                        self._advance_tasks()
                        self._assign()
                        if self._over():
                            break
                    self._watch()
            finally:
                self._close()

    def _over(self) -> bool:
        return not self._tasks and (self._next == len(self._problems) or self._out_of_time())

    def _close(self) -> None:
        self.wall_s = time.monotonic() - self._started
        self._devices.close()
        if self._pool is not None:
            self._pool.close()
        self.progress.close()
        if self._journal is not None:
            self._journal.close()
        if self._next < len(self._problems) and self._out_of_time():
            self.stopped = "budget"

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the loop between two outcomes; a second one at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: object) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True

        before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _begin(self) -> None:
        """The first worker is ready: opens the journal and the compile pool for its device."""
        identity, options = self._devices.identity, self._options
        if identity is None or self._pool is not None:
            return
        self._journal = SweepJournal(self._where, device=identity.spec,
                              environment=identity.environment,
                              fingerprint=identity.fingerprint, space_hash=self._space_hash,
                              seed=options.seed,
                              search="full" if options.gain is None else
                              f"model, gain {options.gain:g}")
        self._spec = identity.spec
        self._pool = CompilePool(options.builder, {"device": identity.spec},
                                 workers=options.compile_workers,
                                 timeout_s=options.compile_timeout_s)

    def _watch(self) -> None:
        """Waits for news from any child, takes it, and ends what has taken too long."""
        pool, devices = self._pool, self._devices
        compilers = pool.connections() if pool else {}
        measuring = devices.connections()
        start = time.monotonic()
        deadline = min(devices.deadline(), pool.deadline() if pool else math.inf)
        idle = [d for d in devices if d.worker.idle]
        ready = wait([*compilers, *measuring], max(0.0, min(_WAIT_S, deadline - start)))
        if pool is not None and pool.outstanding:
            for device in idle:
                device.waited_s += time.monotonic() - start
        for connection in ready:
            if connection in measuring:
                device = measuring[connection]
                for event in devices.read(device):
                    self._handle(device, event)
            elif pool is not None:
                self._handle_built(pool.read(compilers[connection]))
        for device, event in devices.check():
            self._handle(device, event)
        if pool is not None:
            self._handle_built(pool.check())
        self._begin()
        for device in devices:
            if device.lost:  # another device takes over its problems
                for task in self._tasks:
                    task.owner = None if task.owner is device else task.owner
        self._show()

    # -- problems -------------------------------------------------------------------------------

    def _out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _open_tasks(self) -> None:
        pool = self._pool
        assert pool is not None
        while self._next < len(self._problems) and not self._out_of_time():
            count = len(self._tasks)
            working = len(self._devices)
            if count > working and (pool.queued >= pool.workers or count >= working + _AHEAD):
                return
            self._open(self._problems[self._next])
            self._next += 1

    def _open(self, problem: GemmProblem) -> None:
        assert self._spec is not None and self._journal is not None and self._pool is not None
        found = self._candidates(problem, self._spec)
        self.prune.add(found.report)
        todo = [c for c in found.configs if not self._journal.done(problem, c)]
        self.resumed += len(found.configs) - len(todo)
        if self._journal.searched_to(problem, self._options.gain) or (
                found.configs and not todo and self._journal.finished(problem)):
            self._report(ProblemReport(problem, note="measured before"))
            return
        search = self._search(problem, found, set(todo)) if todo else None
        task = Task(problem, len(found.configs), coarse=self._journal.coarse(problem),
                    search=search)
        self._tasks.append(task)
        if search is not None:
            self._ask(task)
        else:
            for config in todo:
                self._build(task, config)

    def _search(self, problem: GemmProblem, found: Candidates, todo: set[KernelConfig]
                ) -> Search | None:
        """The problem's search, which knows what earlier runs measured; None: all is measured."""
        if self._options.gain is None:
            return None
        assert self._spec is not None and self._journal is not None
        search = Search.of(problem, self._spec, found.configs, found.in_use, self._options.gain)
        for config in found.configs:
            if config not in todo:
                search.observe(config, self._journal.time_us(problem, config))
        return search

    def _ask(self, task: Task) -> None:
        """Asks the task's search for more while devices and compilers would run out of it."""
        assert self._pool is not None and task.search is not None
        enough = max(BATCH, self._pool.workers)
        while not task.search.over and len(task.building) + len(task.ready) < enough:
            more = task.search.next()
            for config in more:
                self._build(task, config)
            if not more:
                break
        if task.search.over or not task.outstanding:
            self._forget(task)  # what was asked for is not worth its time any more
            task.ended = True

    def _build(self, task: Task, config: KernelConfig) -> None:
        """Hands a config to the compile pool, unless its binaries are known."""
        assert self._spec is not None and self._pool is not None
        key = f"{problem_key(task.problem)} {config.config_id}"
        if hasattr(self._builder, "key"):
            try:
                key = self._builder.key(task.problem, config, self._spec)
            except TritonGemmError as error:
                self._settle(task, config, COMPILE, failure(error, COMPILE))
                return
            if self._builder.stored(key):
                task.ready.append(config)
                return
        known = self._pool.want((task, config), key, task.problem, config)
        task.building.add(config)
        if known is not None:
            self._built(task, config, known)

    def _handle_built(self, answers: list) -> None:
        for (task, config), outcome in answers:
            self._built(task, config, outcome)

    def _built(self, task: Task, config: KernelConfig, outcome: Outcome) -> None:
        if config not in task.building:
            return  # it was left out meanwhile
        task.building.discard(config)
        if outcome.ok:
            task.built[config] = outcome.values
            task.ready.append(config)
        else:
            self._settle(task, config, COMPILE, outcome)

    def _advance_tasks(self) -> None:
        """Cuts problems whose time is up; moves on those that are through a stage."""
        now = time.monotonic()
        for task in list(self._tasks):
            if self._out_of_time() or (task.deadline is not None and now >= task.deadline):
                self._cut(task)
            if task.search is not None and not task.ended:
                self._ask(task)
            if not task.coarse_over or task.final_groups:
                continue
            if not task.ranking():
                group = task.next_finalists(self._options.finalists)
                if group:
                    task.final_groups.append(group)
                    continue
            self._finish(task)

    def _cut(self, task: Task) -> None:
        """Leaves out what no device has begun."""
        if task.searching:
            task.skipped += max(1, task.expected - task.settled - len(task.measuring))
        elif task.search is None:
            task.skipped += len(task.building) + len(task.ready)
        self._forget(task)
        task.ended = True

    def _forget(self, task: Task) -> None:
        assert self._pool is not None
        if task.building:
            self._pool.drop(lambda ticket: ticket[0] is task)  # type: ignore[index]
        task.building.clear()
        task.ready.clear()

    def _abandon(self, task: Task, outcome: Outcome, asked: Assignment) -> None:
        """The problem itself cannot be measured: every config left gets its outcome."""
        task.note = f"{outcome.status}: {outcome.reason}"
        task.final_groups.clear()
        left = [*task.ready, *task.building]
        if asked.stage == COARSE:
            left += [config for config in asked.configs if config in task.measuring]
        self._forget(task)
        task.ended = True
        for config in left:
            self._settle(task, config, COARSE, outcome)
        task.coarse.clear()

    def _finish(self, task: Task) -> None:
        assert self._journal is not None
        self._tasks.remove(task)
        report = task.report()
        if report.winner is not None:
            searched = task.search is not None and not report.skipped
            self._journal.winner(report, self._options.gain if searched else None)
        elif not report.skipped:
            self._journal.left_out(report)
        self._report(report)

    def _report(self, report: ProblemReport) -> None:
        self.reports.append(report)
        self.progress.closed(report, len(self.reports), len(self._problems))

    def _settle(self, task: Task, config: KernelConfig, stage: str, outcome: Outcome) -> None:
        """Journals one outcome, first of all."""
        assert self._journal is not None
        _stop_if_asked(outcome)
        if stage == COARSE:
            outcome = Outcome(outcome.status, outcome.reason,
                              {**task.built.pop(config, {}), **outcome.values})
        self._journal.result(task.problem, config, stage, outcome)
        if stage != FINAL and task.search is not None:
            time_us = outcome.values.get("time_us") if outcome.ok else None
            task.search.observe(config, None if time_us is None
                                else float(time_us))  # type: ignore[arg-type]
        self.measured += stage != FINAL
        task.measured += stage != FINAL
        if not outcome.ok:
            task.failures[outcome.status] += 1
            self.failures[outcome.status] += 1
        if stage == FINAL:
            task.finals[config] = outcome
        elif stage == COARSE and outcome.ok and "time_us" in outcome.values:
            task.coarse.append((float(outcome.values["time_us"]), config))  # type: ignore

    # -- devices --------------------------------------------------------------------------------

    def _assign(self) -> None:
        for device in self._devices:
            if device.worker.idle:
                task = self._task_for(device)
                if task is not None:
                    self._send(device, task)

    def _task_for(self, device: DeviceWorker) -> Task | None:
        """Its own problem while there is something to measure; else the earliest other."""
        free = [t for t in self._tasks if not t.busy and t.owner in (None, device)
                and (t.ready or (t.coarse_over and t.final_groups))]
        return min(free, key=lambda t: t is not device.task, default=None)

    def _send(self, device: DeviceWorker, task: Task) -> None:
        limit = self._options.per_config_timeout_s
        if task.owner is None:
            task.owner = device
            self._share_budget(task)
        device.task = task
        if task.ready:
            configs = tuple(task.ready.popleft() for _ in range(min(_BATCH, len(task.ready))))
            asked = Assignment(COARSE, configs)
            calls = tuple(Call("one", (task.problem, config), limit) for config in configs)
        else:
            configs = task.final_groups.popleft()
            asked = Assignment(FINAL, configs)
            calls = (Call("together", (task.problem, configs), (len(configs) + 1) * limit,
                          "the final stage"),)
        task.measuring = set(configs)
        setup = Call("open", (task.problem,), _OPEN_FACTOR * limit, "making the operands")
        device.worker.send(Request(calls, setup, asked))

    def _share_budget(self, task: Task) -> None:
        """Time is shared out evenly among the problems that have had none."""
        if self._deadline is not None and self._options.share_budget:
            waiting = sum(t.owner is None for t in self._tasks) + 1
            waiting += len(self._problems) - self._next
            now = time.monotonic()
            task.deadline = now + (self._deadline - now) / math.ceil(
                waiting / len(self._devices))

    def _handle(self, device: DeviceWorker, event: Event) -> None:
        task = device.task
        assert task is not None and isinstance(event, (Returned, Failed, Finished))
        asked = event.request.tag
        assert isinstance(asked, Assignment)
        if isinstance(event, Finished):
            self._finished(device, task, asked, event.rest)
        elif isinstance(event, Failed) and (event.index == SETUP or asked.stage == FINAL):
            device.broken = True
            _stop_if_asked(event.outcome)
            self._devices.note(device, event.outcome)
            self._broken(task, asked, event)
        elif event.index == SETUP:
            torch_us = event.value.get("torch_us")  # type: ignore[union-attr]
            task.torch_us = float(torch_us) if torch_us else None
        else:
            found = event.outcome if isinstance(event, Failed) else event.value
            pairs = (zip(asked.configs, found, strict=True)  # type: ignore[call-overload]
                     if asked.stage == FINAL else [(asked.configs[event.index], found)])
            for config, outcome in pairs:
                task.measuring.discard(config)
                self._settle(task, config, asked.stage, outcome)
                self._devices.note(device, outcome)

    def _finished(self, device: DeviceWorker, task: Task, asked: Assignment,
                  rest: tuple[int, ...]) -> None:
        broken, device.broken = device.broken, False
        if not task.note and not (broken and asked.stage == FINAL):
            self._return(task, asked, rest, broken)
        task.measuring.clear()

    def _return(self, task: Task, asked: Assignment, rest: tuple[int, ...], broken: bool) -> None:
        """Puts back what got no outcome; a worker that always dies at once is given up."""
        if not rest:
            return
        untouched = asked.stage == FINAL or len(rest) == len(asked.configs)
        if untouched and not broken:
            task.breaks += 1
            if task.breaks >= _TRIES:
                self._abandon(task, Outcome("died", "the worker died before it began"), asked)
                return
        if asked.stage == COARSE:
            task.ready.extendleft(asked.configs[index] for index in reversed(rest))
        else:
            task.final_groups.appendleft(asked.configs)

    def _broken(self, task: Task, asked: Assignment, event: Failed) -> None:
        """The operands could not be made, or the finalists failed together."""
        configs = asked.configs
        if event.index == SETUP:
            task.breaks += 1
            if event.outcome.status not in ("died", "timeout") or task.breaks > 1:
                self._abandon(task, event.outcome, asked)
            elif asked.stage == FINAL:
                task.final_groups.append(configs)
        elif len(configs) == 1:
            self._settle(task, configs[0], FINAL, event.outcome)
        else:
            # One of them did it. Alone with torch, each still has its paired ratio.
            task.final_groups.extend((config,) for config in configs)

    # -- display --------------------------------------------------------------------------------

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown < _WAIT_S:
            return
        self._shown = now
        elapsed, total = now - self._started, len(self._problems)
        whole = len(self.reports) + sum(
            t.settled / t.expected for t in self._tasks if t.total and t.expected)
        eta = elapsed * (total - whole) / whole if whole > 0 else None
        if self._deadline is not None:
            left = max(0.0, self._deadline - now)
            eta = left if eta is None else min(eta, left)
        on = [OnDevice(d.name, str(t.problem), t.settled, t.expected, t.best_us, t.torch_us,
                       t.search.gain_left if t.search is not None else None)
              for d in self._devices if (t := d.task) is not None and t in self._tasks]
        self.progress.update(Snapshot(len(self.reports), total, self.measured, self.failures,
                                      self._pool.outstanding if self._pool else 0, elapsed, eta,
                                      on))


def _stop_if_asked(outcome: Outcome) -> None:
    if outcome.stop:
        raise DeviceError(f"a worker met a fault of this machine: {outcome.reason}. Mend it and "
                          "go on with --resume; nothing that was journalled is lost")
