"""``perf/train_gpt2.py`` on the CPU: it trains, compares, judges and writes its tables."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest
from perf_scripts import loaded

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402

SCRIPT = Path(__file__).resolve().parents[2] / "perf" / "train_gpt2.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="perf/ is not beside the tests")


@pytest.fixture
def script():
    return loaded("train_gpt2")


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
    folder = arguments("--modes", "eager", "--seed", "5", "--seeds", "2")
    assert script.main() == 0
    rows = table(folder / "train_gpt2.csv")
    assert [(row["provider"], row["taken"]) for row in rows] == [
        ("cublas", "0.0"), ("cublaslt", "0.0"), ("override", "1.0")]
    losses = table(folder / "train_gpt2_losses.csv")
    assert [(row["seed"], row["step"]) for row in losses] == [
        (seed, step) for seed in "56" for step in "012"]
    assert all(row["cublas"] == row["cublaslt"] for row in losses)
    assert losses[0]["cublas"] != losses[3]["cublas"]  # words and weights are the seed's
    assert {row["loss_first"] for row in rows[:2]} == {losses[0]["cublas"]}
    assert tg.override_report().taken > 0


@pytest.mark.thorough
def test_further_seeds_compile_nothing(script, arguments, products):
    def compiled(seeds: str) -> int:
        arguments("--modes", "compiled", "--seeds", seeds)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        assert script.main() == 0
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    assert compiled("2") == compiled("1") > 0


@pytest.mark.parametrize("words", [("--seeds", "0"), ("--rounds", "1")], ids=" ".join)
def test_a_number_that_judges_nothing_is_refused(script, arguments, capsys, words):
    arguments(*words)
    with pytest.raises(SystemExit):
        script._arguments()
    assert " ".join(words) in capsys.readouterr().err


def losses(first: list[float], second: list[float], ours: list[float]) -> dict[str, list[float]]:
    return {"cublas": first, "cublaslt": second, "override": ours}


def test_a_loss_too_far_from_torchs_fails(script, arguments):
    arguments()
    run = script.Run(script._arguments())
    script._judge_losses(run, "eager", {7: losses([3.0, 2.0, 1.0], [3.0, 2.02, 1.0],
                                                  [3.009, 1.961, 0.959])})
    assert len(run.failures) == 1 and "seed 7, step 2: the loss 0.95900" in run.failures[0]


def test_each_seed_is_held_to_the_largest_difference_of_any_so_far(script, arguments):
    arguments()
    run = script.Run(script._arguments())
    script._judge_losses(run, "eager", {
        8: losses([3.0, 2.0, 1.0], [3.0, 2.05, 1.0], [3.0, 2.0, 1.0]),  # its pair sets the bound
        7: losses([3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.0, 2.09, 1.09]),  # outside its own pair's
        9: losses([3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [3.02, 2.0, 1.11])})
    assert [(row["seed"], row["step"]) for row in run.losses] == [
        (seed, step) for seed in (7, 8, 9) for step in range(3)]
    assert [row["bound"] for row in run.losses] == 3 * [pytest.approx(b) for b in (0.01, 0.1, 0.1)]
    # The bound grows with the steps, so what a later pair allows excuses no earlier loss.
    assert [failure.split(":")[0] for failure in run.failures] == [
        "eager, seed 9, step 0", "eager, seed 9, step 2"]


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
