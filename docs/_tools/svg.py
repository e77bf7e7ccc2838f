"""A few SVG elements: text, rectangles, lines, arrows and horizontal bar charts.

Drawings are plain SVG with a white background, so they read the same on a light and a dark page
and need no font or script from elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

BLUE, ORANGE, GREEN, GREY, INK, PALE = ("#0072B2", "#D55E00", "#009E73", "#8a8a8a", "#1a1a1a",
                                        "#e8f1f8")
LIGHT_BLUE, LIGHT_ORANGE = "#7fb8d8", "#eaae7f"
_FONT = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"


def text(x: float, y: float, words: str, *, size: int = 13, anchor: str = "start",
         fill: str = INK, bold: bool = False) -> str:
    """``words`` with their baseline at (x, y)."""
    weight = " font-weight='bold'" if bold else ""
    return (f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}' "
            f"fill='{fill}'{weight}>{escape(words)}</text>")


def rect(x: float, y: float, width: float, height: float, *, fill: str = PALE,
         stroke: str = "none") -> str:
    """A filled rectangle."""
    return (f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' fill='{fill}' "
            f"stroke='{stroke}'/>")


def box(x: float, y: float, width: float, height: float, lines: Sequence[str], *,
        fill: str = PALE, stroke: str = BLUE, size: int = 13) -> str:
    """A rectangle with centred lines of text; the first line is bold."""
    first = y + height / 2 - (len(lines) - 1) * (size + 4) / 2 + size / 3
    parts = [rect(x, y, width, height, fill=fill, stroke=stroke)]
    parts += [text(x + width / 2, first + i * (size + 4), line, size=size, anchor="middle",
                   bold=i == 0 and len(lines) > 1) for i, line in enumerate(lines)]
    return "".join(parts)


def line(x1: float, y1: float, x2: float, y2: float, *, stroke: str = INK, width: float = 1.5,
         dashed: bool = False) -> str:
    """A straight line."""
    dash = " stroke-dasharray='4 3'" if dashed else ""
    return (f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='{stroke}' "
            f"stroke-width='{width:g}'{dash}/>")


def arrow(x1: float, y1: float, x2: float, y2: float, *, stroke: str = INK) -> str:
    """A line with a head at (x2, y2); horizontal or vertical."""
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    head = [(x2, y2), (x2 - 8 * dx - 4 * dy, y2 - 8 * dy - 4 * dx),
            (x2 - 8 * dx + 4 * dy, y2 - 8 * dy + 4 * dx)]
    points = " ".join(f"{x:g},{y:g}" for x, y in head)
    return line(x1, y1, x2, y2, stroke=stroke) + f"<polygon points='{points}' fill='{stroke}'/>"


def document(width: int, height: int, parts: Sequence[str], *, title: str) -> str:
    """The whole file; ``title`` is its text alternative."""
    return (f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
            f"viewBox='0 0 {width} {height}' role='img' {_FONT}>"
            f"<title>{escape(title)}</title>"
            f"<rect width='{width}' height='{height}' fill='#ffffff'/>" + "".join(parts)
            + "</svg>\n")


def bars(title: str, notes: Sequence[str], labels: Sequence[str],
         series: Sequence[tuple[str, str, Sequence[float | None]]], *, unit: str = "",
         reference: float | None = None, reference_label: str = "", most: float | None = None,
         decimals: int = 2, label_width: int = 250) -> str:
    """A chart of horizontal bars.

    Args:
        title: the heading.
        notes: lines under the heading, in grey.
        labels: one for each group of bars.
        series: (name, colour, value for each label); None: not measured, no bar.
        reference: draw a vertical line at this value, with ``reference_label``.
        most: longest bar; longer ones are cut there and still carry their value.
    """
    values = [v for _, _, row in series for v in row if v is not None]
    most = most or max(values)
    left, width, bar = label_width, 430, 13
    step = bar * len(series) + 10
    top = 46 + 18 * len(notes) + (22 if len(series) > 1 else 0)
    height = top + step * len(labels) + (26 if reference is not None else 12)
    parts = [text(16, 28, title, size=17, bold=True)]
    parts += [text(16, 50 + 18 * i, note, size=12, fill="#555555")
              for i, note in enumerate(notes)]
    if len(series) > 1:
        widths = [28 + 6.7 * len(name) for name, _, _ in series]
        x = left if sum(widths) <= width + 70 else 16
        for (name, colour, _), space in zip(series, widths, strict=True):
            parts += [rect(x, top - 25, 12, 12, fill=colour), text(x + 17, top - 14, name, size=12)]
            x += space
    for i, label in enumerate(labels):
        y = top + i * step
        parts.append(text(left - 8, y + bar * len(series) / 2 + 4, label, size=12, anchor="end"))
        for j, (_, colour, row) in enumerate(series):
            value = row[i]
            if value is None:
                continue
            length = max(min(value, most) / most * width, 1)
            parts += [rect(left, y + j * bar, length, bar - 2, fill=colour),
                      text(left + length + 5, y + j * bar + 10, f"{value:.{decimals}f}{unit}",
                           size=11)]
    if reference is not None:
        x = left + reference / most * width
        bottom = top + step * len(labels)
        parts += [line(x, top - 4, x, bottom, stroke=INK, width=1, dashed=True),
                  text(x, bottom + 15, reference_label, size=11, anchor="middle")]
    return document(left + width + 70, height, parts, title=title)
