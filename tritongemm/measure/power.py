"""Alternating blocks for large problems, which share the card's power budget.

A contender that draws more power lowers the clock, and in quick rounds it lowers its rival's
too. So blocks of half a second run A B B A after a second of the problem itself, the ratio is
of blocks, and each block's energy is read from the card's counter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tritongemm.measure.clocks import Reading, Sampler
from tritongemm.measure.rounds import Quantiles, Ratio, Timed

#: A card at this share of its power cap is near it.
NEAR_CAP = 0.93
#: 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)


class BlockTimer(Protocol):
    """What a :class:`~tritongemm.measure.graph.GraphTimer` offers for blocks."""

    def block(self, item: Timed, replays: int,
              while_busy: Callable[[], None] | None = None) -> float:
        """``replays`` replays back to back; microseconds a call."""


@dataclass(frozen=True)
class Side:
    """One contender's blocks: time of a call, energy of a call, and the card meanwhile."""

    time_us: Quantiles
    energy_mj: float | None
    reading: Reading


@dataclass(frozen=True)
class BlockComparison:
    """``ratio`` is A's time / B's over ``pairs`` pairs of neighbouring blocks."""

    ratio: Ratio
    pairs: int
    a: Side
    b: Side


@dataclass(frozen=True)
class PowerBlocks:
    """How long blocks are and how many.

    Attributes:
        block_s: length of a block.
        warm_s: the problem itself, before the first block.
        cycles: repetitions of A B B A, two pairs each.
        from_us: calls shorter than this do not draw enough to need blocks.
    """

    block_s: float = 0.5
    warm_s: float = 1.0
    cycles: int = 2
    from_us: float = 1000.0

    @property
    def cost_s(self) -> float:
        """Device time of one comparison, about."""
        return self.warm_s + 4 * self.cycles * self.block_s

    def compare(self, a: Timed, b: Timed, timer: BlockTimer, sampler: Sampler) -> BlockComparison:
        """Runs A B B A, ``cycles`` times, after warming with A."""
        replays = {id(item): self._replays(item, self.block_s) for item in (a, b)}
        timer.block(a, self._replays(a, self.warm_s))
        times: dict[int, list[float]] = {id(a): [], id(b): []}
        energies: dict[int, list[float]] = {id(a): [], id(b): []}
        readings: dict[int, Reading] = {id(a): Reading(), id(b): Reading()}

        def block(item: Timed) -> None:
            def look() -> None:
                time.sleep(self.block_s / 2)  # the middle of the block, the device busy
                readings[id(item)] = sampler.read()

            before = sampler.energy_mj()
            times[id(item)].append(timer.block(item, replays[id(item)], look))
            after = sampler.energy_mj()
            if before is not None and after is not None:
                energies[id(item)].append((after - before) / (item.calls * replays[id(item)]))

        for _ in range(self.cycles):
            for item in (a, b, b, a):
                block(item)
        ratio = _paired(np.array(times[id(a)]) / np.array(times[id(b)]))

        def side(item: Timed) -> Side:
            energy = energies[id(item)]
            return Side(Quantiles.of(times[id(item)]),
                        float(np.median(energy)) if energy else None, readings[id(item)])

        return BlockComparison(ratio, 2 * self.cycles, side(a), side(b))

    def _replays(self, item: Timed, seconds: float) -> int:
        return max(1, math.ceil(seconds * 1e6 / (item.calls * max(item.estimate_us, 0.1))))


def _paired(ratios: np.ndarray) -> Ratio:
    """Geometric mean of the pairs' ratios, with Student's 95 % interval of its logarithm."""
    logs = np.log(ratios)
    centre = float(logs.mean())
    degrees = len(logs) - 1
    t = _T975[min(degrees, len(_T975)) - 1]
    half = t * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Ratio(math.exp(centre), math.exp(centre - half), math.exp(centre + half))
