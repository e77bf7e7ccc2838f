"""Journals -> tuned tables: winners are merged, and nothing better is replaced in silence."""

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

#: A config this many times slower than the winner in the coarse stage has lost without a final: of
#: 768 pairs of finalists on an H200 (the first runs of the journals ``bf16_again_*``), the coarse
#: stage said so much too much of 0.3 %.
_CLEARLY_SLOWER = 1.02

#: A device's slug becomes a folder's name.
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Kept:
    """A winner that did not get in, and why: ``row`` is what stays in the table."""

    table: Path
    problem: GemmProblem
    row: TunedRow
    offered: TunedRow
    reason: str


@dataclass
class PublishReport:
    """What publishing did.

    Attributes:
        tables: every table that winners belong to, with (added, replaced, kept).
        kept: the winners that did not get in.
        winners: in the journals, after the best of each problem was taken.
    """

    tables: dict[Path, tuple[int, int, int]] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    winners: int = 0

    def _total(self, index: int) -> int:
        return sum(counts[index] for counts in self.tables.values())

    @property
    def added(self) -> int:
        """Rows of problems that had none."""
        return self._total(0)

    @property
    def replaced(self) -> int:
        """Rows that gave way to a faster one."""
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

    Winners come from the final stage only, where they were measured in the same rounds as torch.
    A row is replaced by one that is faster and was made with a torch and Triton at least as new;
    whatever else is offered is reported as kept. Faster is what beat the row's config in a later
    run, in the rounds of the finals or clearly before, and of two runs what is more times as fast
    as torch. Of two runs that a config won the later tells how fast it is.

    Args:
        force: replace rows whatever they hold; the report's ``replaced`` counts them.
        to: the folder whose ``tuned/`` is written; None: :func:`settings.config_root`.

    Raises:
        DataFileError: a journal or a table that cannot be used; the tables are each whole, as
            they were before or as they are after.
    """
    root = None if to is None else Path(to)
    winners: dict[tuple[Path, tuple], _Winner] = {}
    # By the time of their runs, whatever the order of the files: an id begins with it.
    for winner in sorted((winner for path in journals for winner in _winners(Path(path))),
                         key=lambda winner: _order(winner.row.run_id)):
        header = winner.header
        table = path_for(winner.problem, header.device, header.op, root)
        # A ladder's table holds one winner a rung, the others one a problem.
        rung = winner.row.config.kernel if header.op == LADDER else ""
        key = (table, (winner.problem, rung))
        known = winners.get(key)
        if known is None or _why_keep(known.row, winner.row, winner.beaten) is None:
            winners[key] = winner
    report = PublishReport(winners=len(winners))
    groups: dict[tuple[Path, TableHeader], list[_Winner]] = {}
    for (path, _), winner in winners.items():
        groups.setdefault((path, winner.header), []).append(winner)
    # Older environments first, so that the table's header names the newest.
    for (path, header), group in sorted(groups.items(), key=lambda item: (
            str(item[0][0]), _age(item[0][1].torch, item[0][1].triton))):
        _merge(report, path, header, group, force)
    return report


def _merge(report: PublishReport, path: Path, header: TableHeader, group: list[_Winner],
           force: bool) -> None:
    offered = {winner.row.key: winner for winner in group}

    def replaces(old: TunedRow, new: TunedRow) -> bool:
        if force:
            return True
        winner = offered[new.key]
        reason = _why_keep(old, new, winner.beaten)
        if reason is not None:
            report.kept.append(Kept(path, winner.problem, old, new, reason))
        return reason is None

    found = merge(path, header, [winner.row for winner in group], replaces)
    before = report.tables.get(path, (0, 0, 0))
    report.tables[path] = (before[0] + found.added, before[1] + found.replaced,
                           before[2] + found.kept)


def _why_keep(old: TunedRow, new: TunedRow, beaten: frozenset[KernelConfig]) -> str | None:
    """Why ``old`` stays, or None where ``new`` takes its place; ``beaten``: by ``new``."""
    if new.run_id == old.run_id and new.config == old.config and new.time_us == old.time_us:
        if old.vs_torch is None and new.vs_torch is not None:
            return None  # it says more
        return "it is this very row"
    for name in ("torch", "triton"):
        ours, theirs = getattr(old, name), getattr(new, name)
        if ours and theirs and _version(theirs) < _version(ours):
            return f"the new one was made with {name} {theirs}, older than {ours}"
    later = _order(new.run_id) > _order(old.run_id)
    if old.config in beaten and later:
        return None
    # Torch's time in the same rounds tells two runs apart from two temperatures of the card, which
    # slows down by 10 % as it warms.
    if old.vs_torch is not None and new.vs_torch is not None:
        if old.config == new.config:  # a lucky run must not keep others out for ever
            return None if later else "a later run measured this config again"
        if new.vs_torch <= old.vs_torch:
            return (f"the new one is not faster: {new.vs_torch:.3f} of torch's speed against "
                    f"{old.vs_torch:.3f}")
    elif new.time_us >= old.time_us:
        return f"the new one is not faster: {new.time_us:.3f} us against {old.time_us:.3f} us"
    return None


def _order(run_id: str) -> tuple[bool, str]:
    """Sorts run ids by the time that they begin with. One of more than a day ahead, from a machine
    whose clock was wrong, comes before all others: else no run could ever replace its rows."""
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
    """What one run measured of one problem: who was in the final, and the coarse times in us."""

    finalists: set[KernelConfig] = field(default_factory=set)
    coarse: dict[KernelConfig, float] = field(default_factory=dict)

    def beaten_by(self, winner: KernelConfig) -> frozenset[KernelConfig]:
        """The finalists that ``winner`` beat, and what was clearly slower before."""
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
    if "kernel_revision" in record:  # journals from before it was kept make the tables they made
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
