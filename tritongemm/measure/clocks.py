"""Clock, power, energy and throttle reasons of the GPU, read through NVML if it is installed.

Read only: nothing here changes a setting of the card.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

_POWER_CAP = "sw_power_cap"
#: NVML bit -> name of each throttle reason that is reported. Idle clocks and application clock
#: settings do not count as throttling.
_REASONS = {
    0x0000000000000004: _POWER_CAP,
    0x0000000000000008: "hw_slowdown",
    0x0000000000000020: "sw_thermal",
    0x0000000000000040: "hw_thermal",
    0x0000000000000080: "hw_power_brake",
}
#: An idle H200 returns from its power cap to full clock within 0.5 s, and NVML reports it within 1
#: s (exploratory/settling.txt).
_SETTLED_BY_S, _LOOK_EVERY_S = 1.0, 0.05
#: NVML field: the momentary power draw, not the driver's average over a second.
_FIELD_POWER_INSTANT = 186


@dataclass(frozen=True)
class Reading:
    """One sample of the GPU's state. A field is None where the GPU or its driver does not report
    it.

    ``energy_mj`` counts from the driver's start: only differences mean anything.
    """

    sm_clock_mhz: float | None = None
    power_w: float | None = None
    energy_mj: float | None = None
    throttled: str = ""


class Sampler:
    """Samples one CUDA device. Without NVML every field is None."""

    def __init__(self, nvml=None, handle=None) -> None:
        self._nvml, self._handle = nvml, handle

    @property
    def available(self) -> bool:
        return self._handle is not None

    def read(self) -> Reading:
        """Clock, power, energy and throttle reasons now."""
        if self._handle is None:
            return Reading()
        nvml, handle = self._nvml, self._handle
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons",
                            "nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        return Reading(
            sm_clock_mhz=_number(self._ask("nvmlDeviceGetClockInfo",
                                           extra=(getattr(nvml, "NVML_CLOCK_SM", 1),))),
            power_w=_power_w(nvml, handle),
            energy_mj=self.energy_mj(),
            throttled="|".join(word for bit, word in _REASONS.items() if reasons & bit))

    def energy_mj(self) -> float | None:
        """The energy counter, millijoules since the driver started."""
        return _number(self._ask("nvmlDeviceGetTotalEnergyConsumption"))

    def settle(self, sleep: Callable[[float], None] = time.sleep) -> float:
        """Waits until the idle GPU no longer reports its power cap as a throttle reason, for one
        second at most. Returns the seconds waited.

        Thermal throttling lasts longer and is not waited for."""
        looks = 0
        while (looks * _LOOK_EVERY_S < _SETTLED_BY_S
               and _POWER_CAP in self.read().throttled.split("|")):
            sleep(_LOOK_EVERY_S)
            looks += 1
        return looks * _LOOK_EVERY_S

    def power_cap_w(self) -> float | None:
        """The power limit in force, watts."""
        cap = _number(self._ask("nvmlDeviceGetEnforcedPowerLimit"))
        return None if cap is None else cap * 1e-3

    def _ask(self, *names: str, extra: tuple = ()):
        """The first of NVML's functions ``names`` that exists and answers; None if none does."""
        if self._handle is None:
            return None
        for name in names:
            function = getattr(self._nvml, name, None)
            if function is not None:
                with contextlib.suppress(self._nvml.NVMLError):
                    return function(self._handle, *extra)
        return None


def _number(value) -> float | None:
    return None if value is None else float(value)


def _power_w(nvml, handle) -> float | None:
    """The momentary power draw in watts, or None where the driver has only an average."""
    try:
        field = nvml.nvmlDeviceGetFieldValues(handle, [_FIELD_POWER_INSTANT])[0]
    except (nvml.NVMLError, AttributeError):
        return None
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    return float(field.value.uiVal) * 1e-3


@functools.cache
def _nvml():
    """The initialised NVML module, or None: no binding, no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


@functools.cache
def sampler(index: int) -> Sampler:
    """The sampler of CUDA device ``index`` (torch's numbering); an empty one without NVML."""
    nvml = _nvml()
    if nvml is None:
        return Sampler()
    import torch

    # By UUID: torch's numbering follows CUDA_VISIBLE_DEVICES, NVML's does not.
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    try:
        if uuid is None:
            return Sampler(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
        name = str(uuid) if str(uuid).startswith("GPU-") else f"GPU-{uuid}"
        return Sampler(nvml, nvml.nvmlDeviceGetHandleByUUID(name))
    except nvml.NVMLError:
        return Sampler()


def driver_version() -> str | None:
    """The NVIDIA driver's version, None where there is none."""
    nvml = _nvml()
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError):
            version = nvml.nvmlSystemGetDriverVersion()
            return version.decode() if isinstance(version, bytes) else version
    return None
