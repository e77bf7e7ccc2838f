"""Which measured problems lie near one, how far they reach, and what torch took there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from selection_made import RUN, TILED, TMA, calibrate

from tritongemm import selection
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Neighbour,
    calibration_path,
    write_calibration,
)
from tritongemm.selection.neighbours import DOUBLINGS, Neighbours

SQUARE = GemmProblem.contiguous(1024, 1024, 1024, layout="nt")


def weight(problem):
    return Neighbours([Neighbour(SQUARE, None)]).nearest(problem, 1)[0].weight


def test_a_problem_counts_less_with_distance():
    near, far = (replace(SQUARE, m=int(1024 * 2 ** (DOUBLINGS * d))) for d in (0.5, 2.0))
    reached = [weight(p) for p in (SQUARE, near, far, replace(SQUARE, m=2**30))]
    assert reached == sorted(reached, reverse=True)
    assert reached[0] == 1.0 and reached[-1] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("unlike", [{"align_a": 2}, {"align_b": 8}, {"align_c": 4},
                                    {"layout": "nn"}, {"batch": 16}])
def test_a_problem_of_another_kind_counts_less(unlike):
    assert 0.0 < weight(replace(SQUARE, **unlike)) < 1.0


def test_nearest_names_the_problem_that_counts_most():
    far = replace(SQUARE, k=64)
    found = Neighbours((Neighbour(far, None), Neighbour(SQUARE, None)))
    first, second = found.nearest(replace(SQUARE, m=1000), 2)
    assert (first.neighbour.problem, second.neighbour.problem) == (SQUARE, far)
    assert 1 >= first.weight > second.weight


def test_torch_is_estimated_from_what_it_took_near_by():
    one = Neighbours((Neighbour(SQUARE, 0.81),))
    ratio, support = one.vs_torch(SQUARE)
    assert ratio == pytest.approx(0.9) and support == pytest.approx(1.0)
    assert one.vs_torch(replace(SQUARE, m=2**30))[0] == pytest.approx(1.0)
    assert Neighbours((Neighbour(SQUARE, None),)).vs_torch(SQUARE) == (1.0, 0.0)


def around(ratios):
    """Problems near the square, with torch's times over ours."""
    return Neighbours([Neighbour(replace(SQUARE, m=1024 + 8 * i), ratio)
                       for i, ratio in enumerate(ratios, 1)])


def test_a_lower_bound_follows_what_was_measured_and_how_far_it_is_scattered():
    certain, scattered = around([1.5] * 20), around([1.5 * 1.4**(i % 2 * 2 - 1) for i in range(20)])
    assert 1.3 < certain.bound(SQUARE).lower < 1.5
    assert scattered.bound(SQUARE).lower < certain.bound(SQUARE).lower
    assert around([0.7] * 20).bound(SQUARE).lower < 0.7


@pytest.mark.parametrize("unlike", [{"m": 2**20}, {"n": 16}, {"k": 2**20}, {"batch": 2**10},
                                    {"layout": "nn"}, {"layout": "tt"}, {"align_c": 4}])
def test_a_lower_bound_is_lower_for_what_is_unlike_the_measured(unlike):
    near = around([1.5] * 20)
    assert near.bound(replace(SQUARE, **unlike)).lower < near.bound(SQUARE).lower
    assert near.bound(replace(SQUARE, m=2**30, n=2**30, k=2**30)).lower < 0.7


@pytest.mark.parametrize("ratio", [0.6, 1.9])
def test_a_problem_that_was_measured_is_as_certain_as_its_measurement(ratio):
    others = around([1.2] * 20)
    measured = Neighbours([*(x.neighbour for x in others.nearest(SQUARE, 20)),
                           Neighbour(SQUARE, ratio)])
    assert measured.bound(SQUARE) == pytest.approx((ratio, ratio, True))
    assert not others.bound(SQUARE).own
    assert measured.bound(replace(SQUARE, align_c=4)).lower < 1.2  # for which nothing was measured


def test_without_a_time_of_torchs_there_is_no_bound():
    assert around([None, None]).bound(SQUARE) is None
    assert around([1.4]).bound(SQUARE).lower < 1.4


def test_explain_names_the_nearest(configs, h200):
    section = calibrate(h200, TILED, TMA)
    write_calibration(calibration_path(h200.slug), Calibration(h200.slug, h200.arch, (replace(
        section, run_ids=(RUN,), neighbours=(Neighbour(SQUARE, None),)),)))
    selection.reload()
    assert "the nearest 1024x1024x1024" in str(explain_problem(SQUARE, h200))
