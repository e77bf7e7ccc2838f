"""How often a kind of product is seen before it is judged."""

from __future__ import annotations

import math
import random

import pytest

from tritongemm.device import device_named
from tritongemm.ops.sights import _MOST, PATIENCE, Patience, Selections, Sights
from tritongemm.problem import GemmProblem
from tritongemm.selection.hosttime import (
    EARLY_SIGHTS,
    FIRST_SELECTIONS,
    FLOAT32_SELECTION_US,
    GRAPH,
    LARGE_BYTES,
    LARGE_PRODUCTS,
    NATIVE,
    PYTHON,
    SELECTION_US,
    HostPath,
    calls_first,
    sights,
)

SMALL = 1.0, 1.0


def first_due(counted: Sights, kind: object) -> int:
    """The sight at which ``kind`` is judged."""
    return next(i for i in range(1, 10**6) if counted.due(kind, *SMALL))


@pytest.mark.parametrize("path", PATIENCE, ids=lambda path: path.name)
def test_waiting_gives_away_no_more_than_judging_costs(path):
    count, gain_us = sights(path), path.torch_us - path.hit_us
    assert count * gain_us >= SELECTION_US > (count - 1) * gain_us
    assert gain_us > 0 and GRAPH not in PATIENCE


def test_the_larger_the_gain_the_sooner():
    counts = [sights(HostPath("", hit_us, 0.0, 12.0)) for hit_us in (11.9, 11.0, 8.0, 4.0, 1.0)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1] >= 1


@pytest.mark.parametrize("patience", [PATIENCE[NATIVE], PATIENCE[PYTHON]], ids=["native", "Python"])
def test_a_program_of_few_kinds_is_judged_within_its_warm_up(patience):
    counted = Sights(patience)
    for kind in range(patience.early_shapes):
        assert first_due(counted, kind) == EARLY_SIGHTS
    assert all(counted.due(kind, *SMALL) for kind in range(patience.early_shapes))
    assert first_due(counted, "one more") == patience.sights


def test_kinds_that_do_not_return_are_never_judged():
    counted = Sights(PATIENCE[NATIVE])
    assert not any(counted.due(kind, *SMALL) for kind in range(5000) for _ in range(2))
    assert counted._judged_early == 0


def test_memory_is_bounded():
    counted = Sights(PATIENCE[NATIVE])
    for kind in range(_MOST + 10):
        counted.due(kind, *SMALL)
    assert 0 < len(counted) <= _MOST


def test_kinds_that_were_judged_are_kept_when_others_make_room():
    counted = Sights(PATIENCE[NATIVE])
    assert first_due(counted, "judged") == EARLY_SIGHTS
    for kind in range(_MOST + 10):
        counted.due(kind, *SMALL)
    assert counted.due("judged", *SMALL)


def test_a_small_float32_product_waits_until_its_gpu_time_has_paid():
    """Torch's takes 15 times the time at the bf16 peak, and half of it is saved."""
    patience = PATIENCE[NATIVE]._replace(early_shapes=0)
    for share in (0.9, 0.3, 1e-4):
        products = share * LARGE_PRODUCTS
        paid = math.ceil(FLOAT32_SELECTION_US / (15 / 2 * 12 * share))
        counted = Sights(patience)
        times = next(i for i in range(1, 10**4) if counted.due("x", products, 1.0, True))
        assert times == min(paid, patience.sights)
        assert counted.due("x", products, 1.0, True)
        other = Sights(patience)
        assert not any(other.due("x", products, 1.0) for _ in range(times)) or share == 1e-4


def test_a_large_product_does_not_wait():
    patience = Patience(1000, products=1e6, bytes=1e5)
    for products, size, due in ((999_999, 99_999, False), (1e6, 1, True), (1, 1e5, True)):
        assert Sights(patience).due("x", products, size) is due


def test_the_order_of_kinds_does_not_matter_and_no_kind_waits_again():
    patience = Patience(9, early_sights=4, early_shapes=0)
    calls = [kind for kind in range(6) for _ in range(15)]
    random.Random(3).shuffle(calls)
    counted, seen = Sights(patience), dict.fromkeys(range(6), 0)
    for kind in calls:
        seen[kind] += 1
        assert counted.due(kind, *SMALL) is (seen[kind] >= 9)


H200 = device_named("nvidia-h200")


TUNED = GemmProblem.contiguous(4096, 28672, 4096, layout="nt")


def large(m: int, dtype: str = "bf16", k: int = 4096) -> GemmProblem:
    """A layer of a prompt of so many tokens."""
    return GemmProblem.contiguous(m, 14344, k, dtype=dtype, layout="nt")


def shown(problems) -> tuple[Selections, list[int]]:
    selections = Selections()
    return selections, [selections.wait(problem, problem, H200) for problem in problems]


def test_large_products_of_ever_new_sizes_are_torchs_after_the_first_ones():
    _, waits = shown(large(301 + i) for i in range(2 * FIRST_SELECTIONS))
    assert waits[:FIRST_SELECTIONS] == [0] * FIRST_SELECTIONS
    assert all(1000 < calls < 20_000 for calls in waits[FIRST_SELECTIONS:])


def test_one_that_returned_is_judged_when_it_is_asked_for_again():
    selections, _ = shown(large(301 + i) for i in range(FIRST_SELECTIONS))
    assert selections.wait("place", large(3000), H200) > 0
    assert selections.wait("another", large(3000), H200) > 0
    assert selections.wait("place", large(3000), H200) == 0


def test_tuned_and_small_products_never_wait():
    _, waits = shown([*(large(301 + i) for i in range(FIRST_SELECTIONS + 1)),
                               TUNED, large(1, k=64)])
    assert waits[-3] > 0 and waits[-2:] == [0, 0]
    tuned = Selections()  # they are not counted either
    assert not any(tuned.wait("x", TUNED, H200) for _ in range(2 * FIRST_SELECTIONS))
    assert tuned.wait("x", large(301), H200) == 0


def test_waiting_for_a_large_product_gives_away_no_more_than_judging_costs():
    us = 100.0  # at the bf16 peak
    calls = [calls_first(precision, us / 12 * LARGE_PRODUCTS, 0.0)
             for precision in ("ieee", "tf32", "fp16x3")]
    assert calls == [math.ceil(cost_us / (us * saved)) for cost_us, saved in (
        (SELECTION_US, 0.03), (FLOAT32_SELECTION_US, 0.3), (FLOAT32_SELECTION_US, 15 * 0.63))]
    assert calls_first("ieee", 0.0, us / 12 * LARGE_BYTES) == calls[0]


def test_memory_of_waiting_products_is_bounded(monkeypatch):
    monkeypatch.setattr("tritongemm.ops.sights._MOST", 5)
    monkeypatch.setattr("tritongemm.ops.sights.FIRST_SELECTIONS", 0)
    selections, waits = shown(large(301 + i) for i in range(40))
    assert all(waits) and len(selections._waiting) <= 5
    counted = Sights(PATIENCE[NATIVE])
    for kind in range(40):
        counted.wait(kind, 3)
    assert len(counted._left) <= 5


def test_a_kind_waits_for_as_many_calls_as_it_is_made_to():
    counted = Sights(PATIENCE[NATIVE])
    counted.wait("x", 3)  # at its first call
    assert [counted.waits("x") for _ in range(4)] == [True, True, False, False]
    counted.wait("y", 1)
    assert not counted.waits("y") and not counted.waits("z")
