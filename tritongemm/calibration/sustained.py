"""Timings as they are where products follow each other and the card's power bounds them.

The coarse stage times a config for a moment, mostly at the full clock. In rounds of finalists a
large product lowers the clock, and what a config loses by that is its own: clusters of eight lose 2
to 4 % more than clusters of two in the mean, 12 at the most
(perf/results/nvidia-h200/exploratory/sustained.txt). What one loses against the others of its
rounds is learned from all finalists, and every coarse timing lengthened by it.
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

#: Of the networks: of problems left out it says as much as 128, of rows inside sectors more.
_SIZE = Size(hidden=64, rounds=60, decay=0.1)
#: How far behind the best a config still counts much for where its problem's times stay.
_NEAR = 0.03
#: As a logarithm; all but nine of 37,423 finalists gained or lost less against the others.
_MOST = 0.12


def sustained(measured: DeviceTimings) -> DeviceTimings:
    """``measured`` with the times of configs as the rounds of finalists have them among each other.

    A problem's times stay where they are in the mean of its fastest configs. Where there are too
    few finalists to learn from, all stay.
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
    """What a config loses in rounds, as a logarithm and up to a summand of its problem's."""
    if not finals:
        return None
    table = TimingTable([Timing(f.problem, f.config, f.coarse_us) for f in finals], device)
    losses = np.log([f.final_us / f.coarse_us for f in finals])
    numbers: dict[tuple, int] = {}
    rounds = np.array([numbers.setdefault(f.rounds, len(numbers)) for f in finals])
    record = train(NAMES, table.inputs(Fit(table.usual)), losses, np.zeros(len(finals)),
                   size=_SIZE, alike=rounds)
    return None if record is None else Network(record)
