"""Which timer times whom, and when blocks alternate: with a bench and timers that only pretend."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch")

from tritongemm.errors import DeviceError
from tritongemm.measure.clocks import Reading, Sampler
from tritongemm.measure.comparison import Comparing
from tritongemm.measure.contender import TORCH, Contender, Measurement
from tritongemm.measure.graph import CaptureError
from tritongemm.measure.numerics import ErrorReport
from tritongemm.measure.power import PowerBlocks
from tritongemm.measure.rounds import Rounds
from tritongemm.records.control import CONTROL

TIMES = {TORCH: 2000.0, CONTROL: 2000.0, "fast": 1000.0, "eager": 4000.0, "secret": 500.0}


@dataclass
class Loaded:
    name: str
    kind: str
    calls: int = 2

    @property
    def estimate_us(self):
        return TIMES[self.name]


@dataclass
class FakeTimer:
    kind: str
    log: list = field(default_factory=list)

    def load(self, name, calls, *, context=None, expected_us=None):
        if self.kind == "graph" and name == "secret":
            raise CaptureError("it waits for the device")
        self.log.append(name)
        return Loaded(name, self.kind)

    def run(self, order, while_busy=None):
        if while_busy:
            while_busy()
        assert all(item.kind == self.kind for item in order)
        # Events add their own cost to everyone.
        return [item.estimate_us + (100.0 if self.kind == "event" else 0.0) for item in order]

    def block(self, item, replays, while_busy=None):
        if while_busy:
            while_busy()
        return item.estimate_us * 1.1  # throttled

    def clear(self):
        self.log.append("cleared")


class FakeSampler(Sampler):
    def __init__(self, power_w, throttled=""):
        super().__init__()
        self.reading, self.settled = Reading(1500.0, power_w, None, throttled), 0

    def read(self):
        return self.reading

    def power_cap_w(self):
        return 700.0

    def settle(self, sleep=None):
        self.settled += 1


class FakeBench:
    default_timer, seed, torch_time_us = "graph", 0, 2000.0

    def __init__(self, sampler=None):
        self.timers = {kind: FakeTimer(kind) for kind in ("graph", "event")}
        self.sampler = sampler or FakeSampler(300.0)
        self.closings = []

    def torch_contender(self, name=TORCH):
        return Contender(name, lambda operands: None)

    def timer(self, kind):
        return self.timers[kind]

    def bind(self, contender, sets=None):
        return [contender.bind(None)]

    def run_proof(self, contender, sets=None):
        return ErrorReport(0.5, 0.5, True)

    run_proof_changed = run_proof

    def check_closing(self, entry, timer):
        self.closings.append((entry.name, timer.kind))

    def failure(self, contender, error):
        if "broken" in str(error):
            raise DeviceError("lost")
        return Measurement.failed(error)

    def clear(self):
        for timer in self.timers.values():
            timer.clear()

    def common_fields(self):
        return {"l2_state": "cold", "torch_backend": "cublas"}


def compared(bench, *contenders, power="never", **changes):
    return Comparing(bench, contenders, **{
        "baseline": TORCH, "rounds": Rounds(), "control": True, "power": power,
        "blocks": PowerBlocks(block_s=1e-3, warm_s=1e-3), **changes}).run()


def plain(name, **changes):
    return Contender(name, lambda operands: None, **changes)


def test_what_can_be_captured_is_timed_by_graphs_with_torch_beside_it():
    bench = FakeBench()
    found = compared(bench, plain("fast"))
    assert {one.timer for one in found.values()} == {"graph"}
    assert found["fast"].ratio_vs_torch == 2.0 and found[CONTROL].ratio_vs_torch == 1.0
    assert found["fast"].sm_clock_mhz == 1500.0 and found["fast"].l2_state == "cold"
    assert sorted(bench.closings) == [("fast", "graph"), (TORCH, "graph"), (CONTROL, "graph")]
    assert bench.timers["graph"].log == [TORCH, CONTROL, "fast", "cleared"]


@pytest.mark.parametrize("other", [plain("eager", capturable=False), plain("secret")],
                         ids=["declared", "found out"])
def test_what_cannot_is_timed_by_events_and_torch_beside_it_in_the_same_way(other):
    bench = FakeBench()
    found = compared(bench, plain("fast"), other)
    mine = found[other.name]
    assert mine.timer == "event"
    assert mine.ratio_vs_torch == 2100.0 / (TIMES[other.name] + 100.0)
    assert found[TORCH].timer == found["fast"].timer == "graph"
    assert found[TORCH].time_us_p50 == 2000.0 and list(found) == [TORCH, CONTROL, "fast",
                                                                  other.name]
    # Graphs were let go of before the events began.
    assert bench.timers["event"].log[:2] == ["cleared", TORCH]


def test_near_the_power_cap_large_problems_run_in_blocks():
    found = compared(FakeBench(FakeSampler(690.0)), plain("fast"), power="auto")
    assert found["fast"].timer == found[TORCH].timer == "blocks"
    assert found["fast"].time_us_p50 == pytest.approx(1100.0) and found["fast"].n_rounds == 4
    assert found["fast"].ratio_vs_torch == pytest.approx(2.0)
    assert found[CONTROL].timer == "graph"


@pytest.mark.parametrize(("sampler", "power", "from_us", "expected"), [
    (FakeSampler(300.0, "sw_power_cap"), "auto", 1000.0, "blocks"),
    (FakeSampler(300.0), "auto", 1000.0, "graph"),
    (FakeSampler(None), "auto", 1000.0, "graph"),
    (FakeSampler(690.0), "auto", 9000.0, "graph"),
    (FakeSampler(690.0), "never", 1000.0, "graph"),
    (FakeSampler(300.0), "always", 9000.0, "blocks"),
], ids=["throttled", "cool", "unknown", "short", "never", "always"])
def test_blocks_only_where_they_are_asked_for_or_needed(sampler, power, from_us, expected):
    found = compared(FakeBench(sampler), plain("fast"), power=power,
                     blocks=PowerBlocks(block_s=1e-3, warm_s=1e-3, from_us=from_us))
    assert found["fast"].timer == expected


@pytest.mark.parametrize(("from_us", "settled"), [(1000.0, 0), (9000.0, 1)], ids=["long", "short"])
def test_rounds_of_short_calls_begin_at_a_clock_that_nothing_before_has_lowered(from_us, settled):
    bench = FakeBench(FakeSampler(300.0, "sw_power_cap"))
    compared(bench, plain("fast"), blocks=PowerBlocks(block_s=1e-3, warm_s=1e-3, from_us=from_us))
    assert bench.sampler.settled == settled


def test_a_lost_device_ends_the_comparison():
    def bind(operands):
        raise RuntimeError("broken")

    with pytest.raises(DeviceError, match="lost"):
        compared(FakeBench(), plain("fast"), Contender("bad", bind))
