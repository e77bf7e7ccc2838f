"""Measures programs in their modes into CSV rows of the common schema: torch, its control, and this
package.

Every pass is a fresh process over the whole list, and the median row of each program, mode and
provider is appended to the CSV. Each pass writes its rows to ``passes/`` in the CSV's folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.bench.combine import Control, control_of, median_rows
from tritongemm.bench.measuring import MeasuringProcess, ProcessLost
from tritongemm.bench.runner import check_limits
from tritongemm.bench.session import Hello, SessionSpec
from tritongemm.errors import UsageError
from tritongemm.models.job import ProgramJob
from tritongemm.models.program import MODES
from tritongemm.records.columns import PROBLEM_COLUMNS
from tritongemm.records.rows import append_rows, write_sidecar
from tritongemm.records.run import new_run_id, utc_now

if TYPE_CHECKING:
    from tritongemm.models.program import Program

OPENER = "tritongemm.models.session:open_session"
OURS = "tritongemm"
SUITE, TINY_SUITE = "programs", "programs-tiny"
Row = Mapping[str, object]


@dataclass(frozen=True)
class ModelsPlan:
    """What to measure.

    Attributes:
        programs: in order.
        modes: the requested modes of :data:`~tritongemm.models.program.MODES`.
        out: the CSV to append to.
        tiny: use small sizes, which the CPU can run.
        processes: number of passes over the list, each in a fresh process.
        seed: pass i uses seed + i.
        budget_s: seconds for the rounds of one program in one mode.
        timeout_s: seconds for a program, after which its process is ended.
        device: as :func:`tritongemm.bench.target.resolve` takes it.
        min_flops: as for ``tritongemm.override``; None: its default, or 0 where ``tiny``.
    """

    programs: Sequence[Program]
    out: Path
    modes: tuple[str, ...] = MODES
    tags: str = ""
    tiny: bool = False
    processes: int = 1
    seed: int = 0
    budget_s: float = 10.0
    timeout_s: float = 1800.0
    device: str = "auto"
    min_flops: float | None = None
    opener: str = OPENER

    def __post_init__(self) -> None:
        check_limits(self.processes, self.timeout_s, self.seed, self.budget_s)
        if self.min_flops is not None and not 0 <= self.min_flops < math.inf:
            raise UsageError(f"min_flops={self.min_flops} is not a number of at least 0")
        if not self.work():
            raise UsageError(f"none of these programs runs in {' or '.join(self.modes)}")

    def work(self) -> list[tuple[Program, str]]:
        """Each program with each of its requested modes."""
        return [(program, mode) for program in self.programs for mode in program.modes
                if mode in self.modes]


@dataclass(frozen=True)
class Event:
    """Progress: a mode of a program, with its rows or the reason why there are none."""

    done: int
    total: int
    pass_index: int
    program: str
    mode: str
    rows: Sequence[Row] = ()
    message: str = ""


@dataclass(frozen=True)
class ModelsReport:
    """The result of :func:`measure_programs`.

    Attributes:
        rows: the median rows, as in the CSV.
        left_out: (program, mode, reason) for each mode without a row.
        failed: whether one of those failed, rather than does not run on this machine.
        control: the comparison of torch with torch.
    """

    out: Path
    run_id: str
    rows: Sequence[Row]
    left_out: Sequence[tuple[str, str, str]]
    failed: bool
    control: Control


@dataclass
class _Run:
    """One call of :func:`measure_programs`."""

    plan: ModelsPlan
    process: MeasuringProcess
    hello: Hello
    progress: Callable[[Event], None]
    run_id: str = field(default_factory=new_run_id)
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    failed: bool = False
    #: Program -> the columns of its problem, for rows of a mode whose process was lost.
    problems: dict[str, dict[str, object]] = field(default_factory=dict)

    def run(self) -> ModelsReport:
        plan, started = self.plan, utc_now()
        append_rows(plan.out, [])  # fails here, not after hours, if the file cannot be written
        self._sidecar(plan.out.parent, started, None)
        # Without times there is nothing to take a median of.
        passes = plan.processes if self.hello.timed else 1
        found = []
        for index in range(passes):
            if index:
                self.process.start()
            path = plan.out
            if passes > 1:
                path = plan.out.parent / "passes" / f"{plan.out.stem}-{index + 1}.csv"
                path.parent.mkdir(parents=True, exist_ok=True)
                self._sidecar(path.parent, started, None)
            found.append({(row["program"], row["mode"], row["provider"]): row
                          for row in self._pass(index, path)})
        rows = median_rows(found)
        if passes > 1:
            append_rows(plan.out, rows)
        control = control_of(rows)
        self._sidecar(plan.out.parent, started, control)
        return ModelsReport(plan.out, self.run_id, rows, tuple(dict.fromkeys(self.left_out)),
                            self.failed, control)

    def _pass(self, index: int, path: Path) -> list[Row]:
        """Rows are in the file as soon as they are measured."""
        rows: list[Row] = []
        work = self.plan.work()
        for count, (program, mode) in enumerate(work, 1):
            found, message = self._measure(program.name, mode, index)
            append_rows(path, found)
            rows += found
            self.progress(Event(count, len(work), index, program.name, mode, found, message))
        return rows

    def _measure(self, program: str, mode: str, index: int) -> tuple[list[Row], str]:
        plan = self.plan
        job = ProgramJob(program, (mode,), plan.tiny, plan.seed + index, plan.budget_s,
                         0.0 if plan.tiny and plan.min_flops is None else plan.min_flops)
        try:
            columns = self.process.measure(job, plan.timeout_s)
        except ProcessLost as lost:
            problem = self.problems.get(program)
            if problem is None:
                self.left_out.append((program, mode, lost.reason))
                self.failed = True
                return [], lost.reason
            columns = {(mode, OURS): {**problem, "status": lost.status, "error": lost.reason}}
        rows, message = [], ""
        for (where, provider), values in columns.items():  # type: ignore[misc]
            if "m" not in values:  # it did not run at all
                message = str(values["error"])
                self.left_out.append((program, mode, message))
                self.failed |= values["status"] != "constraint"
                continue
            self.problems[program] = {name: values[name] for name in PROBLEM_COLUMNS
                                      if name in values}
            rows.append({
                "run_id": self.run_id, "timestamp_utc": utc_now(), "tags": plan.tags,
                "device": self.hello.device.slug, "arch": self.hello.device.arch or None,
                "suite": TINY_SUITE if plan.tiny else SUITE, "program": program, "mode": where,
                "provider": provider, "n_processes": 1, **values})
        if not columns:
            message = "it has no such mode on this device"
            self.left_out.append((program, mode, message))
        return rows, message

    def _sidecar(self, folder: Path, started: str, control: Control | None) -> None:
        plan = self.plan
        meta: dict[str, object] = {
            "environment": self.hello.environment, "fingerprint": self.hello.fingerprint,
            "suite": TINY_SUITE if plan.tiny else SUITE, "tags": plan.tags,
            "processes": plan.processes, "seed": plan.seed, "budget_s": plan.budget_s,
            "min_flops": plan.min_flops, "started_utc": started, "complete": control is not None,
            "programs": {p.name: {"what": p.what, "sizes": dict(p.tiny if plan.tiny else p.sizes)}
                         for p in plan.programs}}
        if control is not None:
            meta.update(finished_utc=utc_now(), void=control.void, left_out=[
                list(one) for one in dict.fromkeys(self.left_out)], control={
                "mean_ratio": control.mean_ratio, "count": control.count,
                "limit": control.limit})
            if control.void:
                meta["void_reason"] = control.reason
        write_sidecar(folder, self.run_id, meta)


def measure_programs(plan: ModelsPlan, progress: Callable[[Event], None] = lambda event: None
                     ) -> ModelsReport:
    """Runs ``plan``.

    Raises:
        UsageError, DeviceError: no such device, or full sizes without a GPU.
        DataFileError: the CSV or a sidecar cannot be written.
    """
    with MeasuringProcess(SessionSpec(plan.device, ()), plan.opener) as process:
        hello = process.start()
        if not hello.device.arch and not plan.tiny:
            raise UsageError("programs of published sizes need a CUDA device; --tiny runs small "
                             "ones on the CPU")
        return _Run(plan, process, hello, progress).run()
