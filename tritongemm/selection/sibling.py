"""The sibling of a device: another one of its architecture, whose measurements serve where the
device has none. Such chips run a kernel in the same number of clocks, and differ in the number of
SMs and in memory bandwidth.

A config that is fast on the one is fast on the other, with few exceptions. Whether torch is faster
does not carry over: of four problems that torch wins by 3 % on an H200 it wins none on an H100.
perf/results/nvidia-h100-80gb-hbm3/ shows an H100 with the measurements of an H200.
"""

from __future__ import annotations

from dataclasses import replace

from tritongemm.device import INTERPRETER, DeviceSpec, known_devices
from tritongemm.records.calibration import Section, read_shipped

#: Constants of the calibration's ``memory`` that scale with the device's memory bandwidth. The L2's
#: does too, since it includes the misses. With all three scaled, the choices of an H200's
#: calibration for 330 problems of an H100 reach 0.979 of the best config's speed, without the L2's
#: 0.966, with none 0.963.
_OF_THE_MEMORY = ("dram_gbps", "l2_gbps", "pad_gbps")


def sibling_of(device: DeviceSpec, unit: str | None = None) -> DeviceSpec | None:
    """Another shipped device of ``device``'s architecture that has a calibration, of ``unit`` where
    that is given; of several, the one with the nearest number of SMs. None where there is none, and
    for the interpreter."""
    if device.slug == INTERPRETER:
        return None
    found = [other for other in known_devices().values()
             if other.arch == device.arch and other.slug != device.slug
             and calibrated(other.slug, unit)]
    return min(found, key=lambda other: abs(other.num_sms - _all_sms(device)), default=None)


def with_rows_for(device: DeviceSpec, unit: str | None = None) -> DeviceSpec | None:
    """The sibling if it has the same number of SMs, so that tiles fill its waves in the same way
    and its tuned rows hold here. None otherwise, and where the device has a calibration of its own
    (of ``unit`` where that is given), which is more exact."""
    sibling = None if calibrated(device.slug, unit) else (
        sibling_of(device, unit) or sibling_of(device))
    return sibling if sibling is not None and sibling.num_sms == _all_sms(device) else None


def calibrated(slug: str, unit: str | None) -> bool:
    """Whether the device with that slug has a calibration of its own, of ``unit``."""
    calibration = read_shipped(slug)
    return calibration is not None and (unit is None or calibration.section(unit) is not None)


def _all_sms(device: DeviceSpec) -> int:
    """SMs of the device, with those that a budget leaves to other work."""
    return device.num_sms + device.spare_sms


def as_fast_as(sibling: DeviceSpec, device: DeviceSpec) -> DeviceSpec:
    """``device`` with the sibling's peaks for each SM, and its memory bandwidth, where it has none
    on record: the constants of the sibling's calibration are shares of them."""
    peaks = {unit: peak * device.num_sms / sibling.num_sms
             for unit, peak in sibling.peak_tflops.items()}
    return replace(device, peak_tflops={**peaks, **device.peak_tflops},
                   memory_gbps=device.memory_gbps or sibling.memory_gbps)


def as_on(section: Section, sibling: DeviceSpec, device: DeviceSpec) -> Section:
    """``section`` of the sibling's calibration with the memory constants of ``device``: the same
    shares of its datasheet bandwidth. Unchanged where the bandwidth of either is not on record."""
    if not sibling.memory_gbps or not device.memory_gbps:
        return section
    ratio = device.memory_gbps / sibling.memory_gbps
    memory = {name: value * ratio if name in _OF_THE_MEMORY else value
              for name, value in section.constants.get("memory", {}).items()}
    return replace(section, constants={**section.constants, "memory": memory})
