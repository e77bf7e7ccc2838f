"""Timings as columns, for fitting: the model's work and rates for each timing, and its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tritongemm.calibration.timings import Timing
from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem
from tritongemm.selection.columns import Columns, kind_of
from tritongemm.selection.inputs import fixed_inputs, inputs_of
from tritongemm.selection.model import (
    Rates,
    bounds_of,
    factor_id,
    keys_of,
    predict,
    scales,
)
from tritongemm.selection.typical import Key, usual
from tritongemm.selection.work import NUMBERS, Static, counts, statics

#: Prior of a constant: the standard deviation of its logarithm around the typical value.
_SPREAD = {"dram_gbps": 0.15, "l2_gbps": 0.5, "sm_gbps": 0.5, "peak_share": 0.2}
_SPREAD_ELSE = 0.7
#: Step of a constant's logarithm for numerical derivatives.
STEP = 1e-4


@dataclass(frozen=True)
class Fit:
    """Constants (logarithms, in the order of ``TimingTable.keys``) and factors by config."""

    constants: np.ndarray
    factors: Mapping[str, float] = field(default_factory=dict)


class TimingTable:
    """Timings as columns: counts of work, the index of each rate's constant, and the times."""

    def __init__(self, timings: Sequence[Timing], device: DeviceSpec) -> None:
        self.columns = Columns([t.config for t in timings])
        numbers: dict[GemmProblem, int] = {}
        self.problem = np.array([numbers.setdefault(t.problem, len(numbers)) for t in timings])
        self.problems = list(numbers)
        self.work = SimpleNamespace(**{name: np.empty(len(timings)) for name in NUMBERS})
        met: list[Sequence[Static]] = [()] * len(timings)
        order = np.argsort(self.problem, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(self.problem[order])) + 1):
            problem, configs = timings[rows[0]].problem, self.columns.take(rows)
            for name, values in vars(counts(problem, configs, device)).items():
                getattr(self.work, name)[rows] = values
            for row, static in zip(rows, statics(kind_of(problem), configs, device), strict=True):
                met[row] = static
        index: dict[Key, int] = {}
        usuals: list[float] = []
        columns = []
        for timing, static in zip(timings, met, strict=True):
            row = []
            for key in keys_of(timing.config, static):
                if key not in index:
                    index[key] = len(index)
                    usuals.append(usual(key, timing.config, static, device,
                                        timing.problem.unit))
                row.append(index[key])
            columns.append(row)
        self.keys = list(index)
        self.usual = np.log(np.array(usuals))
        self.spread = np.array([_SPREAD.get(name, _SPREAD_ELSE) for _, name in self.keys])
        self.index = np.array(columns)
        self.scale = np.log(np.array([scales(t.problem, device) for t in timings]))
        self.log_time = np.log(np.array([t.time_us for t in timings]))
        self.best = np.full(len(self.problems), np.inf)
        np.minimum.at(self.best, self.problem, self.log_time)
        self.behind = self.log_time - self.best[self.problem]
        self.factor_ids = [factor_id(t.config) for t in timings]
        self.num_sms = device.num_sms

    def rows(self, chosen: Any) -> TimingTable:
        """The rows that an index array or a mask selects, with the same constants and problem
        numbers."""
        part = object.__new__(TimingTable)
        part.__dict__.update(self.__dict__)
        part.work = SimpleNamespace(**{k: v[chosen] for k, v in vars(self.work).items()})
        for name in ("index", "scale", "log_time", "problem", "behind"):
            setattr(part, name, getattr(self, name)[chosen])
        part.columns = self.columns.take(chosen)
        part.factor_ids = list(np.array(self.factor_ids, object)[chosen])
        return part

    def log_predicted(self, constants: np.ndarray, column: int | None = None) -> np.ndarray:
        """The logarithms of the predicted times; ``column``: with that rate increased by a small
        step."""
        work: Any = self.work
        return np.log(predict(work, self._rates(constants, column)).total_us)

    def terms(self, fitted: Fit) -> Any:
        """The ``Estimate`` of the rows, of arrays."""
        factors: Any = np.array([fitted.factors.get(name, 1.0) for name in self.factor_ids])
        work: Any = self.work
        return predict(work, self._rates(fitted.constants), factors)

    def inputs(self, fitted: Fit) -> np.ndarray:
        """The network's inputs for the rows."""
        work: Any = self.work
        return inputs_of(fixed_inputs(self.columns, work), self.columns, self.problems,
                         self.problem, work, bounds_of(work, self._rates(fitted.constants)),
                         self.terms(fitted), self.num_sms)

    def mean_of_problem(self, values: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """For each row, the weighted mean of ``values`` over the rows of its problem."""
        count = len(self.problems)
        means = np.bincount(self.problem, weights * values, count) / np.maximum(
            np.bincount(self.problem, weights, count), 1e-9)
        return means[self.problem]

    def _rates(self, constants: np.ndarray, column: int | None = None) -> Any:
        rates = self.scale + constants[self.index]
        if column is not None:
            rates[:, column] += STEP
        return Rates(*np.exp(rates).T)
