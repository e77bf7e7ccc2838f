"""The measured problems near a problem: which they are, and torch's time on them.

The weight of a measured problem is exp(-d**2 / 2), where d is its distance in doublings of M, N, K
and the batch, in units of :data:`DOUBLINGS`; it is smaller where alignment or layout differ.

:meth:`Neighbours.bound` also knows how uncertain it is: it is a Gaussian process (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, 2.2) over the nearest measured problems.
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
#: Of the Gaussian process of log(torch's time / ours): lengths in doublings of an extent, and in
#: differences of alignment and of layout; its variance, and that of the noise, which covers what
#: these coordinates do not say. Chosen by leaving out measured problems, each alone or with all of
#: its layout (an H100; perf/float32_evidence.py).
_LENGTH_DOUBLINGS, _LENGTH_ALIGNMENT, _LENGTH_LAYOUT = 5.0, 1.5, 1.0
_VARIANCE, _NOISE = 0.3, 0.01
#: The nearest problems that it is conditioned on.
_MOST = 64
#: Standard deviations below the mean that count as certain enough.
_DEVIATIONS = 0.8


class Near(NamedTuple):
    """A measured problem and its weight, from 0 to 1."""

    weight: float
    neighbour: Neighbour


class Bound(NamedTuple):
    """An estimate: the mean, and what lies :data:`_DEVIATIONS` standard deviations below it.
    ``own``: both are what was measured for the problem itself."""

    mean: float
    lower: float
    own: bool = False


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

    def bound(self, problem: GemmProblem) -> Bound | None:
        """Torch's time over the best config's: as measured, if the problem itself was (extents,
        layout, and whether TMA can move it; whatever config and epilogue it had), else as far as
        the nearest measured problems tell. None if torch was measured on none."""
        if not self._known.any():
            return None
        where = self._where[self._known]
        one, logs = _place(problem), self._logs[self._known]
        apart = _apart(where, one)
        near = np.argsort(apart, kind="stable")[:_MOST]
        if apart[near[0]] == 0.0:
            measured = math.exp(logs[near[0]])
            return Bound(measured, measured, own=True)
        some = where[near]
        covariance = _VARIANCE * np.exp(-0.5 * _apart(some[:, None], some[None]))
        to_one = _VARIANCE * np.exp(-0.5 * apart[near])
        solved = np.linalg.solve(covariance + _NOISE * np.eye(len(near)),
                                 np.column_stack([logs[near], to_one]))
        mean, explained = to_one @ solved
        deviation = math.sqrt(max(_VARIANCE - explained, 0.0) + _NOISE)
        return Bound(math.exp(mean), math.exp(mean - _DEVIATIONS * deviation))

    def vs_torch(self, problem: GemmProblem) -> tuple[float, float]:
        """(torch's time over the best config's, the sum of weights): a weighted geometric mean over
        measured problems, shrunk towards 1 where few are near."""
        weights = _weights(_place(problem), self._where) * self._known
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


def _apart(some: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Squared distances in the lengths of the Gaussian process."""
    lengths = np.array([_LENGTH_DOUBLINGS / DOUBLINGS] * 4 + [_LENGTH_ALIGNMENT] * 2
                       + [_LENGTH_LAYOUT] * 2)
    distances: np.ndarray = (((some - other) / lengths) ** 2).sum(-1)
    return distances


def _weights(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    apart = one - other
    unlike = np.abs(apart[..., 4:]) @ np.array(
        [_OTHER_ALIGNMENT, _OTHER_ALIGNMENT, _OTHER_LAYOUT, _OTHER_LAYOUT])
    return np.exp(-0.5 * (apart[..., :4] ** 2).sum(-1) - unlike)
