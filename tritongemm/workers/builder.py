"""The object that a compile process serves (see ``child.py``): it compiles configs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tritongemm.config import KernelConfig
from tritongemm.device import INTERPRETER, DeviceSpec
from tritongemm.kernels import compile as compiling
from tritongemm.problem import GemmProblem
from tritongemm.workers.messages import Outcome

#: Niceness: lower priority than the process that feeds the GPU, so that compiling does not delay
#: measuring.
_NICENESS = 5


class Builder:
    """Compiles configs for one device into the store of binaries; touches no GPU."""

    def __init__(self, device: DeviceSpec) -> None:
        self._device = device

    def info(self) -> dict[str, object]:
        """Lowers this process's priority; has no information to report."""
        os.nice(_NICENESS)
        return {}

    def one(self, problem: GemmProblem, config: KernelConfig) -> Outcome:
        """Compiles one config. Raises CompileError, ConstraintError."""
        return Outcome("ok", values=build_values(
            compiling.build(problem, config, self._device)))

    @staticmethod
    def key(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str:
        """Configs of equal keys share their binaries, whatever their problems. Triton's interpreter
        needs none, so all configs that are legal there have one key."""
        launches = compiling.launches_of(problem, config, device)
        if device.slug == INTERPRETER:
            return INTERPRETER
        return " ".join(compiling.place_key(launch, device.arch) for launch in launches)

    @staticmethod
    def stored(key: str) -> bool:
        """Whether nothing is to be compiled for ``key``: its binaries are shipped, or in the store,
        undamaged, or it is the interpreter's."""
        return key == INTERPRETER or all(map(compiling.holds, key.split()))


def build_values(report: compiling.BuildReport) -> Mapping[str, object]:
    """A build report as values of a journal; unknown ones are left out."""
    values = {"registers": report.registers, "spills": report.spills,
              "shared_bytes": report.shared_bytes}
    if not report.cached:
        values["compile_s"] = round(report.seconds, 3)
    return {name: value for name, value in values.items() if value is not None}
