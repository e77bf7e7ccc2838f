"""Combines the rows of several processes into the median row of each shape, and evaluates the
control."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tritongemm.records.control import CONTROL, control_limit

Row = Mapping[str, object]


def median_rows(passes: Sequence[Mapping[Hashable, Row]]) -> list[dict[str, object]]:
    """The median row of each key over ``passes``, in the order in which keys first appear.

    Rows are ordered by ``ratio_vs_torch`` if they have one (effects that all providers of a process
    share cancel), else by time. Of an even number the lower of the middle two is taken. If any row
    is not ok, it is the result: a median must not hide a wrong result or a crash. ``n_processes``
    is the number of rows combined.
    """
    keys = dict.fromkeys(key for rows in passes for key in rows)
    result = []
    for key in keys:
        found = [rows[key] for rows in passes if key in rows]
        bad = [row for row in found if row["status"] != "ok"]
        if bad:
            chosen, stands_for = bad[0], len(found)
        else:
            by = "ratio_vs_torch" if _all_have(found, "ratio_vs_torch") else "time_us_p50"
            if _all_have(found, by):
                found.sort(key=lambda row: row[by])  # type: ignore[arg-type, return-value]
            chosen, stands_for = found[(len(found) - 1) // 2], len(found)
        result.append({**chosen, "n_processes": stands_for})
    return result


def _all_have(rows: Iterable[Row], name: str) -> bool:
    return all(row.get(name) is not None for row in rows)


@dataclass(frozen=True)
class Control:
    """Torch against torch over one suite.

    Attributes:
        mean_ratio: mean of ``ratio_vs_torch`` of the control's rows; None without any.
        count: rows.
        limit: how far from 1 the mean may be.
    """

    mean_ratio: float | None
    count: int
    limit: float

    @property
    def void(self) -> bool:
        """Whether the run is void: its control is outside the limit."""
        return self.mean_ratio is not None and abs(self.mean_ratio - 1.0) > self.limit

    @property
    def reason(self) -> str:
        """The reason why the run is void."""
        return (f"torch against torch has a mean ratio of {self.mean_ratio:.4f} over {self.count} "
                f"shapes, outside 1 +- {self.limit:g}")


def control_of(rows: Iterable[Row]) -> Control:
    """The control of ``rows``: its ok rows with a ratio, and the limit of their timer."""
    found = [row for row in rows if row["provider"] == CONTROL and row["status"] == "ok"
             and row.get("ratio_vs_torch") is not None]
    limit = control_limit(str(row.get("timer")) for row in found)
    mean = fmean(float(row["ratio_vs_torch"]) for row in found) if found else None  # type: ignore
    return Control(mean, len(found), limit)
