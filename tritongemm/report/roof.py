"""The roof of a device's roofline: peak rate and memory bandwidth, if the device is known."""

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
    """min(peak, bandwidth x intensity); empty for a device without recorded peaks.

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
        """Whether peak and bandwidth are known."""
        return self.peak_tflops > 0 and self.memory_gbps > 0

    @property
    def ridge(self) -> float:
        """The intensity at the ridge, FLOP/byte: above it the unit is the limit."""
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


def window(rows: pd.DataFrame, roof: Roof) -> tuple[float, float, float, float]:
    """(low x, high x, low y, high y) of a roofline: FLOP/byte and TFLOP/s.

    The axes hold 98 % of the points in each direction and the top of the roof. Otherwise a few tiny
    problems would extend both axes by decades.
    """
    x, y = rows["intensity"], rows["tflops"]
    low_x, high_x = float(x.quantile(0.01)) / 1.5, float(x.quantile(0.99)) * 1.5
    low_y, high_y = float(y.quantile(0.01)) / 1.5, float(y.max()) * 1.3
    if roof.known:
        high_y = max(high_y, float(roof.tflops(high_x)) * 1.3)
    return low_x, high_x, low_y, high_y
