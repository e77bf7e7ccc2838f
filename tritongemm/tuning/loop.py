"""The sweep's loop: one thread that watches pipes and clocks, and never waits for one child.

A device takes what is built as it comes, of its own problem first, of the next one while stragglers
compile; the finalists of a problem are measured interleaved with torch. What is built, and when a
problem is over, ``open_problems`` says.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem
from tritongemm.tuning.candidates import Candidates
from tritongemm.tuning.device_workers import DeviceWorker, DeviceWorkers
from tritongemm.tuning.open_problems import Context, OpenProblems, stop_if_asked
from tritongemm.tuning.options import Options
from tritongemm.tuning.progress import OnDevice, Progress, Snapshot
from tritongemm.tuning.sweep_journal import RowSink, SweepJournal
from tritongemm.tuning.task import Task
from tritongemm.workers.compile_pool import CompilePool
from tritongemm.workers.messages import COARSE, COMPILE, FINAL, SETUP, Call, Outcome, Request
from tritongemm.workers.worker import Event, Failed, Finished, Returned

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


class Loop:
    """One run over ``problems``; :meth:`run` once."""

    def __init__(self, problems: Sequence[GemmProblem],
                 candidates: Callable[[GemmProblem, DeviceSpec], Candidates], space_hash: str,
                 journal: Path | RowSink, options: Options, progress: Progress) -> None:
        self._space_hash = space_hash
        self._where, self._options, self.progress = journal, options, progress
        self._devices = DeviceWorkers(options.measurer,
                          {"seed": options.seed, **options.measurer_arguments},
                          options.devices, progress.say)
        self._spec: DeviceSpec | None = None
        self._pool: CompilePool | None = None
        self._journal: SweepJournal | None = None
        self._started = time.monotonic()
        self.problems = OpenProblems(
            problems, candidates, options, progress,
            self._started + options.budget_s if options.budget_s is not None else None)
        self._interrupted = False
        self._shown = 0.0
        self.stopped = ""
        self.wall_s = 0.0

    # -- totals ---------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self._journal.run_id if self._journal else ""

    @property
    def device(self) -> str:
        return self._spec.slug if self._spec and self._journal else ""

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
                self._devices.start()
                self._prepare()
                while True:
                    if self._interrupted:
                        raise KeyboardInterrupt
                    if self.problems.tasks or self._journal is None:
                        self._devices.start()
                    if self._pool is not None:
                        self._pool.feed()
                    if self._journal is not None:
                        self._open_tasks()
                        self._pool.feed()  # type: ignore[union-attr]
                        self._advance_tasks()
                        self._assign()
                        if self._over():
                            break
                    self._watch()
            finally:
                self._close()

    def _over(self) -> bool:
        return not self.problems.tasks and (not self.problems.unopened
                                            or self.problems.out_of_time())

    def _close(self) -> None:
        self.wall_s = time.monotonic() - self._started
        self._devices.close()
        if self._pool is not None:
            self._pool.close()
        self.progress.close()
        if self._journal is not None:
            self._journal.close()
        if self.problems.unopened and self.problems.out_of_time():
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

    def _prepare(self) -> None:
        """Plans the first problem and starts the compilers for the device that the driver names,
        while its worker starts. A journal that is continued may hold the problem already."""
        expect, devices = self._options.expect, self._options.devices
        if expect is None or (isinstance(self._where, Path) and self._where.exists()):
            return
        self._spec = expect(0 if devices is None else devices[0])
        if self._spec is not None:
            self._pool = self._new_pool(self._spec)
            self.problems.prepare(self._spec, self._pool)
            self._pool.feed()

    def _new_pool(self, spec: DeviceSpec) -> CompilePool:
        options = self._options
        return CompilePool(options.builder, {"device": spec}, workers=options.compile_workers,
                           timeout_s=options.compile_timeout_s)

    def _begin(self) -> None:
        """The first worker is ready: opens the journal, and the compile pool for its device unless
        that is the expected one."""
        identity, options = self._devices.identity, self._options
        if identity is None or self._journal is not None:
            return
        self._journal = SweepJournal(self._where, device=identity.spec,
                              environment=identity.environment,
                              fingerprint=identity.fingerprint, space_hash=self._space_hash,
                              seed=options.seed,
                              limits={COARSE: options.per_config_timeout_s,
                                      COMPILE: options.compile_timeout_s},
                              search="full" if options.gain is None else
                              f"model, gain {options.gain:g}")
        prepared = self._pool is not None and self._spec == identity.spec
        if not prepared:
            if self._pool is not None:
                self._pool.close()
            self._pool = self._new_pool(identity.spec)
        self._spec = identity.spec
        assert self._pool is not None
        self.problems.begin(Context(identity.spec, self._journal, self._pool), prepared)

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
                self.problems.take_built(pool.read(compilers[connection]))
        for device, event in devices.check():
            self._handle(device, event)
        if pool is not None:
            self.problems.take_built(pool.check())
        self._begin()
        for device in devices:
            if device.lost:  # another device takes over its problems
                for task in self.problems.tasks:
                    task.owner = None if task.owner is device else task.owner
        self._show()

    def _open_tasks(self) -> None:
        self.problems.open(len(self._devices))

    def _advance_tasks(self) -> None:
        self.problems.advance()

    # -- devices --------------------------------------------------------------------------------

    def _assign(self) -> None:
        for device in self._devices:
            if device.worker.idle:
                task = self._task_for(device)
                if task is not None:
                    self._send(device, task)

    def _task_for(self, device: DeviceWorker) -> Task | None:
        """Its own problem while there is something to measure; else the earliest other."""
        free = [t for t in self.problems.tasks if not t.busy and t.owner in (None, device)
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
        deadline = self.problems.deadline
        if deadline is not None and self._options.share_budget:
            waiting = sum(t.owner is None for t in self.problems.tasks) + 1
            waiting += self.problems.unopened
            now = time.monotonic()
            task.deadline = now + (deadline - now) / math.ceil(
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
            stop_if_asked(event.outcome)
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
                self.problems.settle(task, config, asked.stage, outcome)
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
            self.problems.settle(task, configs[0], FINAL, event.outcome)
        else:
            # One of them did it. Alone with torch, each still has its paired ratio.
            task.final_groups.extend((config,) for config in configs)

    def _abandon(self, task: Task, outcome: Outcome, asked: Assignment) -> None:
        self.problems.abandon(task, outcome, asked.configs if asked.stage == COARSE else ())

    # -- display --------------------------------------------------------------------------------

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown < _WAIT_S:
            return
        self._shown = now
        elapsed, problems = now - self._started, self.problems
        total = len(problems)
        whole = len(problems.reports) + sum(
            t.settled / t.expected for t in problems.tasks if t.total and t.expected)
        eta = elapsed * (total - whole) / whole if whole > 0 else None
        if problems.deadline is not None:
            left = max(0.0, problems.deadline - now)
            eta = left if eta is None else min(eta, left)
        on = [OnDevice(d.name, str(t.problem), t.settled, t.expected, t.best_us, t.torch_us,
                       t.search.gain_left if t.search is not None else None)
              for d in self._devices if (t := d.task) is not None and t in problems.tasks]
        self.progress.update(Snapshot(len(problems.reports), total, problems.measured,
                                      problems.failures,
                                      self._pool.outstanding if self._pool else 0, elapsed, eta,
                                      on))
