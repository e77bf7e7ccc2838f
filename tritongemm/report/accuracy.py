"""The chart of an accuracy study: error over K, one panel for each distribution, one line for each
algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tritongemm.errors import missing
from tritongemm.report.plots import _LOOK, _save

Row = Mapping[str, object]
#: Okabe and Ito's palette; the reference is grey. What selection takes is dashed, over the kernel
#: whose results it has.
_COLOURS = {"sgemm": "#7f7f7f", "cublas_tf32": "#bdbdbd", "split_product": "#0072B2",
            "tiled_bf16x6": "#CC79A7", "simt": "#56B4E9", "ieee": "#009E73", "split": "#000000",
            "tf32": "#E69F00"}
_LABELS = {"sgemm": "cuBLAS SGEMM", "cublas_tf32": "cuBLAS TF32", "ieee": "chosen at ieee",
           "split": "chosen at split", "tf32": "chosen under TF32",
           "split_product": "split_product (3 fp16 products)",
           "tiled_bf16x6": "tiled_bf16x6 (6 bf16 products)", "simt": "simt (multiply-adds)"}
_COLUMNS = 4


def write_picture(rows: Iterable[Row], path: Path, measure: str = "max_error") -> Path:
    """Draws one PNG, for the size M = N with the most values of K.

    Args:
        rows: with the columns of ``tritongemm accuracy``'s CSV.
        measure: ``max_error`` or ``norm_error``.

    Raises:
        MissingDependencyError: no matplotlib.
        DataFileError: the file cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("matplotlib", "report", "drawing the accuracy picture") from error
    rows = [row for row in rows if row["status"] == "ok"]
    side = _side_with_most_depths(rows)
    rows = [row for row in rows if (row["m"], row["n"]) == side and row["layout"] == "nn"]
    names = list(dict.fromkeys(str(row["distribution"]) for row in rows))
    across = min(_COLUMNS, max(1, len(names)))
    down = max(1, -(-len(names) // across))
    with matplotlib.rc_context(_LOOK):
        figure = Figure(figsize=(3.3 * across, 2.7 * down + 0.5), layout="constrained")
        panels = figure.subplots(down, across, squeeze=False, sharex=True).flat
        for axes, name in zip(panels, names):
            _panel(axes, name, [row for row in rows if row["distribution"] == name], measure)
        for axes in list(panels)[len(names):]:
            axes.set_visible(False)
        what = {"max_error": "largest |C - C_ref| / (|A| |B|)",
                "norm_error": "|C - C_ref| / |C_ref|, Frobenius norms"}[measure]
        figure.suptitle(f"{what}, C of {side[0]} by {side[1]}", fontsize=10.5)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)
        return _save(figure, path)


def _side_with_most_depths(rows: Sequence[Row]) -> tuple[object, object]:
    depths: dict[tuple[object, object], set[object]] = {}
    for row in rows:
        depths.setdefault((row["m"], row["n"]), set()).add(row["k"])
    return max(depths, key=lambda side: len(depths[side]), default=(0, 0))


def _panel(axes, name: str, rows: Sequence[Row], measure: str) -> None:
    for algorithm, colour in _COLOURS.items():
        points = sorted((row["k"], row[measure]) for row in rows
                        if row["algorithm"] == algorithm)
        points = [(k, error) for k, error in points if error and math.isfinite(error)]
        if points:
            chosen = algorithm in ("ieee", "split", "tf32")
            axes.plot(*zip(*points), "--" if chosen else "-", color=colour, marker="o",
                      markersize=2.5 if chosen else 4.0, label=_LABELS[algorithm])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(name.replace("_", " "))
    axes.set_xlabel("K")
