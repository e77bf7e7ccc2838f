"""The object that a device worker serves (see ``workers/child.py``): it measures configs.

Each problem has one :class:`~tritongemm.measure.problem_bench.ProblemBench`: operands, references
and torch's own error are computed once and used for all configs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from tritongemm import device as devices
from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import DeviceError
from tritongemm.measure import environment
from tritongemm.measure.protocol import (
    Contender,
    Measurement,
    OperandSet,
    PowerBlocks,
    ProblemBench,
    Rounds,
)
from tritongemm.ops.plan import bind_config
from tritongemm.problem import GemmProblem
from tritongemm.workers.builder import build_values
from tritongemm.workers.messages import COARSE, FINAL, Outcome, failure, one_line

#: Journal fields of a measurement, besides its status and reason.
_VALUES = ("time_us_p20", "time_us_p80", "ratio_vs_torch", "ratio_low", "ratio_high", "n_rounds",
           "timer", "l2_state", "torch_backend", "max_err_ratio", "rms_err_ratio", "sm_clock_mhz",
           "power_w", "throttled", "energy_mj")
#: Shorter than in a bench: nine finalists and torch then take eight seconds.
_BLOCKS = PowerBlocks(block_s=0.2, warm_s=0.4)


class BoundCall(Protocol):
    """A config bound to a problem. A call launches on the current stream; ``report`` describes its
    build (``seconds, cached, registers, spills, shared_bytes``)."""

    report: Any

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
                 *of_epilogue: Any, **others: torch.Tensor) -> None: ...


class Measurer:
    """Measures configs on CUDA device ``index`` (None: on the CPU, by Triton's interpreter).

    Args:
        seed: seed of the operands and of the order of measurements.
        final_s: device time for the rounds of a problem's finalists.
    """

    def __init__(self, index: int | None, seed: int = 0, final_s: float = 1.0) -> None:
        self._index, self._seed, self._final_s = index, seed, final_s
        self._bench: ProblemBench | None = None
        if index is None:
            if not settings.current().interpret:
                raise DeviceError("sweeping needs a CUDA device, or TRITON_INTERPRET=1")
            self._device = devices.interpreter_device()
        else:
            self._device = devices.cuda_device(index)
            torch.cuda.set_device(index)
            torch.zeros(1, device="cuda")  # creates the CUDA context outside of any timed step

    def make(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> BoundCall:
        """The config as a callable (a, b, out, and the epilogue's operands) with a build report.
        Subclasses for other kinds of kernels override it."""
        return bind_config(problem, config, device)

    def info(self) -> dict[str, object]:
        """The device's spec, the environment, and the number of devices."""
        record = environment.capture(self._index)
        return {"device": self._device, "environment": record,
                "fingerprint": environment.fingerprint(record),
                "device_count": torch.cuda.device_count() if self._index is not None else 1}

    def open(self, problem: GemmProblem) -> dict[str, object]:
        """Generates the problem's operands. Raises what :class:`ProblemBench` raises."""
        if self._bench is not None:
            self._bench.close()
            self._bench = None
        where = "cpu" if self._index is None else torch.device("cuda", self._index)
        try:
            self._bench = ProblemBench(problem, where, self._seed)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise
        return {"torch_us": self._bench.torch_time_us}

    def one(self, problem: GemmProblem, config: KernelConfig) -> Outcome:
        """Checks and times one config in the coarse stage. Raises :class:`DeviceError` for a sticky
        CUDA error."""
        bound, outcome = self._bind(problem, config, COARSE)
        if bound is None:
            return outcome
        assert self._bench is not None
        return _outcome(self._bench.coarse(_contender(config, bound)), bound)

    def together(self, problem: GemmProblem, configs: Sequence[KernelConfig]) -> list[Outcome]:
        """Times the finalists and torch in the same rounds, and again in blocks if they are
        power-limited: in rounds all of them would run at the same clock. Raises
        :class:`DeviceError`."""
        assert self._bench is not None
        outcomes: dict[KernelConfig, Outcome] = {}
        bound: dict[KernelConfig, BoundCall] = {}
        for config in configs:
            one, outcomes[config] = self._bind(problem, config, FINAL)
            if one is not None:
                bound[config] = one
        found = self._bench.compare(
            [_contender(config, one) for config, one in bound.items()], control=False,
            blocks=_BLOCKS, rounds=replace(Rounds(), budget_s=self._final_s))
        for config, one in bound.items():
            outcomes[config] = _outcome(found[config.config_id], one)
        return [outcomes[config] for config in configs]

    def _bind(self, problem: GemmProblem, config: KernelConfig, stage: str
              ) -> tuple[BoundCall | None, Outcome]:
        try:
            return self.make(problem, config, self._device), Outcome("ok")
        except DeviceError:
            raise
        except Exception as error:  # recorded as the config's outcome, unless the device is lost
            if self._index is not None:
                try:
                    torch.cuda.synchronize(self._index)
                except RuntimeError as lost:
                    raise DeviceError(f"binding {config} broke the device: {error}") from lost
            return None, failure(error, stage)


def _contender(config: KernelConfig, bound: BoundCall) -> Contender:
    def bind(operands: OperandSet) -> Callable[[], None]:
        arguments, others = operands.arguments, operands.others
        return lambda: bound(*arguments, **others)
    return Contender(config.config_id, bind)


def _outcome(found: Measurement, bound: BoundCall) -> Outcome:
    values: dict[str, object] = {name: value for name in _VALUES
                                 if (value := getattr(found, name)) not in (None, "")}
    values.update(build_values(bound.report))
    if found.ok:
        values["time_us"] = found.time_us_p50
    return Outcome(found.status, one_line(found.error), values)
