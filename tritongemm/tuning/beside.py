"""A device that was measured little learns beside its sibling.

It keeps the sibling's constants, with its own memory (``selection/sibling.py``), and a network
learns what these miss from the timings of both, each in the terms of its own device: what the
sibling shows of configs and problems, and what is otherwise here. Of 414 problems of an H100, a
fifth left out in turn, choices have 0.977 of the best for 0.970 by the sibling alone:
perf/results/nvidia-h100-80gb-hbm3/regret-beside-the-h200.csv.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Covers,
    NetworkRecord,
    Section,
    calibration_path,
)
from tritongemm.selection.columns import Columns
from tritongemm.selection.inputs import NAMES
from tritongemm.selection.model import Served, model_of, of_sibling
from tritongemm.selection.network import Network
from tritongemm.selection.sibling import sibling_of
from tritongemm.tuning.calibrate import candidates_of, near_the_best, neighbours_of, write
from tritongemm.tuning.sustained import sustained
from tritongemm.tuning.timings import Source, Timing, read_timings
from tritongemm.tuning.training import train


class Lessons(NamedTuple):
    """What a network learns from, a row each timing.

    Attributes:
        inputs: [timings, inputs] of the network.
        misses, behind: logarithms of the time over the prediction, and over its problem's best.
    """

    timings: tuple[Timing, ...]
    inputs: np.ndarray
    misses: np.ndarray
    behind: np.ndarray

    def of(self, chosen: np.ndarray) -> Lessons:
        """Those of an index."""
        return Lessons(tuple(self.timings[i] for i in chosen), self.inputs[chosen],
                       self.misses[chosen], self.behind[chosen])

    def and_of(self, other: Lessons) -> Lessons:
        """These, then ``other``."""
        return Lessons(self.timings + other.timings,
                       np.concatenate([self.inputs, other.inputs]),
                       np.concatenate([self.misses, other.misses]),
                       np.concatenate([self.behind, other.behind]))

    def problems(self) -> tuple[GemmProblem, ...]:
        """Each once, in the order of its first timing."""
        return tuple(dict.fromkeys(t.problem for t in self.timings))

    def candidates(self) -> tuple[KernelConfig, ...]:
        """What a choice is made among."""
        return candidates_of([t.config for t in self.timings], self.behind)

    def learned(self) -> NetworkRecord | None:
        """The network; None: there are too few timings."""
        return train(NAMES, self.inputs, self.misses, self.behind)

    def missed_by(self, record: NetworkRecord | None) -> np.ndarray:
        """What is still missed with what a network corrects."""
        return self.misses if record is None else self.misses - Network(record)(self.inputs)


class Beside(NamedTuple):
    """What a device has to learn from beside its sibling, of some units.

    Attributes:
        source: the device's timings, in the order of its lessons; run_ids: of both devices.
        section: the sibling's, as it is on the device.
        mine, theirs: the lessons of the device, and of the sibling.
    """

    source: Source
    run_ids: tuple[str, ...]
    section: Section
    mine: Lessons
    theirs: Lessons


def lessons_of(timings: Sequence[Timing], served: Served) -> Lessons:
    """The lessons of ``timings``, problem by problem, by the constants of a section."""
    by_problem: dict[GemmProblem, list[Timing]] = {}
    for timing in timings:
        by_problem.setdefault(timing.problem, []).append(timing)
    seen, misses, behind = [], [], []
    for problem, some in by_problem.items():
        inputs, predicted_us = model_of(served, problem).training_inputs(
            problem, Columns([t.config for t in some]))
        times = np.log([t.time_us for t in some])
        seen.append(inputs)
        misses.append(times - np.log(predicted_us))
        behind.append(times - times.min())
    return Lessons(tuple(t for some in by_problem.values() for t in some),
                   np.concatenate(seen), np.concatenate(misses), np.concatenate(behind))


def beside_sibling(journals: Iterable[str | os.PathLike[str]], device: str
                   ) -> tuple[DeviceSpec, DeviceSpec, list[Beside]]:
    """(device, sibling, what there is to learn) of journals of both.

    Raises:
        DataFileError: a journal or calibration that cannot be used, no timing of one of the two.
        UsageError: the device has no sibling, or its calibration nothing of these units.
    """
    journals = list(journals)
    mine = sustained(read_timings(journals, device))
    sibling = sibling_of(mine.device)
    if sibling is None:
        raise UsageError(f"{device} has no sibling, no other device of its architecture with a "
                         "calibration; leave out --with-sibling")
    theirs = dict(sustained(read_timings(journals, sibling.slug)).parts())
    found = []
    for units, part in mine.parts():
        here, there = (of_sibling(sibling, x, units[0]) for x in (mine.device, sibling))
        if here.section is not None and units in theirs:
            lessons = lessons_of(part.timings, here)
            found.append(Beside(replace(part, timings=lessons.timings),
                                theirs[units].run_ids + part.run_ids, here.section, lessons,
                                lessons_of(theirs[units].timings, there)))
    if not found:
        raise UsageError(f"{sibling.slug} has no timings or no calibration of what {device} "
                         "measured; leave out --with-sibling")
    return mine.device, sibling, found


def section_of(both: Beside) -> Section:
    """The sibling's section with what a network learned from both."""
    lessons = both.theirs.and_of(both.mine)
    network = lessons.learned()
    return replace(
        both.section, run_ids=both.run_ids, problems=len(lessons.problems()),
        results=len(lessons.misses),
        rms_log_error=near_the_best(lessons.missed_by(network), lessons.behind),
        candidates=lessons.candidates(),
        neighbours=neighbours_of(lessons.problems(), both.source), network=network,
        covers=Covers.of((t.problem, t.config) for t in lessons.timings))


def calibrate_beside(journals: Iterable[str | os.PathLike[str]], device: str,
                     path: str | os.PathLike[str] | None = None) -> tuple[Path, Calibration]:
    """Learns from journals of ``device`` (a slug) and of its sibling, and writes what serves the
    device from then on. What :func:`beside_sibling` raises."""
    mine, sibling, found = beside_sibling(journals, device)
    return write(mine, path or calibration_path(mine.slug, sibling.slug), map(section_of, found))
