"""``perf/train_gpt2.py`` on the CPU: it trains, compares, judges and writes its tables."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[2] / "perf" / "train_gpt2.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="perf/ is not beside the tests")


@pytest.fixture
def script(monkeypatch):
    spec = importlib.util.spec_from_file_location("train_gpt2", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_gpt2", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def arguments(monkeypatch, tmp_path):
    def give(*words: str) -> Path:
        monkeypatch.setattr(sys, "argv", ["train_gpt2.py", "--device", "cpu", "--tiny", "--out",
                                          str(tmp_path), *words])
        return tmp_path
    return give


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_tiny_model_is_trained_by_every_provider(script, arguments, products):
    folder = arguments("--modes", "eager")
    assert script.main() == 0
    rows = table(folder / "train_gpt2.csv")
    assert [(row["provider"], row["taken"]) for row in rows] == [
        ("cublas", "0.0"), ("cublaslt", "0.0"), ("override", "1.0")]
    losses = table(folder / "train_gpt2_losses.csv")
    assert len(losses) == 3 and all(row["cublas"] == row["cublaslt"] for row in losses)
    assert tg.override_report().taken > 0


def test_a_loss_too_far_from_torchs_fails(script, arguments):
    arguments()
    run = script.Run(script._arguments())
    script._judge_losses(run, "eager", {"cublas": [3.0, 2.0, 1.0], "cublaslt": [3.0, 2.02, 1.0],
                                        "override": [3.009, 1.961, 0.959]})
    assert len(run.failures) == 1 and "step 2: the loss 0.95900" in run.failures[0]


def test_shares_and_times_are_judged_on_a_gpu_only(script, arguments):
    arguments()
    run = script.Run(script._arguments())
    rows = {"override": script.Row("eager", "override", 50, step_us=110.0, ratio=0.9, taken=0.5)}
    script._judge(run, rows)
    assert not run.failures
    run.args.device = "cuda"
    script._judge(run, rows)
    assert ["50.0 % of the flops" in run.failures[0], "takes 110 us, torch's 99" in run.failures[1]
            ] == [True, True]


def test_the_share_of_an_inference_is_not_judged(script, arguments):
    arguments()
    run = script.Run(script._arguments())
    run.args.device = "cuda"
    script._judge(run, {"override": script.Row("graph words", "override", ratio=1.1, taken=0.5)})
    assert not run.failures
