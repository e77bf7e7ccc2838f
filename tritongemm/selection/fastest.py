"""The fastest legal one of many configs, by a model's predicted times: :func:`fastest`."""

from __future__ import annotations

import itertools

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import violation
from tritongemm.problem import GemmProblem
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import Model
from tritongemm.selection.work import keeps_to_the_budget

#: Of the configs predicted within this factor of the least time, the one that the calibration lists
#: first is chosen, so that similar problems share binaries: 71 for 136 M of one N and K, 87 without
#: (perf/results/nvidia-h200/exploratory/learned.txt).
AS_GOOD = 1.01


def fastest(problem: GemmProblem, device: DeviceSpec, model: Model, configs: Columns,
            index: np.ndarray, times: np.ndarray) -> tuple[float, KernelConfig] | None:
    """(predicted time in microseconds, config) of one of ``configs`` at ``index``, whose predicted
    ``times`` are given: the legal one with the least time that keeps to the budget of SMs; among
    those within :data:`AS_GOOD` of it, the one that the calibration lists first. None if none of
    them is legal."""
    legal = ((float(times[i]), config) for i in np.argsort(times, kind="stable")
             if violation(problem, config := configs.config(index[i]), device) is None
             and keeps_to_the_budget(problem, config, device))  # few are asked
    first = next(legal, None)
    if first is None:
        return None
    as_good = itertools.takewhile(lambda x: x[0] <= AS_GOOD * first[0], legal)
    return min((first, *as_good), key=lambda x: model.place(x[1]))
