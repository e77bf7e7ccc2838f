"""The sweep's side of the journal: what is written of each outcome, what a resume need not repeat.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import DataFileError, UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_to_json, problem_to_json
from tritongemm.records.journal import REMEMBERED, DoneKeys, Journal
from tritongemm.records.run import new_run_id, utc_now
from tritongemm.tuning.task import ProblemReport
from tritongemm.workers.messages import COARSE, COMPILE, Outcome

#: Of the environment, what a winner's row states as its provenance.
_PROVENANCE = ("torch", "triton", "cuda", "driver")


def check_journal(path: str | os.PathLike[str], resume: bool) -> Path:
    """Refuses a journal that exists where nobody asked to go on with it.

    Raises:
        UsageError: it exists, and ``resume`` is false.
        DataFileError: it is not a regular file.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise DataFileError(path, "is not a regular file; choose another path")
    if not resume and path.exists() and path.stat().st_size > 0:
        raise UsageError(f"{path} exists; use --resume (resume=True) to go on with it, or "
                         "another name")
    return path


class SweepJournal:
    """The open journal of one run.

    Args:
        path: the journal; made, or gone on with.
        device: what is measured on.
        environment: the whole record; ``fingerprint`` is the part that makes times comparable.
        space_hash: of the spaces that candidates come from.

    Raises:
        DataFileError: the file is no journal, is in use, or cannot be written.
    """

    def __init__(self, path: Path, *, device: DeviceSpec, environment: Mapping[str, object],
                 fingerprint: str, space_hash: str, seed: int) -> None:
        self.run_id = new_run_id()
        self._provenance = {"device": device.slug, "arch": device.arch,
                            "space_hash": space_hash, "environment": fingerprint,
                            **{name: environment.get(name) for name in _PROVENANCE}}
        self._journal = Journal.open(path, {
            "environment": fingerprint, "run_id": self.run_id, "device": device.slug,
            "arch": device.arch, "space_hash": space_hash, "seed": seed,
            "versions": dict(environment)})
        try:
            self._done: DoneKeys = self._journal.done_keys(fingerprint)
        except BaseException:
            self._journal.close()
            raise

    def done(self, problem: GemmProblem, config: KernelConfig) -> bool:
        """Whether ``config`` has an outcome of its own in this environment."""
        return (self._done.has(problem, config, COARSE)
                or self._done.has(problem, config, COMPILE))

    def finished(self, problem: GemmProblem) -> bool:
        """Whether the problem has a winner in this environment."""
        return self._done.has_winner(problem)

    def coarse(self, problem: GemmProblem) -> list[tuple[float, KernelConfig]]:
        """The fastest of an earlier run's coarse stage: (microseconds, config)."""
        return self._done.fastest(problem, REMEMBERED)

    def result(self, problem: GemmProblem, config: KernelConfig, stage: str,
               outcome: Outcome) -> None:
        """Writes one outcome. Raises DataFileError, e.g. for a full disk."""
        self._journal.append({
            "kind": "result", "problem": problem_to_json(problem),
            "config": config_to_json(config), "stage": stage, "status": outcome.status,
            **({"reason": outcome.reason} if outcome.reason else {}), **outcome.values,
            "run_id": self.run_id, "utc": utc_now()})

    def winner(self, report: ProblemReport) -> None:
        """Writes a problem's winner with its provenance: what ``publish`` reads."""
        assert report.winner is not None
        self._journal.append({
            "kind": "winner", "problem": problem_to_json(report.problem),
            "config": config_to_json(report.winner), "time_us": report.time_us,
            "ratio_vs_torch": report.ratio_vs_torch, "ratio_low": report.ratio_low,
            "ratio_high": report.ratio_high, "margin_vs_second": report.margin_vs_second,
            **self._provenance, "run_id": self.run_id, "utc": utc_now()})

    def left_out(self, report: ProblemReport) -> None:
        """Notes a problem that ended without a winner, and why."""
        self._journal.append({"kind": "left_out", "problem": problem_to_json(report.problem),
                              "reason": report.note, "run_id": self.run_id, "utc": utc_now()})

    def close(self) -> None:
        """Flushes and closes."""
        self._journal.close()
