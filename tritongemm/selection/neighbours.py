"""What the model misses at measured problems, carried over to problems that lie near them.

The logarithm of measured over predicted time is averaged over measured problems in three steps,
each over what the step before left: by class of configs over all problems of the same partial
alignment, however large, since how threads load what is not aligned is what the constants describe
worst; by class over problems near by; config by config over problems near by. So a config that was
never measured gets what its class shows. A problem counts exp(-d**2 / 2) for d doublings of M, N, K
or the batch, in units of :data:`DOUBLINGS`, and less where alignment or layout differ. Each average
counts imagined problems beside the real ones, which show no miss, so that far from everything
measured nothing is corrected.

Chosen by leaving problems out (``tritongemm regret``, H200, 184 problems, ten parts): 0.973 of the
best config's speed, 0.950 without. A Gaussian process over problems and configs, which is this with
a matrix to invert, reached 0.973 too; ridge regression on what the model counts, 0.965. Later, on
all journals, a fifth left out: 0.970, and 0.975 with another :data:`DOUBLINGS` (1.25 for 1.5) and
:data:`CAUTION` (0.08 for 0.03); in five parts (perf/results/nvidia-h200/regret.csv): 0.973.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem
from tritongemm.records.calibration import Neighbour
from tritongemm.selection.work import class_of

#: How far, in doublings of an extent, a measured problem speaks for another.
DOUBLINGS = 1.25
#: exp(-this) is what a problem counts whose operands, or C, can be moved by the copy engine where
#: the other's cannot; the same for another layout.
_OTHER_ALIGNMENT, _OTHER_LAYOUT = 1.5, 0.5
#: Problems that an average is taken to have seen without a miss: near by; of one alignment.
_PRIOR, _PRIOR_ALIKE = 1.0, 2.0
#: What counts less than this is left out.
_NOTHING = 1e-3
#: Share by which a config that no near problem was measured with is taken to be slower: among
#: many the one that is only predicted to be best is more often flattered than good.
CAUTION = 0.08


class Near(NamedTuple):
    """A measured problem and what it counts, from 0 to 1."""

    weight: float
    neighbour: Neighbour


class Neighbours:
    """The corrections that ``neighbours``, measured with ``configs``, make."""

    def __init__(self, configs: Sequence[KernelConfig], neighbours: Sequence[Neighbour]) -> None:
        self._neighbours = neighbours
        self._places = {config: index for index, config in enumerate(configs)}
        classes: dict[str, int] = {}
        of_class = np.array([classes.setdefault(class_of(c), len(classes)) for c in configs], int)
        self._classes = classes
        self._where = np.array([_place(x.problem) for x in neighbours])
        shape = (len(neighbours), len(configs))
        miss: np.ndarray = np.zeros(shape, np.float32)
        seen: np.ndarray = np.zeros(shape, np.float32)
        for row, x in enumerate(neighbours):
            miss[row, list(x.of)] = np.array(x.permille) / 1000.0
            seen[row, list(x.of)] = 1.0
        self._kinds = np.array([_code(_kind(x.problem)) for x in neighbours])
        self._alike = _Level(*_means(miss, seen, of_class, len(classes)), _PRIOR_ALIKE)
        same = ((self._kinds[:, None] == self._kinds) & (self._kinds > 0)).astype(np.float32)
        miss = (miss - self._alike.smoothed(same)[:, of_class]) * seen
        self._by_class = _Level(*_means(miss, seen, of_class, len(classes)), _PRIOR)
        weights = _weights(self._where[:, None], self._where[None])
        miss = (miss - self._by_class.smoothed(weights)[:, of_class]) * seen
        self._by_config = _Level(miss, seen, _PRIOR)
        self._of = functools.lru_cache(maxsize=64)(self._look)

    def _look(self, problem: GemmProblem) -> tuple[list[float], list[float], list[float]]:
        """The misses of classes and of configs, and what caution adds to these."""
        weights = _weights(np.array(_place(problem)), self._where)
        kind = _code(_kind(problem))
        alike, _ = self._alike.mean((self._kinds == kind) * float(kind > 0))
        by_class, _ = self._by_class.mean(weights)
        by_config, support = self._by_config.mean(weights)
        caution = CAUTION * _PRIOR / (support + _PRIOR)
        return (by_class + alike).tolist(), by_config.tolist(), caution.tolist()

    def correction(self, problem: GemmProblem, config: KernelConfig, name: str,
                   cautious: bool = True) -> float:
        """The factor on the predicted time of ``config``, whose class is ``name``; with what is
        added for want of measurements near by, if ``cautious``."""
        by_class, by_config, caution = self._of(problem)
        place, number = self._places.get(config), self._classes.get(name)
        miss = 0.0 if place is None else by_config[place]
        if cautious:
            miss += CAUTION if place is None else caution[place]
        return math.exp(miss if number is None else miss + by_class[number])

    def nearest(self, problem: GemmProblem, count: int) -> list[Near]:
        """The ``count`` measured problems that count most, the nearest first."""
        weights = _weights(np.array(_place(problem)), self._where)
        return [Near(float(weights[i]), self._neighbours[i])
                for i in np.argsort(-weights, kind="stable")[:count]]

    def vs_torch(self, problem: GemmProblem) -> tuple[float, float]:
        """(torch's time over the best config's, problems that say so): a weighted geometric mean
        over measured problems, drawn towards 1 where few are near."""
        weights = _weights(np.array(_place(problem)), self._where)
        known = [(w, math.log(x.vs_torch)) for w, x in
                 zip(weights.tolist(), self._neighbours, strict=True) if x.vs_torch is not None]
        support = sum(w for w, _ in known)
        return math.exp(sum(w * log for w, log in known) / (support + _PRIOR)), support


class _Level:
    """Values [problems, columns] and where they are known, averaged over problems."""

    def __init__(self, values: np.ndarray, known: np.ndarray, prior: float) -> None:
        self._values: np.ndarray = values.astype(np.float32)
        self._known: np.ndarray = known.astype(np.float32)
        self._prior = prior

    def mean(self, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each column, and what the problems that know it count together.

        Most problems are far from any one: only those that count are summed over, by one thread's
        worth of work.
        """
        near = np.flatnonzero(weights > _NOTHING)
        counts: np.ndarray = weights[near].astype(np.float32)
        support = np.einsum("p,pc->c", counts, self._known[near])
        return np.einsum("p,pc->c", counts, self._values[near]) / (support + self._prior), support

    def smoothed(self, weights: np.ndarray) -> np.ndarray:
        """The means of many rows of weights [rows, problems]."""
        counts: np.ndarray = weights.astype(np.float32)
        return counts @ self._values / (counts @ self._known + self._prior)


def _means(values: np.ndarray, known: np.ndarray, group: np.ndarray,
           groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Each problem's mean over the columns of a group, and where there is one."""
    member: np.ndarray = np.zeros((len(group), groups), np.float32)
    member[np.arange(len(group)), group] = 1.0
    count = known @ member
    return values @ member / np.maximum(count, 1.0), np.minimum(count, 1.0)


def _kind(problem: GemmProblem) -> tuple[int, int] | None:
    """The alignment of a problem whose operands the copy engine cannot read, else None."""
    operands = min(problem.align_a, problem.align_b)
    return (operands, problem.align_c) if operands < FULL_ALIGNMENT else None


def _code(kind: tuple[int, int] | None) -> int:
    """A number a kind; 0: none."""
    return 0 if kind is None else 32 * kind[0] + kind[1]


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
