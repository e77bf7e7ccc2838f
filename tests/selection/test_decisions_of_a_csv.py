"""``perf/decisions.py``: the decisions of ``auto`` beside the ratios of a CSV."""

from __future__ import annotations

import csv
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "perf" / "decisions.py"
ROWS = ROOT / "perf" / "results" / "nvidia-h100-80gb-hbm3" / "fp32.csv"
pytestmark = pytest.mark.skipif(not ROWS.is_file(), reason="perf/ is not beside the tests")


def printed(path: Path, monkeypatch, capsys) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(path)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    return ended.value.code, "".join(capsys.readouterr())


def test_a_product_that_runs_here_and_was_slower_is_named(tmp_path, monkeypatch, capsys):
    with open(ROWS, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        row = next(r for r in reader if r["provider"] == "tritongemm" and r["suite"] == "square"
                   and (r["m"], r["layout"], r["precision"]) == ("4096", "nt", "fp16x3"))
    path = tmp_path / "rows.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerows([{**row, "ratio_vs_torch": ratio} for ratio in ("3.5", "0.8")])
    code, text = printed(path, monkeypatch, capsys)
    line = next(line for line in text.splitlines() if line.startswith("square"))
    assert code == 0 and line.split() == ["square", "nt", "fp16x3", "2", "2", "0.800", "1", "0"]
    assert "slower and run here: 4096x4096x4096 fp32 nt fp16x3 0.800" in text


def test_a_file_that_is_missing_is_named(tmp_path, monkeypatch, capsys):
    code, text = printed(tmp_path / "none.csv", monkeypatch, capsys)
    assert code == 2 and "none.csv: does not exist" in text
