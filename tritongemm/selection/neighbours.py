"""The measured problems near a problem: which they are, and torch's time on them.

The weight of a measured problem is exp(-d**2 / 2), where d is its distance in doublings of M, N, K
and the batch, in units of :data:`DOUBLINGS`; it is smaller where alignment or layout differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tritongemm.problem import FULL_ALIGNMENT, GemmProblem
from tritongemm.records.calibration import Neighbour
from tritongemm.records.prepared_calibration import NUMBERS, columns_of
from tritongemm.records.prepared_calibration import Neighbours as PreparedNeighbours

#: Doublings of an extent at which a measured problem's weight is exp(-1/2).
DOUBLINGS = 1.25
#: exp(-this) is the weight's factor where TMA can move the operands, or C, of only one
#: of the two problems; the same for another layout.
_OTHER_ALIGNMENT, _OTHER_LAYOUT = 1.5, 0.5
#: The weight of a prior that torch takes as long as the package's best config.
_PRIOR = 1.0


class Near(NamedTuple):
    """A measured problem and its weight, from 0 to 1."""

    weight: float
    neighbour: Neighbour


class Neighbours:
    """The measured problems of a section."""

    def __init__(self, neighbours: Sequence[Neighbour]) -> None:
        self._neighbours = neighbours
        if isinstance(neighbours, PreparedNeighbours):
            self._where, vs_torch = _places(neighbours.numbers, neighbours.turned), \
                neighbours.vs_torch
        else:
            self._where = _places(**columns_of([x.problem for x in neighbours]))
            vs_torch = np.array([np.nan if x.vs_torch is None else x.vs_torch
                                 for x in neighbours])
        self._known = ~np.isnan(vs_torch)
        self._logs = np.log(np.where(self._known, vs_torch, 1.0))

    def nearest(self, problem: GemmProblem, count: int) -> list[Near]:
        """The ``count`` measured problems with the largest weights, the nearest first."""
        weights = _weights(_place(problem), self._where)
        return [Near(float(weights[i]), self._neighbours[i])
                for i in np.argsort(-weights, kind="stable")[:count]]

    def vs_torch(self, problem: GemmProblem, alike: bool = False) -> tuple[float, float]:
        """(torch's time over the best config's, the sum of weights): a weighted geometric mean over
        measured problems, shrunk towards 1 where few are near. With ``alike`` only of those with
        the problem's layout, and alignment as far as TMA minds it."""
        one = _place(problem)
        weights = _weights(one, self._where) * self._known
        if alike:
            weights = weights * (self._where[:, 4:] == one[4:]).all(axis=1)
        support = float(weights.sum())
        return math.exp(float(weights @ self._logs) / (support + _PRIOR)), support


def _place(problem: GemmProblem) -> np.ndarray:
    return _places(**columns_of([problem]))[0]


def _places(numbers: np.ndarray, turned: np.ndarray) -> np.ndarray:
    """Problems as points: extents in units of :data:`DOUBLINGS`, then alignment and layout as 0 or
    1."""
    of = dict(zip(NUMBERS, numbers.T, strict=True))
    extents = np.array([of[name] for name in ("m", "n", "k", "batch")], float)
    operands = np.minimum(of["align_a"], of["align_b"]) < FULL_ALIGNMENT
    places: np.ndarray = np.column_stack([
        *np.log2(np.maximum(extents, 1.0)) / DOUBLINGS, operands, of["align_c"] < FULL_ALIGNMENT,
        turned])
    return places


def _weights(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    apart = one - other
    unlike = np.abs(apart[..., 4:]) @ np.array(
        [_OTHER_ALIGNMENT, _OTHER_ALIGNMENT, _OTHER_LAYOUT, _OTHER_LAYOUT])
    return np.exp(-0.5 * (apart[..., :4] ** 2).sum(-1) - unlike)
