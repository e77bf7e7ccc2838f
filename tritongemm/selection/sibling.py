"""The sibling of a device: another device of its architecture, whose measurements are used where
the device has none. Such chips run a kernel in the same number of clock cycles; they differ in the
number of SMs and in memory bandwidth.

A config that is fast on one is fast on the other, with few exceptions. Comparisons with torch do
not transfer: torch is 3 % faster for four problems on an H200 and for none of them on an H100.
perf/results/nvidia-h100-80gb-hbm3/ shows an H100 with the measurements of an H200.
"""

from __future__ import annotations

from dataclasses import replace

from tritongemm.device import INTERPRETER, DeviceSpec, known_devices
from tritongemm.records.calibration import Section, read_shipped

#: Constants of the calibration's ``memory`` that scale with the device's memory bandwidth. The L2
#: rate is one of them because it includes misses. For 330 problems on an H100, configs chosen with
#: an H200's calibration reach 0.979 of the best config's speed with all three scaled, 0.966 without
#: the L2 rate, 0.963 with none.
_OF_THE_MEMORY = ("dram_gbps", "l2_gbps", "pad_gbps")


def sibling_of(device: DeviceSpec, unit: str | None = None) -> DeviceSpec | None:
    """Another shipped device of ``device``'s architecture that has a calibration (for ``unit``, if
    given); of several, the one with the closest number of SMs. None if there is none, and for the
    interpreter."""
    if device.slug == INTERPRETER:
        return None
    found = [other for other in known_devices().values()
             if other.arch == device.arch and other.slug != device.slug
             and calibrated(other.slug, unit)]
    return min(found, key=lambda other: abs(other.num_sms - _all_sms(device)), default=None)


def with_rows_for(device: DeviceSpec, unit: str | None = None) -> DeviceSpec | None:
    """The sibling if it has the same number of SMs: wave quantization is then the same, so its
    tuned rows apply here. None otherwise, and if the device has a calibration of its own (for
    ``unit``, if given), which is more accurate."""
    sibling = None if calibrated(device.slug, unit) else (
        sibling_of(device, unit) or sibling_of(device))
    return sibling if sibling is not None and sibling.num_sms == _all_sms(device) else None


def calibrated(slug: str, unit: str | None) -> bool:
    """Whether the device with that slug has a calibration of its own, with a section for
    ``unit``."""
    calibration = read_shipped(slug)
    return calibration is not None and (unit is None or calibration.section(unit) is not None)


def _all_sms(device: DeviceSpec) -> int:
    """The number of SMs of the device, including those that a budget reserves for other work."""
    return device.num_sms + device.spare_sms


def as_fast_as(sibling: DeviceSpec, device: DeviceSpec) -> DeviceSpec:
    """``device``, with missing peaks filled in from the sibling (compute peaks per SM, memory
    bandwidth): the constants of the sibling's calibration are shares of these peaks."""
    peaks = {unit: peak * device.num_sms / sibling.num_sms
             for unit, peak in sibling.peak_tflops.items()}
    return replace(device, peak_tflops={**peaks, **device.peak_tflops},
                   memory_gbps=device.memory_gbps or sibling.memory_gbps)


def as_on(section: Section, sibling: DeviceSpec, device: DeviceSpec) -> Section:
    """``section`` of the sibling's calibration with its memory constants scaled to the datasheet
    bandwidth of ``device``. Unchanged if either bandwidth is unknown."""
    if not sibling.memory_gbps or not device.memory_gbps:
        return section
    ratio = device.memory_gbps / sibling.memory_gbps
    memory = {name: value * ratio if name in _OF_THE_MEMORY else value
              for name, value in section.constants.get("memory", {}).items()}
    return replace(section, constants={**section.constants, "memory": memory})
