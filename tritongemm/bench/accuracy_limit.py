"""How accurate float32 products at the setting ``split`` must be: no less than SGEMM.

By both measures of ``accuracy.py`` the error is at most SGEMM's, or :data:`ALLOWANCE` times that
where SGEMM's chains of additions are short: K up to :data:`SHORT_K`, a K that cuBLAS divides among
programs, and uniform operands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tritongemm.bench.accuracy_rows import Row

#: The algorithms that the limit is for, and the measures that it is of.
LIMITED = ("split", "split_product", "tiled_bf16x6")
MEASURES = ("max_error", "norm_error")
#: Times SGEMM's error that is allowed where its chains are short, and the K up to which all are.
ALLOWANCE, SHORT_K = 2.5, 512


@dataclass(frozen=True)
class Miss:
    """A row above the limit by one measure: ``ratio`` times SGEMM's error, where ``allowed`` are
    allowed."""

    row: Row
    measure: str
    ratio: float
    allowed: float

    def __str__(self) -> str:
        row = self.row
        return (f"{row.algorithm}, {row.distribution}, {row.m}x{row.n}x{row.k} {row.layout}: "
                f"{self.measure} {self.ratio:.3g} times SGEMM's, {self.allowed:g} allowed")


def chain_length(norm_error: float) -> float:
    """Additions that follow one another in sums of normal operands whose norm error this is.

    A float32 addition is off by an error within half a spacing of its result, uniformly:
    ``sqrt(0.541 / 12) * 2**-23`` of the result by RMS, with 0.541 the mean of (power of two below /
    result)^2 over results with a uniform logarithm. Partial sums of normal products grow as the
    root of their number, so a chain of L additions leaves ``sqrt(0.541 / 24 * L) * 2**-23`` of the
    sum.
    """
    return (norm_error * 2.0**23) ** 2 * 24.0 / 0.541


def misses(rows: Iterable[Row]) -> list[Miss]:
    """The results of :data:`LIMITED` above the limit, in order. Rows without SGEMM's at the same
    point are left out. Whether cuBLAS divides K at a size is seen in SGEMM's error with normal
    operands; without that row K counts as one chain."""
    rows = [row for row in rows if row.status == "ok"]
    sgemm = {_point(row): row for row in rows if row.algorithm == "sgemm"}
    found = []
    for row in rows:
        reference = sgemm.get(_point(row))
        if row.algorithm not in LIMITED or reference is None:
            continue
        allowed = _allowed(row, sgemm.get(_point(row, "normal")))
        for measure in MEASURES:
            own, least = getattr(row, measure), getattr(reference, measure)
            if not own <= allowed * least:
                found.append(Miss(row, measure, own / least if least else math.inf, allowed))
    return found


def _point(row: Row, distribution: str = "") -> tuple[object, ...]:
    return (row.device, distribution or row.distribution, row.layout, row.m, row.n, row.k, row.seed)


def _allowed(row: Row, normal: Row | None) -> float:
    """Times SGEMM's error. ``normal``: SGEMM's row of this size with normal operands."""
    if row.k <= SHORT_K or row.distribution == "uniform":
        return ALLOWANCE
    # Divided by two or more, K leaves chains of half of it at most.
    divided = normal is not None and chain_length(normal.norm_error) < row.k / math.sqrt(2.0)
    return ALLOWANCE if divided else 1.0
