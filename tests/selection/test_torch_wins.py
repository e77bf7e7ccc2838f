"""When a problem is handed to torch: only where torch was measured to be faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from selection_made import RUN, TILED, TMA, calibrate

from tritongemm import selection, settings
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Neighbour,
    calibration_path,
    write_calibration,
)
from tritongemm.records.tables import TableHeader, TunedRow, TunedTable, path_for, write_table
from tritongemm.selection import choose, torch_wins

PROBLEM = GemmProblem.contiguous(2048, 2048, 2048, layout="nt")


def publish(device, ratio, time_us=100.0):
    header = TableHeader.of(PROBLEM, device=device.slug, arch=90, space_hash="s", torch="2.11.0",
                            triton="3.6.0")
    row = TunedRow.of(PROBLEM, TILED, time_us=time_us, margin_vs_second=None, run_id=RUN,
                      vs_torch=ratio)
    write_table(path_for(PROBLEM, device.slug), TunedTable(header, {row.key: row}))
    selection.reload()


def measured_near_by(device, *ratios):
    section = calibrate(device, TILED, TMA)
    neighbours = tuple(Neighbour(replace(PROBLEM, n=2048 + 8 * i), ratio)
                       for i, ratio in enumerate(ratios))
    write_calibration(calibration_path(device.slug), Calibration(device.slug, device.arch, (
        replace(section, neighbours=neighbours),)))
    selection.reload()


@pytest.mark.parametrize("ratio, wins", [(0.5, True), (0.96, True), (0.97, False), (1.2, False),
                                         (None, False)])
def test_a_row_says_what_torch_took(ratio, wins, configs, h200):
    publish(h200, ratio)
    choice = choose(PROBLEM, h200)
    assert choice.source == "exact" and choice.vs_torch == ratio
    assert bool(torch_wins(choice)) is wins


@pytest.mark.parametrize("time_us, wins", [(31.9, True), (17.0, True), (16.4, False),
                                           (5.0, False)])
def test_what_is_over_before_it_could_be_handed_over_stays_ours(time_us, wins, configs, h200):
    publish(h200, 0.5, time_us)
    choice = choose(PROBLEM, h200)
    assert choice.time_us == time_us and bool(torch_wins(choice)) is wins


def test_so_does_what_is_predicted_to_be_over(configs, h200):
    small = replace(PROBLEM, m=1024, n=1024, k=1024)
    measured_near_by(h200, *[0.8] * 6)
    big, little = choose(replace(PROBLEM, n=2040), h200), choose(small, h200)
    assert big.time_us > 17 and torch_wins(big)
    assert little.source == "model" and little.time_us < 16
    assert little.vs_torch is not None and torch_wins(little) is None


def test_the_reason_says_how_much_and_where(configs, h200):
    publish(h200, 0.9)
    assert torch_wins(choose(PROBLEM, h200)) == "torch's kernel takes 0.90 of the time of ours here"


@pytest.mark.parametrize("policy, handed", [("auto", True), ("own", False)])
def test_explain_says_that_a_call_is_torchs(policy, handed, configs, h200):
    publish(h200, 0.9)
    with settings.override(policy=policy):
        said = str(explain_problem(PROBLEM, h200))
    assert "torch's kernel takes 0.90 of the time of ours" in said
    assert ("of the time of ours here, so a call that is not strict is torch's" in said) is handed


def test_one_problem_near_by_is_little_evidence_and_many_are_enough(configs, h200):
    measured_near_by(h200, 0.95)
    assert torch_wins(choose(PROBLEM, h200)) is None
    measured_near_by(h200, *[0.9] * 5)
    choice = choose(PROBLEM, h200)
    assert choice.source == "model" and choice.vs_torch == pytest.approx(0.9 ** (5 / 6), abs=1e-3)
    assert "near by" in torch_wins(choice)


def test_nothing_measured_is_no_reason(configs, h200):
    measured_near_by(h200, None, None)
    assert choose(PROBLEM, h200).vs_torch is None and torch_wins(choose(PROBLEM, h200)) is None
    far = replace(PROBLEM, m=2**30)
    measured_near_by(h200, *[0.5] * 5)
    assert torch_wins(choose(far, h200)) is None


@pytest.mark.parametrize("mode", [{"policy": "own"}, {"num_sms": 100}, {"batch_invariant": True}],
                         ids=str)
def test_torch_is_never_taken_where_it_was_not_asked_for_or_cannot_keep_the_mode(mode, configs,
                                                                                 h200):
    publish(h200, 0.5)
    choice = choose(PROBLEM, h200)
    assert torch_wins(choice)
    with settings.override(**mode):
        assert torch_wins(choice) is None


def test_a_ratio_of_the_plain_product_says_nothing_of_one_with_an_epilogue(configs, h200):
    publish(h200, 0.9)
    assert torch_wins(choose(PROBLEM, h200)) is not None
    assert torch_wins(choose(replace(PROBLEM, epilogue="bias+gelu"), h200)) is None
    measured_near_by(h200, *[0.8] * 6)
    other = replace(PROBLEM, n=2040)
    assert torch_wins(choose(other, h200)) is not None
    assert torch_wins(choose(replace(other, epilogue="relu"), h200)) is None
