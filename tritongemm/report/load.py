"""Loads bench CSVs and their ``runs.json`` as one table, and decides which rows count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritongemm.errors import UsageError
from tritongemm.records.control import BASELINE, CONTROL
from tritongemm.records.reading import csv_records
from tritongemm.records.rows import COLUMNS, PROBLEM_COLUMNS, read_columns, read_sidecars

if TYPE_CHECKING:
    import numpy as np
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


def load(names: Sequence[str | Path], *, all_runs: bool = False, tag: str = "",
         columns: Collection[str] = ()) -> Results:
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
        columns: keep only these columns of the CSV, and those that tell rows apart; by default
            all. What is not kept is checked too.

    Raises:
        UsageError: no such file, or none named; no row carries ``tag``.
        DataFileError: a file that cannot be used, naming file, row and field.
    """
    paths, skipped = csv_paths(names)
    if not paths:
        raise UsageError("no CSV was named")
    rows = _frame(paths, columns)
    if tag:
        tagged = [text for text in rows["tags"].cat.categories
                  if tag in text.replace(",", " ").split()]
        rows = rows[rows["tags"].isin(tagged)].reset_index(drop=True)
        if rows.empty:
            raise UsageError(f"no row carries the tag {tag!r}")
    sidecars, without = _sidecars(paths, rows["run_id"].unique().tolist())
    void = {run: _void_reason(meta) for run, meta in sidecars.items() if meta.get("void")}
    rows["void"] = rows["run_id"].isin(list(void))
    good = rows[~rows["void"]] if void else rows
    headline = good[last_of(key_ids([good], [*KEY, "run_id", "timestamp_utc"]))]
    if not all_runs:
        order = headline.iloc[_age_order(headline["timestamp_utc"])]
        newest = order.index[last_of(key_ids([order], KEY))]
        headline = headline.loc[headline.index.isin(newest)]
    # Where every row counts, a copy would only take as much memory again.
    headline = rows if len(headline) == len(rows) else headline.reset_index(drop=True)
    return Results(rows=rows, headline=headline, void_runs=void,
                   superseded=len(good) - len(headline), sidecars=sidecars,
                   without_sidecar=tuple(without), files=tuple(paths), skipped=tuple(skipped))


def last_of(ids: np.ndarray) -> np.ndarray:
    """Whether each place holds the last of its number."""
    import pandas as pd

    return ~pd.Series(ids).duplicated(keep="last").to_numpy()


def _age_order(stamps: pd.Series) -> np.ndarray:
    """The places of rows from the oldest to the newest. What is dated more than a day ahead, by a
    clock that was wrong, counts as the oldest: else it would hide every later run."""
    import numpy as np

    texts = stamps.cat.categories
    tomorrow = f"{datetime.now(timezone.utc) + timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"
    age = np.array([-1 if text > tomorrow else at for at, text in enumerate(texts)], np.int64)
    return np.argsort(age[stamps.cat.codes.to_numpy()], kind="stable")


def is_contender(rows: pd.DataFrame) -> pd.Series:
    """Mask of the rows that are neither torch nor the torch control."""
    return ~rows["provider"].isin([BASELINE, CONTROL])


def key_ids(frames: Sequence[pd.DataFrame], names: Sequence[str]) -> np.ndarray:
    """A number for each row of ``frames``, one behind the other: rows that agree in all of
    ``names`` have the same."""
    import numpy as np
    import pandas as pd

    ids, count = np.zeros(sum(map(len, frames)), np.int64), 1
    for name in names:
        column = pd.concat([frame[name] for frame in frames], ignore_index=True)
        codes, found = pd.factorize(column, use_na_sentinel=False)
        if count * len(found) >= 2**62:
            ids, seen = pd.factorize(ids)
            count = len(seen)
        ids = ids * len(found) + codes
        count *= max(len(found), 1)
    return ids


def _frame(paths: Sequence[Path], wanted: Collection[str] = ()) -> pd.DataFrame:
    """The rows of ``paths``. Texts are categories, so that a million rows take some 300 MB."""
    import numpy as np
    import pandas as pd

    columns = {column.name: _Collected(column.type) for column in COLUMNS
               if not wanted or column.name in wanted or column.name in _ALWAYS}
    for path in paths:
        for block in read_columns(path):
            for name, collected in columns.items():
                collected.add(block[name])
    frame = pd.DataFrame({name: collected.series() for name, collected in columns.items()},
                         copy=False)
    extents = ["batch", "m", "n", "k"]
    frame["problem"] = _labels(frame, [*extents, "program", "mode"], _problem_label)
    frame["dtype"] = _labels(frame, _OF_DTYPE, _dtype_label)
    work = np.prod([frame[name].to_numpy(dtype="float64") for name in extents], axis=0)
    frame["side"] = np.cbrt(work)
    return frame


def _problem_label(batch: int, m: int, n: int, k: int, program: str, mode: str) -> str:
    """The extents, with the batch where there is one; a program and its mode for its steps."""
    if program:
        return f"{program} {mode}"
    return f"{m}x{n}x{k}" if batch == 1 else f"{batch}x{m}x{n}x{k}"


class _Collected:
    """One column, collected block by block in as little memory as it needs."""

    def __init__(self, kind: type) -> None:
        import numpy as np

        self._kind, self._texts = kind, dict[object, int]()
        self._parts = [np.empty(0, {str: np.int32, int: np.int32}.get(kind, np.float64))]

    def add(self, values: Sequence[object]) -> None:
        """Appends the values of a block."""
        import numpy as np

        if self._kind is str:
            known = self._texts
            for value in dict.fromkeys(values):
                known.setdefault(value, len(known))
            part = np.fromiter(map(known.__getitem__, values), np.int32, len(values))
        else:
            part = np.array(values, np.float64)  # None is not a number
            if self._kind is int and not np.isnan(part).any():
                part = part.astype(np.int32 if part.max(initial=0) < 2**31 else np.int64)
        self._parts.append(part)

    def series(self) -> pd.Series:
        """All values; integers with a gap are floats, as they are where they exceed int64."""
        import numpy as np
        import pandas as pd

        values = np.concatenate(self._parts)
        self._parts.clear()
        if self._kind is not str:
            return pd.Series(values)
        return _categories(values, ["" if text is None else str(text) for text in self._texts])


def _categories(codes: np.ndarray, texts: Sequence[str]) -> pd.Series:
    """A series of texts as sorted categories; texts may repeat and be unused."""
    import numpy as np
    import pandas as pd

    ordered = sorted(set(texts))
    place = {text: at for at, text in enumerate(ordered)}
    codes = np.array([place[text] for text in texts], np.int32)[codes] if texts else codes
    return pd.Series(pd.Categorical.from_codes(codes, pd.Index(ordered, dtype=object)))


def _labels(frame: pd.DataFrame, names: Sequence[str], label: Callable[..., str]) -> pd.Series:
    """A text of each row from its values of ``names``, made once for those that repeat."""
    import pandas as pd

    codes, first = pd.factorize(key_ids([frame], names))
    places = pd.Series(codes).drop_duplicates().index  # of the first row of each code
    texts = [label(*values) for values in
             zip(*(frame[name].iloc[places].tolist() for name in names), strict=True)]
    return _categories(codes, texts)


#: Columns that every frame has.
_ALWAYS = frozenset({*KEY, "run_id", "timestamp_utc", "status", "tags"})
_OF_DTYPE = ("dtype_a", "dtype_b", "dtype_out", "precision", "scale_a", "scale_b", "grouping")


def _dtype_label(a: str, b: str, out: str, precision: str, scale_a: str, scale_b: str,
                 grouping: str) -> str:
    label = a if b == a else f"{a}x{b}"
    label += "" if out == a else f">{out}"
    words = ("" if precision == "ieee" else precision, scale_a and f"a_{scale_a}",
             scale_b and f"b_{scale_b}", grouping)
    return " ".join((label, *filter(None, words)))


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
