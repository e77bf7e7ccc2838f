"""Loads bench CSVs and their ``runs.json`` as one table, and decides which rows count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritongemm.errors import UsageError
from tritongemm.records.control import BASELINE, CONTROL
from tritongemm.records.reading import csv_records
from tritongemm.records.rows import COLUMNS, PROBLEM_COLUMNS, read_rows, read_sidecars

if TYPE_CHECKING:
    import pandas as pd

#: Rows that agree in all of these measure the same problem and provider.
KEY = ("device", "suite", "provider", "program", "mode", *PROBLEM_COLUMNS)


@dataclass(frozen=True)
class Results:
    """The rows and run records that a report is made from.

    Attributes:
        rows: every row read, in file order; the CSV's columns and ``void``, ``problem``,
            ``dtype``, ``side`` (see :func:`load`).
        headline: the rows that count: without void runs, and only the newest run of each problem x
            provider (unless all runs were requested).
        void_runs: run id -> the reason why its record marks it void.
        superseded: how many good rows a newer run replaced.
        sidecars: run id -> environment record, of the runs in ``rows``.
        without_sidecar: run ids without a record.
        files: the CSVs read.
        skipped: CSVs of a folder that hold no rows of a bench.
    """

    rows: pd.DataFrame
    headline: pd.DataFrame
    void_runs: Mapping[str, str] = field(default_factory=dict)
    superseded: int = 0
    sidecars: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    without_sidecar: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    skipped: tuple[Path, ...] = ()

    @property
    def devices(self) -> list[str]:
        """Devices of the rows that count, sorted."""
        return sorted(self.headline["device"].unique())

    def only(self, providers: Iterable[str]) -> Results:
        """The rows of some providers. Raises :class:`UsageError` for one that has no row."""
        names = list(providers)
        known = sorted(self.rows["provider"].unique())
        for name in names:
            if name not in known:
                raise UsageError(f"provider {name!r} has no row in "
                                 f"{', '.join(p.name for p in self.files)}; it has "
                                 f"{', '.join(known) or 'no rows at all'}")
        kept = self.headline[self.headline["provider"].isin(names)].reset_index(drop=True)
        return replace(self, headline=kept,
                       rows=self.rows[self.rows["provider"].isin(names)].reset_index(drop=True))


def nothing() -> Results:
    """An empty result, for a report made only from journals."""
    rows = _frame([])
    rows["void"] = False
    return Results(rows=rows, headline=rows)


def csv_paths(names: Iterable[str | Path]) -> tuple[list[Path], list[Path]]:
    """(bench CSVs, other CSVs), each once. A folder stands for the CSVs directly in it.

    A CSV that is named itself is always among the first; an error in it shows when it is read.

    Raises:
        UsageError: a path that does not exist, or a folder without a CSV of a bench.
        DataFileError: a CSV in a folder that cannot be read.
    """
    found: dict[Path, Path] = {}
    skipped: dict[Path, Path] = {}
    for name in names:
        path = Path(name)
        if path.is_dir():
            every = sorted(p for p in path.glob("*.csv") if p.is_file())
            others = [p for p in every if _is_other(p)]
            inside = [p for p in every if p not in others]
            skipped.update((p.resolve(), p) for p in others)
            if not inside:
                holds = f", only {', '.join(p.name for p in others)}" if others else ""
                raise UsageError(f"the folder {path} holds no .csv file that `tritongemm bench` "
                                 f"wrote{holds}")
        elif path.exists():
            inside = [path]
        else:
            raise UsageError(f"{path} does not exist; name CSVs that `tritongemm bench` wrote, "
                             "or a folder of them")
        for one in inside:
            found.setdefault(one.resolve(), one)
    return list(found.values()), [path for key, path in skipped.items() if key not in found]


def _is_other(path: Path) -> bool:
    """Whether a CSV holds something other than bench rows: a suite, regrets, a program's times.

    Its header has neither ``schema_version`` nor half of a bench's columns, so that a damaged CSV
    of a bench is not taken for one.
    """
    header = set(next(csv_records(path), (1, []))[1])
    known = header & {column.name for column in COLUMNS}
    return bool(header) and "schema_version" not in header and 2 * len(known) < len(COLUMNS)


def load(names: Sequence[str | Path], *, all_runs: bool = False,
         tag: str = "") -> Results:
    """Reads any number of CSVs (or folders of them) and the sidecars beside them.

    Adds to the CSV's columns: ``void``, whether the run's sidecar says so; ``problem``, e.g.
    ``8x512x512x64`` with the batch first where it is not 1, or a program and its mode; ``dtype``,
    e.g. ``bf16``, ``bf16>fp32``, ``fp32 tf32``, with its scales and groups as
    :meth:`GemmProblem.modifiers` words them: ``fp8>bf16 a_row b_row``; ``side``,
    (batch m n k) ** (1/3), the side of the cube of the same work.

    Args:
        names: files or folders.
        tag: keep only rows that carry this word among their tags.
        all_runs: keep every good run's row instead of the newest of each problem x provider.

    Raises:
        UsageError: no such file, or none named; no row carries ``tag``.
        DataFileError: a file that cannot be used, naming file, row and field.
    """
    import pandas as pd

    paths, skipped = csv_paths(names)
    if not paths:
        raise UsageError("no CSV was named")
    rows = _frame(paths)
    if tag:
        words = rows["tags"].str.replace(",", " ", regex=False).str.split()
        rows = rows[[tag in have for have in words]].reset_index(drop=True)
        if rows.empty:
            raise UsageError(f"no row carries the tag {tag!r}")
    sidecars, without = _sidecars(paths, list(dict.fromkeys(rows["run_id"])))
    void = {run: _void_reason(meta) for run, meta in sidecars.items() if meta.get("void")}
    rows["void"] = rows["run_id"].isin(void.keys())
    good = rows[~rows["void"]]
    headline = good.drop_duplicates([*KEY, "run_id", "timestamp_utc"], keep="last")
    if not all_runs:
        order = headline.sort_values("timestamp_utc", kind="stable")
        newest = order.drop_duplicates(list(KEY), keep="last").index
        headline = headline.loc[headline.index.isin(newest)]
    assert isinstance(headline, pd.DataFrame)
    return Results(rows=rows, headline=headline.reset_index(drop=True), void_runs=void,
                   superseded=len(good) - len(headline), sidecars=sidecars,
                   without_sidecar=tuple(without), files=tuple(paths), skipped=tuple(skipped))


def is_contender(rows: pd.DataFrame) -> pd.Series:
    """Mask of the rows that are neither torch nor the torch control."""
    return ~rows["provider"].isin([BASELINE, CONTROL])


def _frame(paths: Sequence[Path]) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    names = [column.name for column in COLUMNS]
    values: dict[str, list[object]] = {name: [] for name in names}
    appends = [(name, values[name].append) for name in names]
    for path in paths:
        for row in read_rows(path):
            for name, append in appends:
                append(row[name])
    frame = pd.DataFrame({column.name: _series(column.type, values[column.name])
                          for column in COLUMNS})
    sizes = [frame[name].astype("int64") for name in ("batch", "m", "n", "k")]
    text = [s.astype(str) for s in sizes]
    label = text[1] + "x" + text[2] + "x" + text[3]
    label = label.where(sizes[0] == 1, text[0] + "x" + label)
    label = label.where(frame["program"] == "", frame["program"] + " " + frame["mode"])
    frame["problem"] = label.astype(object)
    frame["dtype"] = _dtype_label(frame)
    work = np.prod([s.to_numpy(dtype="float64") for s in sizes], axis=0)
    frame["side"] = np.cbrt(work)
    return frame


def _series(kind: type, values: list[object]) -> pd.Series:
    import pandas as pd

    if kind is str:
        return pd.Series(["" if v is None else v for v in values], dtype=object)
    if kind is int and None not in values:
        return pd.Series(values, dtype="int64")
    return pd.Series([math.nan if v is None else v for v in values], dtype="float64")


def _dtype_label(frame: pd.DataFrame) -> pd.Series:
    label = frame["dtype_a"].astype(object)
    label = label.where(frame["dtype_b"] == frame["dtype_a"], label + "x" + frame["dtype_b"])
    label = label.where(frame["dtype_out"] == frame["dtype_a"], label + ">" + frame["dtype_out"])
    plain = frame["precision"].isin(["", "ieee"])
    label = label.where(plain, label + " " + frame["precision"])
    for name, prefix in (("scale_a", "a_"), ("scale_b", "b_"), ("grouping", "")):
        label = label.where(frame[name] == "", label + " " + prefix + frame[name])
    return label


def _sidecars(paths: Sequence[Path], runs: Sequence[str]
              ) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    found: dict[str, Mapping[str, Any]] = {}
    for folder in dict.fromkeys(path.parent for path in paths):
        for run, meta in read_sidecars(folder).items():
            if run in runs:
                found[run] = meta
    return {r: found[r] for r in runs if r in found}, [r for r in runs if r not in found]


def _void_reason(meta: Mapping[str, Any]) -> str:
    return str(meta.get("void_reason") or "its record gives no reason")
