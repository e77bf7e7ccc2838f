"""Corrects coarse timings for sustained load, where the card's power limit lowers the clock.

The coarse stage times a config briefly, mostly at the full clock. In the rounds of finalists a
large product lowers the clock, by an amount that depends on the config: clusters of eight lose 2 to
4 % more than clusters of two in the mean, 12 % at most
(perf/results/nvidia-h200/exploratory/sustained.txt). A network learns from all finalists how much a
config loses relative to the others in its rounds, and every coarse timing is scaled by that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tritongemm.calibration.timing_table import Fit, TimingTable
from tritongemm.calibration.timings import DeviceTimings, Final, Timing
from tritongemm.calibration.training import Size, train
from tritongemm.device import DeviceSpec
from tritongemm.selection.inputs import NAMES
from tritongemm.selection.network import Network

#: Size of the networks. On held-out problems 64 hidden units predict as well as 128, and better for
#: rows that begin inside L2 sectors.
_SIZE = Size(hidden=64, rounds=60, decay=0.1)
#: Scale, as a logarithm, of the weight of a config behind the best in the mean that is kept
#: unchanged.
_NEAR = 0.03
#: Limit on the correction, as a logarithm: all but nine of 37,423 finalists gained or lost less.
_MOST = 0.12


def sustained(measured: DeviceTimings) -> DeviceTimings:
    """``measured`` with coarse times scaled so that configs compare as in the rounds of finalists.

    The weighted mean over a problem's fastest configs stays unchanged. With too few finalists to
    learn from, all times stay unchanged.
    """
    return replace(measured, timings=tuple(
        t for _, part in measured.parts() for t in _lengthened(part)))


def _lengthened(part: DeviceTimings) -> Sequence[Timing]:
    seen = Counter(f.rounds for f in part.finals)
    finals = [f for f in part.finals if seen[f.rounds] > 1]
    lost = _learned(finals, part.device)
    if lost is None:
        return part.timings
    table = TimingTable(part.timings, part.device)
    losses = lost(table.inputs(Fit(table.usual)))
    level = table.mean_of_problem(losses, np.exp(-table.behind / _NEAR))
    times = np.exp(table.log_time + np.clip(losses - level, -_MOST, _MOST))
    return [replace(t, time_us=float(time)) for t, time in zip(part.timings, times, strict=True)]


def _learned(finals: Sequence[Final], device: DeviceSpec) -> Network | None:
    """The loss of a config in rounds, as a logarithm, up to a constant of its problem."""
    if not finals:
        return None
    table = TimingTable([Timing(f.problem, f.config, f.coarse_us) for f in finals], device)
    losses = np.log([f.final_us / f.coarse_us for f in finals])
    numbers: dict[tuple, int] = {}
    rounds = np.array([numbers.setdefault(f.rounds, len(numbers)) for f in finals])
    record = train(NAMES, table.inputs(Fit(table.usual)), losses, np.zeros(len(finals)),
                   size=_SIZE, alike=rounds)
    return None if record is None else Network(record)
