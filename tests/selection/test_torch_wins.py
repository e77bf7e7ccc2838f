"""When a problem is handed to torch: only where torch was measured to be faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from selection_made import RUN, TILED, TMA, calibrate

from tritongemm import selection, settings
from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device, known_devices
from tritongemm.kernels import SPECS
from tritongemm.kernels.compile import launches_of
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Covers,
    Neighbour,
    calibration_path,
    write_calibration,
)
from tritongemm.records.tables import TableHeader, TunedRow, TunedTable, path_for, write_table
from tritongemm.selection import Choice, choose, policy, torch_wins
from tritongemm.selection.decision import sides
from tritongemm.selection.hosttime import GRAPH, NATIVE, PYTHON

PROBLEM = GemmProblem.contiguous(2048, 2048, 2048, layout="nt")


def reason_for(problem, device):
    """Why a call of ``problem`` is torch's, or None."""
    return torch_wins(problem, choose(problem, device), device, PYTHON)


def publish(device, ratio, time_us=100.0, problem=PROBLEM, config=TILED):
    header = TableHeader.of(problem, device=device.slug, arch=90, space_hash="s", torch="2.11.0",
                            triton="3.6.0")
    row = TunedRow.of(problem, config, time_us=time_us, margin_vs_second=None, run_id=RUN,
                      vs_torch=ratio)
    write_table(path_for(problem, device.slug), TunedTable(header, {row.key: row}))
    selection.reload()


@pytest.mark.parametrize("ratio, two_strides, wins", [
    (0.5, "ab", True), (0.95, "ab", False), (0.93, "ab", False), (0.93, "a", True),
    (0.95, "c", True), (None, "ab", False)])
def test_of_a_batch_with_two_strides_torch_pays_for_its_copies(ratio, two_strides, wins, configs,
                                                               h200):
    batch = replace(GemmProblem.contiguous(1024, 1024, 1024, batch=8), two_strides="none")
    publish(h200, ratio, problem=batch)  # copies of A and B are 7 of its 100 us
    problem = replace(batch, two_strides=two_strides)
    reason = reason_for(problem, h200)
    assert choose(problem, h200).source == "exact" and bool(reason) is wins
    assert reason is None or "a copy of the operands" in reason


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
    assert bool(torch_wins(PROBLEM, choice, h200, PYTHON)) is wins


@pytest.mark.parametrize("time_us, wins", [(31.9, True), (17.0, True), (16.4, False),
                                           (5.0, False)])
def test_a_product_shorter_than_the_hand_over_stays_ours(time_us, wins, configs, h200):
    publish(h200, 0.5, time_us)
    choice = choose(PROBLEM, h200)
    assert choice.time_us == time_us and bool(torch_wins(PROBLEM, choice, h200, PYTHON)) is wins


def test_a_product_predicted_shorter_than_the_hand_over_stays_ours(configs, h200):
    small = replace(PROBLEM, m=1024, n=1024, k=1024)
    measured_near_by(h200, *[0.8] * 6)
    big, little = choose(replace(PROBLEM, n=2040), h200), choose(small, h200)
    assert big.time_us > 17 and torch_wins(PROBLEM, big, h200, PYTHON)
    assert little.source == "model" and little.time_us < 16
    assert little.vs_torch is not None and torch_wins(small, little, h200, PYTHON) is None


def test_the_reason_says_how_much_and_where(configs, h200):
    publish(h200, 0.9)
    assert reason_for(PROBLEM, h200) == "torch's kernel takes 0.90 of the time of ours here"


@pytest.mark.parametrize("policy, handed", [("auto", True), ("own", False)])
def test_explain_says_that_a_call_is_torchs(policy, handed, configs, h200):
    publish(h200, 0.9)
    with settings.override(policy=policy):
        said = str(explain_problem(PROBLEM, h200))
    assert "torch's kernel takes 0.90 of the time of ours" in said
    assert ("call       torch, because torch's kernel takes 0.90" in said) is handed


def test_one_problem_near_by_is_little_evidence_and_many_are_enough(configs, h200):
    measured_near_by(h200, 0.95)
    assert reason_for(PROBLEM, h200) is None
    measured_near_by(h200, *[0.9] * 5)
    choice = choose(PROBLEM, h200)
    assert choice.source == "model" and choice.vs_torch == pytest.approx(0.9 ** (5 / 6), abs=1e-3)
    assert "near by" in torch_wins(PROBLEM, choice, h200, PYTHON)


def test_without_a_measurement_there_is_no_reason_for_torch(configs, h200):
    measured_near_by(h200, None, None)
    assert choose(PROBLEM, h200).vs_torch is None and reason_for(PROBLEM, h200) is None
    far = replace(PROBLEM, m=2**30)
    measured_near_by(h200, *[0.5] * 5)
    assert reason_for(far, h200) is None


@pytest.mark.parametrize("mode", [{"policy": "own"}, {"num_sms": 100}, {"batch_invariant": True}],
                         ids=str)
def test_torch_is_never_taken_where_it_was_not_asked_for_or_cannot_keep_the_mode(mode, configs,
                                                                                 h200):
    publish(h200, 0.5)
    choice = choose(PROBLEM, h200)
    assert torch_wins(PROBLEM, choice, h200, PYTHON)
    with settings.override(**mode):
        assert torch_wins(PROBLEM, choice, h200, PYTHON) is None


def test_a_ratio_of_the_plain_product_says_nothing_of_one_with_an_epilogue(configs, h200):
    publish(h200, 0.9)
    assert reason_for(PROBLEM, h200) is not None
    assert reason_for(replace(PROBLEM, epilogue="bias+gelu"), h200) is None
    measured_near_by(h200, *[0.8] * 6)
    other = replace(PROBLEM, n=2040)
    assert reason_for(other, h200) is not None
    assert reason_for(replace(other, epilogue="relu"), h200) is None


FEW = KernelConfig("tiled", 16, 64, 64, num_warps=4, num_stages=3)
SPLIT = KernelConfig("split_product", 128, 128, 64, num_warps=8, num_stages=3)
FLOAT32 = GemmProblem.contiguous(1024, 1024, 1024, dtype="fp32")
TF32 = GemmProblem.contiguous(1024, 1024, 1024, dtype="fp32", layout="nt", precision="tf32")


def float32_near_by(device, problem, ratio, sibling="", config=SPLIT, own=()):
    """A calibration for ``problem``'s unit, with ``config`` as its candidate and ``ratio`` measured
    of twelve problems near by, those of ``own`` of the problem itself."""
    section = replace(
        calibrate(device, TILED, TMA), units=(problem.unit,), candidates=(config,),
        neighbours=tuple(Neighbour(replace(problem, n=problem.n + 8 * i), ratio)
                         for i in range(2, 14)) + tuple(Neighbour(problem, x) for x in own),
        covers=Covers(("split_product", "tiled"), ("fp32",), (problem.precision,)))
    write_calibration(calibration_path(device.slug, sibling), Calibration(
        device.slug, device.arch, (section,)))
    selection.reload()


@pytest.mark.parametrize("problem", [FLOAT32, TF32], ids=str)
def test_float32_without_a_measurement_is_torchs(problem, configs, h200):
    assert "no measurement shows" in reason_for(problem, h200)


@pytest.mark.parametrize("ratio, wins", [(0.99, True), (1.0, False), (1.4, False)])
def test_float32_goes_where_its_own_row_says(ratio, wins, configs, h200):
    publish(h200, ratio, 50.0, problem=FLOAT32)
    assert bool(reason_for(FLOAT32, h200)) is wins
    assert bool(reason_for(replace(FLOAT32, epilogue="bias"), h200)) is wins
    for other in (replace(FLOAT32, n=1032), replace(FLOAT32, layout="nt"), TF32):
        assert reason_for(other, h200)


def test_a_float32_row_of_another_device_is_no_measurement_here(configs, h200):
    publish(h200, 1.4, 50.0, problem=FLOAT32)
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    assert "no measurement shows" in reason_for(FLOAT32, h100)


@pytest.mark.parametrize("ratio, row_loses, near_loses", [
    (0.95, True, True), (1.05, False, True), (3.0, False, False)])
def test_a_sibling_or_a_problem_near_by_is_evidence_for_split_products(ratio, row_loses, near_loses,
                                                                       configs, h200):
    """The time that is predicted for the one near by is below torch's lower bound."""
    problem = GemmProblem.contiguous(2048, 2048, 2048, dtype="fp32", precision="fp16x3")
    float32_near_by(h200, problem, ratio)
    publish(h200, ratio, 50.0, problem=problem)
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    assert choose(problem, h100).source == "sibling"
    assert bool(reason_for(problem, h100)) is row_loses
    near = replace(problem, n=2056, epilogue="bias")
    for device in (h200, h100):
        assert choose(near, device).source == "model"
        assert bool(reason_for(near, device)) is near_loses


@pytest.mark.parametrize("here, of_sibling, m, wins", [
    (3.0, 0.9, 2048, False), (0.9, 3.0, 2048, False), (None, 3.0, 2048, False),
    (3.0, None, 2048, False), (0.9, 0.9, 2048, True), (None, None, 2048, True),
    (3.0, 0.9, 128, False), (3.0, None, 128, False), (0.9, 3.0, 128, True), (None, 3.0, 128, True)])
def test_of_a_model_of_two_devices_either_evidence_suffices(here, of_sibling, m, wins, configs,
                                                            h200):
    """The sibling's only where the predicted time is below torch's lower bound, not of 128 rows."""
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    problem = GemmProblem.contiguous(m, 2056, 2048, dtype="fp32", precision="fp16x3")
    float32_near_by(h200, problem, of_sibling)
    float32_near_by(h100, problem, here, sibling=h200.slug)
    choice = choose(problem, h100)
    assert choice.source == "model" and "NVIDIA H100" in choice.note
    assert (choice.evidence is None) is (here is None)
    assert (choice.of_sibling is None) is (of_sibling is None)
    assert bool(reason_for(problem, h100)) is wins


@pytest.mark.parametrize("precision, layout, m, h200", [
    ("tf32", "nn", 8, True), ("fp16x3", "nn", 1024, False),
    ("fp16x3", "nt", 3000, False)])
def test_on_a_sibling_an_unmeasured_float32_product_must_beat_torchs_best(precision, layout, m,
                                                                          h200):
    """All of these were measured near by on the H100 alone, to be faster than torch."""
    problem = GemmProblem.contiguous(m, 4104, 4096, dtype="fp32", layout=layout,
                                     precision=precision)
    for slug, wins in (("nvidia-h100-80gb-hbm3", False), ("nvidia-h200", h200)):
        device = known_devices()[slug]
        assert choose(problem, device).source == "model"
        assert bool(reason_for(problem, device)) is wins


@pytest.mark.parametrize("problem", [
    GemmProblem.contiguous(16, 4104, 4096, dtype="fp32", layout="nn", precision="fp16x3"),
    GemmProblem.contiguous(384, 384, 392, dtype="fp32", layout="tn", precision="tf32")], ids=str)
def test_another_layout_is_not_certain(problem):
    """In nt these were measured to be 1.3 times as fast as torch and more."""
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    assert "may take only" in reason_for(problem, h100)
    assert not reason_for(replace(problem, layout="nt"), h100)


@pytest.mark.parametrize("problem", [
    GemmProblem.contiguous(40, 24576, 1536, dtype="fp32", layout="nt", precision="fp16x3"),
    GemmProblem.contiguous(64, 64, 64, dtype="c64", precision="fp16x3")], ids=str)
def test_a_bound_is_asked_to_be_above_1_and_more_of_complex_products(problem):
    """The expected ratios of both are above 1."""
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    choice = choose(problem, h100)
    assert choice.expected > max(choice.evidence, 1.0)
    least = "1.25" if problem.dtype_a == "c64" else "1.03"
    assert f"{least} is asked for" in reason_for(problem, h100)
    assert not reason_for(replace(problem, m=8 * problem.m, n=8 * problem.n, k=8 * problem.k), h100)


@pytest.mark.parametrize("dtype, epilogue, k, wins", [
    ("bf16", "dgelu", 768, True), ("fp16", "dsilu", 768, True), ("bf16", "dgelu", 2048, False),
    ("bf16", "dsilu", 4096, False), ("fp16", "dgelu_tanh", 768, True),
    ("bf16", "dgelu_tanh", 8192, True), ("bf16", "drelu", 768, False), ("bf16", "mul", 768, False),
    ("bf16", "bias+gelu", 768, False)])
def test_a_slow_derivative_of_16_bit_products_is_torchs(dtype, epilogue, k, wins, h200):
    problem = GemmProblem.contiguous(8192, 3080, k, dtype=dtype, layout="nt", epilogue=epilogue)
    choice = choose(problem, h200)
    reason = torch_wins(problem, choice, h200, GRAPH)
    assert (reason is not None) is wins
    assert not wins or f"the derivative of {epilogue[1:]} takes longer in the product" in reason
    for changes in ({"policy": "own"}, {"batch_invariant": True}, {"num_sms": 100}):
        with settings.override(**changes):
            assert torch_wins(problem, choice, h200, GRAPH) is None
    measured = replace(choice, source="exact", vs_torch=1.3)
    assert torch_wins(problem, measured, h200, GRAPH) is None


def test_a_derivative_of_a_small_or_a_float32_product_is_ours(h200):
    small = GemmProblem.contiguous(128, 128, 128, layout="nn", epilogue="dgelu")
    assert torch_wins(small, choose(small, h200), h200, GRAPH) is None
    large = GemmProblem.contiguous(4096, 4096, 1024, dtype="fp32", layout="nn", epilogue="dgelu",
                                   precision="fp16x3")
    assert "derivative" not in str(torch_wins(large, choose(large, h200), h200, GRAPH))
    bf16 = replace(large, dtype_a="bf16", dtype_b="bf16", dtype_out="bf16", precision="ieee")
    assert "derivative" in str(torch_wins(bf16, choose(bf16, h200), h200, GRAPH))


@pytest.mark.parametrize("slug", [
    "nvidia-a100-sxm4-80gb", "nvidia-geforce-rtx-4090", "nvidia-b200"])
@pytest.mark.parametrize("path", [PYTHON, NATIVE, GRAPH], ids=lambda path: path.name)
def test_on_a_gpu_that_was_never_measured_torch_runs_all(slug, path):
    device = known_devices()[slug]
    for dtype in ("bf16", "fp16"):
        for sizes in ((64, 64, 64), (128, 128, 16384), (4096, 4096, 4096)):
            problem = GemmProblem.contiguous(*sizes, dtype=dtype, layout="nt")
            choice = choose(problem, device)
            assert "calibrate --quick" in str(torch_wins(problem, choice, device, path))
            with settings.override(policy="own"):
                assert torch_wins(problem, choice, device, path) is None
            measured = replace(choice, source="exact", vs_torch=1.3)
            assert torch_wins(problem, measured, device, path) is None


def test_a_calibration_of_a_gpu_gives_its_products_back(configs):
    device = known_devices()["nvidia-a100-sxm4-80gb"]
    assert torch_wins(PROBLEM, choose(PROBLEM, device), device, NATIVE) is not None
    calibrate(device, SPECS["tiled"].default(PROBLEM, device))
    selection.reload()
    choice = choose(PROBLEM, device)
    assert choice.source == "model" and torch_wins(PROBLEM, choice, device, NATIVE) is None


@pytest.mark.parametrize("sms", [114, 132])
def test_float32_is_torchs_where_the_peaks_of_a_gpu_are_not_known(sms):
    """An H100 PCIe and an H100 NVL without a file: what torch can reach there is not known."""
    known = known_devices()["nvidia-h100-80gb-hbm3"]
    device = replace(known, slug="nvidia-h100", num_sms=sms, peak_tflops={}, memory_gbps=None)
    for m in (16, 64, 256):
        problem = GemmProblem.contiguous(m, 4096, 4096, dtype="fp32", layout="nn",
                                         precision="tf32")
        assert torch_wins(problem, choose(problem, device), device, GRAPH) is not None
    bf16 = GemmProblem.contiguous(1024, 4096, 4096, layout="nt")
    choice = choose(bf16, device)
    assert choice.source != "rule" and torch_wins(bf16, choice, device, NATIVE) is None


@pytest.mark.parametrize("precision, m, n, k, ratio, wins", [
    ("tf32", 2048, 2048, 2048, 1.04, False), ("tf32", 2048, 4096, 7168, 1.02, True),
    ("tf32", 128, 4096, 4096, 1.3, True), ("tf32", 128, 4096, 4096, 1.5, False),
    ("fp16x3", 16, 4096, 4096, 1.3, True), ("fp16x3", 16, 2112, 7168, 1.9, False),
    ("fp16x3", 256, 256, 256, 1.04, False), ("fp16x3", 256, 256, 256, 1.02, True)])
def test_a_siblings_row_must_be_ahead_by_a_margin(precision, m, n, k, ratio, wins, configs, h200):
    """1.03; for what memory limits times 1.43, by which an H200's memory is faster than an H100's:
    torch may gain that much."""
    problem = GemmProblem.contiguous(m, n, k, dtype="fp32", layout="nt", precision=precision)
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    float32_near_by(h100, problem, None, config=FEW)
    publish(h100, ratio, 50.0, problem, FEW)
    choice = choose(problem, h200)
    assert choice.source == "sibling" and choice.vs_torch is None
    assert (choice.evidence, choice.of_sibling) == (None, ratio)
    assert bool(torch_wins(problem, choice, h200, GRAPH)) is wins


@pytest.mark.parametrize("here, of_sibling, wins", [
    (1.4, 1.2, False), (1.4, None, False), (1.0, 1.2, True), (None, 1.2, True), (0.9, 1.9, False)])
def test_measurements_here_make_up_for_the_margin_of_a_siblings_row(here, of_sibling, wins, configs,
                                                                    h200):
    problem = GemmProblem.contiguous(16, 4096, 4096, dtype="fp32", layout="nt", precision="fp16x3")
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    float32_near_by(h100, problem, of_sibling, config=FEW)
    float32_near_by(h200, problem, here, sibling=h100.slug, config=FEW)
    publish(h100, of_sibling, 50.0, problem, FEW)
    choice = choose(problem, h200)
    assert choice.source == "sibling" and choice.of_sibling == of_sibling
    assert (choice.evidence is None) is (here is None)
    assert here is None or 0.9 * here < choice.evidence < here
    assert choice.expected == pytest.approx(here if here == 1.4 else of_sibling, rel=0.05)
    assert bool(torch_wins(problem, choice, h200, GRAPH)) is wins


@pytest.mark.parametrize("faster", (1.15, 1.25))
def test_measurements_here_count_less_where_the_siblings_config_is_not_the_best(
        faster, configs, h200, monkeypatch):
    problem = GemmProblem.contiguous(16, 4096, 4096, dtype="fp32", layout="nt", precision="fp16x3")
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    float32_near_by(h100, problem, 1.2, config=FEW)
    float32_near_by(h200, problem, 1.4, sibling=h100.slug, config=FEW)
    publish(h100, 1.2, 50.0, problem, FEW)
    before = choose(problem, h200)
    assert not reason_for(problem, h200)
    row_us = selection.estimate(problem, FEW, h200).total_us
    monkeypatch.setattr(policy, "by_model", lambda problem, device: Choice(
        SPLIT, "model", predicted_us=row_us / faster))
    found = choose(problem, h200)
    if faster > 1.2:
        assert (found.source, found.config) == ("model", SPLIT)
    else:
        assert found.source == "sibling"
        assert found.evidence == pytest.approx(before.evidence / faster)
        reason = torch_wins(problem, replace(found, evidence=1.01), h200, GRAPH)
        assert "takes 1.20 of the time of ours on another GPU" in reason
        assert "1.48 is asked for; it may take only 1.01" in reason


@pytest.mark.parametrize("own, of_sibling, wins", [(1.1, 0.9, False), (0.99, 1.9, True)])
def test_what_was_measured_here_of_the_product_itself_decides(own, of_sibling, wins, configs, h200,
                                                              monkeypatch):
    problem = GemmProblem.contiguous(2048, 2048, 2048, dtype="fp32", layout="nt",
                                     precision="fp16x3")
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    float32_near_by(h100, problem, of_sibling, config=FEW)
    float32_near_by(h200, problem, 1.4, sibling=h100.slug, config=FEW, own=(own,))
    publish(h100, of_sibling, 50.0, problem, FEW)
    row_us = selection.estimate(problem, FEW, h200).total_us
    monkeypatch.setattr(policy, "by_model", lambda problem, device: Choice(
        SPLIT, "model", predicted_us=row_us / 1.15))  # not enough to outdo the row
    choice = choose(problem, h200)
    assert (choice.source, choice.own, choice.of_sibling) == ("sibling", True, None)
    assert choice.evidence == choice.expected == pytest.approx(own)
    reason = torch_wins(problem, choice, h200, GRAPH)
    assert bool(reason) is wins
    assert not wins or "takes 0.99 of the time of ours, as measured here" in reason


def test_float32_in_the_interpreter_runs_kernels():
    device = interpreter_device()
    assert torch_wins(FLOAT32, choose(FLOAT32, device), device, PYTHON) is None


@pytest.mark.parametrize("policy, handed", [("auto", True), ("own", False)])
def test_explain_says_that_a_float32_call_is_torchs(policy, handed, configs, h200):
    with settings.override(policy=policy):
        assert ("call       torch, because " in str(explain_problem(FLOAT32, h200))) is handed


# -- host time -------------------------------------------------------------------------------------

PATHS = (NATIVE, PYTHON, GRAPH)


@pytest.mark.parametrize("time_us, native, python, graph", [
    (5.0, False, False, True), (12.9, False, False, True), (13.1, True, False, True),
    (16.4, True, False, True), (16.6, True, True, True), (300.0, True, True, True)])
def test_torchs_shorter_kernel_runs_where_no_host_hides_it(time_us, native, python, graph, configs,
                                                           h200):
    publish(h200, 0.5, time_us)
    choice = choose(PROBLEM, h200)
    assert [bool(torch_wins(PROBLEM, choice, h200, path)) for path in PATHS] == [
        native, python, graph]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_the_decision_follows_torchs_time_and_never_gives_away_a_gain(path, configs, h200):
    """More time of torch's never turns a product over to torch, and what is turned over loses no
    more than the ratio that counts as a tie."""
    publish(h200, 1.0)
    choice = choose(PROBLEM, h200)
    for time_us in (1.0, 4.0, 10.0, 13.0, 15.0, 17.0, 25.0, 1000.0):
        verdicts = []
        for ratio in (0.1, 0.3, 0.5, 0.8, 0.9, 0.96, 0.975, 1.0, 1.3, 10.0):
            one = replace(choice, row=replace(choice.row, time_us=time_us), vs_torch=ratio)
            reason = torch_wins(PROBLEM, one, h200, path)
            assert reason == torch_wins(PROBLEM, one, h200, path)
            torchs, ours = sides(PROBLEM, one, h200, path)
            assert reason is None or torchs.time_us < 0.97 * ours.time_us
            assert reason is not None or torchs.time_us >= 0.97 * ours.time_us
            verdicts.append(reason is not None)
        assert verdicts == sorted(verdicts, reverse=True)


def test_a_plan_of_many_launches_is_torchs_where_they_cost_the_host_more(configs, h200):
    """A copy, the product and a reduction: by the Python path more than a call passed on."""
    odd = GemmProblem.contiguous(256, 255, 8191, layout="nt")
    choice = replace(choose(odd, h200), config=replace(
        TILED, split_k=4), source="model", row=None, predicted_us=5.0, vs_torch=None)
    said = {}
    for split in (1, 4):
        one = replace(choice, config=replace(choice.config, split_k=split))
        said[split] = [torch_wins(odd, one, h200, path) for path in PATHS]
    assert said[1] == [None, None, None]
    launches = sides(odd, choice, h200, PYTHON)[1].host_us
    assert bool(said[4][1]) is (launches * 0.97 > PYTHON.torch_us)
    assert said[4][0] is None and said[4][2] is None


def test_a_small_split_product_is_torchs_where_its_launches_cost_the_host_more():
    """The split pass, the product and the guard: three launches."""
    h100 = known_devices()["nvidia-h100-80gb-hbm3"]
    problem = GemmProblem.contiguous(256, 256, 256, dtype="fp32", layout="nt", precision="fp16x3")
    choice = choose(problem, h100)
    assert len(launches_of(problem, choice.config, h100)) == 3 and choice.evidence > 1
    assert [bool(torch_wins(problem, choice, h100, path)) for path in PATHS] == [
        False, True, False]
    assert "host 20.2" in str(torch_wins(problem, choice, h100, PYTHON))


def test_explain_gives_both_sides(configs, h200):
    publish(h200, 0.5, 5.0)
    with settings.override(native="auto"):
        said = str(explain_problem(PROBLEM, h200))
    assert "torch's 12.6 us (host 12.6, GPU 2.5), ours 5.0 us (host 4.9, GPU 5.0): ours" in said
