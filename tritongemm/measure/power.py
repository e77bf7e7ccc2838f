"""Alternating blocks for large problems, which share the card's power budget.

A contender that draws more power lowers the clock, in short rounds also for the others. Blocks of
half a second therefore run in the order A B B A (of three: A B C C B A), after one second of
warm-up on the problem. Ratios are of blocks, and the energy of each block is read from the GPU's
counter.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tritongemm.measure.clocks import Reading, Sampler
from tritongemm.measure.rounds import Quantiles, Ratio, Timed

#: A GPU at this share of its power cap counts as power-limited.
NEAR_CAP = 0.93
#: 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)


class BlockTimer(Protocol):
    """The part of :class:`~tritongemm.measure.graph.GraphTimer` that blocks need."""

    def block(self, item: Timed, replays: int,
              while_busy: Callable[[], None] | None = None) -> float:
        """``replays`` replays back to back; microseconds a call."""


@dataclass(frozen=True)
class PowerSamples:
    """Results of one contender's blocks: time and energy of a call, samples of the GPU's state, and
    the baseline's time over its own for each pair of blocks."""

    time_us: Quantiles
    energy_mj: float | None
    reading: Reading
    ratio: Ratio
    pairs: int


@dataclass(frozen=True)
class PowerBlocks:
    """Length and number of blocks.

    Attributes:
        block_s: length of a block.
        warm_s: warm-up on the problem before the first block.
        cycles: number of cycles, each in forward and reverse order: two blocks of each contender.
        from_us: calls shorter than this do not draw enough to need blocks.
    """

    block_s: float = 0.5
    warm_s: float = 1.0
    cycles: int = 2
    from_us: float = 1000.0

    def compare(self, items: Sequence[Timed], timer: BlockTimer,
                sampler: Sampler) -> list[PowerSamples]:
        """Warms up with the first item, the baseline, then runs all items in forward and reverse
        order, ``cycles`` times. Returns each item's blocks, in the order of ``items``."""
        replays = [self._replays(item, self.block_s) for item in items]
        timer.block(items[0], self._replays(items[0], self.warm_s))
        times: list[list[float]] = [[] for _ in items]
        energies: list[list[float]] = [[] for _ in items]
        readings = [Reading() for _ in items]

        def block(i: int) -> None:
            def look() -> None:
                time.sleep(self.block_s / 2)  # the middle of the block, the device busy
                readings[i] = sampler.read()

            before = sampler.energy_mj()
            times[i].append(timer.block(items[i], replays[i], look))
            after = sampler.energy_mj()
            if before is not None and after is not None:
                energies[i].append((after - before) / (items[i].calls * replays[i]))

        forth = range(len(items))
        for _ in range(self.cycles):
            for i in (*forth, *reversed(forth)):
                block(i)
        return [PowerSamples(
            Quantiles.of(times[i]), float(np.median(energies[i])) if energies[i] else None,
            readings[i], _paired(np.array(times[0]) / np.array(times[i])), len(times[i]))
            for i in forth]

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
