"""Rounds and their statistics: every contender once in each, in balanced orders; paired ratios.

A :class:`Timer` takes the times. The GPU's clock changes by 10 % within seconds, so only times of
the same round are compared: a ratio is the median of the per-round ratios, its interval a bootstrap
over rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tritongemm.errors import UsageError

#: Half-width of a 95 % interval in standard errors, and how much wider a median's standard
#: error is than a mean's (normal samples).
_Z95, _MEDIAN = 1.96, 1.2533
_BOOTSTRAPS = 2000


class Timed(Protocol):
    """A contender loaded into a timer."""

    name: str
    #: Calls in one replay.
    calls: int
    #: Estimated time of a call from loading, microseconds.
    estimate_us: float


class Timer(Protocol):
    """A timer; :attr:`kind` is ``graph``, ``event`` or ``host``."""

    kind: str

    def load(self, name: str, calls: Sequence[Callable[[], None]], *,
             context: Callable[[], AbstractContextManager[object]] = nullcontext,
             expected_us: float | None = None) -> Timed:
        """Prepares calls (one for each operand set). ``context`` is entered when the host runs
        them."""

    def run(self, order: Sequence[Timed],
            while_busy: Callable[[], None] | None = None) -> list[float]:
        """Replays each item once, in order. Returns microseconds per call of each item.

        ``while_busy`` is called once while the GPU runs the replays.
        """

    def closing(self, timed: Timed, sets: Sequence[int]) -> float:
        """Runs a last replay that covers at least ``sets``; the caller checks its outputs. Returns
        microseconds per call."""

    def clear(self) -> None:
        """Frees everything that was loaded."""


@dataclass(frozen=True)
class Quantiles:
    """20 %, 50 % and 80 % quantiles."""

    p20: float
    p50: float
    p80: float

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Quantiles:
        return cls(*(float(q) for q in np.quantile(np.asarray(values, float), (0.2, 0.5, 0.8))))


@dataclass(frozen=True)
class Ratio:
    """A ratio and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Rounds:
    """The number of rounds. It is fixed after a pilot, so that random variation cannot decide when
    to stop.

    Attributes:
        pilot: untimed rounds that show the spread and warm the card.
        least, most: limits of the number of rounds.
        width: full width of the 95 % interval to aim at (0.005: half a per cent).
        budget_s: device time that the rounds may take, pilot included; ``least_in_budget``
            rounds are made all the same.
        least_in_budget: rounds that run even if they exceed the budget.
    """

    pilot: int = 5
    least: int = 15
    most: int = 50
    width: float = 0.005
    budget_s: float = 3.0
    least_in_budget: int = 5

    def needed(self, ratios: np.ndarray, round_s: float, spent_s: float) -> int:
        """Rounds to make, from the pilot's ratios [pilot, contenders]."""
        spread = float(np.max(_spread(ratios), initial=0.0))
        wanted = math.ceil((2 * _Z95 * _MEDIAN * spread / self.width) ** 2)
        affordable = int((self.budget_s - spent_s) / round_s) if round_s > 0 else self.most
        return max(self.least_in_budget,
                   min(max(wanted, self.least), self.most, affordable))


def _spread(ratios: np.ndarray) -> np.ndarray:
    """Standard deviation by column, from the median absolute deviation (one outlier is none)."""
    centre = np.median(ratios, axis=0)
    return 1.4826 * np.median(np.abs(ratios - centre), axis=0)


def bootstrap_median(values: np.ndarray, seed: int) -> Ratio:
    """The median of ``values`` and its 95 % bootstrap interval."""
    values = np.asarray(values, float)
    rng = np.random.default_rng(seed)
    draws = values[rng.integers(len(values), size=(_BOOTSTRAPS, len(values)))]
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return Ratio(float(np.median(values)), float(low), float(high))


@dataclass(frozen=True)
class Comparison:
    """Times of every round, microseconds a call: ``times`` is [rounds, contenders]."""

    names: tuple[str, ...]
    baseline: str
    times: np.ndarray
    seed: int

    @property
    def n_rounds(self) -> int:
        return len(self.times)

    def _column(self, name: str) -> np.ndarray:
        try:
            return self.times[:, self.names.index(name)]
        except ValueError:
            raise UsageError(f"{name!r} was not in this comparison; there were "
                             f"{', '.join(self.names)}") from None

    def time_us(self, name: str) -> Quantiles:
        """Quantiles of one contender's time."""
        return Quantiles.of(self._column(name))

    def ratio(self, name: str) -> Ratio:
        """Baseline's time / this contender's: median over rounds and its interval."""
        if name == self.baseline:
            return Ratio(1.0, 1.0, 1.0)
        return bootstrap_median(self._column(self.baseline) / self._column(name), self.seed)


def orders(count: int, rounds: int, rng: np.random.Generator) -> np.ndarray:
    """[rounds, count]: an order of the contenders for each round.

    Orders come in squares of ``count`` rounds, in which each contender is once in each place, and
    follows each other one once within a round (of an odd number, twice in two squares): Williams,
    Experimental designs balanced for the estimation of residual effects of treatments, 1949. The
    names of the contenders and the rows of a square are shuffled.

    A power-capped GPU is slower right after a contender that heats it. With five rounds of
    independent orders, one that mostly follows it is measured several per cent too slow.
    """
    zigzag = [(i + 1) // 2 if i % 2 else -i // 2 for i in range(count)]
    found: list[np.ndarray] = []
    while len(found) < rounds:
        names = rng.permutation(count)
        for first in (zigzag, zigzag[::-1])[:1 + count % 2]:
            square = [names[(np.array(first) + row) % count] for row in range(count)]
            found += [square[i] for i in rng.permutation(count)]
    return np.array(found[:rounds]).reshape(rounds, count)


def compare(contenders: Sequence[Timed], timer: Timer, *, baseline: str, seed: int = 0,
            rounds: Rounds | None = None,
            while_busy: Callable[[], None] | None = None) -> Comparison:
    """Times ``contenders`` in rounds, each once a round (:func:`orders`).

    Raises:
        UsageError: two of one name, or no contender of the baseline's name.
    """
    rounds = rounds or Rounds()
    names = tuple(c.name for c in contenders)
    if len(set(names)) != len(names):
        raise UsageError(f"two contenders share a name: {', '.join(names)}")
    if baseline not in names:
        raise UsageError(f"the baseline {baseline!r} is not among {', '.join(names)}")
    rng = np.random.default_rng(seed)

    def make(count: int, hook: Callable[[], None] | None = None) -> np.ndarray:
        order = orders(len(names), count, rng)
        flat = timer.run([contenders[i] for i in order.ravel()], hook)
        times = np.empty(order.shape)
        np.put_along_axis(times, order, np.asarray(flat, float).reshape(order.shape), axis=1)
        return times

    pilot = make(1)
    calls = np.array([c.calls for c in contenders])
    round_s = float((pilot[0] * calls).sum()) * 1e-6
    # A pilot of slow calls must not use up the budget.
    more = min(rounds.pilot - 1, max(1, int(0.25 * rounds.budget_s / max(round_s, 1e-9))))
    if more > 0:
        pilot = make(more)
    ratios = pilot[:, [names.index(baseline)]] / pilot
    times = make(rounds.needed(ratios, round_s, (1 + max(more, 0)) * round_s), while_busy)
    return Comparison(names, baseline, times, seed)
