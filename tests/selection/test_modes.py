"""A budget of SMs and batch invariance: what selection takes then, with no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies
from hypothesis import settings as hypothesis_settings
from selection_made import TILED, publish

import tritongemm as tg
from tritongemm import selection, settings
from tritongemm.config import KernelConfig
from tritongemm.device import device_named, within_budget
from tritongemm.errors import UnsupportedError, UsageError
from tritongemm.kernels import SPECS, gluon_support
from tritongemm.kernels.compile import launches_of
from tritongemm.ops.explain import explain_problem
from tritongemm.problem import GemmProblem
from tritongemm.selection import choose, sum_class
from tritongemm.selection.work import keeps_to_the_budget, work_of

H200 = device_named("nvidia-h200")
EVERY_M = (1, 2, 7, 16, 64, 65, 300, 1024, 4096, 4097, 50_000)


def products(config):
    """The launches of ``config`` that are not passes over copies or parts."""
    return lambda launches: [x for x in launches if x.function == config.kernel]


@pytest.mark.parametrize("problem", [
    GemmProblem.contiguous(4096, 4096, 4096, layout="nt"),
    GemmProblem.contiguous(512, 512, 512, layout="nt"),
    GemmProblem.contiguous(16, 4096, 4096, layout="nt"),
    GemmProblem.contiguous(999, 1001, 1003),
    GemmProblem.contiguous(128, 4096, 64, batch=8)], ids=str)
@pytest.mark.parametrize("budget", [
    8, *(pytest.param(x, marks=pytest.mark.thorough) for x in (1, 100))])
def test_a_product_launches_at_most_a_program_an_sm_of_the_budget(problem, budget):
    with settings.override(num_sms=budget):
        device = within_budget(H200)
        config = choose(problem, device).config
        (product,) = products(config)(launches_of(problem, config, device))
        assert product.grid[0] * product.grid[1] <= budget


def test_the_waves_are_counted_with_the_budget():
    problem = GemmProblem.contiguous(4096, 4096, 4096, layout="nt")
    config = KernelConfig("warp_specialized", 128, 256, 64, num_warps=8, num_stages=4)
    with settings.override(num_sms=64):
        assert work_of(problem, config, within_budget(H200)).waves == 8
    assert work_of(problem, config, H200).waves == 4


def test_the_peaks_shrink_with_the_budget_and_an_sm_stays_as_fast():
    with settings.override(num_sms=66):
        half = within_budget(H200)
    assert (half.num_sms, half.spare_sms) == (66, 66)
    assert half.peak_tflops["bf16"] * 2 == H200.peak_tflops["bf16"]
    assert half.memory_gbps == H200.memory_gbps


@pytest.mark.parametrize("budget", [None, 132, 1000])
def test_a_budget_of_all_sms_changes_nothing(budget):
    with settings.override(num_sms=budget):
        assert within_budget(H200) is H200


def test_a_row_tuned_on_all_sms_is_ignored_under_a_budget(configs, h200):
    problem = GemmProblem.contiguous(512, 512, 512, layout="nt")
    publish(h200, (problem, TILED))
    assert choose(problem, h200).source == "exact"
    with settings.override(num_sms=100):
        assert choose(problem, within_budget(h200)).source == "rule"


def test_where_no_kernel_keeps_to_the_budget_one_runs_all_the_same():
    fp32 = GemmProblem.contiguous(2048, 2048, 2048, dtype="fp32")
    with settings.override(num_sms=4):
        assert choose(fp32, within_budget(H200)).config.kernel == "tiled"


def test_clusters_keep_to_a_budget_that_all_of_them_fit():
    config = KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4, cluster_k=4)
    problem = GemmProblem.contiguous(512, 512, 8192, layout="nt")  # 16 tiles, 64 programs
    for budget, fits in ((64, True), (63, False)):
        with settings.override(num_sms=budget):
            assert keeps_to_the_budget(problem, config, within_budget(H200)) == fits


def test_a_cluster_that_shares_operands_fits_the_budget():
    config = KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4, cluster_m=8)
    problem = GemmProblem.contiguous(4096, 4096, 4096, layout="nt")
    for budget, fits in ((8, True), (7, False)):
        with settings.override(num_sms=budget):
            device = within_budget(H200)
            assert keeps_to_the_budget(problem, config, device) == fits
            launch, = launches_of(problem, config, device)
            assert launch.grid[0] == 8


def test_the_block_sets_and_restores_the_budget():
    with tg.sm_budget(100):
        assert settings.current().num_sms == 100
        with tg.sm_budget(None):  # while several blocks are open, the smallest budget holds
            assert settings.current().num_sms == 100
        assert settings.current().num_sms == 100
    assert settings.current().num_sms is None


@pytest.mark.parametrize("bad", [0, -1, 1.5, "100", True])
def test_a_budget_must_be_a_positive_integer(bad):
    with pytest.raises(UsageError, match="num_sms"), tg.sm_budget(bad):
        raise AssertionError("never entered")


NK = [(4097, 4097), (64, 64), (16, 8192), *(pytest.param(*x, marks=pytest.mark.thorough) for x in (
    (4096, 4096), (11008, 4096), (4100, 4100), (1000, 333)))]


@pytest.mark.parametrize("layout", [pytest.param("nn", marks=pytest.mark.thorough), "nt"])
@pytest.mark.parametrize("n, k", NK)
def test_one_class_serves_every_m(n, k, layout):
    problems = [GemmProblem.contiguous(m, n, k, layout=layout) for m in EVERY_M]
    with tg.batch_invariant():
        (alike,) = {sum_class(p, H200) for p in problems}
        for problem in problems:
            choice = choose(problem, H200)
            order = SPECS[choice.config.kernel].sum_order(problem, choice.config, H200)
            assert order == alike.order is not None
            assert alike.holds(problem, choice.config, H200) and choice.source == "invariant"
    assert (alike.config.split_k, alike.config.pad_operands) == (1, 0)


@pytest.mark.parametrize("n, k", [(2, 300), (10, 50), (30, 9), (2, 9)])
@pytest.mark.parametrize("kind", [
    {"dtype": "fp32", "precision": "tf32", "layout": "nn"},
    {"dtype": "fp32", "precision": "tf32", "layout": "nt"},
    {"layout": "nt", "epilogue": "gated_silu"}], ids=["tf32 nn", "tf32 nt", "gated"])
def test_what_is_chosen_for_a_narrow_product_can_be_launched(n, k, kind):
    """A tile that is too wide for N hides no rule that every M breaks."""
    with tg.batch_invariant():
        for m in (1, 48, 512):
            problem = GemmProblem.contiguous(m, n, k, **kind)
            assert launches_of(problem, choose(problem, H200).config, H200)


def test_each_m_takes_a_fast_config_of_the_class():
    with tg.batch_invariant():
        found = {m: choose(GemmProblem.contiguous(m, 4096, 4096, layout="nt"), H200)
                 for m in (1, 64, 4096)}
    assert len({choice.config for choice in found.values()}) == 3
    assert found[1].config.swap_ab == 1 and found[1].note.startswith(
        "every M summed by tensor core k16, K in one range; ")
    assert "tuned row of run" in found[4096].note
    free = choose(GemmProblem.contiguous(4096, 4096, 4096, layout="nt"), H200)
    assert found[4096].config == free.config


def test_the_class_does_not_depend_on_the_batch():
    problem = GemmProblem.contiguous(300, 512, 1024, layout="nt")
    assert sum_class(problem, H200) == sum_class(replace(problem, batch=7), H200)


def test_a_class_is_one_of_the_problem_and_not_of_its_epilogue_alone():
    """Each epilogue has a class, and so does each number format."""
    for problem in (GemmProblem.contiguous(64, 512, 1024, epilogue="bias+gelu", layout="nt"),
                    GemmProblem.contiguous(64, 512, 1024, dtype="fp32"),
                    GemmProblem.contiguous(64, 512, 1024, dtype="fp32", precision="fp16x3"),
                    GemmProblem.contiguous(64, 512, 1024, dtype="fp32", precision="tf32")):
        with tg.batch_invariant():
            assert choose(problem, H200).note.startswith(str(sum_class(problem, H200)))


@pytest.mark.thorough
@hypothesis_settings(max_examples=40, deadline=None)
@given(n=strategies.integers(1, 9000), k=strategies.integers(1, 9000),
       dtype=strategies.sampled_from(["bf16", "fp16", "fp32"]),
       few=strategies.integers(1, 64), many=strategies.integers(1, 9000))
def test_one_config_serves_every_m_of_any_n_and_k(n, k, dtype, few, many):
    with tg.batch_invariant():
        problems = [GemmProblem.contiguous(m, n, k, dtype=dtype, layout="nt") for m in (few, many)]
        one, other = (SPECS[config.kernel].sum_order(p, config, H200) for p in problems
                      for config in (choose(p, H200).config,))
    assert one == other is not None


@pytest.mark.parametrize("n, k", NK)
def test_the_one_config_is_legal_for_every_m(n, k):
    with tg.batch_invariant():
        for m in EVERY_M:
            problem = GemmProblem.contiguous(m, n, k, layout="nt")
            config = choose(problem, H200).config
            SPECS[config.kernel].require(problem, config, H200)


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
def test_without_measurements_the_class_is_of_a_kernel_with_a_rule(layout):
    problem = GemmProblem.contiguous(64, 4096, 4096, dtype="fp32", layout=layout)
    found = sum_class(problem, device_named("nvidia-a100-sxm4-80gb"))
    assert found.config.kernel == "tiled" and SPECS["tiled"].by_rule and not SPECS["simt"].by_rule


def test_one_row_is_aligned_better_than_several_and_is_chosen_for_all_the_same():
    several = GemmProblem.contiguous(64, 512, 4097, layout="nt")
    one = replace(several, m=1, align_a=16)  # its leading dimension is never walked
    with tg.batch_invariant():
        assert sum_class(one, H200) == sum_class(several, H200)


def test_the_class_of_a_gated_product_goes_by_the_rows_of_its_result():
    one, several = (replace(GemmProblem.contiguous(m, 2008, 512, layout="nt"),
                            epilogue="gated_silu", align_c=align) for m, align in ((1, 16), (4, 8)))
    assert sum_class(one, H200) == sum_class(several, H200)


@pytest.mark.parametrize("split", [1, 3])
def test_a_tuned_row_is_taken_if_it_belongs_to_the_class(configs, h200, split):
    problem = GemmProblem.contiguous(512, 512, 512, layout="nt")
    config = replace(TILED, split_k=split)
    publish(h200, (problem, config))
    with tg.batch_invariant():
        choice = choose(problem, h200)
        assert choice.source == "invariant" and choice.vs_torch is None
        assert (choice.config == config) == (split == 1) == ("tuned row" in choice.note)
    assert choose(problem, h200).source == "exact"


@pytest.mark.parametrize("n, k, more, persistent", [
    (16, 8192, {}, True), (64, 64, {"dtype": "fp32", "precision": "fp16x3"}, False)],
    ids=["bf16", "fp32"])
def test_a_budget_of_sms_changes_a_class_only_where_no_member_keeps_to_it(n, k, more, persistent):
    problem = GemmProblem.contiguous(4096, n, k, layout="nt", **more)
    whole = sum_class(problem, H200)
    assert whole.persistent == persistent
    with settings.override(batch_invariant=True, num_sms=40):
        device = within_budget(H200)
        alike = sum_class(problem, device)
        assert alike.persistent and (alike == whole) == persistent
        config = choose(problem, device).config
        assert alike.holds(problem, config, device)
        assert keeps_to_the_budget(problem, config, device)


def test_explain_names_the_class():
    with tg.batch_invariant():
        text = str(explain_problem(GemmProblem.contiguous(64, 4096, 4096, layout="nt"), H200))
    assert "invariant: every M summed by tensor core k16, K in one range; " in text


def test_no_config_for_every_m_is_said(configs, h200):
    for path in (configs / "spaces").glob("*.json"):
        path.unlink()
    selection.reload()
    with tg.batch_invariant(), pytest.raises(UnsupportedError, match="for every M"):
        choose(GemmProblem.contiguous(64, 64, 64), h200)


@pytest.mark.parametrize("n", [128, 512])
def test_one_config_for_every_m_keeps_to_the_budget(n):
    problem = GemmProblem.contiguous(4096, n, 256, layout="nt")
    with settings.override(batch_invariant=True, num_sms=60):
        device = within_budget(H200)
        config = choose(problem, device).config
        (product,) = products(config)(launches_of(problem, config, device))
        assert product.grid[0] * product.grid[1] <= 60


def test_one_config_for_every_m_is_chosen_again_without_gluon():
    problem = GemmProblem.contiguous(512, 512, 4096, layout="nt")
    with settings.override(batch_invariant=True):
        assert choose(problem, H200).config.kernel == "warp_specialized"
        gluon_support.refuse("a reason")
        try:
            assert choose(problem, H200).config.kernel != "warp_specialized"
        finally:
            gluon_support.forget()


@pytest.mark.parametrize("variable, value, field, read", [
    ("TRITONGEMM_NUM_SMS", "100", "num_sms", 100), ("TRITONGEMM_NUM_SMS", "", "num_sms", None),
    ("TRITONGEMM_BATCH_INVARIANT", "1", "batch_invariant", True),
    ("TRITONGEMM_POLICY", "OWN", "policy", "own")])
def test_the_environment_variable_sets_the_mode_too(variable, value, field, read, monkeypatch):
    monkeypatch.setenv(variable, value)
    try:
        assert getattr(settings.reload(), field) == read
    finally:
        monkeypatch.undo()
        settings.reload()


@pytest.mark.parametrize("variable, value", [
    ("TRITONGEMM_NUM_SMS", "0"), ("TRITONGEMM_NUM_SMS", "many"), ("TRITONGEMM_POLICY", "torch")])
def test_a_bad_value_is_named(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    try:
        with pytest.raises(UsageError, match=variable):
            settings.reload()
    finally:
        monkeypatch.undo()
        settings.reload()
