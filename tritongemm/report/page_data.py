"""The data of the page's charts and of its table of all rows, as one JSON object."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tritongemm.report import plots, style, tables
from tritongemm.report.heat import HeatMap, mean_shares
from tritongemm.report.load import BASELINE, CONTROL, Results
from tritongemm.report.roof import roof_of, window

if TYPE_CHECKING:
    import pandas as pd

#: Rows that the table shows at first; filter and sorting use all rows.
SHOWN_ROWS = 200
#: Largest size of the rows in the page, bytes. With scripts, styles and tables the page stays below
#: 6 MB.
ROWS_LIMIT = 5_000_000
#: Columns that only the charts need.
_HIDDEN = ("device", "side", "intensity")
#: Column -> heading with the unit.
_LABELS = {"ratio_vs_torch": "ratio", "ratio_low": "low", "ratio_high": "high",
           "time_us_p50": "time us", "tflops": "TFLOP/s", "gbps": "GB/s",
           "pct_of_roof": "% of roof", "max_err_ratio": "error / limit", "config_id": "config",
           "selection_source": "chosen by"}


def page_data(results: Results, maps: Sequence[HeatMap], mean_of: Sequence[HeatMap]
              ) -> tuple[dict[str, Any], int]:
    """The object that page.js reads, and how many rows were left out to keep the page small.

    Keys: ``columns, rows, shown`` (the rows, column by column), ``styles`` (provider -> colour
    and mark), ``yardsticks`` (torch and other providers that ratio charts leave out), ``views``
    ([device, dtype, layout] with ratios, the one with the most suites first), ``roofs`` (one a
    device and dtype) and ``heats`` (heat maps of sweeps).
    """
    headline = results.headline
    rows = tables.problem_rows(headline)
    rated = plots.with_rate(headline)
    rows = rows.assign(intensity=rated["intensity"].reindex(rows.index))
    columns, kept = _fitting(rows)
    colours = style.colours(rows["provider"].unique())
    marks = style.marks(colours)
    data = {
        "columns": columns, "rows": kept, "shown": SHOWN_ROWS,
        "styles": {name: {"colour": colours[name], "mark": marks[name][1],
                          "hollow": marks[name][1].endswith("-open")}
                   for name in style.ordered(colours)},
        "yardsticks": [BASELINE, CONTROL], "views": _views(plots.timed(headline)),
        "roofs": _roofs(rated), "heats": _heats(maps, mean_shares(mean_of), len(mean_of))}
    return data, len(rows) - kept


def embedded(data: object) -> str:
    """JSON that is safe inside a script element: ``<`` is escaped, since it could end the element
    or open a comment."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _fitting(rows: pd.DataFrame) -> tuple[list[dict[str, Any]], int]:
    """The columns of the first rows that fit into :data:`ROWS_LIMIT` bytes, and how many."""
    count = min(len(rows), ROWS_LIMIT // (2 * max(len(rows.columns), 1)))  # "0," at the least
    while True:
        columns = [_column(name, rows[name].head(count)) for name in rows.columns]
        size = len(embedded(columns))
        if size <= ROWS_LIMIT or count == 0:
            return columns, count
        count = int(count * 0.95 * ROWS_LIMIT / size)


def _column(name: str, series: pd.Series) -> dict[str, Any]:
    import pandas as pd

    values = series.tolist()
    column: dict[str, Any] = {"name": name, "label": _LABELS.get(name, name)}
    if name in _HIDDEN:
        column["hidden"] = True
    if pd.api.types.is_numeric_dtype(series.dtype):
        return {**column, "values": [_rounded(v) for v in values]}
    # Texts repeat in many rows: an index into a list keeps the page small.
    texts = list(dict.fromkeys(values))
    index = {text: at for at, text in enumerate(texts)}
    return {**column, "texts": texts, "values": [index[v] for v in values]}


def _rounded(value: float) -> float | int | None:
    if isinstance(value, int):
        return value
    rounded = float(f"{value:.4g}")  # which may exceed the largest number
    return rounded if math.isfinite(rounded) else None


def _views(timed: pd.DataFrame) -> list[list[str]]:
    """[device, dtype, layout], the one with the most suites first, then with the most rows."""
    groups = timed.groupby(["device", "dtype", "layout"], observed=True)
    size = groups.agg(suites=("suite", "nunique"), rows=("suite", "size"))
    size = size.sort_values(["suites", "rows"], ascending=False, kind="stable")
    return [list(key) for key in size.index]


def _roofs(rated: pd.DataFrame) -> list[dict[str, Any]]:
    found = []
    for (device, dtype), rows in rated.groupby(["device", "dtype"], observed=True):
        roof = roof_of(device, rows)
        known = {"peak_tflops": roof.peak_tflops, "memory_gbps": roof.memory_gbps,
                 "unit": roof.unit} if roof.known else None
        found.append({"device": device, "dtype": dtype, "roof": known,
                      "window": [float(f"{v:.4g}") for v in window(rows, roof)]})
    return found


def _heats(maps: Sequence[HeatMap],
           shares: Mapping[str, Mapping[tuple[int, int], tuple[float, int]]],
           count: int) -> list[dict[str, Any]]:
    """The mean over all problems, then each problem; one panel for each kernel."""
    heats = []
    if shares:
        heats.append({"label": f"mean of {count} problems", "panels": [
            _panel(kernel, {block: [share, f"{share:.0%}", f"{share:.1%} over {ran} problems"]
                            for block, (share, ran) in cells.items()})
            for kernel, cells in sorted(shares.items())]})
    for one in maps:
        heats.append({"label": str(one.problem), "panels": [
            _panel(kernel, {block: _cell(one, kernel, block) for block in cells})
            for kernel, cells in sorted(one.kernels.items())]})
    return heats


def _panel(kernel: str, cells: Mapping[tuple[int, int], list[Any]]) -> dict[str, Any]:
    ms, ns = sorted({m for m, _ in cells}), sorted({n for _, n in cells})
    return {"kernel": kernel, "ms": ms, "ns": ns,
            "cells": [[cells.get((m, n)) for n in ns] for m in ms]}


def _cell(one: HeatMap, kernel: str, block: tuple[int, int]) -> list[Any]:
    """[share of the best time or null, text, title]."""
    cell, share = one.kernels[kernel][block], one.share(kernel, block)
    failed = ", ".join(f"{count} {status}" for status, count in cell.failed.most_common())
    tried = f"{cell.tried} tried" + (f": {failed}" if failed else "")
    if share is None or cell.config is None:
        status = cell.failed.most_common(1)[0][0] if cell.failed else "not timed"
        return [None, style.shorten(status, 40), tried]
    return [round(share, 4), f"{share:.0%}\n{style.number(cell.time_us, 1)} us",
            f"{style.number(cell.time_us)} us, {cell.config.config_id}; {tried}"]
