"""How often a kind of small product is seen before it is judged."""

from __future__ import annotations

import random

import pytest

from tritongemm.ops.sights import _MOST, PATIENCE, Patience, Sights
from tritongemm.selection.hosttime import (
    EARLY_SIGHTS,
    GRAPH,
    NATIVE,
    PYTHON,
    SELECTION_US,
    HostPath,
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
