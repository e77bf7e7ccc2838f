"""The device whose measurements stand in for those that a device lacks: its sibling, of the same
architecture. Such chips run a kernel alike, clock by clock, and differ in how many SMs they have
and in what the memory delivers.

Which config is fast there is fast here, with few exceptions; whether torch is faster still is not:
of the four problems that torch wins by 3 % on an H200, of those measured on an H100, it wins none
there. How an H100 does with what an H200 measured: perf/results/nvidia-h100-80gb-hbm3/.
"""

from __future__ import annotations

from dataclasses import replace

from tritongemm.device import INTERPRETER, DeviceSpec, known_devices
from tritongemm.records.calibration import Section, find_calibration

#: Constants of the calibration's ``memory`` that go with what the device's memory delivers. The L2
#: is one, as it holds its misses: with all three choices for 330 problems of an H100 by an H200's
#: calibration are 0.979 of the best config's speed, without the L2 0.966, with none 0.963.
_OF_THE_MEMORY = ("dram_gbps", "l2_gbps", "pad_gbps")


def sibling_of(device: DeviceSpec) -> DeviceSpec | None:
    """The shipped device of ``device``'s architecture, other than itself, that has a calibration;
    of several the one with the nearest number of SMs. None where there is none, and for the
    interpreter, whose time is its own."""
    if device.slug == INTERPRETER:
        return None
    found = [other for other in known_devices().values()
             if other.arch == device.arch and other.slug != device.slug
             and find_calibration(other.slug) is not None]
    return min(found, key=lambda other: abs(other.num_sms - _all_sms(device)), default=None)


def with_rows_for(device: DeviceSpec) -> DeviceSpec | None:
    """The sibling, where it has as many SMs: tiles fill its waves as they fill ``device``'s, so
    that its tuned rows say what is fast here. Else None, and where the device has a calibration of
    its own, which knows better."""
    sibling = None if find_calibration(device.slug) is not None else sibling_of(device)
    return sibling if sibling is not None and sibling.num_sms == _all_sms(device) else None


def _all_sms(device: DeviceSpec) -> int:
    """SMs of the device, those left to others too."""
    return device.num_sms + device.spare_sms


def as_fast_as(sibling: DeviceSpec, device: DeviceSpec) -> DeviceSpec:
    """``device`` with the sibling's peaks an SM where it has none on record, as the constants of
    the sibling's calibration are shares of them; the memory's too."""
    peaks = {unit: peak * device.num_sms / sibling.num_sms
             for unit, peak in sibling.peak_tflops.items()}
    return replace(device, peak_tflops={**peaks, **device.peak_tflops},
                   memory_gbps=device.memory_gbps or sibling.memory_gbps)


def as_on(section: Section, sibling: DeviceSpec, device: DeviceSpec) -> Section:
    """``section`` of the sibling's calibration with the memory of ``device``: the same share of its
    datasheet's bandwidth. As it is where that of either is not on record."""
    if not sibling.memory_gbps or not device.memory_gbps:
        return section
    ratio = device.memory_gbps / sibling.memory_gbps
    memory = {name: value * ratio if name in _OF_THE_MEMORY else value
              for name, value in section.constants.get("memory", {}).items()}
    return replace(section, constants={**section.constants, "memory": memory})
