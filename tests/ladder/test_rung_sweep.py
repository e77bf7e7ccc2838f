"""Sweeping the ladder's CUDA rungs: their spaces, candidates, journals and tables."""

from __future__ import annotations

import functools
from pathlib import Path

import fakes
import pytest

import tritongemm.tuning.sweep as door
from tritongemm import selection, settings
from tritongemm.baselines.cuda.rungs import CUDA_RUNGS, config_violation
from tritongemm.baselines.cuda.rungs import violation as problem_violation
from tritongemm.cli import main
from tritongemm.device import device_named
from tritongemm.errors import UsageError
from tritongemm.kernels import SPECS
from tritongemm.ladder.rung_sweep import RungBuilder, RungPlanner, cost, sweepable
from tritongemm.problem import GemmProblem
from tritongemm.records.journal import read_journal
from tritongemm.records.spaces import load_rung_space, load_spaces, rung_spaces
from tritongemm.records.tables import read_table

H200 = device_named("nvidia-h200")
SHAPE = ["--m", "64", "--n", "64", "--k", "64", "--dtype", "fp32"]


def problem(size: int = 4096) -> GemmProblem:
    return GemmProblem.contiguous(size, size, size, dtype="fp32")


def test_rungs_6_and_11_to_19_have_a_space_and_matmuls_kernels_do_not_see_it():
    assert sweepable() == tuple(r.name for r in CUDA_RUNGS.values()
                                if r.number == 6 or r.number >= 11)
    assert not set(load_spaces()) & set(rung_spaces())
    assert set(load_spaces()) <= set(SPECS)


@pytest.mark.parametrize("name", sweepable())
def test_candidates_are_legal_and_hold_the_shipped_parameters(name):
    rung, found = CUDA_RUNGS[name], RungPlanner(name, top=40)(problem(), H200)
    assert 0 < len(found.configs) <= 40 + len(rung.variants)
    assert set(rung.variants) <= set(found.configs)
    assert all(config_violation(c, H200) is None for c in found.configs)
    assert len(set(found.configs)) == len(found.configs)
    report = found.report
    assert report.considered == load_rung_space(name).size()
    assert all(c.num_warps * 32 >= rung.threads(c) for c in found.configs)


def test_more_work_a_thread_is_estimated_cheaper_on_a_large_problem():
    rung = CUDA_RUNGS["thread_tile_2d"]
    small = rung.config(block_m=64, block_n=64, thread_m=4, thread_n=4)
    assert cost(problem(), rung.variants[0], H200) < cost(problem(), small, H200)


@pytest.mark.parametrize("words, says", [
    (dict(rung="no_such"), "no CUDA rung is named"),
    (dict(rung="naive"), "has no space"),
    (dict(rung="warp_tiled", top=0), "top=0"),
    (dict(rung="warp_tiled", subset=-1), "subset=-1")])
def test_bad_arguments_of_a_planner_are_named(words, says):
    with pytest.raises(UsageError, match=says):
        RungPlanner(**words)


def test_a_random_subset_is_the_same_for_the_same_seed():
    one, two, other = (RungPlanner("transposed_a", subset=5, seed=s)(problem(), H200).configs
                       for s in (1, 1, 2))
    assert one == two != other


def test_an_empty_product_has_no_candidates():
    assert RungPlanner("warp_tiled")(problem(0), H200).configs == ()


def test_builder_compiles_a_rung_with_no_gpu(tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    rung = CUDA_RUNGS["thread_tile_2d"]
    with settings.override(cache_dir=tmp_path):
        outcome = RungBuilder(H200).one(problem(512), rung.variants[0])
    assert outcome.ok and outcome.values["registers"] > 64 and outcome.values["spills"] == 0
    key = RungBuilder.key
    assert key(problem(512), rung.variants[0], H200) == key(problem(256), rung.variants[0], H200)


@pytest.fixture
def faked(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(door, "sweep", functools.partial(door.sweep))
    from tritongemm.ladder import rung_sweep

    monkeypatch.setattr(rung_sweep, "MEASURER", fakes.MEASURER)
    monkeypatch.setattr(rung_sweep, "BUILDER", fakes.BUILDER)
    return tmp_path


def test_each_rung_has_a_journal_and_winners_go_to_tables_of_op_ladder(faked, capsys):
    assert main(["sweep", *SHAPE, "--rungs", "thread_tile_2d,warp_tiled_async", "--top", "3",
                 "--journal", "j.jsonl"]) == 0
    journals = sorted(faked.glob("*.jsonl"))
    assert [p.name for p in journals] == ["j-thread_tile_2d.jsonl", "j-warp_tiled_async.jsonl"]
    for path, rung in zip(journals, ("thread_tile_2d", "warp_tiled_async")):
        kinds = [r for r in read_journal(path) if r["kind"] == "winner"]
        assert [r["config"]["kernel"] for r in kinds] == [rung]
    configs = faked / "configs"
    (configs / "tuned").mkdir(parents=True)
    with settings.override(config_dir=configs, config_only=True):
        assert main(["publish", *map(str, journals)]) == 0
    (path,) = configs.glob("tuned/*/*.json")
    assert path == configs / "tuned/nvidia-h200/ladder-fp32-ieee-nn.json"
    table = read_table(path)
    assert table.header.op == "ladder"
    assert {row.config.kernel for row in table.rows.values()} == {"thread_tile_2d",
                                                                  "warp_tiled_async"}
    for row in table.rows.values():
        assert problem_violation(row.problem(table.header), row.config, H200) is None
    with settings.override(config_dir=configs, config_only=True):
        choice = selection.choose(problem(64), H200)  # what matmul asks
    assert choice.config.kernel in SPECS and choice.source != "exact"


@pytest.mark.parametrize("words, says", [
    (["--rungs", "no_such"], "no CUDA rung"), (["--rungs", "naive"], "has no space"),
    (["--rungs", "warp_tiled", "--kernels", "tiled"], "exclude each other"),
    (["--rungs", "warp_tiled", "--dtype", "bf16"], "--dtype fp32")])
def test_wrong_words_are_one_line_and_leave_nothing(faked, capsys, words, says):
    assert main(["sweep", *SHAPE, *words, "--journal", "j.jsonl"]) == 2
    assert says in capsys.readouterr().err
    assert not Path("j.jsonl").exists()
