"""The problems of a sweep, from opening to report: what is compiled and measured of each.

Problems are opened in order, a few ahead; their configs go to the compile pool, all at once or in
the batches that a search asks for. A problem whose configs are all settled, or whose search expects
no more, gets its finalists, and then its report.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import DeviceError, TritonGemmError
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import problem_key
from tritongemm.tuning.candidates import Candidates, PruneReport
from tritongemm.tuning.options import Options
from tritongemm.tuning.progress import Progress
from tritongemm.tuning.search import BATCH, Search
from tritongemm.tuning.sweep_journal import SweepJournal
from tritongemm.tuning.task import ProblemReport, Task
from tritongemm.workers.child import resolve
from tritongemm.workers.compile_pool import AHEAD, CompilePool
from tritongemm.workers.messages import COARSE, COMPILE, FINAL, Outcome, failure

#: Problems opened beyond one a device, so that compiling never runs dry.
_AHEAD = 6


class Context(NamedTuple):
    """What a sweep works with, known once its first worker is ready."""

    spec: DeviceSpec
    journal: SweepJournal
    pool: CompilePool


class PlannedProblem(NamedTuple):
    """A problem that was planned for the expected device, and whose first configs are being
    compiled."""

    problem: GemmProblem
    found: Candidates
    search: Search | None
    asked: tuple[KernelConfig, ...]


class OpenProblems:
    """The problems of one run, and what became of those that are over.

    Attributes:
        tasks: the open problems, in order.
        reports: of the problems that are over.
        prune: counts candidates, by rule.
        failures: outcomes other than ok, by status.
        measured, resumed: outcomes of this run; configs that earlier runs measured.
        deadline: when the budget is used up; None: there is no budget.
    """

    def __init__(self, problems: Sequence[GemmProblem],
                 candidates: Callable[[GemmProblem, DeviceSpec], Candidates], options: Options,
                 progress: Progress, deadline: float | None) -> None:
        self._problems = list(dict.fromkeys(problems))
        self._candidates, self._options, self._progress = candidates, options, progress
        self._builder = resolve(options.builder)
        self._begun_in: Context | None = None
        self._prepared: PlannedProblem | None = None
        self._next = 0
        self.deadline = deadline
        self.tasks: list[Task] = []
        self.reports: list[ProblemReport] = []
        self.prune = PruneReport()
        self.failures: Counter[str] = Counter()
        self.measured = self.resumed = 0

    def __len__(self) -> int:
        """How many problems there are, open or not."""
        return len(self._problems)

    @property
    def unopened(self) -> int:
        """How many problems are still to be opened."""
        return len(self._problems) - self._next

    def prepare(self, spec: DeviceSpec, pool: CompilePool) -> None:
        """Plans the first problem for ``spec`` and has its first configs compiled, although no
        device is ready. Only :meth:`begin` with the same ``spec`` and ``pool`` uses this."""
        if not self._problems:
            return
        problem = self._problems[0]
        found = self._candidates(problem, spec)
        search, count = None, max(BATCH, pool.workers)
        asked = found.configs[:count]
        if self._options.gain is not None and found.configs:
            search = Search.of(problem, spec, found.configs, found.in_use, self._options.gain)
            asked = tuple(search.next(count))
        self._prepared = PlannedProblem(problem, found, search, asked)
        for config in asked:
            try:
                key = self._key(problem, config, spec)
            except TritonGemmError:
                continue  # the problem is opened later, and that settles the config
            if not self._stored(key):
                pool.want(AHEAD, key, problem, config)

    def begin(self, context: Context, prepared: bool = False) -> None:
        """From now on problems can be opened. ``prepared``: what :meth:`prepare` made is for this
        context."""
        self._begun_in = context
        if not prepared:
            self._prepared = None

    @property
    def _context(self) -> Context:
        assert self._begun_in is not None, "begin comes first"
        return self._begun_in

    def add(self, problems: Iterable[GemmProblem]) -> None:
        """Appends problems to those of the run."""
        self._problems += problems

    def out_of_time(self) -> bool:
        """Whether the budget is used up."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def open(self, working: int) -> None:
        """Opens the next problems, ahead of so many ``working`` devices."""
        pool = self._context.pool
        while self._next < len(self._problems) and not self.out_of_time():
            count = len(self.tasks)
            if count > working and (pool.queued >= pool.workers or count >= working + _AHEAD):
                return
            self._open(self._problems[self._next])
            if self._next == 0:  # it has what was built ahead, or needs none of it
                pool.drop(lambda ticket: ticket is AHEAD)
            self._next += 1

    def _open(self, problem: GemmProblem) -> None:
        spec, journal, _ = self._context
        ready, self._prepared = self._prepared, None
        if ready is None or ready.problem != problem:
            ready = None
        found = ready.found if ready else self._candidates(problem, spec)
        self.prune.add(found.report)
        todo = [c for c in found.configs if not journal.done(problem, c)]
        self.resumed += len(found.configs) - len(todo)
        searched = journal.searched_to(problem, self._options.gain) and not any(
            journal.retries(problem, config) for config in todo)
        untouched = ready is not None and len(todo) == len(found.configs)
        search = (None if searched or not todo else
                  ready.search if untouched else  # type: ignore[union-attr]
                  self._search(problem, found, set(todo)))
        nothing_left = not todo or (search is not None and search.over)
        if searched or (found.configs and nothing_left and journal.finished(problem)):
            self._report(ProblemReport(problem, note="measured before"))
            return
        task = Task(problem, len(found.configs), coarse=journal.coarse(problem),
                    search=search, partial=found.report.not_chosen > 0)
        self.tasks.append(task)
        if search is not None:
            for config in ready.asked if untouched else ():  # type: ignore[union-attr]
                self._build(task, config)
            self._ask(task)
        else:
            for config in todo:
                self._build(task, config)

    def _search(self, problem: GemmProblem, found: Candidates, todo: set[KernelConfig]
                ) -> Search | None:
        """The problem's search, which knows what earlier runs measured; None: all is measured."""
        if self._options.gain is None:
            return None
        spec, journal, _ = self._context
        search = Search.of(problem, spec, found.configs, found.in_use, self._options.gain)
        for config in found.configs:
            if config not in todo:
                search.observe(config, journal.time_us(problem, config))
        return search

    def _ask(self, task: Task) -> None:
        """Asks the task's search for more while devices and compilers would run out of it."""
        assert task.search is not None
        enough = max(BATCH, self._context.pool.workers)
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
        spec, _, pool = self._context
        try:
            key = self._key(task.problem, config, spec)
        except TritonGemmError as error:
            self.settle(task, config, COMPILE, failure(error, COMPILE))
            return
        if not pool.has(key) and self._stored(key):
            task.ready.append(config)
            return
        known = pool.want((task, config), key, task.problem, config)
        task.building.add(config)
        if known is not None:
            self._built(task, config, known)

    def _key(self, problem: GemmProblem, config: KernelConfig, spec: DeviceSpec) -> str:
        """The name of the config's binaries. Raises TritonGemmError if it can have none."""
        if hasattr(self._builder, "key"):
            return self._builder.key(problem, config, spec)
        return f"{problem_key(problem)} {config.config_id}"

    def _stored(self, key: str) -> bool:
        """Whether the binaries of ``key`` need not be compiled."""
        return hasattr(self._builder, "stored") and self._builder.stored(key)

    def take_built(self, answers: list) -> None:
        """Takes what the compile pool has answered: ((task, config), outcome) each."""
        for ticket, outcome in answers:
            self._built(*ticket, outcome)

    def _built(self, task: Task, config: KernelConfig, outcome: Outcome) -> None:
        if config not in task.building:
            return  # it was left out meanwhile
        task.building.discard(config)
        if outcome.ok:
            task.built[config] = outcome.values
            task.ready.append(config)
        else:
            self.settle(task, config, COMPILE, outcome)

    def advance(self) -> None:
        """Cuts problems whose time is up; moves on those that are through a stage."""
        now = time.monotonic()
        for task in list(self.tasks):
            if self.out_of_time() or (task.deadline is not None and now >= task.deadline):
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
        if task.building:
            self._context.pool.drop(lambda ticket: ticket[0] is task)  # type: ignore[index]
        task.building.clear()
        task.ready.clear()

    def abandon(self, task: Task, outcome: Outcome, measuring: Iterable[KernelConfig] = ()) -> None:
        """The problem itself cannot be measured: every config left gets its outcome, and so do
        those of ``measuring`` that have none yet."""
        task.note = f"{outcome.status}: {outcome.reason}"
        task.final_groups.clear()
        left = [*task.ready, *task.building]
        left += [config for config in measuring if config in task.measuring]
        self._forget(task)
        task.ended = True
        for config in left:
            self.settle(task, config, COARSE, outcome)
        task.coarse.clear()

    def _finish(self, task: Task) -> None:
        journal = self._context.journal
        self.tasks.remove(task)
        report = task.report()
        if report.winner is not None:
            searched = task.search is not None and not report.skipped and not task.partial
            journal.winner(report, self._options.gain if searched else None)
        elif not report.skipped:
            journal.left_out(report)
        self._report(report)

    def _report(self, report: ProblemReport) -> None:
        self.reports.append(report)
        self._progress.closed(report, len(self.reports), len(self._problems))

    def settle(self, task: Task, config: KernelConfig, stage: str, outcome: Outcome) -> None:
        """Journals one outcome, first of all."""
        stop_if_asked(outcome)
        if stage == COARSE:
            outcome = Outcome(outcome.status, outcome.reason,
                              {**task.built.pop(config, {}), **outcome.values})
        self._context.journal.result(task.problem, config, stage, outcome)
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


def stop_if_asked(outcome: Outcome) -> None:
    """Raises :class:`DeviceError` for an outcome that says that this machine cannot go on."""
    if outcome.stop:
        raise DeviceError(f"a worker met a fault of this machine: {outcome.reason}. Mend it and "
                          "continue with --resume; nothing that was journalled is lost")
