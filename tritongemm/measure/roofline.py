"""The least time a problem can take on a device: peak of the unit, or bytes over bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem


@dataclass(frozen=True)
class RoofTime:
    """``time_us``, and what sets it: ``compute`` or ``memory``."""

    time_us: float
    bound: str


def roof_time_us(problem: GemmProblem, device: DeviceSpec) -> RoofTime | None:
    """max(flops / peak of the problem's unit, compulsory bytes / memory bandwidth).

    The peaks and where they come from are the device's (configs/devices). None where the device
    has no peak for this unit or no bandwidth.
    """
    peak = device.peak_tflops.get(problem.unit)
    if not peak or not device.memory_gbps:
        return None
    compute = problem.flops() / (peak * 1e6)  # 1 TFLOP/s is 1e6 FLOP/us
    memory = problem.bytes() / (device.memory_gbps * 1e3)  # 1 GB/s is 1e3 bytes/us
    return RoofTime(compute, "compute") if compute >= memory else RoofTime(memory, "memory")
