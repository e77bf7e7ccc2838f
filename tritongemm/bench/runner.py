"""The bench: measures problems x providers and appends CSV rows as they arrive; one run id for each
suite.

A run is one suite of one call of the bench. Its rows carry its id. ``runs.json`` in the CSV's
folder holds the environment, the arguments and the result of the control.

With several processes each pass over the list writes its rows to ``passes/<name>-<i>.csv`` in that
folder, and the median row of each shape is appended to the CSV at the end. An interrupted bench
loses nothing: ``resume`` continues in the middle of a pass.
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tritongemm.bench import combine
from tritongemm.bench.combine import Control
from tritongemm.bench.measuring import DEFAULT_OPENER, MeasuringProcess, ProcessLost
from tritongemm.bench.providers import check_names
from tritongemm.bench.session import Columns, Hello, Job, SessionSpec
from tritongemm.errors import CompileError, UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import problem_key
from tritongemm.records.control import BASELINE, CONTROL
from tritongemm.records.rows import (
    append_rows,
    derive,
    problem_columns,
    read_rows,
    read_sidecars,
    row_key,
    write_sidecar,
)
from tritongemm.records.run import new_run_id, utc_now
from tritongemm.records.suites import Shape
from tritongemm.workers.compile_pool import compile_all

_LOG = logging.getLogger("tritongemm")

Work = tuple[Shape, GemmProblem]
#: Seconds that one problem may take, compiling and all providers together.
DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class BenchPlan:
    """The arguments of a bench.

    Attributes:
        work: problems, each with the suite's shape.
        providers: names; the baseline is added.
        out: the CSV to append to.
        tags: words of the user, written into every row.
        resume: skip what the CSV has from the same environment.
        processes: fresh processes over the whole list; the median row of each shape counts.
        seed: of operands and orders; pass ``i`` uses ``seed + i``.
        budget_s: device time of one problem's rounds; None: the protocol's own.
        timeout_s: seconds after which a problem's process is ended.
        device: as :func:`tritongemm.bench.target.resolve` takes it.
        compile_workers: processes that compile beforehand; 0: none; None: one a core.
        host_time: measure the host's time of a call too, on problems small enough.
        notes: further fields of the run's record.
        opener: what the measuring process opens.
    """

    work: Sequence[Work]
    providers: tuple[str, ...]
    out: Path
    tags: str = ""
    resume: bool = False
    processes: int = 1
    seed: int = 0
    budget_s: float | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S
    device: str = "auto"
    compile_workers: int | None = None
    host_time: bool = False
    notes: Mapping[str, object] = field(default_factory=dict)
    opener: str = DEFAULT_OPENER

    def __post_init__(self) -> None:
        object.__setattr__(self, "providers", check_names(self.providers))
        if not self.work:
            raise UsageError("no problems to bench")
        check_limits(self.processes, self.timeout_s, self.seed, self.budget_s)
        if self.compile_workers is not None and self.compile_workers < 0:
            raise UsageError(f"compile_workers={self.compile_workers} is below 0")
        if self.out.is_dir():
            raise UsageError(f"{self.out} is a folder; name the CSV in it")


def check_limits(processes: int, timeout_s: float, seed: int, budget_s: float | None) -> None:
    """Raises :class:`UsageError` where a number is not one that a run can have."""
    for name, value, least in (("processes", processes, 1), ("timeout_s", timeout_s, 1),
                               ("seed", seed, 0)):
        if value < least or math.isnan(value):
            raise UsageError(f"{name}={value} is not a number of at least {least}")
    if budget_s is not None and not 0 < budget_s < math.inf:
        raise UsageError(f"budget_s={budget_s} is not a positive number of seconds")


@dataclass(frozen=True)
class BenchEvent:
    """One event: ``stage`` is ``start``, ``compile``, ``row``, ``lost``, or ``said`` for what a
    cluster's workers do.

    Attributes:
        done, total: problems of this pass, or kernels compiled.
        pass_index, passes: which pass over the list, from 0.
        problem: that was just measured.
        rows: its rows.
        message: for ``start`` what is measured on, for ``lost`` why a process was replaced.
    """

    stage: str
    done: int = 0
    total: int = 0
    pass_index: int = 0
    passes: int = 1
    problem: GemmProblem | None = None
    rows: Sequence[Mapping[str, object]] = ()
    message: str = ""


@dataclass(frozen=True)
class BenchReport:
    """The result of a bench.

    Attributes:
        out: the CSV.
        written: rows appended to it.
        skipped: problems that were there already.
        statuses: how rows of the named providers ended.
        controls: suite -> torch against torch; a suite whose control is void says nothing.
        run_ids: suite -> run id.
    """

    out: Path
    written: int
    skipped: int
    statuses: Mapping[str, int]
    controls: Mapping[str, Control]
    run_ids: Mapping[str, str]


def bench(plan: BenchPlan, progress: Callable[[BenchEvent], None] = lambda event: None
          ) -> BenchReport:
    """Runs ``plan``. Rows are on the disk as soon as they are measured.

    Raises:
        UsageError, DeviceError: a provider or device that is not there.
        DataFileError: the CSV or ``runs.json`` cannot be written or read.
    """
    with MeasuringProcess(SessionSpec(plan.device, plan.providers), plan.opener) as process:
        hello = process.start()
        progress(BenchEvent("start", message=hello.device.name))
        return BenchRun(plan, process, hello, progress).run()


def measure_apart(process: MeasuringProcess, job: Job, timeout_s: float,
                  lost: Callable[[str], object]) -> Columns:
    """Every provider's columns. Where the process is lost, who lost it is found by measuring each
    provider alone; that one's row says how, and the others keep theirs. ``lost`` is told why."""
    try:
        return process.measure(job, timeout_s)
    except ProcessLost as error:
        lost(error.reason)
        ended: dict[str, object] = {"status": error.status, "error": error.reason}
    if not job.providers:
        return {BASELINE: ended}
    if len(job.providers) == 1:
        alone = measure_apart(process, replace(job, providers=()), timeout_s, lost)
        return {**alone, job.providers[0]: ended}
    measured: Columns = {}
    for name in job.providers:
        found = measure_apart(process, replace(job, providers=(name,)), timeout_s, lost)
        for provider, columns in found.items():
            # The baseline is measured beside each; its first good row is kept.
            if measured.get(provider, {}).get("status") != "ok":
                measured[provider] = columns
    return measured


#: Providers that every run has rows of, so that it has a control of its own, and torch's energy.
_OF_EVERY_RUN = (BASELINE, CONTROL)


def _passes_of(out: Path) -> Path:
    """The folder of the rows of single processes."""
    return out.parent / "passes"


class BenchRun:
    """One call of :func:`bench`. ``process`` measures; a cluster's bench has others, and none
    here."""

    def __init__(self, plan: BenchPlan, process: MeasuringProcess | None, hello: Hello,
                 progress: Callable[[BenchEvent], None]) -> None:
        self.plan, self.process, self.hello, self.progress = plan, process, hello, progress
        # Without times there is no scatter to take a median of.
        self.passes = plan.processes if hello.timed else 1
        self.suites = list(dict.fromkeys(shape.suite for shape, _ in plan.work))
        self.run_ids = {suite: new_run_id() for suite in self.suites}
        self.started = utc_now()
        #: (problem, config's id) -> seconds that compiling took beforehand.
        self.compile_s: dict[tuple[GemmProblem, object], float | None] = {}

    def run(self) -> BenchReport:
        plan = self.plan
        finished = self._finished(plan.out, enough=self.passes) if plan.resume else set()
        work = [one for one in plan.work if self._missing(one, finished)]
        skipped = len(plan.work) - len(work)
        self.suites = [s for s in self.suites if any(shape.suite == s for shape, _ in work)]
        if not work:
            return BenchReport(plan.out, 0, skipped, {}, {}, {})
        self._sidecars(plan.out.parent, {})
        append_rows(plan.out, [])  # an unusable file is reported before hours of measuring
        self._compile([problem for _, problem in work])
        if self.passes == 1:
            rows = [row for group in self._pass(0, plan.out, work, finished) for row in group]
        else:
            rows = self._median_of_passes(work, finished)
            append_rows(plan.out, rows)
        controls = {suite: combine.control_of(r for r in rows if r["suite"] == suite)
                    for suite in self.suites}
        self._sidecars(plan.out.parent, controls)
        if self.passes > 1:  # the rows of a void run do not count as measured there either
            self._sidecars(_passes_of(plan.out), controls)
        named = [row for row in rows if row["provider"] != CONTROL]
        return BenchReport(plan.out, len(rows), skipped,
                           Counter(str(row["status"]) for row in named), controls,
                           {suite: self.run_ids[suite] for suite in self.suites})

    # -- passes -------------------------------------------------------------------------------

    def _median_of_passes(self, work: Sequence[Work], finished: set[tuple]
                          ) -> list[dict[str, object]]:
        folder = _passes_of(self.plan.out)
        self._sidecars(folder, {})
        found = []
        for index in range(self.passes):
            if index:
                self._begin_pass()
            path = folder / f"{self.plan.out.stem}-{index + 1}.csv"
            before = self._rows_of(path) if self.plan.resume else {}
            done = finished | set(before)
            todo = [one for one in work if self._missing(one, done)]
            rows = dict(before)
            for group in self._pass(index, path, todo, done):
                rows.update((row_key(row), row) for row in group)
            found.append(rows)
        wanted = {key for one in work for provider in (*self.plan.providers, CONTROL)
                  if (key := row_key(self._base(one, provider))) not in finished
                  or provider in _OF_EVERY_RUN}
        medians = combine.median_rows(
            [{key: row for key, row in rows.items() if key in wanted} for rows in found])
        # The median row belongs to this run, even if an earlier run began its pass.
        return [{**row, "run_id": self.run_ids[str(row["suite"])]} for row in medians]

    def _pass(self, index: int, path: Path, work: Sequence[Work], done: set[tuple]
              ) -> Iterator[list[dict[str, object]]]:
        """Measures ``work`` and appends to ``path`` what ``done`` has not, with torch's rows of the
        same rounds; yields those rows."""
        for count, (one, measured) in enumerate(self._measure_all(index, work), 1):
            order = [*self.plan.providers, CONTROL]
            rows = [self._row(one, name, measured[name]) for name in order if name in measured]
            rows = [row for row in rows
                    if row_key(row) not in done or row["provider"] in _OF_EVERY_RUN]
            append_rows(path, rows)
            self.progress(BenchEvent("row", count, len(work), index, self.passes, one[1], rows))
            yield rows

    def _begin_pass(self) -> None:
        """A fresh process for each pass after the first."""
        assert self.process is not None
        self.process.start()

    def _job(self, index: int, problem: GemmProblem) -> Job:
        return Job(problem, self.plan.providers[1:], self.plan.seed + index, self.plan.budget_s,
                   self.plan.host_time)

    def _measure_all(self, index: int, work: Sequence[Work]) -> Iterator[tuple[Work, Columns]]:
        """Every provider's columns of each problem, as they come."""
        process = self.process
        assert process is not None
        for one in work:
            problem = one[1]
            yield one, measure_apart(
                process, self._job(index, problem), self.plan.timeout_s,
                lambda reason, problem=problem: self.progress(
                    BenchEvent("lost", problem=problem, message=reason)))

    def _compile(self, problems: Sequence[GemmProblem]) -> None:
        if self.plan.compile_workers == 0:
            return
        assert self.process is not None
        try:
            wanted = self.process.builds(list(dict.fromkeys(problems)))
        except ProcessLost as lost:
            self.progress(BenchEvent("lost", message=lost.reason))
            return
        builds = {f"{problem_key(problem)} {config.config_id}": (problem, config)
                  for problem, config in wanted}
        try:
            built = compile_all(
                [(key, *build) for key, build in builds.items()], {"device": self.hello.device},
                workers=self.plan.compile_workers or len(os.sched_getaffinity(0)),
                progress=lambda done, total: self.progress(BenchEvent("compile", done, total)))
        except CompileError as error:  # the measuring process compiles what it needs
            self.progress(BenchEvent("lost", message=str(error)))
            return
        for key, outcome in built.items():
            problem, config = builds[key]
            if not outcome.ok:  # the measuring process reports it in the row
                _LOG.info("%s of %s is not compiled ahead: %s", config.config_id, problem,
                          outcome.reason)
            seconds = outcome.values.get("compile_s")
            self.compile_s[problem, config.config_id] = seconds  # type: ignore[assignment]

    # -- rows and sidecars --------------------------------------------------------------------

    def _base(self, work: Work, provider: str) -> dict[str, object]:
        """The columns that say which row it is."""
        shape, problem = work
        return {"device": self.hello.device.slug, "tags": self.plan.tags, "suite": shape.suite,
                "provider": provider, **problem_columns(problem)}

    def _row(self, work: Work, provider: str, columns: Mapping[str, object]
             ) -> dict[str, object]:
        device = self.hello.device
        row = {"run_id": self.run_ids[work[0].suite], "timestamp_utc": utc_now(),
               "arch": device.arch or None, "n_processes": 1, **self._base(work, provider),
               "compile_s": self.compile_s.get((work[1], columns.get("config_id"))), **columns}
        return derive(row, unit_peak_tflops=work[1].peak_tflops(device.peak_tflops),
                      memory_gbps=device.memory_gbps)

    def _missing(self, work: Work, done: set[tuple]) -> bool:
        return any(row_key(self._base(work, name)) not in done for name in self.plan.providers)

    def _rows_of(self, path: Path) -> dict[tuple, dict[str, object]]:
        """Rows of ``path`` that were made in this environment, by key, the last one of each; those
        that timed out where the limit was no lower than now."""
        if not path.exists():
            return {}
        good = {run_id: meta.get("timeout_s", DEFAULT_TIMEOUT_S)
                for run_id, meta in read_sidecars(path.parent).items()
                if meta.get("fingerprint") == self.hello.fingerprint and not meta.get("void")}
        found = {row_key(row): row for row in read_rows(path) if row["run_id"] in good}
        return {key: row for key, row in found.items() if row["status"] != "timeout"
                or not good[row["run_id"]] < self.plan.timeout_s}  # type: ignore[operator, index]

    def _finished(self, path: Path, enough: int) -> set[tuple]:
        return {key for key, row in self._rows_of(path).items()
                if (row["n_processes"] or 1) >= enough}  # type: ignore[operator]

    def _sidecars(self, folder: Path, controls: Mapping[str, Control]) -> None:
        for suite in self.suites:
            meta: dict[str, object] = {
                **self.plan.notes, "environment": self.hello.environment,
                "fingerprint": self.hello.fingerprint, "suite": suite, "tags": self.plan.tags,
                "providers": list(self.plan.providers), "processes": self.passes,
                "seed": self.plan.seed, "budget_s": self.plan.budget_s,
                "timeout_s": self.plan.timeout_s,
                "started_utc": self.started, "complete": suite in controls}
            control = controls.get(suite)
            if control is not None:
                meta.update(finished_utc=utc_now(), void=control.void, control={
                    "mean_ratio": control.mean_ratio, "count": control.count,
                    "limit": control.limit})
                if control.void:
                    meta["void_reason"] = control.reason
            write_sidecar(folder, self.run_ids[suite], meta)
