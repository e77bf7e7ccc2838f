"""A device without measurements of its own takes those of its sibling: rows, model, or both."""

from __future__ import annotations

from dataclasses import replace

import pytest
from selection_made import TILED, TMA, calibrate, publish

from tritongemm.device import cuda_device, device_named, interpreter_device, within_budget
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Neighbour,
    calibration_path,
    write_calibration,
)
from tritongemm.records.tables import path_for
from tritongemm.selection import choose, estimate, expected_gain, policy, reload
from tritongemm.selection.model import model_for
from tritongemm.selection.policy import Choice, by_model
from tritongemm.selection.sibling import as_on, sibling_of, with_rows_for
from tritongemm.settings import override

PROBLEM = GemmProblem.contiguous(1024, 1024, 1024, layout="nt")
TWIN = replace(PROBLEM, dtype_a="fp16", dtype_b="fp16", dtype_out="fp16")
FEWER = 114


@pytest.fixture
def h100():
    return device_named("nvidia-h100-80gb-hbm3")


def test_the_sibling_has_the_same_architecture_and_a_calibration(configs, h100, h200):
    assert sibling_of(h100) is None
    calibrate(device_named("nvidia-b200"), TMA)
    assert sibling_of(h100) is None
    calibrate(h200, TMA)
    assert sibling_of(h100) == h200 and sibling_of(h200) is None
    assert sibling_of(interpreter_device()) is None


def test_of_two_siblings_the_one_with_the_same_number_of_sms_is_used(configs, h100, h200):
    calibrate(h100, TMA)
    calibrate(h200, TMA)
    other = replace(h200, slug="nvidia-h800", name="NVIDIA H800")
    assert sibling_of(other) == h100
    (configs / "devices" / "nvidia-h100-80gb-hbm3.json").write_text(
        (configs / "devices" / "nvidia-h100-80gb-hbm3.json").read_text().replace("132", "114"))
    moved = configs.rename(configs.with_name("moved"))
    with override(config_dir=moved, config_only=True):
        assert sibling_of(other).slug == "nvidia-h200"


def test_the_siblings_rows_are_used_after_the_devices_own(configs, h100, h200):
    calibrate(h200, TMA)
    publish(h200, (PROBLEM, TILED))
    for problem, said in ((PROBLEM, ""), (TWIN, ", measured in bf16")):
        choice = choose(problem, h100)
        assert (choice.source, choice.config) == ("sibling", TILED)
        assert choice.note.endswith(f"{said}, measured on NVIDIA H200")
    publish(h100, (PROBLEM, TMA))
    reload()
    assert [(choose(p, h100).source, choose(p, h100).config) for p in (PROBLEM, TWIN)] == [
        ("exact", TMA), ("twin", TMA)]
    assert choose(PROBLEM, h200).config == TILED


def test_explain_does_not_report_the_siblings_times_as_measured_here(configs, h100, h200):
    calibrate(h200, TMA)
    publish(h200, (PROBLEM, TILED))
    assert explain_problem(PROBLEM, h200).measured_us == 10.0
    assert explain_problem(PROBLEM, h100).measured_us is None
    assert explain_problem(PROBLEM, h100).source == "sibling"


def test_a_siblings_comparison_with_torch_is_not_used(configs, h100, h200):
    calibrated = calibrate(h200, TMA)
    write_calibration(calibration_path(h200.slug), Calibration(h200.slug, h200.arch, (
        replace(calibrated, neighbours=(Neighbour(PROBLEM, 0.5),)),)))
    publish(h200, (PROBLEM, TILED))
    path = path_for(PROBLEM, h200.slug)
    path.write_text(path.read_text().replace('"run_id"', '"vs_torch": 0.5, "run_id"'))
    reload()
    other = replace(PROBLEM, n=1016)
    for problem, source in ((PROBLEM, "sibling"), (other, "model")):
        assert choose(problem, h200).vs_torch < 0.9
        assert choose(problem, h100).source == source
        assert choose(problem, h100).vs_torch is None


def test_with_other_sms_only_the_model_serves(configs, h100, h200):
    calibrate(h200, TMA)
    publish(h200, (PROBLEM, TILED))
    pcie = replace(h100, slug="nvidia-h100-pcie", name="NVIDIA H100 PCIe", num_sms=FEWER)
    assert sibling_of(pcie) == h200 and with_rows_for(pcie) is None
    choice = choose(PROBLEM, pcie)
    assert choice.source == "model" and choice.config.kernel == TMA.kernel
    assert "on NVIDIA H200" in choice.note and "on NVIDIA" not in choose(
        replace(PROBLEM, n=2048), h200).note


def test_a_row_that_is_not_legal_here_is_passed_over(configs, h100, h200):
    calibrate(h200, TILED)
    publish(h200, (PROBLEM, TMA))
    assert choose(PROBLEM, h100).source == "sibling"
    small = replace(h100, shared_bytes_per_block=100_000)
    assert choose(PROBLEM, small).source == "model"


def test_the_model_counts_with_the_devices_own_memory(configs, h100, h200):
    calibrate(h200, TMA)
    assert model_for(PROBLEM, h200).section.constants["memory"]["dram_gbps"] == 4000.0
    assert model_for(PROBLEM, h100).section.constants["memory"]["dram_gbps"] == pytest.approx(
        4000.0 * 3350 / 4800)
    shipped = {"dram_gbps": 4000.0, "l2_gbps": 5000.0, "pad_gbps": 3000.0, "sm_gbps": 60.0}
    ratios = {name: as_on(replace(model_for(PROBLEM, h200).section, constants={"memory": shipped}),
                          h200, h100).constants["memory"][name] / value
              for name, value in shipped.items()}
    assert ratios == pytest.approx({"dram_gbps": 3350 / 4800, "l2_gbps": 3350 / 4800,
                                    "pad_gbps": 3350 / 4800, "sm_gbps": 1.0})
    unknown = replace(h100, slug="nvidia-h100-of-someone", memory_gbps=None)
    assert model_for(PROBLEM, unknown).section.constants["memory"]["dram_gbps"] == 4000.0


def test_as_shipped_only_what_the_memory_bounds_is_predicted_slower(h100, h200):
    thin, square = (GemmProblem.contiguous(m, 8192, 8192, layout="nt") for m in (64, 8192))

    def ratio(problem):
        config = choose(problem, h200).config
        return (model_for(problem, h100).estimate(problem, config).total_us
                / model_for(problem, h200).estimate(problem, config).total_us)
    assert ratio(thin) > 1.2 > 1.05 > ratio(square) > 0.95


def test_a_device_without_peaks_gets_its_siblings(configs, h100, h200):
    calibrate(h200, TMA)
    unknown = replace(h200, slug="nvidia-gh200", name="NVIDIA GH200", peak_tflops={},
                      memory_gbps=None)
    half = replace(unknown, num_sms=66)
    square = replace(PROBLEM, m=8192, n=8192, k=8192)

    def time_us(device):
        return model_for(square, device).estimate(square, TMA).total_us
    assert time_us(unknown) == pytest.approx(time_us(h200))
    assert time_us(half) > 1.2 * time_us(h200)


def test_a_devices_own_calibration_precedes_its_siblings(configs, h100, h200):
    calibrate(h200, TMA)
    publish(h200, (PROBLEM, TMA))
    calibrate(h100, TILED)
    assert choose(PROBLEM, h100).config.kernel == "tiled"
    assert choose(PROBLEM, h100).source == "model"  # and before the sibling's rows
    assert model_for(PROBLEM, h100).where == h100.name


def test_the_nearest_row_may_be_the_siblings(configs, h100, h200):
    calibrate(h200, TMA, units=("fp16",))  # a sibling, but with no model for bf16
    near, far = replace(PROBLEM, k=2048), replace(PROBLEM, k=4096)
    publish(h200, (near, TMA))
    choice = choose(PROBLEM, h100)
    assert (choice.source, choice.config) == ("nearest", TMA)
    assert choice.note.endswith("1.00 away, measured on NVIDIA H200")
    publish(h100, (far, TILED))
    reload()
    assert choose(PROBLEM, h100).config == TMA
    publish(h100, (replace(PROBLEM, n=2048), TILED))
    reload()
    choice = choose(PROBLEM, h100)  # of two as near its own
    assert choice.config == TILED and "measured on" not in choice.note


@pytest.mark.parametrize("dtype, faster, of_both, source", [
    ("fp32", True, True, "model"), ("fp32", False, True, "sibling"),
    ("fp32", True, False, "sibling"), ("bf16", True, True, "sibling")])
def test_a_siblings_float32_row_gives_way_to_a_model_that_knows_the_device(
        dtype, faster, of_both, source, configs, h100, h200):
    problem = GemmProblem.contiguous(1024, 1024, 1024, dtype=dtype, layout="nt")
    other = replace(TILED, block_n=32)
    section = calibrate(h200, TILED, other, units=(dtype,), favourite=other if faster else None)
    if of_both:
        write_calibration(calibration_path(h100.slug, h200.slug),
                          Calibration(h100.slug, h100.arch, (
                              replace(section, candidates=(TILED, other)),)))
    publish(h200, (problem, TILED))
    reload()
    assert choose(problem, h100).source == source
    with override(batch_invariant=True):
        assert choose(problem, h100).source == "invariant"


@pytest.mark.parametrize(("precision", "gain", "source"), (
    ("ieee", 1.19, "sibling"), ("ieee", 1.21, "model"), ("tf32", 1.09, "sibling"),
    ("tf32", 1.11, "model")))
def test_under_tf32_a_siblings_row_gives_way_sooner(precision, gain, source, configs, h100, h200,
                                                    monkeypatch):
    problem = GemmProblem.contiguous(1024, 1024, 1024, dtype="fp32", layout="nt",
                                     precision=precision)
    section = calibrate(h200, TILED, units=(problem.unit,))
    write_calibration(calibration_path(h100.slug, h200.slug),
                      Calibration(h100.slug, h100.arch, (section,)))
    publish(h200, (problem, TILED))
    reload()
    row_us = estimate(problem, TILED, h100).total_us
    monkeypatch.setattr(policy, "by_model", lambda *_: Choice(
        replace(TILED, block_n=32), "model", predicted_us=row_us / gain))
    assert choose(problem, h100).source == source


def test_the_expected_gain_over_a_siblings_row_uses_the_models_prediction(configs, h100, h200):
    calibrate(h200, TMA, TILED, favourite=TMA)
    publish(h200, (PROBLEM, TILED))
    best, own = by_model(PROBLEM, h100), estimate(PROBLEM, TILED, h100).total_us
    assert expected_gain(PROBLEM, h100) == pytest.approx(own / best.predicted_us)
    assert own > 1.1 * best.predicted_us
    assert expected_gain(replace(PROBLEM, n=2048), h100) is None


def test_the_siblings_calibration_is_used_for_a_dtype_that_the_own_one_lacks(configs, h100, h200):
    calibrate(h200, TMA, units=("fp16",))
    calibrate(h100, TILED)
    assert model_for(TWIN, h100).where == h200.name
    assert model_for(PROBLEM, h100).where == h100.name


def test_the_siblings_rows_are_ignored_under_a_budget_of_sms(configs, h100, h200):
    calibrate(h200, TMA)
    publish(h200, (PROBLEM, TILED))
    with override(num_sms=100):
        assert choose(PROBLEM, within_budget(h100)).source == "model"
        assert sibling_of(within_budget(h100)) == h200


def test_a_damaged_calibration_of_the_sibling_is_left_out(configs, h100, h200, warned):
    calibrate(h200, TMA)
    calibration_path(h200.slug).write_text("{")
    reload()
    assert choose(PROBLEM, h100).source == "rule"
    assert len(warned) == 1 and "nvidia-h200.json" in warned[0]


def test_where_nothing_is_calibrated_the_rule_chooses(configs, h100, h200):
    publish(h200, (PROBLEM, TILED))
    assert choose(PROBLEM, h100).source == "rule"


@pytest.mark.gpu
def test_the_card_here_is_served_by_its_own_or_by_a_siblings():
    device = cuda_device(0)
    tuned = [one for one in (device, with_rows_for(device))
             if one and path_for(PROBLEM, one.slug).exists()]
    if not tuned:
        pytest.skip(f"no rows serve {device.name}")
    problem = GemmProblem.contiguous(4096, 4096, 4096, layout="nt")
    assert choose(problem, device).source in ("exact", "sibling")
