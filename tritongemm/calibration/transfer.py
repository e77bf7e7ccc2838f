"""Transfer learning: a device with few measurements also learns from its sibling's.

The source is the sibling, another device of the architecture with a calibration; the target is the
device. The target uses the source's constants with its own memory bandwidth
(``selection/sibling.py``), or those of its own calibration where that has them, and a network
learns their residuals from the timings of both devices, each predicted for its own device. So it
learns configs and problems from the source, and the differences from the target. For 414 problems
of an H100, with a fifth held out at a time, choices reach 0.977 of the best speed, and 0.970 with
the source's calibration alone: perf/results/nvidia-h100-80gb-hbm3/regret-beside-the-h200.csv.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tritongemm.calibration.calibrate import candidates_of, near_the_best, neighbours_of, write
from tritongemm.calibration.sustained import sustained
from tritongemm.calibration.timings import DeviceTimings, Timing, read_timings
from tritongemm.calibration.training import train
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
from tritongemm.selection.sibling import calibrated, sibling_of


class TrainingSet(NamedTuple):
    """The training data of a network, one row for each timing.

    Attributes:
        inputs: [timings, inputs], the network's inputs.
        misses, behind: log(time / prediction), and log(time / best time of its problem).
    """

    timings: tuple[Timing, ...]
    inputs: np.ndarray
    misses: np.ndarray
    behind: np.ndarray

    def rows(self, chosen: np.ndarray) -> TrainingSet:
        """The rows that an index array selects."""
        return TrainingSet(tuple(self.timings[i] for i in chosen), self.inputs[chosen],
                           self.misses[chosen], self.behind[chosen])

    def joined_with(self, other: TrainingSet) -> TrainingSet:
        """These rows, then those of ``other``."""
        return TrainingSet(self.timings + other.timings,
                           np.concatenate([self.inputs, other.inputs]),
                           np.concatenate([self.misses, other.misses]),
                           np.concatenate([self.behind, other.behind]))

    def problems(self) -> tuple[GemmProblem, ...]:
        """The distinct problems, in the order of their first timing."""
        return tuple(dict.fromkeys(t.problem for t in self.timings))

    def candidates(self) -> tuple[KernelConfig, ...]:
        """The configs that selection would choose among."""
        return candidates_of([t.config for t in self.timings], self.behind)

    def network(self) -> NetworkRecord | None:
        """A network trained on this set; None if there are too few timings."""
        return train(NAMES, self.inputs, self.misses, self.behind)

    def missed_by(self, record: NetworkRecord | None) -> np.ndarray:
        """The residuals that remain with the correction of a network."""
        return self.misses if record is None else self.misses - Network(record)(self.inputs)


class Transfer(NamedTuple):
    """The timings of a device and of its sibling for some units.

    Attributes:
        measured: the device's timings, in the order of ``target``.
        run_ids: of both devices.
        section: the device's own, or the sibling's, adapted to the device.
        target, source: the training sets of the device and of the sibling.
    """

    measured: DeviceTimings
    run_ids: tuple[str, ...]
    section: Section
    target: TrainingSet
    source: TrainingSet


def training_set_of(timings: Sequence[Timing], served: Served) -> TrainingSet:
    """The training set of ``timings``, problem by problem, with residuals of a section's
    constants."""
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
    return TrainingSet(tuple(t for some in by_problem.values() for t in some),
                       np.concatenate(seen), np.concatenate(misses), np.concatenate(behind))


def transfers_from_sibling(journals: Iterable[str | os.PathLike[str]], device: str
                           ) -> tuple[DeviceSpec, DeviceSpec, list[Transfer]]:
    """(device, sibling, transfers) from journals of both.

    Raises:
        DataFileError: a journal or calibration that cannot be used, or no timing of one of the two.
        UsageError: the device has no sibling, or the sibling's calibration has none of these units.
    """
    journals = list(journals)
    target = sustained(read_timings(journals, device))
    sibling = sibling_of(target.device)
    if sibling is None:
        raise UsageError(f"{device} has no sibling, no other device of its architecture with a "
                         "calibration; leave out --with-sibling")
    source = dict(sustained(read_timings(journals, sibling.slug)).parts())
    found = []
    for units, part in target.parts():
        base = target.device if calibrated(target.device.slug, units[0]) else sibling
        here, there = (of_sibling(base, x, units[0]) for x in (target.device, sibling))
        if here.section is not None and units in source:
            learned = training_set_of(part.timings, here)
            found.append(Transfer(replace(part, timings=learned.timings),
                                  source[units].run_ids + part.run_ids, here.section, learned,
                                  training_set_of(source[units].timings, there)))
    if not found:
        raise UsageError(f"{sibling.slug} has no timings or no calibration of what {device} "
                         "measured; leave out --with-sibling")
    return target.device, sibling, found


def transferred_section(transfer: Transfer) -> Section:
    """The transfer's section with a network trained on the timings of both."""
    both = transfer.source.joined_with(transfer.target)
    network = both.network()
    return replace(
        transfer.section, run_ids=transfer.run_ids, problems=len(both.problems()),
        results=len(both.misses),
        rms_log_error=near_the_best(both.missed_by(network), both.behind),
        candidates=both.candidates(),
        neighbours=neighbours_of(both.problems(), transfer.measured), network=network,
        covers=Covers.of((t.problem, t.config) for t in both.timings))


def calibrate_with_sibling(journals: Iterable[str | os.PathLike[str]], device: str,
                           path: str | os.PathLike[str] | None = None
                           ) -> tuple[Path, Calibration]:
    """Trains on journals of ``device`` (a slug) and of its sibling, and writes the device's
    calibration: by default the device's own file for units that it has a section of, else that of
    both devices.

    Raises:
        DataFileError, UsageError: as :func:`transfers_from_sibling`; or the journals are of units
            of both kinds, and no ``path`` is given.
    """
    target, sibling, found = transfers_from_sibling(journals, device)
    if path is None:
        own = {units: calibrated(target.slug, units[0])
               for units in (transfer.section.units for transfer in found)}
        if len({*own.values()}) > 1:
            listed = "; ".join(f"{'+'.join(units)}: {'yes' if has else 'no'}"
                               for units, has in own.items())
            raise UsageError(f"{device} has a calibration of its own for some of these units only "
                             f"({listed}). Give the journals of each kind alone, or name the file "
                             "with --out")
        path = calibration_path(target.slug, "" if all(own.values()) else sibling.slug)
    return write(target, path, map(transferred_section, found))
