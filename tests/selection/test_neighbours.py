"""What measured problems near by correct, how far it reaches, and what is never measured."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from selection_made import RUN, TILED, TMA, calibrate

from tritongemm import selection
from tritongemm.config import KernelConfig
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Neighbour,
    calibration_path,
    read_calibration,
    write_calibration,
)
from tritongemm.selection import estimate
from tritongemm.selection.neighbours import CAUTION, DOUBLINGS, Neighbours
from tritongemm.selection.work import class_of

SQUARE = GemmProblem.contiguous(1024, 1024, 1024, layout="nt")
SLOW, FAST = TILED, replace(TILED, num_stages=4)  # of one class
OTHER = KernelConfig("tiled", 128, 64, 64, num_warps=4, num_stages=3)


def one(slow=200, fast=-200, problem=SQUARE, vs_torch=None):
    return Neighbours((SLOW, FAST), (Neighbour(problem, vs_torch, (0, 1), (slow, fast)),))


def log_correction(neighbours, problem, config):
    return math.log(neighbours.correction(problem, config, class_of(config)))


def test_a_measured_problem_corrects_itself_in_the_direction_of_its_misses():
    assert log_correction(one(), SQUARE, SLOW) > 0.05
    assert log_correction(one(), SQUARE, FAST) < -0.02


def test_a_correction_fades_with_distance():
    near, far = (replace(SQUARE, m=int(1024 * 2 ** (DOUBLINGS * d))) for d in (0.5, 2.0))
    beyond = replace(SQUARE, m=2**30)
    reached = [log_correction(one(400, 0), p, SLOW) for p in (SQUARE, near, far, beyond)]
    assert reached == sorted(reached, reverse=True) and reached[-1] == pytest.approx(CAUTION)


@pytest.mark.parametrize("unlike", [{"align_a": 2}, {"align_b": 8}, {"align_c": 4},
                                    {"layout": "nn"}, {"batch": 16}])
def test_a_problem_of_another_kind_says_less(unlike):
    assert log_correction(one(400, 0), replace(SQUARE, **unlike), SLOW) < log_correction(
        one(400, 0), SQUARE, SLOW)


def test_a_config_never_measured_gets_what_its_class_shows_and_is_taken_to_be_a_little_slower():
    found = one(300, 300)
    cousin, stranger = replace(SLOW, num_stages=5), OTHER
    by_class = log_correction(found, SQUARE, cousin)
    assert by_class == pytest.approx(0.150 + CAUTION, abs=1e-3)  # half of 0.3: one imagined without
    assert log_correction(found, SQUARE, stranger) == pytest.approx(CAUTION)
    assert log_correction(found, SQUARE, SLOW) - 0.3 / 2 > 0  # a quarter more by itself


def test_nearest_names_the_problem_that_counts_most():
    far = replace(SQUARE, k=64)
    found = Neighbours((SLOW,), (Neighbour(far, None, (0,), (0,)),
                                 Neighbour(SQUARE, None, (0,), (0,))))
    first, second = found.nearest(replace(SQUARE, m=1000), 2)
    assert (first.neighbour.problem, second.neighbour.problem) == (SQUARE, far)
    assert 1 >= first.weight > second.weight


def test_torch_is_estimated_from_what_it_took_near_by():
    ratio, support = one(vs_torch=0.81).vs_torch(SQUARE)
    assert ratio == pytest.approx(0.9) and support == pytest.approx(1.0)
    assert one(vs_torch=0.81).vs_torch(replace(SQUARE, m=2**30))[0] == pytest.approx(1.0)
    assert one().vs_torch(SQUARE) == (1.0, 0.0)


def test_the_model_adds_the_correction_and_explain_says_so(configs, h200):
    section = calibrate(h200, TILED, TMA)
    plain = estimate(SQUARE, SLOW, h200)
    assert plain.correction_us == 0
    write_calibration(calibration_path(h200.slug), Calibration(h200.slug, h200.arch, (replace(
        section, run_ids=(RUN,), configs=(SLOW, FAST),
        neighbours=(Neighbour(SQUARE, None, (0, 1), (-400, 300)),)),)))
    selection.reload()
    corrected = estimate(SQUARE, SLOW, h200)
    assert corrected.correction_us < 0 and corrected.total_us == pytest.approx(
        plain.total_us + corrected.correction_us)
    assert "correction -" in str(explain_problem(SQUARE, h200)) or (
        "the nearest 1024x1024x1024" in str(explain_problem(SQUARE, h200)))


def test_what_is_shipped_stays_small_and_bounded():
    """A choice reads a weight a problem and an average a config: their numbers are its cost (with
    2,389 and 6,557 of them one takes 38 ms on two slow cores, with 1,949 and 6,058 it took 31)."""
    path = calibration_path("nvidia-h200")
    assert path.stat().st_size < 2_100_000
    section = read_calibration(path).section("bf16")
    assert 100 < len(section.neighbours) < 2500 and len(section.configs) < 6800
