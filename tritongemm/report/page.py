"""One self-contained HTML page: alarms, headline, plots, sortable tables, environment.

Nothing is fetched when it is opened: plotly's script, the styles and the data are inside.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritongemm.errors import missing
from tritongemm.records.atomic import write_atomic
from tritongemm.report import aggregate, figures, plots, style, tables
from tritongemm.report.heat import HeatMap, mean_shares
from tritongemm.report.load import Results
from tritongemm.report.page_assets import CSS, JS
from tritongemm.report.roof import roof_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: Rows that the table of all rows shows at once; the filter and the sort see every row.
SHOWN_ROWS = 400
#: Rows kept in the page; a page of more than about 30 MB is slow to open.
MAX_ROWS = 100_000
#: Heat maps of single problems offered in the page's menu.
MAX_MAPS = 24


def write_page(path: str | Path, results: Results, *, title: str = "tritongemm report",
               maps: Sequence[HeatMap] = (), mean_of: Sequence[HeatMap] = ()) -> Path:
    """Writes the page to ``path``, atomically, and returns it.

    Raises:
        MissingDependencyError: no plotly.
        DataFileError: the file cannot be written.
    """
    path = Path(path)
    write_atomic(path, page(results, title=title, maps=maps, mean_of=mean_of).encode("utf-8"))
    return path


def page(results: Results, *, title: str = "tritongemm report", maps: Sequence[HeatMap] = (),
         mean_of: Sequence[HeatMap] = ()) -> str:
    """The page as text. Raises :class:`MissingDependencyError` without plotly."""
    figures.graph_objects()
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise missing("plotly", "report", "writing the HTML page") from error
    body = [_header(results, title), _alarms(results), _cards(results)]
    if results.headline.empty:
        body.append("<p>No rows to report.</p>")
    else:
        body.append(_table(tables.summary_table(results)))
        body += _plots(results)
    body += _sweep(maps, mean_of)
    for make in (tables.correctness_table, tables.slowest_table, tables.failures_table,
                 tables.control_table, tables.sources_table):
        body.append(_table(make(results)))
    body += [_all_rows(results), _table(tables.environment_table(results))]
    return "\n".join((
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title>", f"<style>{CSS}</style>",
        f"<script>{get_plotlyjs()}</script>", "</head>", "<body>", "<main>",
        *(part for part in body if part), "</main>", f"<script>{JS}</script>", "</body>",
        "</html>", ""))


def _header(results: Results, title: str) -> str:
    facts = "".join(f"<li>{html.escape(line)}</li>" for line in tables.facts(results))
    files = style.shorten(", ".join(p.name for p in results.files), 300)
    return (f"<h1>{html.escape(title)}</h1><ul class=facts>{facts}"
            f"<li>From {html.escape(files)}.</li></ul>")


def _alarms(results: Results) -> str:
    return "".join(f'<p class="alarm">{html.escape(line)}</p>' for line in tables.alarms(results))


def _cards(results: Results) -> str:
    frame = aggregate.summary(results.headline, by=("provider",))
    cards = []
    for name in style.ordered(frame["provider"]):
        row = frame[frame["provider"] == name].iloc[0]
        if row["timed"]:
            lead = style.ratio(row["geomean"])
            text = (f"geometric mean over {style.count(row['timed'])} of "
                    f"{style.count(row['rows'])} rows; lowest {style.ratio(row['min'])} at "
                    f"{row['min_at']}; {row['faster']} faster, {row['tie']} tie, "
                    f"{row['slower']} slower")
        else:
            lead = f"{style.count(row['rows'] - row['failed'])} ok"
            text = f"of {style.count(row['rows'])} rows checked; nothing was timed"
        if row["failed"]:
            text += f"; {style.count(row['failed'])} not ok"
        if row["fallback"]:
            text += f"; {style.count(row['fallback'])} computed by torch itself"
        colour = style.colours(frame["provider"])[name]
        cards.append(f'<div class=card style="border-top-color:{colour}"><h2>{html.escape(name)}'
                     f"</h2><b>{lead}</b><p>{html.escape(text)}</p></div>")
    return f"<div class=cards>{''.join(cards)}</div>" if cards else ""


def _plots(results: Results) -> list[str]:
    parts = []
    rows = plots.timed(results.headline)
    for (device, dtype, layout), one in rows.groupby(["device", "dtype", "layout"]):
        figure = figures.ratio_by_size(one, sorted(one["suite"].unique()))
        parts.append(_figure(figure, f"Ratio to torch.matmul by size: {device} {dtype} {layout}",
                             _thinned(len(one))))
    rated = plots.with_rate(results.headline)
    for (device, dtype), one in rated.groupby(["device", "dtype"]):
        roof = roof_of(device, one)
        note = "" if roof.known else "The device's peaks are not on record: no roof. "
        parts.append(_figure(figures.roofline(one, roof), f"Roofline: {device} {dtype}",
                             note + _thinned(len(one))))
    return parts


def _sweep(maps: Sequence[HeatMap], mean_of: Sequence[HeatMap]) -> list[str]:
    if not mean_of and not maps:
        return []
    figure = figures.sweep_heat(maps[:MAX_MAPS], mean_shares(mean_of))
    if figure is None:
        return []
    return [_figure(figure, "Sweep: share of the best time by tile size",
                    "The best config of each tile over its best rival of any tile; coarse times "
                    f"of the sweep, {len(mean_of)} problems.")]


def _thinned(count: int) -> str:
    if count <= figures.MAX_POINTS:
        return ""
    return (f"Drawn: {style.count(figures.MAX_POINTS)} of {style.count(count)} points, evenly "
            "picked; the figures in the tables are of all.")


def _figure(figure: go.Figure, title: str, note: str = "") -> str:
    div = figure.to_html(full_html=False, include_plotlyjs=False,
                         config={"displaylogo": False, "responsive": True})
    under = f"<p class=note>{html.escape(note)}</p>" if note else ""
    return f"<section><h2>{html.escape(title)}</h2>{div}{under}</section>"


def _table(shown: tables.Table) -> str:
    if not shown.cells:
        return f"<p class=note>{html.escape(shown.note)}</p>" if shown.note else ""
    heads = "".join(f'<th class="{"num" if right else "text"}">{html.escape(head)}</th>'
                    for head, right in zip(shown.heads, shown.numeric, strict=True))
    classes = ["num" if right else "text" for right in shown.numeric]
    rows = "".join("<tr>" + "".join(
        f'<td class="{kind}">{html.escape(cell)}</td>'
        for kind, cell in zip(classes, row, strict=True)) + "</tr>" for row in shown.cells)
    note = f"<p class=note>{html.escape(shown.note)}</p>" if shown.note else ""
    return (f'<section id="{shown.name}"><h2>{html.escape(shown.title)}</h2><div class=scroll>'
            f"<table class=sortable><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
            f"</div>{note}</section>")


def _all_rows(results: Results) -> str:
    rows = tables.problem_rows(results.headline)
    if rows.empty:
        return ""
    kept = rows.head(MAX_ROWS)
    columns = []
    for name in kept.columns:
        values = kept[name].tolist()
        if kept[name].dtype != object:
            columns.append({"name": name, "number": True, "values": [_rounded(v) for v in values]})
        else:  # few distinct texts, many rows: an index into a list keeps the page small
            texts = list(dict.fromkeys(values))
            index = {text: at for at, text in enumerate(texts)}
            columns.append({"name": name, "number": False, "texts": texts,
                            "values": [index[v] for v in values]})
    data = {"columns": columns, "rows": len(kept), "shown": SHOWN_ROWS}
    more = ""
    if len(rows) > len(kept):
        more = f" The first {style.count(len(kept))} of {style.count(len(rows))}."
    return ('<section id="rows"><h2>Every row</h2><p class=note>Click a head to sort; type to '
            f"filter.{more}</p><input id=filter type=search placeholder=\"filter: all words must "
            'occur, e.g. llm_decode tritongemm" aria-label="filter rows"><span id=found></span>'
            "<div class=scroll><table id=all></table></div>"
            f'<script type="application/json" id="data">{_embedded(data)}</script></section>')


def _rounded(value: float) -> float | int | None:
    if isinstance(value, int):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _embedded(data: Any) -> str:
    # "<" could end the script element or open a comment in it.
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
