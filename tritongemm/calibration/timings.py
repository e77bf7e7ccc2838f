"""Reads the timings of one device from sweep journals (also packed ones): coarse times of configs,
and the rounds of finalists."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, device_named
from tritongemm.errors import DataFileError, UsageError
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem
from tritongemm.records.journal import read_decoded
from tritongemm.workers.messages import COARSE, FINAL

#: Units whose kernels run alike and share one section of the calibration. Any other unit has its
#: own section.
TOGETHER = (("bf16", "fp16"),)


@dataclass(frozen=True)
class Timing:
    """One measured config of one problem."""

    problem: GemmProblem
    config: KernelConfig
    time_us: float


@dataclass(frozen=True)
class Final:
    """A finalist: its time in the coarse stage and in the rounds with others of its problem."""

    problem: GemmProblem
    config: KernelConfig
    run_id: str
    coarse_us: float
    final_us: float

    @property
    def rounds(self) -> tuple[str, GemmProblem]:
        """The key of the rounds: finalists with the same key ran in the same rounds."""
        return self.run_id, self.problem


@dataclass(frozen=True)
class DeviceTimings:
    """The timings of one device: the fastest coarse time of each problem and config, the finalists,
    and, for problems with a winner, torch's time / the winner's (``vs_torch``)."""

    device: DeviceSpec
    timings: tuple[Timing, ...]
    finals: tuple[Final, ...]
    run_ids: tuple[str, ...]
    triton: str
    vs_torch: Mapping[GemmProblem, float]

    def parts(self) -> Iterator[tuple[tuple[str, ...], DeviceTimings]]:
        """The units of each section with timings, and these timings."""
        alone = {t.problem.unit for t in self.timings}.difference(*TOGETHER)
        for units in (*TOGETHER, *((unit,) for unit in sorted(alone))):
            timings = tuple(t for t in self.timings if t.problem.unit in units)
            if timings:
                yield units, replace(self, timings=timings, finals=tuple(
                    f for f in self.finals if f.problem.unit in units))


def times_of(journal: str | os.PathLike[str], stage: str = COARSE, sweep: str | None = None
             ) -> dict[GemmProblem, dict[KernelConfig, float]]:
    """Problem -> config -> time of one stage, microseconds, of a journal or a packed one.

    Args:
        stage: ``coarse`` or ``final``.
        sweep: for a packed journal, only the runs of the journal with this name, e.g.
            ``bf16_nt_weak-full``.

    Raises:
        DataFileError: a journal that cannot be read.
    """
    found: dict[GemmProblem, dict[KernelConfig, float]] = {}
    wanted = True
    for record, known in read_decoded(journal):
        if record["kind"] == "header":
            wanted = sweep is None or record.get("journal") == sweep
        elif wanted and known is not None and record["kind"] == "result" and (
                record["status"] == "ok" and record.get("stage") == stage
                and record.get("time_us")):
            problem, config = known
            found.setdefault(problem, {})[config] = float(record["time_us"])
    return found


def read_timings(journals: Iterable[str | os.PathLike[str]], device: str | None = None
                 ) -> DeviceTimings:
    """The timings of ``journals``; only those of ``device`` (a slug) if given. Problems with an
    epilogue are skipped: the model does not predict the cost of epilogues.

    Raises:
        DataFileError: a journal that cannot be read or holds no timing.
        UsageError: journals of several devices and no ``device`` to choose one.
    """
    best: dict[tuple[GemmProblem, KernelConfig], float] = {}
    finals: list[Final] = []
    winners: dict[GemmProblem, tuple[float, float]] = {}
    runs: dict[str, str] = {}
    slugs: set[str] = set()
    path: Path | None = None
    for path in map(Path, journals):
        slug = run = ""
        coarse: dict[tuple[str, GemmProblem, KernelConfig], float] = {}
        for record, known in read_decoded(path):
            if record["kind"] == "header":
                slug, run = str(record.get("device", "")), str(record.get("run_id", ""))
                versions = record.get("versions")
                triton = versions.get("triton") if isinstance(versions, dict) else None
                if device is None or slug == device:
                    slugs.add(slug)
                    runs[run] = str(triton or "unknown")
                continue
            if known is None or (device is not None and slug != device):
                continue
            problem, config = known
            if problem.epilogue != "none" or config.kernel not in SPECS:
                continue
            if record["kind"] == "result" and record["status"] == "ok" and record.get("time_us"):
                time_us = record["time_us"]
                if record.get("stage") == COARSE:
                    best[problem, config] = min(time_us, best.get((problem, config), math.inf))
                    coarse[run, problem, config] = time_us
                elif record.get("stage") == FINAL and (run, problem, config) in coarse:
                    finals.append(Final(problem, config, run, coarse[run, problem, config],
                                        time_us))
            elif record["kind"] == "winner" and record.get("ratio_vs_torch"):
                found = (record["time_us"], record["ratio_vs_torch"])
                winners[problem] = min(found, winners.get(problem, found))
    if path is None:
        raise UsageError("no journal is given; name those that `tritongemm sweep` wrote")
    if len(slugs) > 1:
        raise UsageError(f"the journals are of {', '.join(sorted(slugs))}; choose one with "
                         "--device")
    if not best:
        raise DataFileError(path, "holds no timing" + (f" of {device}" if device else "")
                            + "; sweep some problems first")
    timings = tuple(Timing(p, c, t) for (p, c), t in best.items())
    return DeviceTimings(device_named(slugs.pop()), timings, tuple(finals), tuple(sorted(runs)),
                  max(runs.values()), {problem: ratio for problem, (_, ratio) in winners.items()})
