"""Alternating blocks: A B B A, the ratio of blocks, energy from the counter."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tritongemm.measure.clocks import Reading, Sampler
from tritongemm.measure.power import PowerBlocks


@dataclass
class Timed:
    name: str
    estimate_us: float
    calls: int = 2


class Timer:
    """Each block runs 1 % slower than the one before: a card that warms up."""

    def __init__(self):
        self.log = []

    def block(self, item, replays, while_busy=None):
        if while_busy is not None:
            while_busy()
        self.log.append((item.name, replays))
        return item.estimate_us * 1.01 ** len(self.log)


class Counter(Sampler):
    """An energy counter that rises by 100 mJ a reading."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def energy_mj(self):
        self.now += 100.0
        return self.now

    def read(self):
        return Reading(1500.0, 690.0, None, "sw_power_cap")


def blocks(**changes):
    return PowerBlocks(block_s=0.02, warm_s=0.01, **changes)


def test_blocks_alternate_and_each_lasts_as_long_as_asked():
    timer = Timer()
    blocks().compare([Timed("a", 2000.0), Timed("b", 1000.0)], timer, Counter())
    assert [name for name, _ in timer.log] == ["a", *"abbaabba"]
    assert dict(timer.log[1:]) == {"a": 5, "b": 10}


def test_the_ratio_is_of_neighbouring_blocks_and_drift_cancels():
    a, b = blocks().compare([Timed("a", 2000.0), Timed("b", 1000.0)], Timer(), Counter())
    assert b.pairs == 4
    assert b.ratio.low < b.ratio.value < b.ratio.high
    assert b.ratio.value == pytest.approx(2.0, rel=1e-3)
    assert a.ratio.value == a.ratio.low == a.ratio.high == 1.0


def test_forward_and_reverse_order_cancels_drift():
    timer = Timer()
    found = blocks(cycles=1).compare(
        [Timed("a", 2000.0), Timed("b", 1000.0), Timed("c", 500.0)], timer, Counter())
    assert [name for name, _ in timer.log] == ["a", *"abccba"]
    assert [one.ratio.value for one in found] == [pytest.approx(x, rel=1e-3) for x in (1, 2, 4)]


def test_energy_is_of_one_call_and_the_card_is_read_inside_a_block():
    a, b = blocks().compare([Timed("a", 2000.0), Timed("b", 1000.0)], Timer(), Counter())
    assert a.energy_mj == pytest.approx(100 / (2 * 5))
    assert b.energy_mj == pytest.approx(100 / (2 * 10))
    assert a.reading.throttled == "sw_power_cap"


def test_without_a_counter_there_is_no_energy():
    a, b = blocks(cycles=1).compare([Timed("a", 2000.0), Timed("b", 1000.0)], Timer(), Sampler())
    assert a.energy_mj is None and b.pairs == 2
