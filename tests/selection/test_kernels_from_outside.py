"""Selection takes a kernel that no calibration and no module of the package knows."""

from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fence import CONFIG, NAME, OUTSIDER, registered
from selection_made import TILED, TMA, calibrate, publish

import tritongemm
import tritongemm as tg
from tritongemm import selection, settings
from tritongemm.device import device_named, within_budget
from tritongemm.kernels import SPECS, violation
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import Calibration, calibration_path, write_calibration
from tritongemm.selection import candidates, choose, default_config, estimate
from tritongemm.selection.model import not_calibrated

H200 = device_named("nvidia-h200")
PROBLEM = GemmProblem.contiguous(1024, 1536, 2048, layout="nt")
UNMEASURED = f"kernel {NAME} was not measured"


@pytest.fixture
def calibrated(configs):
    """The folder with the shipped calibrations, and no tuned table."""
    shutil.copytree(Path(tritongemm.__file__).parent.parent / "configs" / "calibration",
                    configs / "calibration")
    selection.reload()
    return configs


def test_an_outside_kernels_configs_are_legal_and_swept(calibrated):
    with registered(calibrated):
        config = OUTSIDER.default(PROBLEM, H200)
        assert violation(PROBLEM, config, H200) is None
        odd = replace(PROBLEM, n=1535)
        assert violation(odd, config, H200).message == "takes an even n, not 1535"
        offered = [c for c in candidates(PROBLEM, H200) if c.kernel == NAME]
        assert len(offered) == 8
        assert not [c for c in candidates(odd, H200) if c.kernel == NAME]
    assert violation(PROBLEM, config, H200).rule == "kernel"


def test_an_outside_kernel_changes_no_choice_among_measured_kernels(calibrated):
    problems = [PROBLEM, replace(PROBLEM, m=16), GemmProblem.contiguous(1000, 333, 777),
                GemmProblem.contiguous(512, 512, 512, dtype="fp16", layout="tn")]
    before = [choose(p, H200) for p in problems]
    assert {choice.source for choice in before} == {"model"}
    with registered(calibrated):
        assert [choose(p, H200) for p in problems] == before


def test_an_outside_kernel_alone_is_chosen_by_rule_and_the_note_says_why(calibrated):
    with registered(calibrated, alone=True):
        choice = choose(PROBLEM, H200)
        assert (choice.source, choice.config) == ("rule", default_config(PROBLEM, H200))
        assert choice.config.kernel == NAME and choice.predicted_us is None
        assert choice.note == f"rule default; not calibrated: {UNMEASURED}"
        text = str(explain_problem(PROBLEM, H200))
        assert f"source     rule: rule default; not calibrated: {UNMEASURED}" in text
        assert text.count(UNMEASURED) == 1


def test_an_outside_kernels_estimate_has_typical_constants_and_no_correction(calibrated):
    with registered(calibrated):
        config = OUTSIDER.default(PROBLEM, H200)
        assert estimate(PROBLEM, config, H200).correction_us == 0.0
        assert estimate(PROBLEM, config, H200).total_us > 0
        assert not_calibrated(PROBLEM, config, H200) == UNMEASURED
        assert not_calibrated(PROBLEM, TMA, H200) is None
        assert estimate(PROBLEM, TMA, H200).correction_us != 0.0


def test_an_outside_kernel_runs_under_batch_invariance_and_a_budget(calibrated):
    with registered(calibrated, alone=True):
        with tg.batch_invariant():
            choice = choose(PROBLEM, H200)
        assert (choice.source, choice.config.kernel) == ("invariant", NAME)
        with settings.override(num_sms=50):
            assert choose(PROBLEM, within_budget(H200)).config.kernel == NAME


def test_a_tuned_row_of_it_serves_and_explain_says_that_the_estimate_is_not_calibrated(calibrated):
    with registered(calibrated):
        config = OUTSIDER.default(PROBLEM, H200)
        publish(H200, (PROBLEM, config))
        assert (choose(PROBLEM, H200).source, choose(PROBLEM, H200).config) == ("exact", config)
        assert f"not calibrated: {UNMEASURED}" in str(explain_problem(PROBLEM, H200))
        near = replace(PROBLEM, k=1984)
        assert choose(near, H200).source == "model"


def test_an_outside_kernel_is_chosen_like_others_once_measured(configs):
    with registered(configs):
        calibrate(H200, TILED, CONFIG, favourite=CONFIG)
        selection.reload()
        choice = choose(PROBLEM, H200)
        assert (choice.source, choice.config) == ("model", CONFIG)
        assert not_calibrated(PROBLEM, CONFIG, H200) is None
        assert "not calibrated" not in str(explain_problem(PROBLEM, H200))


def test_a_table_or_calibration_of_a_kernel_that_is_not_registered_is_passed_over(configs):
    section = replace(calibrate(H200, TILED, CONFIG, favourite=CONFIG), candidates=(CONFIG, TILED))
    write_calibration(calibration_path(H200.slug), Calibration(H200.slug, 90, (section,)))
    publish(H200, (PROBLEM, CONFIG))
    selection.reload()
    choice = choose(PROBLEM, H200)
    assert (choice.source, choice.config) == ("model", TILED)


@pytest.mark.parametrize("change, reason", [
    ({"formats": ("fp16",)}, "operands of bf16 were not measured"),
    ({"computes": ("tf32",)}, "products in ieee were not measured")])
def test_what_a_calibration_does_not_cover_goes_by_rule(configs, change, reason):
    section = calibrate(H200, TILED, TMA)
    section = replace(section, covers=replace(section.covers, **change))
    write_calibration(calibration_path(H200.slug), Calibration(H200.slug, 90, (section,)))
    selection.reload()
    choice = choose(PROBLEM, H200)
    assert (choice.source, choice.note) == ("rule", f"rule default; not calibrated: {reason}")
    assert f"not calibrated: {reason}" in str(explain_problem(PROBLEM, H200))


def test_without_a_calibration_the_choice_says_so(configs):
    assert choose(PROBLEM, H200).note == (
        "rule default; not calibrated: no calibration serves NVIDIA H200 for bf16")


def _strings(path: Path) -> set[str]:
    return {node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_no_module_that_chooses_or_calibrates_names_a_kernel():
    package = Path(tritongemm.__file__).parent
    named = {str(path.relative_to(package)): found
             for folder in ("selection", "tuning", "calibration", "ops")
             for path in sorted((package / folder).glob("*.py"))
             if (found := _strings(path) & {*SPECS, NAME})}
    assert named == {}


def test_no_module_of_the_package_knows_the_outsider():
    package = Path(tritongemm.__file__).parent
    assert not [path for path in package.rglob("*.py")
                if NAME in path.read_text(encoding="utf-8")]
