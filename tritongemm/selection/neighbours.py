"""The measured problems that lie near one: which they are, and what torch took there.

A problem counts exp(-d**2 / 2) for d doublings of M, N, K or the batch, in units of
:data:`DOUBLINGS`, and less where alignment or layout differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tritongemm.problem import FULL_ALIGNMENT, GemmProblem
from tritongemm.records.calibration import Neighbour

#: How far, in doublings of an extent, a measured problem speaks for another.
DOUBLINGS = 1.25
#: exp(-this) is what a problem counts whose operands, or C, can be moved by the copy engine where
#: the other's cannot; the same for another layout.
_OTHER_ALIGNMENT, _OTHER_LAYOUT = 1.5, 0.5
#: Problems that the average is taken to have seen in which torch took as long.
_PRIOR = 1.0


class Near(NamedTuple):
    """A measured problem and what it counts, from 0 to 1."""

    weight: float
    neighbour: Neighbour


class Neighbours:
    """The measured problems of a section."""

    def __init__(self, neighbours: Sequence[Neighbour]) -> None:
        self._neighbours = neighbours
        self._where = np.array([_place(x.problem) for x in neighbours])
        self._known = np.array([x.vs_torch is not None for x in neighbours])
        self._logs = np.array([math.log(x.vs_torch or 1.0) for x in neighbours])

    def nearest(self, problem: GemmProblem, count: int) -> list[Near]:
        """The ``count`` measured problems that count most, the nearest first."""
        weights = _weights(np.array(_place(problem)), self._where)
        return [Near(float(weights[i]), self._neighbours[i])
                for i in np.argsort(-weights, kind="stable")[:count]]

    def vs_torch(self, problem: GemmProblem) -> tuple[float, float]:
        """(torch's time over the best config's, problems that say so): a weighted geometric mean
        over measured problems, drawn towards 1 where few are near."""
        weights = _weights(np.array(_place(problem)), self._where) * self._known
        support = float(weights.sum())
        return math.exp(float(weights @ self._logs) / (support + _PRIOR)), support


def _place(problem: GemmProblem) -> tuple[float, ...]:
    """A problem as a point: doublings in units of :data:`DOUBLINGS`, then what differs or not."""
    extents = (problem.m, problem.n, problem.k, problem.batch)
    operands = min(problem.align_a, problem.align_b) < FULL_ALIGNMENT
    return (*(math.log2(max(x, 1)) / DOUBLINGS for x in extents), operands,
            problem.align_c < FULL_ALIGNMENT, problem.layout[0] == "t", problem.layout[1] == "t")


def _weights(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    apart = one - other
    unlike = np.abs(apart[..., 4:]) @ np.array(
        [_OTHER_ALIGNMENT, _OTHER_ALIGNMENT, _OTHER_LAYOUT, _OTHER_LAYOUT])
    return np.exp(-0.5 * (apart[..., :4] ** 2).sum(-1) - unlike)
