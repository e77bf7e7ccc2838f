"""Colours, provider order and number formats of all charts and tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tritongemm.records.control import BASELINE, CONTROL

T = TypeVar("T")

#: Okabe and Ito's palette, which colour-blind readers can distinguish. The reference is grey.
_FIXED = {BASELINE: "#7f7f7f", CONTROL: "#bdbdbd", "tritongemm": "#0072B2",
          "tritongemm-auto": "#56B4E9", "inductor": "#E69F00"}
_OTHERS = ("#009E73", "#D55E00", "#CC79A7", "#8C6D31", "#5B4B8A", "#A6761D", "#1B7837")
#: Marks: matplotlib's name, and the one in charts.js.
_FIXED_MARKS = {BASELINE: ("o", "circle-open"), CONTROL: ("o", "circle-open"),
                "tritongemm": ("o", "circle"), "tritongemm-auto": ("s", "square"),
                "inductor": ("^", "triangle-up")}
_MARKS = (("D", "diamond"), ("v", "triangle-down"), ("P", "cross"), ("X", "x"),
          ("p", "pentagon"), ("*", "star"), ("h", "hexagon"))
#: Candidate ticks of a logarithmic axis of ratios.
RATIO_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0, 5.0,
               10.0, 20.0, 50.0, 100.0)


def ordered(providers: Iterable[str]) -> list[str]:
    """The known providers first, in a fixed order, then the others by name."""
    names = set(providers)
    known = [name for name in _FIXED if name in names]
    return known + sorted(names - set(known))


def colours(providers: Iterable[str]) -> dict[str, str]:
    """A colour for each provider; a known provider has the same one in every report."""
    return _assigned(providers, _FIXED, _OTHERS)


def marks(providers: Iterable[str]) -> dict[str, tuple[str, str]]:
    """A marker for each provider, (matplotlib's name, the page's), so that providers differ without
    colour."""
    return _assigned(providers, _FIXED_MARKS, _MARKS)


def _assigned(providers: Iterable[str], fixed: Mapping[str, T], others: Sequence[T]
              ) -> dict[str, T]:
    names = ordered(providers)
    free = [name for name in names if name not in fixed]
    return {name: fixed[name] if name in fixed else others[free.index(name) % len(others)]
            for name in names}


def ratio_ticks(low: float, high: float) -> list[float]:
    """Four to nine ticks between ``low`` and ``high`` for a logarithmic axis of ratios, where
    possible; 1 is among them if it lies inside."""
    inside = [tick for tick in RATIO_TICKS if low <= tick <= high]
    if len(inside) > 9:
        inside = [tick for tick in inside if tick not in (0.3, 0.7, 0.85, 1.2, 1.5, 3.0)]
    for step in (0.1, 0.05, 0.02, 0.01):
        if len(inside) >= 4:
            break
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        inside = [round(i * step, 2) for i in range(max(first, 1), last + 1)]
    return inside


def ratio(value: float) -> str:
    """``1.023``; an en dash for what was not measured."""
    return number(value, 3)


def number(value: float | None, digits: int = 2) -> str:
    """``value`` with ``digits`` decimals, in scientific notation where they round it away."""
    if value is None or math.isnan(value):
        return "–"
    if value != 0 and not 10.0 ** -digits <= abs(value) < 1e6:
        return f"{value:.{digits}e}"
    return f"{value:.{digits}f}"


def rate(value: float) -> str:
    """A rate with at least three significant digits: ``0.0413``, ``7.32``, ``743``."""
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float) -> str:
    """``79 %``, ``0.3 %``."""
    if math.isnan(value):
        return "–"
    return f"{value:.0f} %" if value >= 9.5 or value == 0 else f"{value:.1g} %"


def count(value: float) -> str:
    """A count with separators: ``12,345``."""
    return f"{int(value):,}"


def plural(value: float, noun: str) -> str:
    """``1 row``, ``1,200 rows``."""
    return f"{count(value)} {noun}" + ("" if value == 1 else "s")


def shorten(text: str, limit: int) -> str:
    """``text`` on one line, cut to ``limit`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit - 1] + "…"
