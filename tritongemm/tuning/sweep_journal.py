"""The sweep's side of the journal: writes outcomes, and knows what a resumed sweep need not repeat.

Records go to a file, or, through :class:`RowSink`, to a function, so that another process can write
the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import DataFileError, UsageError
from tritongemm.kernels.revision import kernel_revision
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_to_json, problem_to_json
from tritongemm.records.journal import Journal
from tritongemm.records.journal_format import SCHEMA_VERSION
from tritongemm.records.resume import REMEMBERED, DoneKeys, done_among
from tritongemm.records.run import new_run_id, utc_now
from tritongemm.tuning.task import ProblemReport
from tritongemm.workers.messages import COARSE, Outcome

#: The fields of the environment that a winner's row states as its provenance.
_PROVENANCE = ("torch", "triton", "cuda", "driver")


def check_journal(path: str | os.PathLike[str], resume: bool) -> Path:
    """Refuses an existing journal unless the sweep resumes it.

    Raises:
        UsageError: it exists, and ``resume`` is false.
        DataFileError: it is not a regular file.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise DataFileError(path, "is not a regular file; choose another path")
    if not resume and path.exists() and path.stat().st_size > 0:
        raise UsageError(f"{path} exists; use --resume (resume=True) to continue it, or "
                         "another name")
    return path


class RowSink:
    """A journal whose records go to a function instead of a file.

    Args:
        take: called with each record, the header first, in the sweep's thread. An exception that it
            raises ends the sweep.
        known: records of earlier runs, including headers; what they measured in the same
            environment is not repeated.
    """

    def __init__(self, take: Callable[[Mapping[str, object]], object],
                 known: Iterable[Mapping[str, object]] = ()) -> None:
        self._take, self._known = take, list(known)

    def open(self, header: Mapping[str, object]) -> RowSink:
        """Passes on the header. Returns the sink."""
        self._take({**header, "kind": "header", "schema_version": SCHEMA_VERSION,
                    "opened_utc": utc_now()})
        return self

    def append(self, record: Mapping[str, object]) -> None:
        """Passes on one record."""
        self._take(record)

    def done_keys(self, environment: object) -> DoneKeys:
        """The outcomes that ``known`` holds for ``environment``. Raises DataFileError for a bad
        record."""
        return done_among(self._known, environment)

    def close(self) -> None:
        """Does nothing: no file is open."""


class SweepJournal:
    """The open journal of one run.

    Args:
        where: the journal's file, which is created or continued; or the sink of its records.
        device: the device that is measured.
        environment: the whole record; ``fingerprint`` is the part that makes times comparable.
        space_hash: hash of the spaces that candidates come from.
        limits: seconds that a config may take in each stage; a config that timed out at a lower
            limit is not done.
        search: which of the candidates are measured.

    Raises:
        DataFileError: the file is not a journal, is in use, or cannot be written.
    """

    def __init__(self, where: Path | RowSink, *, device: DeviceSpec,
                 environment: Mapping[str, object], fingerprint: str, space_hash: str, seed: int,
                 limits: Mapping[str, float], search: str = "full") -> None:
        self.run_id = new_run_id()
        self._space_hash, self._limits = space_hash, dict(limits)
        self._provenance = {"device": device.slug, "arch": device.arch,
                            "space_hash": space_hash, "environment": fingerprint,
                            **{name: environment.get(name) for name in _PROVENANCE}}
        header = {"environment": fingerprint, "run_id": self.run_id, "device": device.slug,
                  "arch": device.arch, "space_hash": space_hash, "seed": seed, "search": search,
                  "versions": dict(environment)}
        self._journal: Journal | RowSink = (
            where.open(header) if isinstance(where, RowSink) else Journal.open(where, header))
        try:
            self._done: DoneKeys = self._journal.done_keys(fingerprint)
        except BaseException:
            self._journal.close()
            raise

    def done(self, problem: GemmProblem, config: KernelConfig) -> bool:
        """Whether ``config`` has an outcome in this environment."""
        return any(self._done.has(problem, config, stage, limit_s)
                   for stage, limit_s in self._limits.items())

    def retries(self, problem: GemmProblem, config: KernelConfig) -> bool:
        """Whether an earlier run tried ``config`` without an outcome that counts: its worker was
        killed from outside, or the limit was lower."""
        return any(self._done.retries(problem, config, stage, limit_s)
                   for stage, limit_s in self._limits.items())

    def finished(self, problem: GemmProblem) -> bool:
        """Whether the problem has a winner in this environment, and no outcome after it."""
        return self._done.has_winner(problem)

    def searched_to(self, problem: GemmProblem, gain: float | None) -> bool:
        """Whether an earlier run's search of the same spaces found the winner and ended with an
        expected gain below ``gain``."""
        before = self._done.searched_to(problem, self._space_hash)
        return gain is not None and before is not None and before <= gain

    def time_us(self, problem: GemmProblem, config: KernelConfig) -> float | None:
        """An earlier run's coarse time of ``config``, microseconds, or None."""
        return self._done.time_us(problem, config, COARSE)

    def coarse(self, problem: GemmProblem) -> list[tuple[float, KernelConfig]]:
        """The fastest configs of an earlier run's coarse stage: (microseconds, config)."""
        return self._done.fastest(problem, REMEMBERED)

    def result(self, problem: GemmProblem, config: KernelConfig, stage: str,
               outcome: Outcome) -> None:
        """Writes one outcome. Raises DataFileError, e.g. for a full disk."""
        limit_s = self._limits.get(stage) if outcome.status == "timeout" else None
        self._journal.append({
            "kind": "result", "problem": problem_to_json(problem),
            "config": config_to_json(config), "stage": stage, "status": outcome.status,
            **({"reason": outcome.reason} if outcome.reason else {}),
            **({} if limit_s is None else {"limit_s": limit_s}), **outcome.values,
            "run_id": self.run_id, "utc": utc_now()})

    def winner(self, report: ProblemReport, gain: float | None = None) -> None:
        """Writes a problem's winner with its provenance, which ``publish`` reads. ``gain``: the
        gain below which the search ended; None if there was no search or it was cut short."""
        assert report.winner is not None
        revision = kernel_revision(report.winner)
        self._journal.append({
            "kind": "winner", "problem": problem_to_json(report.problem),
            "config": config_to_json(report.winner), "time_us": report.time_us,
            "ratio_vs_torch": report.ratio_vs_torch, "ratio_low": report.ratio_low,
            "ratio_high": report.ratio_high, "margin_vs_second": report.margin_vs_second,
            **({} if gain is None else {"gain": gain}), **self._provenance,
            **({"kernel_revision": revision} if revision else {}),
            "run_id": self.run_id, "utc": utc_now()})

    def left_out(self, report: ProblemReport) -> None:
        """Records a problem that ended without a winner, and why."""
        self._journal.append({"kind": "left_out", "problem": problem_to_json(report.problem),
                              "reason": report.note, "run_id": self.run_id, "utc": utc_now()})

    def close(self) -> None:
        """Flushes and closes."""
        self._journal.close()
