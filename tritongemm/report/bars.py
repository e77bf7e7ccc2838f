"""Bar charts of the ladder: the rate of each rung, and torch's as a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tritongemm.errors import missing
from tritongemm.report import style
from tritongemm.report.plots import PLAIN, _save, slug

Row = Mapping[str, object]
_BAR = "#0072B2"


def write_bars(rows: Sequence[Row], order: Sequence[str], folder: Path, *, title: str = ""
               ) -> list[Path]:
    """Draws one PNG for each size and dtype, with the rungs in the ladder's order.

    Args:
        rows: rows of the common schema; those of ``torch`` become the line.
        order: providers in the ladder's order.
        folder: made if it is not there.

    Raises:
        MissingDependencyError: no matplotlib.
        DataFileError: the folder cannot be written.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("matplotlib", "report", "drawing the ladder") from error
    timed = [r for r in rows if r.get("status") == "ok" and r.get("tflops")]
    groups: dict[tuple, list[Row]] = {}
    for row in timed:
        groups.setdefault((row["device"], row["m"], row["n"], row["k"], row["dtype_a"]),
                          []).append(row)
    written = []
    with matplotlib.rc_context(PLAIN):
        for (device, m, n, k, dtype), members in groups.items():
            by_name = {str(r["provider"]): r for r in members}
            names = [name for name in order if name in by_name]
            if not names:
                continue
            size = str(m) if m == n == k else f"{m}x{n}x{k}"
            figure = Figure(figsize=(8, 1.2 + 0.34 * len(names)), layout="constrained")
            _bars(figure.subplots(), [by_name[name] for name in names], names,
                  by_name.get("torch"), f"{title or 'The ladder'} at {size}, {dtype}, {device}")
            written.append(_save(figure, folder / f"{slug(f'ladder-{device}-{size}-{dtype}')}.png"))
    return written


def _bars(axes, rows: Sequence[Row], names: Sequence[str], torch: Row | None, title: str) -> None:
    rates = [float(row["tflops"]) for row in rows]  # type: ignore[arg-type]
    places = range(len(rows))
    axes.barh(places, rates, color=_BAR, height=0.72)
    top = max(rates)
    if torch is not None:
        rate = float(torch["tflops"])  # type: ignore[arg-type]
        top = max(top, rate)
        axes.axvline(rate, color="#444444", linewidth=1.3)
        axes.annotate(f"torch {style.rate(rate)}", (rate, -0.9), ha="center", fontsize=8.5,
                      color="#444444", annotation_clip=False)
    for place, (row, rate) in enumerate(zip(rows, rates)):
        ratio = row.get("ratio_vs_torch")
        share = "" if ratio is None else f"  {style.percent(100 * float(ratio))}"  # type: ignore
        axes.text(rate + 0.01 * top, place, f"{style.rate(rate)}{share}", va="center", fontsize=8.5)
    axes.set_yticks(list(places), [style.shorten(name, 46) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * top)
    axes.set_xlabel("TFLOP/s, and per cent of torch")
    axes.set_title(title, pad=18)
    axes.grid(axis="y", visible=False)
