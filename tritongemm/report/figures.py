"""The plots of the page, in plotly: the same pictures as the PNGs, with what a pointer asks for."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tritongemm.errors import missing
from tritongemm.report import style
from tritongemm.report.heat import HeatMap
from tritongemm.report.roof import Roof

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: More points than this in one figure make the page slow and tell no more. They are drawn as SVG:
#: WebGL takes three contexts a figure, and a browser gives a page about sixteen.
MAX_POINTS = 4_000
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def graph_objects() -> Any:
    """``plotly.graph_objects``. Raises :class:`MissingDependencyError` without plotly."""
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise missing("plotly", "report", "writing the HTML page") from error
    return go


def thin(rows: pd.DataFrame, keep: str) -> pd.DataFrame:
    """At most about :data:`MAX_POINTS` rows, the extremes of ``keep`` always among them.

    The rest is every n-th row in the order of ``keep``, so the distribution is that of all rows.
    """
    if len(rows) <= MAX_POINTS:
        return rows
    order = rows.sort_values(keep, kind="stable")
    step = -(-len(order) // MAX_POINTS)
    edge = 50
    middle = order.iloc[edge:-edge:step]
    return order.loc[[*order.index[:edge], *middle.index, *order.index[-edge:]]]


def ratio_by_size(rows: pd.DataFrame, suites: Sequence[str]) -> go.Figure:
    """Ratio to torch by size: a trace a provider, and a menu that picks the suite."""
    go = graph_objects()
    figure, colour = go.Figure(), style.colours(rows["provider"].unique())
    mark = style.marks(colour)
    shown = thin(rows, "ratio_vs_torch")
    belongs: list[str] = []
    dense = len(shown) > 600
    for provider in style.ordered(rows["provider"].unique()):
        for suite in suites:
            one = shown[(shown["provider"] == provider) & (shown["suite"] == suite)]
            if one.empty:
                continue
            ratio = one["ratio_vs_torch"]
            bars = None if dense else {
                "type": "data", "symmetric": False, "thickness": 1, "width": 0,
                "array": (one["ratio_high"] - ratio).clip(lower=0).fillna(0).tolist(),
                "arrayminus": (ratio - one["ratio_low"]).clip(lower=0).fillna(0).tolist()}
            figure.add_trace(go.Scatter(
                x=one["side"].round(1).tolist(), y=ratio.round(4).tolist(), mode="markers",
                name=_safe(provider), legendgroup=_safe(provider),
                showlegend=provider not in {b.split("\0")[0] for b in belongs},
                marker={"color": colour[provider], "size": 7 if len(shown) < 2000 else 5,
                        "opacity": 0.8 if len(shown) < 2000 else 0.5,
                        "symbol": mark[provider][1]},
                error_y=bars, text=_hover(one),
                hovertemplate="%{text}<extra>" + _safe(provider) + "</extra>"))
            belongs.append(f"{provider}\0{suite}")
    figure.add_hline(y=1, line={"color": "#444444", "width": 1.2})
    low, high = min(rows["ratio_vs_torch"].min(), 0.93), max(rows["ratio_vs_torch"].max(), 1.07)
    ticks = style.ratio_ticks(low / 1.06, high * 1.06)
    sides = [2**i for i in range(32) if rows["side"].min() / 2 < 2**i < rows["side"].max() * 2]
    figure.update_xaxes(type="log", title="(batch · M · N · K)<sup>1/3</sup>", tickvals=sides,
                        ticktext=[f"{side:,}" for side in sides])
    figure.update_yaxes(type="log", title="torch time / provider time", tickvals=ticks,
                        ticktext=[f"{t:g}" for t in ticks])
    if len(suites) > 1:
        figure.update_layout(updatemenus=[_suite_menu(belongs, suites)])
    return _laid_out(figure)


def roofline(rows: pd.DataFrame, roof: Roof) -> go.Figure:
    """Rate over arithmetic intensity, a trace a provider, under the roof if it is known."""
    import numpy as np

    go = graph_objects()
    figure, colour = go.Figure(), style.colours(rows["provider"].unique())
    mark = style.marks(colour)
    shown = thin(rows, "intensity")
    if roof.known:
        x = np.geomspace(rows["intensity"].min() / 1.6, rows["intensity"].max() * 1.6, 120)
        figure.add_trace(go.Scatter(
            x=x.tolist(), y=roof.tflops(x).tolist(), mode="lines", hoverinfo="skip",
            name=f"roof: {roof.peak_tflops:,.0f} TFLOP/s {roof.unit}, {roof.memory_gbps:,.0f} GB/s",
            line={"color": "#222222", "width": 1.8}))
    for provider in style.ordered(rows["provider"].unique()):
        one = shown[shown["provider"] == provider]
        figure.add_trace(go.Scatter(
            x=one["intensity"].round(3).tolist(), y=one["tflops"].tolist(), mode="markers",
            name=_safe(provider),
            marker={"color": colour[provider], "size": 6, "opacity": 0.7,
                    "symbol": mark[provider][1]},
            text=_hover(one), hovertemplate="%{text}<extra>" + _safe(provider) + "</extra>"))
    figure.update_xaxes(type="log", dtick=1, title="arithmetic intensity, FLOP / byte")
    figure.update_yaxes(type="log", dtick=1, title="TFLOP/s")
    return _laid_out(figure)


def sweep_heat(maps: Sequence[HeatMap], shares: Mapping[str, Mapping[tuple[int, int],
                                                                    tuple[float, int]]]
               ) -> go.Figure | None:
    """A menu of heat maps over block_m x block_n: the mean of all problems, then each problem."""
    go = graph_objects()
    figure, labels = go.Figure(), []

    def add(label: str, cells: Mapping[tuple[int, int], tuple[float | None, str, str]]) -> None:
        ms, ns = sorted({m for m, _ in cells}), sorted({n for _, n in cells})
        table = [[cells.get((m, n), (None, "", "")) for n in ns] for m in ms]
        figure.add_trace(go.Heatmap(
            x=[str(n) for n in ns], y=[str(m) for m in ms], visible=not labels,
            z=[[c[0] for c in row] for row in table], text=[[c[1] for c in row] for row in table],
            customdata=[[c[2] for c in row] for row in table], texttemplate="%{text}",
            hovertemplate="block_m %{y}, block_n %{x}<br>%{customdata}<extra></extra>",
            colorscale="Viridis", zmin=0.2, zmax=1, xgap=2, ygap=2,
            colorbar={"tickformat": ".0%", "title": "share of<br>the best"}))
        labels.append(label)

    for kernel, found in shares.items():
        add(f"{kernel}: mean of {len(maps)} problems" if maps else kernel,
            {block: (share, f"{share:.0%}", f"{share:.1%} over {count} problems")
             for block, (share, count) in found.items()})
    for one in maps:
        for kernel, found in one.kernels.items():
            add(f"{kernel}: {one.problem}",
                {block: _heat_cell(one, kernel, block) for block in found})
    if not labels:
        return None
    figure.update_xaxes(title="block_n", type="category", showgrid=False)
    figure.update_yaxes(title="block_m", type="category", showgrid=False,
                        autorange="reversed")
    if len(labels) > 1:
        figure.update_layout(updatemenus=[{
            "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "showactive": True,
            "buttons": [{"label": _safe(label), "method": "restyle",
                         "args": [{"visible": [i == j for j in range(len(labels))]}]}
                        for i, label in enumerate(labels)]}])
    return _laid_out(figure)


def _heat_cell(one: HeatMap, kernel: str, block: tuple[int, int]
               ) -> tuple[float | None, str, str]:
    cell, share = one.kernels[kernel][block], one.share(kernel, block)
    failed = ", ".join(f"{count} {status}" for status, count in cell.failed.most_common())
    tried = f"{cell.tried} tried" + (f": {failed}" if failed else "")
    if share is None or cell.config is None:
        status = cell.failed.most_common(1)[0][0] if cell.failed else "not timed"
        return None, _safe(status), _safe(tried)
    return share, f"{share:.0%}", (f"{style.number(cell.time_us)} us, "
                                   f"{_safe(cell.config.config_id)}<br>{_safe(tried)}")


def _suite_menu(belongs: Sequence[str], suites: Sequence[str]) -> dict[str, Any]:
    def visible(suite: str | None) -> list[bool]:
        return [suite is None or b.split("\0")[1] == suite for b in belongs]

    def legend(mask: Sequence[bool]) -> list[bool]:
        # The legend entry of a provider must belong to a trace that is on.
        seen: set[str] = set()
        result = []
        for on, b in zip(mask, belongs, strict=True):
            name = b.split("\0")[0]
            result.append(on and name not in seen)
            if on:
                seen.add(name)
        return result

    return {"x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom", "showactive": True,
            "buttons": [{"label": "all suites" if suite is None else _safe(suite) or "(no suite)",
                         "method": "restyle",
                         "args": [{"visible": mask, "showlegend": legend(mask)}]}
                        for suite in (None, *suites) for mask in (visible(suite),)]}


def _hover(rows: pd.DataFrame) -> list[str]:
    columns = ["suite", "problem", "dtype", "layout", "config_id", "time_us_p50",
               "ratio_vs_torch", "ratio_low", "ratio_high", "tflops", "pct_of_roof"]
    lines = []
    for suite, problem, dtype, layout, config, time, ratio, low, high, rate, roof in zip(
            *(rows[name].tolist() for name in columns), strict=True):
        text = f"<b>{_safe(problem)}</b> {_safe(dtype)} {_safe(layout)} {_safe(suite)}<br>"
        if ratio == ratio:
            text += f"ratio {style.ratio(ratio)} ({style.ratio(low)} to {style.ratio(high)})<br>"
        text += f"{style.number(time)} us, {style.rate(rate)} TFLOP/s"
        if roof == roof:
            text += f", {style.percent(roof)} of roof"
        lines.append(text + (f"<br>{_safe(config)}" if config else ""))
    return lines


def _safe(text: object) -> str:
    # plotly takes a few HTML tags in labels; what a CSV says must stay text.
    return html.escape(style.shorten(str(text), 120), quote=False)


def _laid_out(figure: go.Figure) -> go.Figure:
    figure.update_layout(
        template="plotly_white", height=520, margin={"l": 64, "r": 24, "t": 64, "b": 56},
        font={"family": _FONT, "size": 13}, hoverlabel={"align": "left"},
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"})
    return figure
