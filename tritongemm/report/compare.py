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
from tritongemm.report.load import KEY, Results, key_ids, last_of

if TYPE_CHECKING:
    import numpy as np
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
class RunComparison:
    """All changes, in the order of NEW and then what only OLD has.

    Attributes:
        table: a row each, with the columns of :class:`Change` but ``row`` and ``reason``. Its row
            is in NEW or OLD, as ``in_new`` says, at the position ``place``; ``old_place`` is the
            position of what it was compared with.
        new, old: the rows that were compared.
    """

    table: pd.DataFrame
    new: pd.DataFrame
    old: pd.DataFrame

    @property
    def changes(self) -> tuple[Change, ...]:
        """Every change; of large files better :meth:`worst`."""
        return self._made(self.table)

    def worst(self, verdict: str, count: int) -> tuple[Change, ...]:
        """The ``count`` changes of one verdict that are farthest from 1: the slowest first, for
        :data:`FASTER` the fastest."""
        chosen = self.table[self.table["verdict"] == verdict]
        chosen = chosen.assign(problem=_texts_of(chosen, self.new, self.old))
        order = chosen.sort_values(["change", "problem"], kind="stable",
                                   ascending=verdict != FASTER)
        return self._made(order.head(count))

    @property
    def counts(self) -> Counter[str]:
        """How many changes have each verdict."""
        found = self.table["verdict"].value_counts().to_dict()
        return Counter({word: count for word, count in found.items() if count})

    @property
    def exit_status(self) -> int:
        """0: nothing slower or broken; 1: something is."""
        return int(self.table["verdict"].isin(BAD).any())

    def mean_change(self) -> tuple[float, int]:
        """The geometric mean of the changes that were compared, and how many those are."""
        changes = self.table["change"].dropna()
        logs = [math.log(change) for change in changes]
        return (math.exp(math.fsum(logs) / len(logs)) if logs else math.nan), len(logs)

    def _made(self, table: pd.DataFrame) -> tuple[Change, ...]:
        sides = {True: self.new, False: self.old}
        made = []
        for line in table.to_dict("records"):
            in_new, place = line.pop("in_new"), line.pop("place")
            line.pop("problem", None)
            row = sides[in_new].iloc[place].to_dict()
            reason = _reason(line["verdict"], row, self.old, line.pop("old_place"))
            made.append(Change(row, reason=reason, **line))
        return tuple(made)


def _texts_of(table: pd.DataFrame, new: pd.DataFrame, old: pd.DataFrame) -> list[str]:
    """The problem of each change."""
    texts = [new["problem"].tolist(), old["problem"].tolist()] if len(table) else []
    return [texts[not in_new][place]
            for in_new, place in zip(table["in_new"], table["place"], strict=True)]


def _reason(word: str, row: dict[str, Any], old: pd.DataFrame, place: int) -> str:
    """The statuses, where a status made the verdict."""
    if word in (NEW, MISSING):
        return row["status"]
    if word not in (BROKEN, MENDED, FAILED):
        return ""
    error = f": {row['error']}" if row["error"] else ""
    return f"{old['status'].iloc[place]} -> {row['status']}{error}"


def verdict(change: float, low: float, high: float, tolerance: float = TOLERANCE) -> str:
    """The verdict of one speed-up ``change`` with its interval.

    SAME needs the whole interval within ``1 / (1 + tolerance)`` to ``1 + tolerance``: an absence
    of evidence is AMBIGUOUS, not SAME. So is a difference that is certain and yet too small.
    """
    return str(_verdicts(change, low, high, tolerance))


def _verdicts(change: Any, low: Any, high: Any, tolerance: float) -> Any:
    """:func:`verdict` of numbers or arrays."""
    import numpy as np

    return np.select(
        [(low >= 1 / (1 + tolerance)) & (high <= 1 + tolerance),
         (low > 1) & (change > 1 + tolerance), (high < 1) & (change < 1 / (1 + tolerance))],
        [SAME, FASTER, SLOWER], AMBIGUOUS)


def compare(old: Results, new: Results, *, by: str = "ratio", tolerance: float = TOLERANCE
            ) -> RunComparison:
    """Matches the rows of two results by problem x provider and compares each pair.

    By ``ratio``: compares the ratio to torch, which was measured in the same rounds, so a slower
    GPU changes nothing. Rows without a ratio in both are compared by time; torch is left out. By
    ``time``: compares the median times, torch included, with the 20th to 80th percentile as the
    interval. The interval of the change divides opposite ends, so it is wider than 95 %.

    Raises:
        UsageError: an unknown ``by``, a tolerance outside 0 to 1, or no row in common.
    """
    import numpy as np
    import pandas as pd

    if by not in ("ratio", "time"):
        raise UsageError(f"by={by!r} is not known; use ratio or time")
    if not 0 <= tolerance < 1:
        raise UsageError(f"tolerance={tolerance} is outside 0 to 1 (0.01 is one per cent)")
    left, right = _compared(old.headline, by), _compared(new.headline, by)
    ids = pd.factorize(key_ids([left, right], KEY))[0]
    left_ids, right_ids = ids[:len(left)], ids[len(left):]
    place = np.full(int(ids.max(initial=-1)) + 1, -1)
    place[left_ids] = np.arange(len(left))
    before = place[right_ids]  # of each row of NEW, where it is in OLD; -1: nowhere
    if not (before >= 0).any():
        raise UsageError(_nothing_in_common(old, new))
    judged = ["status", *(name for names in _METRICS.values() for name in names)]
    table = _judged(left[judged].iloc[before], right, before >= 0, by, tolerance)
    table["in_new"], table["place"], table["old_place"] = True, np.arange(len(right)), before
    gone = np.flatnonzero(~np.isin(left_ids, right_ids))
    missing = pd.DataFrame({"verdict": MISSING, "by": "", "in_new": False, "place": gone,
                            "old_place": gone})
    for name in ("change", "low", "high", "old", "new"):
        missing[name] = math.nan
    missing = missing.astype(table.dtypes.to_dict())[list(table.columns)]
    return RunComparison(pd.concat([table, missing], ignore_index=True) if len(gone) else table,
                         right, left)


#: By which values are compared, and the columns of a value with the ends of its interval.
_METRICS = {"ratio": ("ratio_vs_torch", "ratio_low", "ratio_high"),
            "time": ("time_us_p50", "time_us_p20", "time_us_p80")}
#: Columns that a comparison reads besides those that :func:`load` always keeps.
COLUMNS = ("error", *(name for names in _METRICS.values() for name in names))


def _judged(old: pd.DataFrame, new: pd.DataFrame, common: np.ndarray, by: str, tolerance: float
            ) -> pd.DataFrame:
    """The verdict on each row of ``new``, with the row of ``old`` at the same position where it is
    ``common`` to both."""
    import numpy as np
    import pandas as pd

    was_ok, is_ok = ((rows["status"] == "ok").to_numpy() for rows in (old, new))
    values = {name: np.full(len(new), math.nan) for name in ("change", "low", "high", "old", "new")}
    used, left = np.full(len(new), "", dtype=object), common & was_ok & is_ok
    for metric in ("ratio", "time") if by == "ratio" else ("time",):
        was, now = ([rows[name].to_numpy() for name in _METRICS[metric]] for rows in (old, new))
        at = left & ~np.isnan([*was, *now]).any(axis=0)
        was, now = ([column[at] for column in columns] for columns in (was, now))
        if metric == "ratio":
            found = now[0] / was[0], now[1] / was[2], now[2] / was[1]
        else:
            found = was[0] / now[0], was[1] / now[2], was[2] / now[1]
        for name, column in zip(values, (*found, was[0], now[0]), strict=True):
            values[name][at] = column
        used[at] = metric
        left &= ~at
    words = np.select(
        [~common, was_ok & ~is_ok, ~was_ok & is_ok, ~was_ok, left], [NEW, BROKEN, MENDED, FAILED,
                                                                     UNTIMED],
        _verdicts(values["change"], values["low"], values["high"], tolerance))
    return pd.DataFrame({"verdict": pd.Categorical(words, list(VERDICTS)),
                         "by": pd.Categorical(used, ["", *_METRICS]), **values})


def _compared(rows: pd.DataFrame, by: str) -> pd.DataFrame:
    """The rows that are compared, each problem and provider once, the last where it is twice."""
    left_out = [CONTROL] if by == "time" else [CONTROL, BASELINE]
    kept = rows[~rows["provider"].isin(left_out)]
    return kept[last_of(key_ids([kept], KEY))].reset_index(drop=True)


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
