"""perf/bench_tuning.py, with a measurer and a builder that sleep: steps, rows, budget, resuming."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from perf_scripts import loaded

from tritongemm.records.suites import read_suite
from tritongemm.tuning.search import LEAST

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "perf" / "bench_tuning.py"


def bench(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *map(str, words)], capture_output=True,
                          text=True, check=False, timeout=300)


@pytest.fixture
def module():
    return loaded("bench_tuning")


@pytest.mark.thorough
def test_a_shape_goes_through_the_steps_and_is_not_repeated(tmp_path):
    done = bench(tmp_path, "--simulate", "0.02", "--families", "square,odd", "--budget", "5")
    assert done.returncode == 1, done.stderr  # the budget ends after one shape
    assert "continue with the same command" in done.stdout
    with open(tmp_path / "tuning.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["family"] == "square" and float(row["cold_s"]) > float(row["warm_s"]) > 0
    assert int(row["cold_configs"]) >= LEAST and 230 < int(row["wide_configs"]) <= 260
    assert 0 <= float(row["cold_loss"]) < 0.03 and float(row["best_us"]) > 0
    assert float(row["cold_compile_s"]) > 10 and float(row["cold_gpu_waited_s"]) >= 0
    (tmp_path / "square-45-cold.jsonl").unlink()
    again = bench(tmp_path, "--simulate", "0.02", "--families", "square", "--budget", "5")
    assert again.returncode == 0, again.stderr
    assert not (tmp_path / "square-45-cold.jsonl").exists()


def test_a_time_of_several_runs_is_the_sum_of_theirs(module, tmp_path):
    journal = tmp_path / "whole.jsonl"
    journal.write_text("\n".join((
        '{"kind":"header","run_id":"a","opened_utc":"2026-11-27T01:00:00Z"}',
        '{"kind":"winner","run_id":"a","utc":"2026-11-27T01:00:40Z","problem":{"m":1}}',
        '{"kind":"header","run_id":"b","opened_utc":"2026-11-27T05:00:00Z"}',
        '{"kind":"result","run_id":"b","utc":"2026-11-27T05:00:05Z","problem":{"m":2}}',
        '{"kind":"left_out","run_id":"b","utc":"2026-11-27T05:00:20Z","problem":{"m":2}}')) + "\n")
    assert module.progress_of(journal) == (2, 60.0)


def test_the_summary_states_each_goal(module):
    rows = [{"family": f, "batch": "1", "m": "8", "n": "8", "k": "8", "layout": "nt",
             "cold_s": s, "cold_configs": "48", "cold_loss": loss, "warm_s": "3", "warm_loss": "0"}
            for f, s, loss in (("square", "20", "0.004"), ("odd", "30", "0.02"))]
    text = "\n".join(module.summary(rows))
    assert "cold: median 25.0 s, most 30.0 s (goal 25 s); loss median 1.20 %, worst 2.00 %" in text
    assert module.summary([]) == ["no shape was measured"]


def test_the_problems_of_a_cluster_are_of_both_families_and_as_many_as_asked_for(tmp_path):
    shapes = read_suite(loaded("bench_cluster").write_problems(tmp_path, 7, 64))
    assert len(shapes) == 7 and sum("drawn model" in s.note for s in shapes) == 3
