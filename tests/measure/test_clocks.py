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


class Throttled(Sampler):
    """Throttled, for these reasons, until as many looks have been taken."""

    def __init__(self, reasons, looks):
        super().__init__()
        self.reasons, self.looks = reasons, looks

    def read(self):
        self.looks -= 1
        return Reading(throttled=self.reasons if self.looks >= 0 else "")


def test_a_card_at_its_power_cap_is_waited_for_until_it_is_not():
    slept = []
    assert Throttled("sw_power_cap|sw_thermal", 3).settle(slept.append) == sum(slept)
    assert len(slept) == 3


def test_a_card_that_stays_at_its_power_cap_is_waited_for_a_second():
    slept = []
    assert Throttled("sw_power_cap", 10**6).settle(slept.append) == 1.0
    assert abs(sum(slept) - 1.0) < 1e-9


def test_heat_is_not_waited_for_nor_a_card_that_says_nothing():
    for sampler in (Throttled("sw_thermal", 10**6), Sampler()):
        assert sampler.settle(lambda seconds: 1 / 0) == 0.0
