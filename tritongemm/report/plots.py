"""PNG plots: ratio to torch by size, all suites at a glance, roofline, sweep heat maps."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritongemm.errors import DataFileError, missing
from tritongemm.records.control import BASELINE, CONTROL
from tritongemm.report import style
from tritongemm.report.heat import HeatMap, mean_shares
from tritongemm.report.load import Results, is_contender
from tritongemm.report.roof import Roof, roof_of, window

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Largest number of panels in one figure that is still legible.
MAX_PANELS = 24
#: Intervals are drawn for providers with at most this many points in a panel.
MAX_INTERVALS = 150
_LOOK = {"font.size": 9.5, "axes.spines.top": False, "axes.spines.right": False,
         "axes.grid": True, "grid.color": "#e4e4e4", "grid.linewidth": 0.7,
         "axes.axisbelow": True, "axes.titlesize": 10.5, "axes.titleweight": "bold",
         "axes.titlelocation": "left", "axes.edgecolor": "#888888", "legend.frameon": False,
         "legend.fontsize": 8.5, "figure.dpi": 100, "savefig.dpi": 150}
#: The same for texts of a file: a ``$`` in a suite's name begins no formula.
PLAIN = {**_LOOK, "text.parse_math": False}


def write_plots(results: Results, folder: Path, *, maps: Sequence[HeatMap] = (),
                mean_of: Sequence[HeatMap] = ()) -> list[tuple[str, Path]]:
    """Draws every plot that the rows have data for. Returns pairs of caption and file.

    Args:
        results: the rows.
        folder: output folder; created if it does not exist.
        maps: heat maps to draw, one file each.
        mean_of: heat maps to average into one more file.

    Raises:
        MissingDependencyError: no matplotlib.
        DataFileError: the folder cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise missing("matplotlib", "report", "drawing PNG plots") from error
    written: list[tuple[str, Path]] = []

    def save(caption: str, name: str, figure: Figure | None) -> None:
        if figure is not None:
            written.append((caption, _save(figure, folder / f"{slug(name)}.png")))

    with matplotlib.rc_context(PLAIN):
        rows = timed(results.headline)
        save("Ratio to torch.matmul, every shape by suite", "overview", overview(rows))
        for (device, dtype, layout), part in rows.groupby(["device", "dtype", "layout"],
                                                           observed=True):
            name = f"{device} {dtype} {layout}"
            save(f"Ratio to torch.matmul by size: {name}", f"ratio-{name}",
                 ratio_by_size(part, name))
        rated = with_rate(results.headline).groupby(["device", "dtype"], observed=True)
        for (device, dtype), part in rated:
            save(f"Roofline: {device} {dtype}", f"roofline-{device} {dtype}",
                 roofline(part, roof_of(device, part), f"{device} {dtype}"))
        if mean_of:
            save(f"Sweep: mean share of the best time over {len(mean_of)} problems",
                 "sweep-mean", mean_heat(mean_of))
        for one in maps:
            save(f"Sweep: {one.problem}", f"sweep-{one.problem}", problem_heat(one))
    return written


def slug(name: str) -> str:
    """A file's name from a title: ``bf16>fp32 nt`` -> ``bf16-to-fp32-nt``."""
    name = name.replace(">", "-to-")
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:120] or "plot"


def timed(headline: pd.DataFrame) -> pd.DataFrame:
    """The contenders' rows that have a ratio and a size."""
    return headline[is_contender(headline) & (headline["status"] == "ok")
                    & headline["ratio_vs_torch"].notna() & (headline["side"] > 0)]


def with_rate(headline: pd.DataFrame) -> pd.DataFrame:
    """The rows with data for a roofline, torch's included, with ``intensity`` in FLOP/byte.

    ``tflops`` and ``gbps`` use the same time, so their quotient is FLOPs / compulsory bytes.
    """
    rows = headline[(headline["status"] == "ok") & (headline["tflops"] > 0)
                    & (headline["gbps"] > 0) & (headline["provider"] != CONTROL)]
    return rows.assign(intensity=rows["tflops"] * 1e3 / rows["gbps"])


def overview(rows: pd.DataFrame) -> Figure | None:
    """One dot for each shape, one line for each suite, dtype and layout; a diamond marks the
    geometric mean."""
    import numpy as np

    if rows.empty:
        return None
    by = ["device", "suite", "dtype", "layout"]
    used = [name for name in by if name == "suite" or rows[name].nunique() > 1]
    found = sorted(set(zip(*(rows[name] for name in used), strict=True)))
    groups = found[:MAX_PANELS]
    more = f"({len(groups)} of {len(found)} groups)" if len(groups) < len(found) else ""
    providers = style.ordered(rows["provider"].unique())
    colour, step = style.colours(providers), 0.8 / len(providers)
    figure, axes = _figure(9.2, 1.5 + len(groups) * max(0.42, 0.27 * len(providers)))
    random = np.random.default_rng(0)
    labels = []
    parts = {key: part for key, part in rows.groupby([*used, "provider"], observed=True)}
    for line, group in enumerate(groups):
        labels.append(" ".join(group) or "(no suite)")
        for at, provider in enumerate(providers):
            part = parts.get((*group, provider))
            if part is None:
                continue
            y = line - 0.4 + step * (at + 0.5)
            ratio = part["ratio_vs_torch"].to_numpy()
            axes.scatter(ratio, y + random.uniform(-0.28, 0.28, len(ratio)) * step, s=13,
                         color=colour[provider], alpha=0.35 if len(ratio) < 400 else 0.12,
                         linewidths=0, rasterized=True)
            mean = float(np.exp(np.log(ratio).mean()))
            axes.plot(mean, y, marker="D", ms=6.5, color=colour[provider], mec="white", mew=1,
                      zorder=4, label=provider if not labels[1:] else None)
            axes.annotate(style.ratio(mean), (1.01, y), xycoords=("axes fraction", "data"),
                          va="center", fontsize=8.5, color=colour[provider], weight="bold",
                          annotation_clip=False)
    axes.axvline(1, color="#444444", lw=1.1, zorder=1)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    _ratio_axis(axes, "x", rows["ratio_vs_torch"])
    axes.set_xlabel("ratio to torch.matmul (above 1 is faster); geometric mean at the right")
    _legend_of(axes, [_handle(name, colour[name], "D") for name in providers])
    device = ", ".join(sorted(rows["device"].unique()))
    common = [rows[name].iloc[0] for name in ("dtype", "layout") if name not in used]
    title = " ".join(["Every shape against torch.matmul,", device, *common, more])
    axes.set_title(title.strip(), pad=26)
    return figure


def ratio_by_size(rows: pd.DataFrame, title: str) -> Figure | None:
    """One panel for each suite: ratio to torch over the side of the cube with the same number of
    operations."""
    import numpy as np

    suites = sorted(rows["suite"].unique())
    if not suites:
        return None
    shown = suites[:MAX_PANELS]
    providers = style.ordered(rows["provider"].unique())
    colour, mark = style.colours(providers), style.marks(providers)
    across = min(len(shown), 2 if len(shown) <= 4 else 3)
    down = math.ceil(len(shown) / across)
    figure, axes = _figure(max(6.4, 4.3 * across), 0.9 + 3.1 * down, down, across)
    for panel, suite in zip(axes.flat, shown, strict=False):
        part, means = rows[rows["suite"] == suite], {}
        for provider in reversed(providers):  # draw the first provider's points on top
            one = part[part["provider"] == provider]
            if one.empty:
                continue
            ratio, many = one["ratio_vs_torch"].to_numpy(), len(one) > MAX_INTERVALS
            side = one["side"].to_numpy()
            if not many:
                panel.vlines(side, one["ratio_low"].fillna(one["ratio_vs_torch"]),
                             one["ratio_high"].fillna(one["ratio_vs_torch"]),
                             color=colour[provider], lw=1, alpha=0.6)
            means[provider] = style.ratio(float(np.exp(np.log(ratio).mean())))
            panel.scatter(side, ratio, s=8 if many else 17, color=colour[provider],
                          marker=mark[provider][0], alpha=0.3 if many else 0.85, linewidths=0,
                          rasterized=True, zorder=3)
        panel.axhline(1, color="#444444", lw=1.1, zorder=1)
        panel.set_xscale("log", base=2)
        _number_ticks(panel.xaxis)
        _ratio_axis(panel, "y", part["ratio_vs_torch"])
        count = len(part.drop_duplicates("problem"))
        panel.set_title(f"{suite or '(no suite)'}  ({count} shape{'s' if count != 1 else ''})")
        panel.legend(handles=[_handle(f"{name}  {means[name]}", colour[name], mark[name][0])
                              for name in providers if name in means], loc="best",
                     handletextpad=0.2, borderaxespad=0.3, frameon=True, framealpha=0.85,
                     edgecolor="none", borderpad=0.3)
    for panel in axes.flat[len(shown):]:
        panel.set_visible(False)
    more = f" ({len(shown)} of {len(suites)} suites)" if len(suites) > len(shown) else ""
    figure.suptitle(f"Ratio to torch.matmul by size, {title}{more}", x=0.01, ha="left",
                    weight="bold", fontsize=12)
    figure.supxlabel("cube root of batch · M · N · K: the side of the cube of the same work",
                     fontsize=9.5)
    figure.supylabel("torch time / provider time", fontsize=9.5)
    return figure


def roofline(rows: pd.DataFrame, roof: Roof, title: str) -> Figure | None:
    """Rate over arithmetic intensity, with the roof of the unit that does the work."""
    import numpy as np

    if rows.empty:
        return None
    providers = style.ordered(rows["provider"].unique())
    colour, mark = style.colours(providers), style.marks(providers)
    figure, axes = _figure(8.2, 5.4)
    low, high, slowest, fastest = window(rows, roof)
    # Points outside the axes are drawn at the edge.
    rows = rows.assign(intensity=rows["intensity"].clip(low, high),
                       tflops=rows["tflops"].clip(slowest, fastest))
    for provider in reversed(providers):
        one = rows[rows["provider"] == provider]
        base = provider == BASELINE
        many = len(one) > 1500
        axes.scatter(one["intensity"], one["tflops"], s=8 if many else 20,
                     marker=mark[provider][0], alpha=0.25 if many else 0.75, rasterized=True,
                     zorder=2 if base else 3,
                     facecolors="none" if base else colour[provider],
                     edgecolors=colour[provider] if base else "none",
                     linewidths=0.9 if base else 0)
    if roof.known:
        x = np.geomspace(low, high, 200)
        axes.plot(x, roof.tflops(x), color="#222222", lw=1.6, zorder=1)
        axes.text(high, roof.peak_tflops * 1.06, f"{roof.peak_tflops:,.0f} TFLOP/s {roof.unit}",
                  ha="right", va="bottom", fontsize=8.5)
        if roof.ridge > low * 1.5:
            at_x = math.sqrt(low * min(roof.ridge, high))
            axes.annotate(f"{roof.memory_gbps:,.0f} GB/s", (at_x, float(roof.tflops(at_x))),
                          xytext=(-6, 6), textcoords="offset points", ha="right", fontsize=8.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(slowest, fastest)
    for axis in (axes.xaxis, axes.yaxis):
        _number_ticks(axis)
    axes.set_xlabel("arithmetic intensity, FLOP / byte of compulsory traffic")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"Roofline, {title}" + ("" if roof.known else " (roof not known)"), pad=26)
    _legend_of(axes, [_handle(name, colour[name], mark[name][0], hollow=name == BASELINE)
                      for name in providers])
    return figure


def problem_heat(one: HeatMap) -> Figure | None:
    """One problem: best time / time by block_m x block_n, one panel for each kernel."""
    def text(kernel: str, block: tuple[int, int]) -> tuple[float | None, str]:
        cell, share = one.kernels[kernel].get(block), one.share(kernel, block)
        if cell is None:
            return None, ""
        if share is None or cell.config is None:
            return None, cell.failed.most_common(1)[0][0] if cell.failed else "not timed"
        best = cell.config
        return share, (f"{share:.0%}\n{style.number(cell.time_us, 1)} us\n"
                       f"k{best.block_k} w{best.num_warps} s{best.num_stages}")

    blocks = {kernel: list(cells) for kernel, cells in one.kernels.items()}
    return _heat(blocks, text, f"Sweep of {one.problem}: share of the best time "
                               f"({style.number(one.best_us, 1)} us)")


def mean_heat(maps: Sequence[HeatMap]) -> Figure | None:
    """All problems: geometric mean of best time / time over the problems where the tile size ran.
    """
    shares = mean_shares(maps)

    def text(kernel: str, block: tuple[int, int]) -> tuple[float | None, str]:
        share, count = shares[kernel].get(block, (None, 0))
        return share, "" if share is None else f"{share:.0%}\nof {count}"

    blocks = {kernel: list(cells) for kernel, cells in shares.items()}
    return _heat(blocks, text, f"Sweep of {len(maps)} problems: mean share of each problem's "
                               "best time")


def _heat(blocks: Mapping[str, Sequence[tuple[int, int]]], text: Any, title: str) -> Figure | None:
    import numpy as np

    kernels = sorted(kernel for kernel, found in blocks.items() if found)
    if not kernels:
        return None
    ms = {k: sorted({m for m, _ in blocks[k]}) for k in kernels}
    ns = {k: sorted({n for _, n in blocks[k]}) for k in kernels}
    wide = sum(max(2.6, 0.8 * len(ns[k]) + 1.0) for k in kernels)
    tall = max(len(ms[k]) for k in kernels)
    figure, axes = _figure(max(6.0, wide + 0.9), 1.7 + 0.62 * tall, 1, len(kernels),
                           width_ratios=[max(2.0, len(ns[k])) for k in kernels])
    image = None
    for panel, kernel in zip(axes.flat, kernels, strict=True):
        grid = np.full((len(ms[kernel]), len(ns[kernel])), np.nan)
        panel.set_facecolor("#f4f4f4")
        for i, m in enumerate(ms[kernel]):
            for j, n in enumerate(ns[kernel]):
                share, label = text(kernel, (m, n))
                grid[i, j] = np.nan if share is None else share
                dark = share is not None and share < 0.62
                panel.text(j, i, label, ha="center", va="center", fontsize=7, linespacing=1.15,
                           color="#999999" if share is None else "white" if dark else "#111111")
        image = panel.imshow(grid, cmap="viridis", vmin=0.2, vmax=1, aspect="auto")
        panel.set_xticks(range(len(ns[kernel])), ns[kernel])
        panel.set_yticks(range(len(ms[kernel])), ms[kernel])
        panel.grid(visible=False)
        panel.set_xlabel("block_n")
        panel.set_title(kernel)
    axes.flat[0].set_ylabel("block_m")
    bar = figure.colorbar(image, ax=list(axes.flat), fraction=0.03, pad=0.015, extend="min")
    bar.ax.yaxis.set_major_formatter(lambda v, _: f"{v:.0%}")
    bar.outline.set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", weight="bold", fontsize=11)
    return figure


def _figure(width: float, height: float, rows: int = 0, columns: int = 0,
            width_ratios: Sequence[float] | None = None) -> tuple[Any, Any]:
    # pyplot would keep figures alive and needs a display on some systems.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if not rows:
        return figure, figure.subplots()
    return figure, figure.subplots(rows, columns, squeeze=False, width_ratios=width_ratios)


def _save(figure: Figure, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # No date and no version in the file: the same rows give the same bytes.
        figure.savefig(path, metadata={"Software": None})
    except OSError as error:
        raise DataFileError(path, f"cannot be written: {error.strerror or error}") from error
    return path


def _ratio_axis(axes: Axes, which: str, values: pd.Series) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = min(float(values.min()), 0.93) / 1.06, max(float(values.max()), 1.07) * 1.06
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    axis.set_major_locator(FixedLocator(style.ratio_ticks(low, high)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda v, _: f"{v:g}")


def _number_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis, minor ticks included where it labels them."""
    from matplotlib.ticker import LogFormatter

    axis.set_major_formatter(lambda v, _: f"{v:,.0f}" if v >= 1 else f"{v:g}")
    axis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))


def _handle(label: str, colour: str, mark: str, *, hollow: bool = False) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], ls="", ms=6, label=label, marker=mark, mec=colour,
                  mfc="none" if hollow else colour)


def _legend_of(axes: Axes, handles: Sequence[Any]) -> None:
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=6,
                borderaxespad=0, handletextpad=0.2, columnspacing=1.2)
