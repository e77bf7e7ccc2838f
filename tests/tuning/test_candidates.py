"""Candidates: legal ones only, counted by rule, the most promising first."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import device_named, representative
from tritongemm.errors import DataFileError, UsageError
from tritongemm.kernels import SPECS, violation
from tritongemm.problem import OPERAND_DTYPES, GemmProblem
from tritongemm.records.codec import config_to_json
from tritongemm.records.spaces import read_space
from tritongemm.selection import choose
from tritongemm.selection.model import model_for
from tritongemm.tuning import candidates
from tritongemm.tuning.candidates import KernelPlanner, Planner

H200 = device_named("nvidia-h200")
LARGE = GemmProblem.contiguous(2048, 2048, 2048)


@pytest.fixture(scope="module")
def everything():
    """The candidates of one problem, from all spaces."""
    return KernelPlanner()(LARGE, H200)


def test_every_candidate_is_legal_and_every_other_config_is_counted_under_a_rule(everything):
    found = everything
    assert found.configs
    assert all(violation(LARGE, c, H200) is None for c in found.configs)
    report = found.report
    assert report.kept == len(found.configs) == len(set(found.configs))
    assert report.considered == report.kept + sum(report.removed.values())
    assert all(kernel in SPECS for kernel, _ in report.removed)


def test_before_sm_90_no_config_is_measured_twice():
    """There the dependence of launches changes nothing in what is compiled."""
    device = device_named("nvidia-a100-sxm4-80gb")
    found = KernelPlanner()(LARGE, device)
    assert len({replace(c, dependent_launch=1) for c in found.configs}) == len(found.configs) > 100
    assert {c.dependent_launch for c in found.configs} == {1}
    repeated = sum(n for (_, rule), n in found.report.removed.items() if rule == "repeated")
    assert repeated == len(found.configs)  # the spaces have two of each
    assert found.report.considered == found.report.kept + sum(found.report.removed.values())


def test_the_most_promising_come_first(everything):
    model = model_for(LARGE, H200)
    found = everything.configs[:200] + everything.configs[200::20]
    times = [model.estimate(LARGE, c).total_us for c in found]
    # numpy sums the product of one row in another order than that of many: 1e-7, in float32
    assert times == pytest.approx(sorted(times), rel=1e-6)


def test_top_takes_the_first_and_the_present_choice(everything):
    found = KernelPlanner(top=5)(LARGE, H200)
    assert set(everything.configs[:5]) <= set(found.configs)
    assert set(found.configs) - set(everything.configs[:5]) <= {choose(LARGE, H200).config}
    assert found.report.not_chosen >= len(everything.configs) - 6


def test_the_present_choice_is_measured_where_the_space_has_it_no_more(tmp_path, monkeypatch):
    present = choose(LARGE, H200).config
    other = replace(present, num_stages=present.num_stages - 1)
    axes = {name: [value] for name, value in config_to_json(other).items()
            if name != "kernel"}
    path = tmp_path / f"{present.kernel}.json"
    path.write_text(json.dumps({"schema_version": 1, "kernel": present.kernel, "axes": axes}))
    monkeypatch.setattr(candidates, "load_space", lambda kernel: read_space(path))
    assert set(KernelPlanner([present.kernel])(LARGE, H200).configs) == {present, other}


def test_what_is_in_use_and_not_in_the_spaces_hides_none_that_was_left_out():
    configs = [KernelConfig("tiled", 16 * n, 64, 64) for n in range(1, 6)]

    class Listed(Planner):
        space_hash = ""

        def legal(self, problem, device, report):
            return configs[:4]

        def by_promise(self, problem, device, configs):
            return configs

        def in_use(self, problem, device):
            return configs[4:]

    found = Listed(top=2)(LARGE, H200)
    assert found.configs == (configs[4], *configs[:2])
    assert (found.report.kept, found.report.not_chosen) == (3, 2)


def test_a_random_subset_is_the_same_for_a_seed_and_differs_between_seeds():
    first, again, other = (KernelPlanner(["tiled"], subset=8, seed=s)(LARGE, H200).configs
                           for s in (1, 1, 2))
    assert first == again != other
    assert 8 <= len(first) <= 9


def test_only_the_kernels_asked_for():
    found = KernelPlanner(["tiled"])(LARGE, H200)
    assert {c.kernel for c in found.configs} == {"tiled"}


@pytest.mark.parametrize(("options", "words"), [
    ({"kernels": ["nonsense"]}, "nonsense"), ({"top": 0}, "top=0"), ({"subset": -1}, "subset=-1"),
])
def test_bad_options_are_named(options, words):
    with pytest.raises(UsageError, match=words):
        KernelPlanner(**options)


def test_a_malformed_space_is_an_error_naming_the_file(tmp_path):
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "tiled.json").write_text(
        json.dumps({"schema_version": 1, "kernel": "tiled", "axes": {"block_m": [0]}}))
    with (settings.override(config_dir=tmp_path, config_only=True),
          pytest.raises(DataFileError, match="tiled.json")):
        KernelPlanner()


def test_a_dtype_that_no_kernel_takes_has_no_candidates():
    found = KernelPlanner()(GemmProblem.contiguous(64, 64, 64, dtype="fp64"), H200)
    assert found.configs == () and found.report.kept == 0


@pytest.mark.parametrize("extents", [(0, 64, 64), (64, 0, 64), (64, 64, 0)])
def test_an_empty_product_has_no_candidates(extents):
    assert KernelPlanner()(GemmProblem.contiguous(*extents), H200).configs == ()


@pytest.mark.thorough
@hypothesis_settings(deadline=None)  # the first reads the calibration
@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000),
       st.sampled_from(OPERAND_DTYPES), st.sampled_from(("nn", "nt", "tn", "tt")),
       st.sampled_from((80, 90, 100)))
def test_any_problem_has_legal_candidates_only(m, n, k, dtype, layout, arch):
    problem = GemmProblem.contiguous(m, n, k, dtype=dtype, layout=layout)
    device = representative(arch)
    for config in KernelPlanner(["tiled"], top=3)(problem, device).configs:
        assert violation(problem, config, device) is None


def test_the_lines_of_a_report_name_rules_and_counts():
    report = KernelPlanner(["tiled"], top=3)(LARGE, H200).report
    lines = report.lines()
    assert lines[0].startswith(f"{report.kept} candidates of {report.considered} ")
    assert len(lines) == 2 + len(report.removed)
    assert type(report)().lines() == []  # nothing was counted
    both = KernelPlanner(["tiled"])(LARGE, H200).report
    both.add(report)
    assert both.considered == 2 * report.considered
