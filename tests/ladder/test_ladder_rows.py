"""Rungs as providers, the ladder's tables, the sources' experiments, and the ablation."""

from __future__ import annotations

import pytest

from tritongemm import settings
from tritongemm.baselines import CUDA_RUNGS
from tritongemm.baselines.cuda.rungs import config_violation
from tritongemm.bench.providers import check_names, load
from tritongemm.bench.target import HOST, Target
from tritongemm.device import device_named
from tritongemm.errors import UsageError
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.ladder import catalog, climbing, experiments
from tritongemm.ladder.climbing import Climb, LadderPlan
from tritongemm.ladder.provider import RungProvider, config_for, parse
from tritongemm.problem import GemmProblem
from tritongemm.records.columns import NAMES
from tritongemm.records.rows import append_rows, derive, problem_columns
from tritongemm.records.tables import LADDER, TableHeader, TunedRow, merge, path_for

H200 = device_named("nvidia-h200")
GPU, CPU = Target("cuda", H200, "cuda:0"), Target("cpu", HOST, "cpu")


def problem(size=4096, dtype="fp32"):
    return GemmProblem.contiguous(size, size, size, dtype=dtype)


@pytest.mark.parametrize("one", catalog.RUNGS, ids=lambda r: r.name)
def test_every_rung_is_a_provider_by_its_name(one):
    assert check_names((one.name,)) == ("torch", one.name)
    provider = load(one.name)
    assert provider.name == one.name and provider.rung is one
    if one.kind == "host":
        assert "--device cpu" in provider.available(GPU)
    else:
        assert "CUDA device" in provider.available(CPU)


def test_parameters_are_changed_behind_the_name():
    one, values, tuned = parse("warp_tiled+block_k=16+thread_n=8")
    config, source = config_for(one, problem(), H200, values, tuned)
    assert (config.block_k, config.thread_n, source) == (16, 8, "asked")
    assert config.block_m == CUDA_RUNGS["warp_tiled"].variants[0].block_m
    one, values, tuned = parse("triton_pipelined+num_stages=1")
    assert config_for(one, problem(dtype="bf16"), H200, values)[0].num_stages == 1


@pytest.mark.parametrize("text, says", [
    ("v9", "no rung is named"), ("naive+block_q=3", "block_q=3"), ("naive+block_m=x", "block_m=x"),
    ("naive+block_m", "'block_m'"), ("cpu_naive+block_m=3", "no parameters"),
    ("triton_tiled+tuned", "tuned table")])
def test_what_cannot_be_changed_is_named(text, says):
    with pytest.raises(UsageError, match=says):
        parse(text)


def test_names_of_other_things_are_no_rungs():
    takes = RungProvider.takes
    assert not takes("torch") and not takes("a.b:C") and takes("naive+tuned")


def tuned_row(rung, size, **axes):
    config = CUDA_RUNGS[rung].config(**axes)
    return TunedRow.of(problem(size), config, time_us=1.0, margin_vs_second=None,
                       run_id="20261121T052300Z-1a2b3c")


def test_tuned_parameters_come_from_the_ladders_table(tmp_path):
    config = tmp_path / "configs"
    (config / "tuned").mkdir(parents=True)
    one, changes, tuned = parse("thread_tile_2d+tuned")
    with settings.override(config_dir=config, config_only=True):
        path = path_for(problem(), H200.slug, LADDER)
        assert config_for(one, problem(), H200, changes, tuned)[1] == "source"
        header = TableHeader.of(problem(), device=H200.slug, arch=90, space_hash="x", torch="2",
                                triton="3", op=LADDER)
        merge(path, header, [tuned_row("thread_tile_2d", 1024, block_m=64),
                             tuned_row("thread_tile_2d", 4096, block_n=64)], lambda a, b: True)
        exact, source = config_for(one, problem(4096), H200, changes, tuned)
        assert (exact.block_n, source) == (64, "exact")
        near, source = config_for(one, problem(1400), H200, changes, tuned)
        assert (near.block_m, source) == (64, "nearest")
        # Without being asked for, only the project's own rung takes tuned parameters.
        assert config_for(parse("thread_tile_2d")[0], problem(), H200)[1] == "source"
        assert config_for(parse("warp_tiled_async")[0], problem(), H200)[1] == "rule"
        merge(path, header, [tuned_row("warp_tiled_async", 4096, num_stages=2)], lambda a, b: True)
        assert config_for(parse("warp_tiled_async")[0], problem(), H200)[1] == "exact"


def test_the_last_rung_takes_smaller_tiles_where_tiles_are_few():
    one = catalog.rung("warp_tiled_async")
    areas = [config_for(one, problem(size), H200)[0] for size in (4096, 1024, 512)]
    assert [c.block_m * c.block_n for c in areas] == [64 * 128, 64 * 128, 64 * 64]


def test_rungs_of_two_kinds_of_machine_do_not_mix(tmp_path):
    with pytest.raises(UsageError, match="naive runs on a CUDA device"):
        LadderPlan((Climb(((8, 8, 8),), ("naive",)),), tmp_path / "x.csv", cpu=True)
    with pytest.raises(UsageError, match="cpu_naive runs on --device cpu"):
        LadderPlan((Climb(((8, 8, 8),), ("cpu_naive",)),), tmp_path / "x.csv")


# -- tables ---------------------------------------------------------------------------------------

def row(provider, size, time_us, dtype="fp32", **more):
    one = problem(size, dtype)
    made = {**dict.fromkeys(NAMES), "schema_version": 1, "run_id": "20261121T052300Z-1a2b3c",
            "timestamp_utc": "2026-11-21T05:23:00Z",
            "device": H200.slug, "tags": "", "suite": "ladder", "provider": provider,
            "status": "ok", "time_us_p50": time_us, **problem_columns(one), **more}
    return derive(made, unit_peak_tflops=67.0, memory_gbps=4800.0)


def plan(tmp_path, rungs=("naive", "coalesced", "triton_naive"), sizes=((512,) * 3,)):
    return LadderPlan((Climb(sizes, rungs),), tmp_path / "l.csv")


def test_table_has_torch_first_and_gains_within_a_kind(tmp_path):
    one = plan(tmp_path)
    append_rows(one.out, [
        row("torch", 512, 10.0, torch_backend="cublas", ratio_vs_torch=1.0),
        row("naive", 512, 1000.0, ratio_vs_torch=0.01, registers=40),
        row("coalesced", 512, 250.0, ratio_vs_torch=0.04),
        row("triton_naive", 512, 900.0, "bf16", ratio_vs_torch=0.5)])
    heads, cells = climbing.table(climbing.rows_of(one), (512,) * 3, one.climbs[0].rungs)
    assert all(len(line) == len(heads) for line in cells)
    by_name = {line[0]: dict(zip(heads, line)) for line in cells}
    assert list(by_name) == ["torch fp32 (cublas)", "naive", "coalesced", "triton_naive"]
    assert by_name["coalesced"]["gain"] == "4.00x" and by_name["naive"]["gain"] == ""
    assert by_name["triton_naive"]["gain"] == ""
    assert by_name["coalesced"]["source's own"] == "S1 471.78 us"
    assert by_name["naive"]["% of torch"] == "1.0" and by_name["naive"]["regs"] == "40"


def test_a_failed_rung_says_why_and_the_next_gain_is_over_the_last_that_ran(tmp_path):
    one = plan(tmp_path, ("naive", "smem_strip", "smem_tiled"))
    append_rows(one.out, [
        row("naive", 512, 1000.0), row("smem_tiled", 512, 100.0),
        row("smem_strip", 512, None, status="constraint", error="k=512 needs strips")])
    heads, cells = climbing.table(climbing.rows_of(one), (512,) * 3, one.climbs[0].rungs)
    assert "constraint: k=512 needs strips" in cells[1][1]
    assert cells[2][heads.index("gain")] == "10.00x"


def test_rows_are_the_last_of_each_and_only_the_plans(tmp_path):
    one = plan(tmp_path, ("naive",))
    append_rows(one.out, [row("naive", 512, 2.0), row("naive", 256, 3.0), row("naive", 512, 1.0),
                          row("coalesced", 512, 1.0), {**row("naive", 512, 9.0), "suite": "x"}])
    assert [r["time_us_p50"] for r in climbing.rows_of(one)] == [1.0]


@pytest.mark.parametrize("time_us, text", [(12.345, "12.35 us"), (9190.0, "9190 us"),
                                           (52_000.0, "52 ms"), (2.2e7, "22 s"), (None, "right")])
def test_durations_keep_four_digits(time_us, text):
    assert climbing.duration(time_us) == text


# -- experiments ----------------------------------------------------------------------------------

@pytest.mark.parametrize("one", experiments.EXPERIMENTS.values(), ids=lambda e: e.name)
def test_each_step_of_an_experiment_has_a_figure_of_its_source(one):
    for step in one.steps:
        rung, changes, _ = parse(step.rung)
        config, _ = config_for(rung, problem(step.sizes[0]), H200, changes)
        assert config_violation(config, H200) is None
        for size in step.sizes:
            told = experiments.source_figures(one, step, size)
            assert told and (not one.profiled or len(told) == 3), (step, size)


def test_an_experiments_table_sets_the_source_beside_what_was_measured():
    one = experiments.experiment("S3")
    rows = [row("naive", 4096, 400_000.0, ratio_vs_torch=0.01), row("torch", 4096, 2700.0)]
    heads, cells = experiments.table(one, rows)
    assert all(len(line) == len(heads) for line in cells)
    lines = {line[0]: dict(zip(heads, line)) for line in cells}
    assert lines["naive"]["S3: A100"] == "500 ms" and lines["naive"]["here"] == "400 ms"
    assert lines["thread tiling"]["S3: A100"] == "11 ms"
    assert lines["cuBLAS"]["S3: A100"] == "8.8 ms" and lines["warp tiling"]["here"] == ""


def test_s1_shows_the_profilers_columns():
    one = experiments.experiment("S1")
    counters = {"smem_strip 256": {"memory_pct": 50.0, "dram_pct": 2.0}}
    heads, cells = experiments.table(one, [row("smem_strip", 256, 20.0)], counters)
    strip = dict(zip(heads, cells[1]))
    assert strip["S1: memory %"] == "78.92" and strip["memory %"] == "50.0"
    assert sorted({c.sizes[0][0] for c in one.climbs}) == [256, 512]


def test_the_floor_is_computed_for_the_device():
    text = experiments.floor_text(experiments.experiment("S3"), H200)
    assert "137 GFLOP" in text and "at 4096" in text and "TFLOPS" in text
    assert "not known" in experiments.floor_text(experiments.experiment("S3"), HOST)


def test_an_unknown_experiment_lists_the_known():
    with pytest.raises(UsageError, match="S1, S2, S2-sizes, S3, S4"):
        experiments.experiment("S5")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_ablation_changes_one_thing_at_a_time_and_stays_legal(dtype):
    one = problem(4096, dtype)
    base = config_for(parse("triton_warp_tiled")[0], one, H200)[0]
    for label, text in experiments.ablation(dtype).items():
        rung, changes, _ = parse(text)
        config, _ = config_for(rung, one, H200, changes)
        assert RUNG_SPECS[rung.name].violation(one, config, H200) is None, label
        if label in ("without vectorised loads",):
            same = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m")
            assert all(getattr(config, a) == getattr(base, a) for a in same)


def test_ablation_says_what_each_technique_brings():
    rows = [row("triton_warp_tiled", 512, 10.0, "bf16"),
            row("triton_warp_tiled+group_m=1", 512, 15.0, "bf16")]
    heads, cells = experiments.ablation_table("bf16", rows, (512,) * 3)
    brings = {line[0]: line[-1] for line in cells}
    assert brings["without grouped order"] == "1.50x" and brings["everything"] == ""
