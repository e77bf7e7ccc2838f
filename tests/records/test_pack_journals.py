"""``perf/pack_journals.py``: what it reads beside journals."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from perf_scripts import loaded

from tritongemm.calibration.timings import read_timings
from tritongemm.records.packed import unpack

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "perf" / "pack_journals.py"
RESULTS = ROOT / "perf" / "results" / "nvidia-h100-80gb-hbm3"
pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="perf/ is not beside the tests")


@pytest.fixture
def pack(monkeypatch, tmp_path, capsys):
    """pack(*paths) -> (exit status, the packed file, what it said)."""
    module = loaded("pack_journals")

    def run(*paths: Path):
        out = tmp_path / "out.npz"
        monkeypatch.setattr(sys, "argv", ["pack_journals.py", str(out), *map(str, paths)])
        return module.main(), out, capsys.readouterr().err
    return run


@pytest.fixture
def bench(tmp_path):
    """A CSV of 20 rows of a bench, and what describes its runs."""
    path = tmp_path / "bench.csv"
    with open(RESULTS / "fp32.csv", newline="") as source, open(path, "w", newline="") as file:
        reader = csv.DictReader(source)
        writer = csv.DictWriter(file, reader.fieldnames, lineterminator="\n")
        writer.writeheader()
        rows = [row for _, row in zip(range(60), reader)]
        writer.writerows(rows)
    (tmp_path / "runs.json").write_text((RESULTS / "runs.json").read_text())
    return path, [row for row in rows if row["provider"] == "tritongemm"]


def test_the_rows_of_a_bench_are_timings_and_say_what_torch_takes(pack, bench):
    path, rows = bench
    status, out, _ = pack(path)
    assert status == 0
    kinds = [record["kind"] for record in unpack(out)]
    assert kinds.count("result") == kinds.count("winner") == len(rows) > 0
    found = read_timings([out])
    assert found.device.slug == "nvidia-h100-80gb-hbm3"
    assert sorted(found.vs_torch.values()) == sorted(float(row["ratio_vs_torch"]) for row in rows)
    wanted = {(int(row["m"]), int(row["n"]), int(row["k"]), row["layout"], row["config_id"]):
              float(row["time_us_p50"]) for row in rows}
    assert {(t.problem.m, t.problem.n, t.problem.k, t.problem.layout, t.config.config_id): t.time_us
            for t in found.timings} == wanted


@pytest.mark.parametrize("text, says", [
    (None, "does not describe the runs of bench.csv"), ("{", "does not describe the runs"),
    ("[]", "does not describe the runs"), (json.dumps({"runs": {}}), "has no run 2026")])
def test_a_bench_without_its_runs_is_an_error(pack, bench, text, says):
    path, _ = bench
    beside = path.parent / "runs.json"
    beside.unlink()
    if text is not None:
        beside.write_text(text)
    status, out, said = pack(path)
    assert status == 2 and says in said and "runs.json" in said and not out.exists()
