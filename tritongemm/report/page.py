"""One self-contained HTML page: overview, charts, sortable tables, every row, environment.

The page loads nothing from elsewhere: styles (page.css), scripts (charts.js, page.js) and the data
are inside, below 6 MB in all.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from tritongemm.records.atomic import write_atomic
from tritongemm.report import aggregate, page_data, style, tables
from tritongemm.report.heat import HeatMap
from tritongemm.report.load import Results

#: Largest number of heat maps of single problems in the page's menu.
MAX_MAPS = 24
_HERE = Path(__file__).resolve().parent


def write_page(path: str | Path, results: Results, *, title: str = "tritongemm report",
               maps: Sequence[HeatMap] = (), mean_of: Sequence[HeatMap] = ()) -> Path:
    """Writes the page to ``path``, atomically, and returns it.

    Raises:
        DataFileError: the file cannot be written.
    """
    path = Path(path)
    write_atomic(path, page(results, title=title, maps=maps, mean_of=mean_of).encode("utf-8"))
    return path


def page(results: Results, *, title: str = "tritongemm report", maps: Sequence[HeatMap] = (),
         mean_of: Sequence[HeatMap] = ()) -> str:
    """The page as text.

    Args:
        results: the rows.
        maps: heat maps of sweeps; :data:`MAX_MAPS` of them can be selected.
        mean_of: heat maps to average.
    """
    data, left_out = page_data.page_data(results, maps[:MAX_MAPS], mean_of)
    sections = [section for section in (
        _overview(results, bool(data["views"])), *_charts(data, len(mean_of)),
        *(_table(make(results)) for make in (
            tables.summary_table, tables.correctness_table, tables.slowest_table,
            tables.failures_table, tables.energy_table, tables.control_table,
            tables.sources_table)),
        _all_rows(data, left_out),
        _table(tables.runs_table(results)), _table(tables.environment_table(results)),
        _notes()) if section[2]]
    links = "".join(f'<a href="#{name}">{html.escape(label)}</a>' for name, label, _ in sections)
    return "\n".join((
        "<!doctype html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{html.escape(title)}</title>", f"<style>{_asset('page.css')}</style>",
        "</head>", "<body>",
        f'<nav aria-label="Sections"><div>{links}<button id="theme" type="button">Dark mode'
        "</button></div></nav>", "<main>", _header(results, title),
        *(f'<section id="{name}">{body}</section>' for name, _, body in sections),
        '<div id="tip" role="tooltip"></div>', "</main>",
        f'<script type="application/json" id="data">{page_data.embedded(data)}</script>',
        f"<script>{_asset('charts.js')}</script>", f"<script>{_asset('page.js')}</script>",
        "</body>", "</html>", ""))


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _header(results: Results, title: str) -> str:
    facts = "".join(f"<li>{html.escape(line)}</li>" for line in tables.facts(results))
    files = style.shorten(", ".join(p.name for p in results.files), 300)
    alarms = "".join(f'<p class="alarm">{html.escape(line)}</p>'
                     for line in tables.alarms(results))
    empty = "<p>No rows to report.</p>" if results.headline.empty else ""
    source = f"<li>From {html.escape(files)}.</li>" if files else ""
    return f"<h1>{html.escape(title)}</h1><ul class=facts>{facts}{source}</ul>{alarms}{empty}"


#: (anchor, label in the navigation, HTML); a section without HTML is left out.
Section = tuple[str, str, str]


def _overview(results: Results, timed: bool) -> Section:
    cards = _cards(results)
    chart = (
        "<div class=controls><label>Show <select id=view></select></label></div>"
        "<div id=overview-legend class=legend></div><div id=overview-chart class=chart></div>"
        "<p class=note>Each mark is a shape, the diamond and the number are the geometric mean of "
        "the suite. Point at a mark for its figures; click it to list its rows.</p>"
        if timed else "")
    body = f"<h2>Overview</h2>{chart}{cards}" if chart or cards else ""
    return "overview", "Overview", body


def _cards(results: Results) -> str:
    """One card for each suite and dtype, with a line for each layout and provider: layouts are not
    averaged together."""
    frame = aggregate.summary(results.headline)
    if frame.empty:
        return ""
    several, one_provider = len(results.devices) > 1, frame["provider"].nunique() == 1
    cards = []
    for key, group in frame.groupby(["device", "suite", "dtype"], sort=True, observed=True):
        device, suite, dtype = map(str, key)  # type: ignore[arg-type]
        lines = "".join(_card_line(row, one_provider) for row in group.to_dict("records"))
        shapes = sorted({int(rows) for rows in group["rows"]})
        text = " to ".join(map(style.count, dict.fromkeys((shapes[0], shapes[-1]))))
        text += " shape" if shapes[-1] == 1 else " shapes"
        for provider, rows in group[group["timed"] > 0].groupby("provider", observed=True):
            worst = rows.loc[rows["min"].idxmin()]
            text += ("; lowest " + ("" if one_provider else f"of {provider} ")
                     + f"{style.ratio(worst['min'])} at {worst['min_at']}")
        for count, what in ((group["failed"].sum(), "not ok"),
                            (group["fallback"].sum(), "by torch")):
            text += f"; {style.count(count)} {what}" if count else ""
        name = f"{suite or '(no suite)'} {dtype}" + (f", {device}" if several else "")
        cards.append(f"<div class=card><h3>{html.escape(name)}</h3><table>{lines}</table>"
                     f"<p>{html.escape(text)}</p></div>")
    return f"<div class=cards>{''.join(cards)}</div>"


def _card_line(row: dict, one_provider: bool) -> str:
    label = row["layout"] if one_provider else f"{row['layout']} {row['provider']}"
    if row["timed"]:
        lead = f"<b>{style.ratio(row['geomean'])}</b>"
    else:
        lead = f"{style.count(row['rows'] - row['failed'])} of {style.count(row['rows'])} ok"
    return f"<tr><th scope=row>{html.escape(label)}</th><td>{lead}</td></tr>"


def _charts(data: dict, problems: int) -> list[Section]:
    sections = []
    if data["views"]:
        sections.append(("size", "By size", (
            "<h2>Ratio to torch.matmul by size</h2><div class=controls><label>Show "
            "<select id=size-view></select></label><label>Suite <select id=size-suite></select>"
            "</label></div><div id=size-legend class=legend></div>"
            "<div id=size-chart class=chart></div>")))
    if data["roofs"]:
        sections.append(("roofline", "Roofline", (
            "<h2>Roofline</h2><div class=controls><label>Show <select id=roof-view></select>"
            "</label></div><div id=roof-legend class=legend></div>"
            "<div id=roof-chart class=chart></div><p class=note id=roof-note></p>")))
    if data["heats"]:
        sections.append(("sweep", "Sweep", (
            "<h2>Sweep: share of the best time by tile size</h2><div class=controls><label>Show "
            "<select id=heat-view></select></label></div><div id=heat class=scroll></div>"
            "<p class=note>Best time of the problem divided by the time of the best config of "
            f"each tile. Quick timings of a sweep, {style.plural(problems, 'problem')}.</p>")))
    return sections


#: Labels of the tables in the navigation.
_LABELS = {"summary": "Summary", "correctness": "Correctness", "slowest": "Lowest ratios",
           "failures": "Failures", "energy": "Energy", "control": "Control",
           "sources": "Config sources", "runs": "Runs", "environment": "Environment"}


def _table(shown: tables.Table) -> Section:
    note = f"<p class=note>{html.escape(shown.note)}</p>" if shown.note else ""
    if not shown.cells:
        return shown.name, "", ""
    heads = "".join(f'<th class="{"num" if right else "text"}">{html.escape(head)}</th>'
                    for head, right in zip(shown.heads, shown.numeric, strict=True))
    classes = ["num" if right else "text" for right in shown.numeric]
    rows = "".join("<tr>" + "".join(
        f'<td class="{kind}">{html.escape(cell)}</td>'
        for kind, cell in zip(classes, row, strict=True)) + "</tr>" for row in shown.cells)
    tall = " tall" if len(shown.cells) > 40 else ""
    return shown.name, _LABELS[shown.name], (
        f'<h2>{html.escape(shown.title)}</h2><div class="scroll{tall}" tabindex=0>'
        f"<table class=sortable><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        f"</div>{note}")


def _all_rows(data: dict, left_out: int) -> Section:
    if not data["rows"]:
        return "rows", "", ""
    more = ""
    if left_out:
        more = (f" {style.plural(left_out, 'row')} left out to keep the page small; the CSV has "
                "them.")
    return "rows", "Every row", (
        "<h2>Every row</h2><p class=note>Press a column head to sort. The filter keeps rows that "
        f"contain all its words.{more}</p><div class=controls><input id=filter type=search "
        'placeholder="e.g. llm_decode tritongemm" aria-label="Filter rows">'
        '<span id=found role="status"></span></div><div class="scroll tall" tabindex=0>'
        "<table id=all></table></div><p><button id=more type=button hidden>Show more</button></p>")


def _notes() -> Section:
    items = "".join(f"<dt>{html.escape(term)}</dt><dd>{html.escape(text)}</dd>"
                    for term, text in tables.TERMS)
    return "notes", "Terms", f"<h2>Terms</h2><dl>{items}</dl>"
