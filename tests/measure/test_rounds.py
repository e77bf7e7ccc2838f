"""Rounds: pairing takes out the card's drift, order is seeded, the number of rounds is bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritongemm.errors import UsageError
from tritongemm.measure.rounds import (
    Comparison,
    Quantiles,
    Rounds,
    bootstrap_median,
    compare,
    orders,
)


@dataclass
class FakeTimed:
    name: str
    true_us: float
    calls: int = 100
    estimate_us: float = 0.0


class FakeTimer:
    """A card that slows down by a tenth while it measures, with a little noise."""

    kind = "fake"

    def __init__(self, drift=0.0, noise=0.0):
        self.drift, self.noise = drift, noise
        self.log, self.rng, self.runs, self.looks = [], np.random.default_rng(0), 0, 0

    def run(self, order, while_busy=None):
        if while_busy is not None:
            while_busy()
        self.runs += 1
        self.log.extend(item.name for item in order)
        start = len(self.log)
        return [item.true_us * (1 + self.drift * (start + i)) * (1 + self.noise
                                                                 * self.rng.standard_normal())
                for i, item in enumerate(order)]


THREE = [FakeTimed("torch", 10.0), FakeTimed("fast", 8.0), FakeTimed("slow", 20.0)]


def test_ratios_hold_while_the_card_slows_down():
    outcome = compare(THREE, FakeTimer(drift=2e-3, noise=1e-3), baseline="torch")
    for name, expected in (("fast", 1.25), ("slow", 0.5)):
        ratio = outcome.ratio(name)
        assert ratio.low <= ratio.value <= ratio.high
        assert ratio.value == pytest.approx(expected, rel=5e-3)
    assert outcome.ratio("torch").value == 1.0
    assert outcome.time_us("fast").p20 < outcome.time_us("fast").p50 < outcome.time_us("fast").p80


def test_every_contender_is_timed_once_a_round_in_a_seeded_order():
    first, again, other = FakeTimer(), FakeTimer(), FakeTimer()
    for timer, seed in ((first, 1), (again, 1), (other, 2)):
        compare(THREE, timer, baseline="torch", seed=seed)
    assert first.log == again.log != other.log
    rounds = [tuple(first.log[i:i + 3]) for i in range(0, len(first.log), 3)]
    assert all(sorted(r) == ["fast", "slow", "torch"] for r in rounds)
    assert len(set(rounds)) > 1


def test_a_quiet_pilot_needs_the_least_rounds_and_a_noisy_one_more():
    quiet = compare(THREE, FakeTimer(), baseline="torch")
    noisy = compare(THREE, FakeTimer(noise=0.05), baseline="torch")
    assert quiet.n_rounds == Rounds().least and noisy.n_rounds == Rounds().most


def test_the_budget_bounds_the_rounds_of_slow_calls():
    slow = [FakeTimed("torch", 1e5, calls=2), FakeTimed("other", 1e5, calls=2)]  # 0.4 s a round
    outcome = compare(slow, FakeTimer(), baseline="torch", rounds=Rounds(budget_s=4.0))
    assert outcome.n_rounds == 7  # three pilot rounds of 0.4 s leave 2.8 s
    tight = compare(slow, FakeTimer(), baseline="torch", rounds=Rounds(budget_s=0.1))
    assert tight.n_rounds == Rounds().least_in_budget


def test_the_hook_is_called_once_in_the_measured_rounds():
    looks = []
    compare(THREE, FakeTimer(), baseline="torch", while_busy=lambda: looks.append(1))
    assert looks == [1]


@pytest.mark.parametrize(("contenders", "baseline", "message"), [
    pytest.param([FakeTimed("a", 1.0), FakeTimed("a", 1.0)], "a", "share a name", id="twice"),
    pytest.param([FakeTimed("a", 1.0)], "torch", "baseline 'torch'", id="no-baseline"),
])
def test_bad_contenders_are_refused(contenders, baseline, message):
    with pytest.raises(UsageError, match=message):
        compare(contenders, FakeTimer(), baseline=baseline)


def test_an_unknown_name_is_refused():
    outcome = Comparison(("a",), "a", np.ones((3, 1)), 0)
    with pytest.raises(UsageError, match="'b' was not in"):
        outcome.time_us("b")


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=60), st.integers(0, 100))
def test_an_interval_holds_its_median_and_is_repeatable(values, seed):
    ratio = bootstrap_median(np.array(values), seed)
    assert ratio.low <= ratio.value <= ratio.high
    assert min(values) <= ratio.low and ratio.high <= max(values)
    assert ratio == bootstrap_median(np.array(values), seed)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    held = sum(r.low <= 1.0 <= r.high for r in
               (bootstrap_median(rng.normal(1.0, 0.01, 20), i) for i in range(200)))
    assert held >= 180


def test_orders_are_permutations():
    table = orders(4, 10, np.random.default_rng(0))
    assert table.shape == (10, 4) and (np.sort(table, axis=1) == np.arange(4)).all()


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_each_contender_is_as_often_in_each_place_and_behind_each_other_one(count):
    block = count * (1 + count % 2)
    for seed in range(5):
        table = orders(count, 2 * block, np.random.default_rng(seed))
        for start in range(0, 2 * block, count):
            for place in range(count):
                assert (np.sort(table[start:start + count, place]) == np.arange(count)).all()
        for start in (0, block):
            behind = {(a, b): 0 for a in range(count) for b in range(count) if a != b}
            for row in table[start:start + block]:
                for pair in zip(row, row[1:]):
                    behind[pair] += 1
            assert len(set(behind.values())) == 1


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_few_rounds_are_drawn_too(rounds):
    assert orders(3, rounds, np.random.default_rng(0)).shape == (rounds, 3)


def test_quantiles():
    assert Quantiles.of(range(11)) == Quantiles(2.0, 5.0, 8.0)
