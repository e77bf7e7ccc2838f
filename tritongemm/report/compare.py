"""Compares two runs of the same problems by their recorded intervals: SAME, FASTER, SLOWER or
AMBIGUOUS."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritongemm.errors import UsageError
from tritongemm.records.control import BASELINE, CONTROL
from tritongemm.report.load import KEY, Results

if TYPE_CHECKING:
    import pandas as pd

SAME, FASTER, SLOWER, AMBIGUOUS = "SAME", "FASTER", "SLOWER", "AMBIGUOUS"
BROKEN, MENDED, FAILED, UNTIMED = "BROKEN", "MENDED", "FAILED", "UNTIMED"
MISSING, NEW = "MISSING", "NEW"
#: Verdict -> meaning, the worst first.
VERDICTS = {
    BROKEN: "was ok, is not",
    SLOWER: "the whole interval of the change lies below 1, and the change exceeds the tolerance",
    AMBIGUOUS: "the intervals are too wide to call it the same, and do not show a difference",
    FAILED: "not ok in either",
    MISSING: "only in OLD",
    SAME: "the whole interval of the change lies within the tolerance",
    UNTIMED: "ok in both, with no time to compare in one or both",
    FASTER: "the whole interval of the change lies above 1, and the change exceeds the tolerance",
    MENDED: "was not ok, is",
    NEW: "only in NEW",
}
#: Verdicts that make the exit status 1.
BAD = (BROKEN, SLOWER)
#: Smaller changes count as no change. It is the spread of the torch control on an idle GPU.
TOLERANCE = 0.01


@dataclass(frozen=True)
class Change:
    """One problem x provider in both files.

    Attributes:
        row: its columns, from NEW where it is there.
        verdict: one of :data:`VERDICTS`.
        by: ``ratio`` (to torch, paired within each run) or ``time``; empty: nothing to compare.
        change: new speed / old speed, above 1 is faster; NaN where nothing was compared.
        low, high: its interval.
        old, new: the values compared (a ratio, or microseconds), or NaN.
        reason: the statuses, where a status made the verdict.
    """

    row: dict[str, Any]
    verdict: str
    by: str = ""
    change: float = math.nan
    low: float = math.nan
    high: float = math.nan
    old: float = math.nan
    new: float = math.nan
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """All changes, in the order of NEW and then what only OLD has."""

    changes: tuple[Change, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many changes have each verdict."""
        return Counter(change.verdict for change in self.changes)

    @property
    def exit_status(self) -> int:
        """0: nothing slower or broken; 1: something is."""
        return int(any(change.verdict in BAD for change in self.changes))

    def mean_change(self) -> tuple[float, int]:
        """The geometric mean of the changes that were compared, and how many those are."""
        logs = [math.log(c.change) for c in self.changes if not math.isnan(c.change)]
        return (math.exp(math.fsum(logs) / len(logs)) if logs else math.nan), len(logs)


def verdict(change: float, low: float, high: float, tolerance: float = TOLERANCE) -> str:
    """The verdict of one speed-up ``change`` with its interval.

    SAME needs the whole interval within ``1 / (1 + tolerance)`` to ``1 + tolerance``: an absence
    of evidence is AMBIGUOUS, not SAME. So is a difference that is certain and yet too small.
    """
    if low >= 1 / (1 + tolerance) and high <= 1 + tolerance:
        return SAME
    if low > 1 and change > 1 + tolerance:
        return FASTER
    if high < 1 and change < 1 / (1 + tolerance):
        return SLOWER
    return AMBIGUOUS


def compare(old: Results, new: Results, *, by: str = "ratio", tolerance: float = TOLERANCE
            ) -> Comparison:
    """Matches the rows of two results by problem x provider and compares each pair.

    By ``ratio``: compares the ratio to torch, which was measured in the same rounds, so a slower
    GPU changes nothing. Rows without a ratio in both are compared by time; torch is left out. By
    ``time``: compares the median times, torch included, with the 20th to 80th percentile as the
    interval. The interval of the change divides opposite ends, so it is wider than 95 %.

    Raises:
        UsageError: an unknown ``by``, a tolerance outside 0 to 1, or no row in common.
    """
    if by not in ("ratio", "time"):
        raise UsageError(f"by={by!r} is not known; use ratio or time")
    if not 0 <= tolerance < 1:
        raise UsageError(f"tolerance={tolerance} is outside 0 to 1 (0.01 is one per cent)")
    left, right = _by_key(old.headline, by), _by_key(new.headline, by)
    if not left.keys() & right.keys():
        raise UsageError(_nothing_in_common(old, new))
    changes = [_judge(left.get(key), row, by, tolerance) for key, row in right.items()]
    changes += [Change(row, MISSING, reason=row["status"]) for key, row in left.items()
                if key not in right]
    return Comparison(tuple(changes))


def _judge(old: dict[str, Any] | None, new: dict[str, Any], by: str, tolerance: float) -> Change:
    if old is None:
        return Change(new, NEW, reason=new["status"])
    if old["status"] != "ok" or new["status"] != "ok":
        word = {(True, False): BROKEN, (False, True): MENDED}.get(
            (old["status"] == "ok", new["status"] == "ok"), FAILED)
        reason = f"{old['status']} -> {new['status']}"
        return Change(new, word, reason=reason + (f": {new['error']}" if new["error"] else ""))
    metrics = (("ratio", ("ratio_vs_torch", "ratio_low", "ratio_high")),
               ("time", ("time_us_p50", "time_us_p20", "time_us_p80")))
    for name, columns in metrics[0 if by == "ratio" else 1:]:
        was, now = [old[c] for c in columns], [new[c] for c in columns]
        if any(math.isnan(value) for value in (*was, *now)):
            continue
        if name == "ratio":
            change, low, high = now[0] / was[0], now[1] / was[2], now[2] / was[1]
        else:
            change, low, high = was[0] / now[0], was[1] / now[2], was[2] / now[1]
        return Change(new, verdict(change, low, high, tolerance), name, change, low, high,
                      was[0], now[0])
    return Change(new, UNTIMED)


def _by_key(rows: pd.DataFrame, by: str) -> dict[tuple, dict[str, Any]]:
    left_out = [CONTROL] if by == "time" else [CONTROL, BASELINE]
    kept = rows[~rows["provider"].isin(left_out)]
    keys = zip(*(kept[name].tolist() for name in KEY), strict=True)
    return dict(zip(keys, kept.to_dict("records"), strict=True))


def _nothing_in_common(old: Results, new: Results) -> str:
    for what, results in (("OLD", old), ("NEW", new)):
        if results.headline.empty:
            void = " (all its runs are void)" if results.void_runs else ""
            return f"{what} has no rows to compare{void}"
    reasons = []
    for name in ("device", "provider", "suite", "dtype", "layout"):
        was, now = (sorted(r.headline[name].unique()) for r in (old, new))
        if not set(was) & set(now):
            reasons.append(f"{name} {_few(was)} in OLD, {_few(now)} in NEW")
    return "OLD and NEW have no problem and provider in common" + (
        ": " + "; ".join(reasons) if reasons else "")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
