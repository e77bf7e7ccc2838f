"""NVML: what it tells is in the right unit, what it does not is None."""

from __future__ import annotations

from types import SimpleNamespace

from tritongemm.measure.clocks import Reading, Sampler


class Error(Exception):
    pass


def refuse(*_):
    raise Error("not supported")


def nvml(**changes):
    field = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=512_000))
    return SimpleNamespace(**{
        "NVMLError": Error, "NVML_SUCCESS": 0, "NVML_CLOCK_SM": 1,
        "nvmlDeviceGetClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetFieldValues": lambda handle, fields: [field],
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 123_456,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x1 | 0x4 | 0x20,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000, **changes})


def test_a_reading_has_its_units():
    sampler = Sampler(nvml(), object())
    assert sampler.read() == Reading(1980.0, 512.0, 123_456.0, "sw_power_cap|sw_thermal")
    assert sampler.power_cap_w() == 700.0 and sampler.available


def test_an_idle_card_is_not_throttled():
    assert Sampler(nvml(nvmlDeviceGetCurrentClocksEventReasons=lambda h: 0x1),
                   object()).read().throttled == ""


def test_what_the_driver_refuses_is_none_and_the_rest_is_there():
    sampler = Sampler(nvml(nvmlDeviceGetFieldValues=refuse,
                           nvmlDeviceGetTotalEnergyConsumption=refuse,
                           nvmlDeviceGetEnforcedPowerLimit=refuse), object())
    assert sampler.read() == Reading(1980.0, None, None, "sw_power_cap|sw_thermal")
    assert sampler.power_cap_w() is None


def test_an_older_binding_names_the_reasons_otherwise():
    old = nvml(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x8)
    del old.nvmlDeviceGetCurrentClocksEventReasons
    assert Sampler(old, object()).read().throttled == "hw_slowdown"


def test_an_averaged_power_is_not_taken_for_a_momentary_one():
    averaged = SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(uiVal=1))
    assert Sampler(nvml(nvmlDeviceGetFieldValues=lambda h, f: [averaged]),
                   object()).read().power_w is None


def test_without_nvml_nothing_is_read():
    assert Sampler().read() == Reading() and not Sampler().available
    assert Sampler().power_cap_w() is None and Sampler().energy_mj() is None
