"""Fresh suites: of the same family, never the same shapes, the same for the same seed."""

import pytest

from tritongemm.bench.fresh import draw
from tritongemm.errors import UsageError
from tritongemm.records.suites import known_suites, read_suite, suite_path

FAMILIES = sorted(known_suites())


def key(shape):
    return shape.batch, shape.m, shape.n, shape.k, shape.layout


@pytest.mark.parametrize("family", FAMILIES)
def test_as_many_new_shapes_as_the_suite_has(family):
    committed = read_suite(suite_path(family))
    fresh = draw(family, 7)
    assert len(fresh) == len({key(s) for s in fresh}) == len(committed)
    assert {key(s) for s in fresh}.isdisjoint(key(s) for s in committed)
    assert {s.suite for s in fresh} == {f"{family}-fresh-7"}
    assert all(s.problem().flops() > 0 for s in fresh)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_seed_decides(family):
    assert draw(family, 3, 5) == draw(family, 3, 5)
    assert draw(family, 3, 5) == draw(family, 3)[:5]
    assert [key(s) for s in draw(family, 3, 5)] != [key(s) for s in draw(family, 4, 5)]


def test_a_draw_is_the_same_on_every_python():
    assert [key(s)[1:4] for s in draw("stream_k", 1, 2)] == [(3558, 828, 220), (237, 1592, 1206)]


@pytest.mark.parametrize(("family", "step"), [("stream_k", 1), ("aligned_random", 16)])
def test_log_uniform_families_keep_bounds_and_grid(family, step):
    extents = [x for s in draw(family, 11, 400) for x in (s.m, s.n, s.k)]
    assert min(extents) >= 128 and max(extents) <= 8192
    assert all(x % step == 0 for x in extents)
    # Log-uniform: about half lie below the geometric middle, 1024.
    assert 0.4 < sum(x < 1024 for x in extents) / len(extents) < 0.6


def test_squares_are_square_within_the_suites_ends():
    sides = [s.m for s in read_suite(suite_path("square"))]
    for s in draw("square", 5):
        assert s.m == s.n == s.k and min(sides) <= s.m <= max(sides)


@pytest.mark.parametrize("family", ["llm_decode", "llm_prefill"])
def test_language_models_keep_their_token_counts_and_aligned_layers(family):
    tokens = {s.m for s in read_suite(suite_path(family))}
    fresh = draw(family, 2)
    assert {s.m for s in fresh} == tokens
    assert all(s.n % 64 == 0 and s.k % 64 == 0 for s in fresh)


def test_other_suites_keep_the_kind_of_each_row():
    committed = {f"near {s.m}x{s.n}x{s.k}": s for s in read_suite(suite_path("odd"))}
    for s in draw("odd", 9):
        was = committed[s.note]
        for new, old in zip((s.m, s.n, s.k), (was.m, was.n, was.k)):
            assert min(new & -new, 64) == min(old & -old, 64)
        assert (s.m == s.n) == (was.m == was.n) and (s.n == s.k) == (was.n == was.k)


def test_batched_rows_keep_batch_and_layout():
    committed = {(s.batch, s.layout) for s in read_suite(suite_path("batched"))}
    assert {(s.batch, s.layout) for s in draw("batched", 9)} <= committed


@pytest.mark.parametrize(("family", "count", "says"), [
    ("no_such_family", None, "not known"), ("square", 0, "below 1"),
    ("square", 10_000, "no more than"),
])
def test_what_cannot_be_drawn_is_refused(family, count, says):
    with pytest.raises(UsageError, match=says):
        draw(family, 1, count)
