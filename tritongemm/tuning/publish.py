"""Merges the winners of journals into tuned tables; never silently replaces a better row."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from tritongemm.baselines.cuda.rungs import CUDA_RUNGS
from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_from_json, problem_from_json
from tritongemm.records.journal import read_journal
from tritongemm.records.run import is_run_id
from tritongemm.records.tables import LADDER, TableHeader, TunedRow, merge, path_for
from tritongemm.workers.messages import COARSE, FINAL

#: A config this many times slower than the winner in the coarse stage counts as beaten without a
#: final: the coarse stage overstates the ratio of two configs by that much for 0.3 % of 768 pairs
#: of finalists on an H200 (the first runs of the journals ``bf16_again_*``).
_CLEARLY_SLOWER = 1.02

#: A device's slug is used as a folder's name.
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Kept:
    """A winner that was not published, and why; ``row`` is the row that stays in the table."""

    table: Path
    problem: GemmProblem
    row: TunedRow
    offered: TunedRow
    reason: str


@dataclass
class PublishReport:
    """The result of publishing.

    Attributes:
        tables: every table that winners belong to, with (added, replaced, kept).
        kept: the winners that were not published.
        winners: the number of winners in the journals, one for each problem.
    """

    tables: dict[Path, tuple[int, int, int]] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    winners: int = 0

    def _total(self, index: int) -> int:
        return sum(counts[index] for counts in self.tables.values())

    @property
    def added(self) -> int:
        """Rows added for problems that had none."""
        return self._total(0)

    @property
    def replaced(self) -> int:
        """Rows replaced by a faster one."""
        return self._total(1)


@dataclass(frozen=True)
class _Winner:
    """``beaten``: configs that were slower in the same run."""

    problem: GemmProblem
    header: TableHeader
    row: TunedRow
    beaten: frozenset[KernelConfig]


def publish(journals: Iterable[str | os.PathLike[str]], *, force: bool = False,
            to: str | os.PathLike[str] | None = None) -> PublishReport:
    """Merges the winners of ``journals`` into ``configs/tuned``, each table under its lock.

    Winners come from the final stage only, where they were measured in the same rounds as torch. A
    row is replaced by one that is faster and was made with a torch and a Triton at least as new;
    all others are reported as kept. A config is faster if it beat the row's config in a later run
    (in the rounds of the final, or clearly in the coarse stage); between runs that did not compare
    the two configs, the larger speed-up over torch decides. If both rows have the same config, the
    later run's is used.

    Args:
        force: replace rows whatever they hold; the report's ``replaced`` counts them.
        to: the folder whose ``tuned/`` is written; None: :func:`settings.config_root`.

    Raises:
        DataFileError: a journal or a table cannot be used. Each table is then either unchanged or
            completely updated.
    """
    root = None if to is None else Path(to)
    winners: dict[tuple[Path, tuple], _Winner] = {}
    # Sorted by the time of their runs, with which run ids begin, not by the order of the files.
    for winner in sorted((winner for path in journals for winner in _winners(Path(path))),
                         key=lambda winner: _order(winner.row.run_id)):
        header = winner.header
        table = path_for(winner.problem, header.device, header.op, root)
        # A ladder's table holds one winner for each rung, the others one for each problem.
        rung = winner.row.config.kernel if header.op == LADDER else ""
        key = (table, (winner.problem, rung))
        known = winners.get(key)
        if known is None or _why_keep(known.row, winner.row, winner.beaten) is None:
            winners[key] = winner
    report = PublishReport(winners=len(winners))
    groups: dict[tuple[Path, TableHeader], list[_Winner]] = {}
    for (path, _), winner in winners.items():
        groups.setdefault((path, winner.header), []).append(winner)
    # Older environments first, so that the table's header states the newest.
    for (path, header), group in sorted(groups.items(), key=lambda item: (
            str(item[0][0]), _age(item[0][1].torch, item[0][1].triton))):
        _merge(report, path, header, group, force)
    return report


def _merge(report: PublishReport, path: Path, header: TableHeader, group: list[_Winner],
           force: bool) -> None:
    # The kernel too: a ladder's group has a winner for each rung of a problem.
    offered = {(winner.row.key, winner.row.config.kernel): winner for winner in group}

    def replaces(old: TunedRow, new: TunedRow) -> bool:
        if force:
            return True
        winner = offered[new.key, new.config.kernel]
        reason = _why_keep(old, new, winner.beaten)
        if reason is not None:
            report.kept.append(Kept(path, winner.problem, old, new, reason))
        return reason is None

    found = merge(path, header, [winner.row for winner in group], replaces)
    before = report.tables.get(path, (0, 0, 0))
    report.tables[path] = (before[0] + found.added, before[1] + found.replaced,
                           before[2] + found.kept)


def _why_keep(old: TunedRow, new: TunedRow, beaten: frozenset[KernelConfig]) -> str | None:
    """Why ``old`` stays, or None if ``new`` replaces it. ``beaten``: the configs that ``new``
    beat."""
    if new.run_id == old.run_id and new.config == old.config and new.time_us == old.time_us:
        if old.vs_torch is None and new.vs_torch is not None:
            return None  # the new row has more fields
        return "it is the same row"
    for name in ("torch", "triton"):
        ours, theirs = getattr(old, name), getattr(new, name)
        if ours and theirs and _version(theirs) < _version(ours):
            return f"the new one was made with {name} {theirs}, older than {ours}"
    later = _order(new.run_id) > _order(old.run_id)
    if old.config in beaten and later:
        return None
    # Ratios to torch's time in the same rounds cancel the card's temperature: it slows down by 10 %
    # as it warms up.
    if old.vs_torch is not None and new.vs_torch is not None:
        if old.config == new.config:  # a lucky run must not stay for ever
            return None if later else "a later run measured this config again"
        if new.vs_torch <= old.vs_torch:
            return (f"the new one is not faster: {new.vs_torch:.3f} of torch's speed against "
                    f"{old.vs_torch:.3f}")
    elif new.time_us >= old.time_us:
        return f"the new one is not faster: {new.time_us:.3f} us against {old.time_us:.3f} us"
    return None


def _order(run_id: str) -> tuple[bool, str]:
    """Sort key of run ids: the time that they begin with. An id more than a day in the future, from
    a machine with a wrong clock, sorts before all others; otherwise no run could replace its
    rows."""
    tomorrow = f"{datetime.now(timezone.utc) + timedelta(days=1):%Y%m%dT%H%M%SZ}"
    return run_id[:len(tomorrow)] <= tomorrow, run_id


def _age(torch: str | None, triton: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return _version(torch or ""), _version(triton or "")


def _version(text: str) -> tuple[int, ...]:
    """``2.11.0+cu130`` -> (2, 11, 0): the release, without a local or pre-release part."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def _winners(path: Path) -> Iterable[_Winner]:
    """The winners of one journal, checked: a file may come from anywhere."""
    runs: dict[tuple[str, GemmProblem], _Run] = {}
    for number, record in enumerate(read_journal(path), 1):
        if record["kind"] == "result" and record.get("status") == "ok":
            run = runs.setdefault((str(record.get("run_id")),
                                   problem_from_json(record["problem"])), _Run())
            config = config_from_json(record["config"])
            if record.get("stage") == FINAL:
                run.finalists.add(config)
            elif record.get("stage") == COARSE and isinstance(record.get("time_us"), (int, float)):
                run.coarse[config] = record["time_us"]
        elif record["kind"] == "winner":
            yield _winner(path, number, record, runs)


@dataclass
class _Run:
    """What one run measured of one problem: the finalists, and the coarse times in microseconds."""

    finalists: set[KernelConfig] = field(default_factory=set)
    coarse: dict[KernelConfig, float] = field(default_factory=dict)

    def beaten_by(self, winner: KernelConfig) -> frozenset[KernelConfig]:
        """The finalists that ``winner`` beat, and the configs that were clearly slower in the
        coarse stage."""
        limit = self.coarse.get(winner, math.inf) * _CLEARLY_SLOWER
        slower = {config for config, time_us in self.coarse.items() if time_us > limit}
        return frozenset((self.finalists | slower) - {winner})


def _winner(path: Path, number: int, record: Mapping[str, object],
            runs: Mapping[tuple[str, GemmProblem], _Run]) -> _Winner:
    def bad(name: str, what: str) -> DataFileError:
        return DataFileError(path, f"{record.get(name)!r:.80} {what}", row=number, field=name)

    problem = problem_from_json(record["problem"])  # type: ignore[arg-type]
    config: KernelConfig = config_from_json(record["config"])  # type: ignore[arg-type]
    if config.kernel not in SPECS and config.kernel not in CUDA_RUNGS:
        raise bad("config", f"has a kernel that is not known; known: {', '.join(SPECS)}, and the "
                  "CUDA rungs of the ladder")
    device, arch = record.get("device"), record.get("arch")
    if not isinstance(device, str) or not _SLUG.fullmatch(device):
        raise bad("device", "is not a device's slug such as nvidia-h200")
    if isinstance(arch, bool) or not isinstance(arch, int) or not 10 <= arch < 10_000:
        raise bad("arch", "is not a compute capability such as 90")
    words = {}
    for name in ("space_hash", "torch", "triton"):
        value = record.get(name)
        if not isinstance(value, str) or not value or len(value) > 80:
            raise bad(name, "is not a word")
        words[name] = value
    made_with = {}
    if "kernel_revision" in record:  # older journals lack it
        for name in ("driver", "kernel_revision"):
            value = record.get(name)
            if value is not None and (not isinstance(value, str) or not value or len(value) > 80):
                raise bad(name, "is not a word, or null")
            made_with[name] = value
    if not is_run_id(record.get("run_id")):
        raise bad("run_id", "is not the id of a run")
    time_us, margin = record.get("time_us"), record.get("margin_vs_second")
    ratio = record.get("ratio_vs_torch")
    if isinstance(time_us, bool) or not isinstance(time_us, (int, float)) or not 0 < time_us < 1e12:
        raise bad("time_us", "is not a time in microseconds")
    if margin is not None and (isinstance(margin, bool) or not isinstance(margin, (int, float))
                               or not 0 <= margin < 1e12):
        raise bad("margin_vs_second", "is not a margin of at least 0, or null")
    if ratio is not None and (isinstance(ratio, bool) or not isinstance(ratio, (int, float))
                              or not 1e-6 <= ratio < 1e6):
        raise bad("ratio_vs_torch", "is not a ratio of times, or null")
    header = TableHeader.of(problem, device=device, arch=arch, **words,
                            op=LADDER if config.kernel in CUDA_RUNGS else None)
    row = TunedRow.of(problem, config, time_us=round(float(time_us), 4),
                      margin_vs_second=None if margin is None else round(float(margin), 5),
                      run_id=str(record["run_id"]), **words,
                      vs_torch=None if ratio is None else round(float(ratio), 4), **made_with)
    run = runs.get((str(record["run_id"]), problem), _Run())
    return _Winner(problem, header, row, run.beaten_by(config))
