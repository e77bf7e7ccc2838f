"""The ladder and its sweep on a GPU: rows, ablation, an experiment, tuned parameters."""

from __future__ import annotations

import pytest

from tritongemm import settings
from tritongemm.cli import main
from tritongemm.records.rows import read_rows

torch = pytest.importorskip("torch")
pytest.importorskip("cuda.core")
pytestmark = pytest.mark.gpu


def rows_of(path):
    return {r["provider"]: r for r in read_rows(path)}


def climbed(capsys, *args) -> str:
    """What a run printed. It may be void: other tests use the GPU at the same time."""
    status = main(["ladder", *map(str, args)])
    printed = capsys.readouterr().out
    assert status == int("! VOID, run " in printed)
    return printed


def test_cuda_and_triton_rungs_are_right_and_timed(tmp_path, capsys):
    out = tmp_path / "l.csv"
    names = "naive,padded,smem_strip,warp_tiled_async,triton_naive,triton_split_k,triton_stream_k"
    printed = climbed(capsys, "--size", 250, "--rungs", names, "--budget", 0.3, "--out", out)
    rows = rows_of(out)
    for name in names.split(","):
        assert rows[name]["status"] == "ok", rows[name]["error"]
        assert rows[name]["time_us_p50"] > 0 and rows[name]["timer"] == "graph"
        assert rows[name]["registers"] > 0 and 0 < rows[name]["occupancy"] <= 1
    assert "source's own" in printed


def test_a_strip_that_does_not_fit_is_a_row_that_says_so(tmp_path, capsys):
    out = tmp_path / "l.csv"
    climbed(capsys, "--size", 4096, "--rungs", "smem_strip,warp_tiled", "--budget", 0.2, "--out",
            out)
    row = rows_of(out)["smem_strip"]
    assert row["status"] == "constraint" and "k <= " in row["error"]


def test_ablation_measures_every_variant(tmp_path, capsys):
    out = tmp_path / "a.csv"
    climbed(capsys, "--ablate", "--size", 1024, "--budget", 0.5, "--out", out)
    assert {r["status"] for r in rows_of(out).values()} == {"ok"}


def test_an_experiment_is_run_beside_its_source(tmp_path, capsys):
    out = tmp_path / "s.csv"
    printed = climbed(capsys, "--experiment", "S1", "--budget", 0.5, "--out", out)
    assert "471.78 us" in printed
    assert {r["status"] for r in rows_of(out).values()} == {"ok"}


def test_a_swept_rung_is_published_and_then_used(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    configs = tmp_path / "configs"
    configs.mkdir()
    for name in ("spaces", "devices"):
        (configs / name).symlink_to(settings.config_root() / name)
    (configs / "tuned").mkdir()
    monkeypatch.setenv("TRITONGEMM_CONFIG_DIR", str(configs))  # for the child processes
    monkeypatch.setenv("TRITONGEMM_CONFIG_ONLY", "1")
    with settings.override(config_dir=configs, config_only=True):
        size = ["--m", "512", "--n", "512", "--k", "512", "--dtype", "fp32"]
        assert main(["sweep", *size, "--rungs", "warp_tiled_async", "--top", "12", "--plain",
                     "--journal", "j.jsonl"]) == 0
        assert main(["publish", "j.jsonl"]) == 0
        assert list(configs.glob("tuned/*/ladder-fp32-ieee-nn.json"))
        climbed(capsys, "--size", 512, "--rungs", "warp_tiled_async", "--budget", 0.3, "--out",
                "l.csv")
    assert rows_of(tmp_path / "l.csv")["warp_tiled_async"]["selection_source"] == "exact"
