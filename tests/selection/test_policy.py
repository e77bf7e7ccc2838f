"""The order of sources: exact row, the twin's, model, nearest row, rule default; all are legal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, strategies
from hypothesis import settings as hypothesis_settings
from selection_made import RUN, TILED, TMA, calibrate, publish

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import device_named, known_devices
from tritongemm.errors import UnsupportedError
from tritongemm.kernels import SPECS, violation
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import Calibration, calibration_path, write_calibration
from tritongemm.selection import (
    candidates,
    choose,
    default_config,
    estimate,
    expected_gain,
    policy,
    reload,
)
from tritongemm.selection.model import factor_id
from tritongemm.selection.policy import NEAREST_LIMIT, by_model, distance
from tritongemm.selection.work import work_of

PROBLEM = GemmProblem.contiguous(1024, 1024, 1024, layout="nt")
NEAR = GemmProblem.contiguous(1024, 1024, 2048, layout="nt")
FAR = GemmProblem.contiguous(64, 64, 64, layout="nt")


def test_without_a_table_or_calibration_it_is_the_rule(configs, h200):
    choice = choose(PROBLEM, h200)
    assert (choice.source, choice.row) == ("rule", None)
    assert choice.config == default_config(PROBLEM, h200)


def test_the_exact_row_comes_before_the_model(configs, h200):
    calibrate(h200, TMA)
    publish(h200, (PROBLEM, TILED))
    choice = choose(PROBLEM, h200)
    assert (choice.source, choice.config) == ("exact", TILED)
    assert choice.row is not None and choice.row.run_id == RUN and RUN in choice.note


TWIN = replace(PROBLEM, dtype_a="fp16", dtype_b="fp16", dtype_out="fp16")


def test_the_row_of_the_other_type_of_16_bits_comes_before_the_model(configs, h200):
    calibrate(h200, TMA)
    publish(h200, (PROBLEM, TILED))
    for problem in (TWIN, replace(TWIN, epilogue="bias")):
        choice = choose(problem, h200)
        assert (choice.source, choice.config) == ("twin", TILED)
        assert choice.row is not None and "measured in bf16" in choice.note
    publish(h200, (TWIN, TMA))
    assert (choose(TWIN, h200).source, choose(TWIN, h200).config) == ("exact", TMA)
    assert choose(PROBLEM, h200).source == "exact"
    assert "measured in" not in choose(PROBLEM, h200).note


def test_a_twin_has_the_same_output_type_or_the_other_of_16_bits(configs, h200):
    publish(h200, (PROBLEM, TILED))
    assert choose(replace(TWIN, dtype_out="fp32"), h200).source != "twin"
    publish(h200, (replace(PROBLEM, dtype_out="fp32"), TILED))
    assert choose(replace(TWIN, dtype_out="fp32"), h200).source == "twin"
    single = GemmProblem.contiguous(1024, 1024, 1024, layout="nt", dtype="fp32")
    assert policy.twin_of(single) is None and choose(single, h200).source != "twin"


def test_a_twins_row_whose_config_is_not_legal_is_passed_over(configs, h200):
    publish(h200, (PROBLEM, replace(TILED, num_warps=3)))
    assert choose(TWIN, h200).source == "rule"


def test_the_model_comes_before_the_nearest_row(configs, h200):
    calibrate(h200, TMA)
    publish(h200, (NEAR, TILED))
    choice = choose(PROBLEM, h200)
    assert choice.source == "model" and choice.row is None
    assert choice.config.kernel == TMA.kernel
    assert choice.predicted_us == pytest.approx(
        estimate(PROBLEM, choice.config, h200).total_us)
    assert f"{choice.predicted_us:.2f} us" in choice.note


def test_without_a_calibration_the_nearest_row_serves(configs, h200):
    publish(h200, (FAR, TMA), (NEAR, TILED))
    choice = choose(PROBLEM, h200)
    assert (choice.source, choice.config) == ("nearest", TILED)
    assert "1x1024x1024x2048" in choice.note


THIN = GemmProblem.contiguous(1, 8192, 8192, layout="nt")
MEASURED = [KernelConfig("gemv", 1, 16, 256, num_stages=1),
            KernelConfig("skinny", 8, 16, 256, num_stages=3)]


@pytest.mark.parametrize("problem", [THIN, replace(THIN, k=0), replace(THIN, m=8192, n=2)], ids=str)
@pytest.mark.parametrize("config", MEASURED, ids=str)
def test_a_kernel_that_needs_a_measurement_is_not_chosen_without_one(configs, h200, config,
                                                                     problem):
    assert violation(THIN, config, h200) is None
    assert estimate(problem, SPECS[config.kernel].default(problem, h200), h200).total_us > 0
    assert choose(problem, h200).config.kernel != config.kernel
    calibrate(h200, TMA, TILED)
    assert choose(problem, h200).config.kernel != config.kernel


@pytest.mark.parametrize("config", MEASURED, ids=str)
def test_a_kernel_that_needs_a_measurement_is_chosen_once_measured(configs, h200, config):
    calibrate(h200, TILED, config, favourite=config)
    assert choose(THIN, h200).config.kernel == config.kernel
    publish(h200, (THIN, config))
    assert (choose(THIN, h200).source, choose(THIN, h200).config) == ("exact", config)


@pytest.mark.parametrize("config", MEASURED, ids=str)
def test_all_configs_of_a_kernel_that_needs_a_measurement_can_be_swept(configs, h200, config):
    offered = [c for c in candidates(THIN, h200) if c.kernel == config.kernel]
    assert len(offered) > 24 and {c.dependent_launch for c in offered} == {0, 1}


FUSED = replace(PROBLEM, epilogue="bias+gelu")


def test_a_row_without_the_epilogue_serves_as_exact_and_the_note_says_so(configs, h200):
    calibrate(h200, TMA)
    publish(h200, (PROBLEM, TILED))
    choice = choose(FUSED, h200)
    assert (choice.source, choice.config) == ("exact", TILED)
    assert choice.note.endswith(", without bias+gelu")


def test_the_time_of_a_row_without_the_epilogue_is_not_the_problems(configs, h200):
    publish(h200, (PROBLEM, TILED))
    assert explain_problem(PROBLEM, h200).measured_us == 10.0
    assert explain_problem(FUSED, h200).measured_us is None


def test_the_row_with_the_epilogue_comes_first(configs, h200):
    publish(h200, (PROBLEM, TILED), (FUSED, TMA))
    assert choose(FUSED, h200).config == TMA and "without" not in choose(FUSED, h200).note
    assert choose(PROBLEM, h200).config == TILED
    assert choose(replace(FUSED, epilogue="relu"), h200).config == TILED


def test_a_nearby_row_with_another_epilogue_is_ignored(configs, h200):
    publish(h200, (replace(NEAR, epilogue="relu"), TMA))
    assert choose(PROBLEM, h200).source == choose(FUSED, h200).source == "rule"
    publish(h200, (NEAR, TILED), (replace(NEAR, epilogue="bias+gelu"), TMA))
    reload()
    assert (choose(FUSED, h200).source, choose(FUSED, h200).config) == ("nearest", TMA)
    assert choose(PROBLEM, h200).config == TILED


def test_the_estimate_counts_a_matrix_that_is_added(h200):
    plain, added = (work_of(replace(PROBLEM, epilogue=e), TILED, h200) for e in ("none", "add"))
    assert added.dram_bytes - plain.dram_bytes == pytest.approx(2 * 1024 * 1024)
    assert added._replace(dram_bytes=plain.dram_bytes) == plain


def test_a_row_beyond_the_distance_limit_is_ignored(configs, h200):
    publish(h200, (FAR, TILED))
    assert choose(PROBLEM, h200).source == "rule"


def test_an_illegal_exact_or_nearest_row_is_passed_over(configs, h200):
    unaligned = GemmProblem.contiguous(1024, 1024, 1023, layout="nt")
    publish(h200, (unaligned, TMA), (NEAR, TMA))  # TMA cannot read it
    choice = choose(unaligned, h200)
    assert choice.source == "rule" and violation(unaligned, choice.config, h200) is None


def test_the_model_chooses_the_least_predicted_time_of_the_legal(configs, h200):
    calibrate(h200, TILED, TMA, favourite=TILED)
    choice = choose(PROBLEM, h200)
    assert choice.config == TILED
    legal = [c for c in candidates(PROBLEM, h200)
             if c.kernel in (TILED.kernel, TMA.kernel)
             and (c.block_m, c.block_n, c.block_k, c.num_warps) in (
                 (64, 64, 64, 4), (128, 128, 64, 8))]
    assert choice.predicted_us == min(estimate(PROBLEM, c, h200).total_us for c in legal)


def test_what_the_model_expects_of_a_row_is_by_its_time_and_its_own_prediction(configs, h200):
    publish(h200, (PROBLEM, TILED))
    assert expected_gain(PROBLEM, h200) is None  # no calibration
    for favourite in (None, TMA, TILED):
        calibrate(h200, TMA, TILED, favourite=favourite)
        reload()
        best, own = by_model(PROBLEM, h200), estimate(PROBLEM, TILED, h200).total_us
        assert best is not None and best.predicted_us is not None
        assert expected_gain(PROBLEM, h200) == pytest.approx(min(10.0, own) / best.predicted_us)
    assert expected_gain(PROBLEM, h200) == pytest.approx(1.0, rel=0.02)  # the row is the favourite
    for other in (NEAR, TWIN, replace(PROBLEM, epilogue="bias")):
        assert expected_gain(other, h200) is None  # a row that it would share is not its own


def test_an_illegal_favourite_is_not_chosen(configs, h200):
    unaligned = GemmProblem.contiguous(1024, 1024, 1023, layout="nt")
    calibrate(h200, TILED, TMA, favourite=TMA)
    assert choose(PROBLEM, h200).config == TMA
    choice = choose(unaligned, h200)
    assert choice.source == "model" and choice.config.kernel == "tiled"


def test_classes_that_were_not_measured_are_not_chosen(configs, h200):
    unaligned = GemmProblem.contiguous(1024, 1024, 1023, layout="nt")
    calibrate(h200, TMA)  # nothing it knows can read these operands
    assert by_model(unaligned, h200) is None
    assert choose(unaligned, h200).source == "rule"


def test_a_calibration_of_other_units_does_not_answer(configs, h200):
    calibrate(h200, TILED, units=("bf16", "fp16"))
    assert choose(PROBLEM, h200).source == "model"
    fp16 = GemmProblem.contiguous(1024, 1024, 1024, dtype="fp16")
    assert choose(fp16, h200).source == "model"
    fp32 = GemmProblem.contiguous(1024, 1024, 1024, dtype="fp32")
    assert choose(fp32, h200).source == "rule"


def test_a_calibration_of_another_device_does_not_answer(configs, h200):
    calibrate(h200, TILED)
    assert choose(PROBLEM, device_named("nvidia-a100-sxm4-80gb")).source == "rule"


@pytest.mark.parametrize("extents", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0)])
@pytest.mark.parametrize("batch", [0, 1])
def test_empty_extents_are_the_rule(extents, batch, configs, h200):
    calibrate(h200, TILED, TMA)
    problem = GemmProblem.contiguous(*extents, batch=batch)
    choice = choose(problem, h200)
    assert choice.source == "rule" and violation(problem, choice.config, h200) is None
    assert all(estimate(problem, c, h200).total_us > 0 for c in candidates(problem, h200, 5))


def test_a_new_calibration_is_seen_after_reload(configs, h200):
    assert choose(PROBLEM, h200).source == "rule"
    calibrate(h200, TILED)
    reload()
    assert choose(PROBLEM, h200).source == "model"


def test_a_table_read_while_another_replaces_it_does_not_stay(configs, h200, monkeypatch):
    publish(h200, (PROBLEM, TMA))
    real = policy.read_layers

    def read_layers(*asked):
        table = real(*asked)
        monkeypatch.setattr(policy, "read_layers", real)
        publish(h200, (PROBLEM, TILED))  # another thread's doing
        reload()
        return table

    monkeypatch.setattr(policy, "read_layers", read_layers)
    assert choose(PROBLEM, h200).config == TMA
    assert choose(PROBLEM, h200).config == TILED


def test_a_calibration_under_another_device_s_name_is_left_out(configs, h200, warned):
    calibrate(h200, TILED)
    folder = configs / "calibration"
    (folder / "nvidia-h200.json").rename(folder / "nvidia-l40s.json")
    assert choose(PROBLEM, device_named("nvidia-l40s")).source == "rule"
    assert len(warned) == 1 and "is of nvidia-h200, not of the device" in warned[0]


def test_what_no_kernel_runs_says_each_reason(configs, h200):
    problem = GemmProblem.contiguous(64, 64, 64, dtype="fp64")
    with pytest.raises(UnsupportedError, match=r"(?s)warp_specialized: .*tiled: "):
        choose(problem, h200)


def test_distance_counts_octaves_and_alignments(configs, h200):
    publish(h200, (NEAR, TILED))
    row = choose(NEAR, h200).row
    assert row is not None
    assert distance(NEAR, row) == 0 and distance(PROBLEM, row) == 1
    other = GemmProblem.contiguous(1024, 1024, 2047, layout="nt")
    assert 2 <= distance(other, row) < 2.01 < NEAREST_LIMIT
    assert distance(GemmProblem.contiguous(0, 1024, 2048, layout="nt"), row) == 10


def test_candidates_are_legal_ordered_and_distinct(configs, h200):
    found = candidates(PROBLEM, h200)
    assert len(found) == len(set(found)) > 50
    assert all(violation(PROBLEM, c, h200) is None for c in found)
    times = [estimate(PROBLEM, c, h200).total_us for c in found[:100] + found[100::10]]
    assert times == sorted(times)
    assert candidates(PROBLEM, h200, 7) == found[:7]


EXTENT = strategies.integers(1, 9000)


@hypothesis_settings(max_examples=15, deadline=None,
                     suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(m=EXTENT, n=EXTENT, k=EXTENT, batch=strategies.sampled_from([1, 1, 3]),
       dtype=strategies.sampled_from(["bf16", "fp16", "fp32"]),
       layout=strategies.sampled_from(["nn", "nt", "tn", "tt"]),
       slug=strategies.sampled_from(sorted(known_devices())))
def test_every_shipped_choice_is_legal_and_the_same_again(m, n, k, batch, dtype, layout, slug):
    problem = GemmProblem.contiguous(m, n, k, batch=batch, dtype=dtype, layout=layout)
    device = device_named(slug)
    choice = choose(problem, device)
    assert violation(problem, choice.config, device) is None
    reload()
    assert choose(problem, device) == choice


@pytest.mark.parametrize("miss, first", [(0.005, True), (0.02, False)])
def test_of_equal_predictions_the_first_listed_is_chosen(miss, first, configs, h200):
    """So that problems near each other share binaries; beyond a hundredth the faster one is."""
    slower, faster = TILED, replace(TILED, num_stages=4)
    section = calibrate(h200, TILED)
    constants = {owner: {name: value for name, value in values.items()}
                 for owner, values in section.constants.items()}
    constants["tiled"]["latency_us"] = 1e-6  # stages make no difference by themselves
    write_calibration(calibration_path(h200.slug), Calibration(h200.slug, h200.arch, (replace(
        section, constants=constants, candidates=(slower, faster),
        factors={factor_id(faster): 1.0 - miss}),)))
    reload()
    problem = GemmProblem.contiguous(8192, 8192, 8192)
    assert choose(problem, h200).source == "model"
    assert choose(problem, h200).config == (slower if first else faster)


@pytest.mark.parametrize(("size", "scaled"), ((4096, True), (512, False)))
def test_fp32_ieee_rules_out_scaled_copies_under_tf32(size, scaled):
    h200 = device_named("nvidia-h200")
    problem = GemmProblem.contiguous(size, size, size, dtype="fp32", layout="nt", precision="tf32")
    choice = choose(problem, h200)
    assert SPECS[choice.config.kernel].guarded == scaled
    with settings.override(fp32="ieee"):
        if scaled:
            with pytest.raises(UnsupportedError, match="scaled copies .* TRITONGEMM_FP32=ieee"):
                choose(problem, h200)
            assert "TRITONGEMM_FP32=split" in str(explain_problem(problem, h200))
        else:
            assert choose(problem, h200) == choice
    assert choose(problem, h200) == choice
