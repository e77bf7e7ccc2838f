"""The least time a problem can take on a device: peak of the unit, or bytes over bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem
from tritongemm.records import columns


@dataclass(frozen=True)
class RoofTime:
    """``time_us``, and what sets it: ``compute`` or ``memory``."""

    time_us: float
    bound: str


def roof_time_us(problem: GemmProblem, device: DeviceSpec) -> RoofTime | None:
    """The roofline's time and bound, from the peaks in configs/devices, which name their sources.

    None where the device has no peak for the unit that multiplies, or no bandwidth.
    """
    peak = problem.peak_tflops(device.peak_tflops)
    time_us = columns.roof_time_us(problem, peak, device.memory_gbps)
    if time_us is None:
        return None
    compute_us = problem.flops() / (peak * 1e6)  # type: ignore[operator]
    return RoofTime(time_us, "compute" if compute_us >= time_us else "memory")
