"""The roof over a device's points: a peak rate and a memory bandwidth, if the device is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritongemm.device import known_devices
from tritongemm.errors import ProblemError
from tritongemm.problem import GemmProblem

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Roof:
    """min(peak, bandwidth x intensity), or nothing where the device has no peaks on record.

    Attributes:
        peak_tflops: dense peak of ``unit``, TFLOP/s; 0: not known.
        memory_gbps: bandwidth of the device memory, GB/s; 0: not known.
        unit: the unit that does the work, e.g. ``bf16``.
    """

    peak_tflops: float = 0.0
    memory_gbps: float = 0.0
    unit: str = ""

    @property
    def known(self) -> bool:
        """Whether there is a roof to draw."""
        return self.peak_tflops > 0 and self.memory_gbps > 0

    @property
    def ridge(self) -> float:
        """The intensity, FLOP/byte, from which the unit is the bound."""
        return self.peak_tflops * 1e3 / self.memory_gbps

    def tflops(self, intensity: Any) -> Any:
        """The roof at ``intensity`` FLOP/byte (a number or an array), TFLOP/s."""
        import numpy as np

        return np.minimum(self.peak_tflops, np.asarray(intensity) * self.memory_gbps / 1e3)


def roof_of(device: str, rows: pd.DataFrame) -> Roof:
    """The roof of ``rows``, all of one dtype, on ``device`` (a slug of configs/devices)."""
    spec = known_devices().get(device)
    if spec is None or spec.memory_gbps is None or rows.empty:
        return Roof()
    first = rows.iloc[0]
    try:
        problem = GemmProblem(1, 1, 1, dtype_a=first["dtype_a"], dtype_b=first["dtype_b"],
                              dtype_out=first["dtype_out"],
                              precision=first["precision"] or "ieee")
    except ProblemError:
        return Roof()
    peak = problem.peak_tflops(spec.peak_tflops)
    return Roof(peak, spec.memory_gbps, problem.unit) if peak else Roof()
