"""``tritongemm models``: rows of the common schema, medians, what is lost or wrong, the report."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parent))

from models_fakes import OPENER, SPEC, FakeSession, InProcess

from tritongemm.cli import main
from tritongemm.cli import models as command
from tritongemm.errors import UsageError
from tritongemm.models import runner
from tritongemm.models.catalog import chosen
from tritongemm.records.rows import read_rows
from tritongemm.records.run import read_sidecars


@pytest.fixture(autouse=True)
def in_this_process(request, monkeypatch):
    if request.node.get_closest_marker("thorough") is None:
        monkeypatch.setattr(runner, "MeasuringProcess", InProcess)


def run(tmp_path, *names, modes=("eager", "compiled"), processes=1):
    plan = runner.ModelsPlan(chosen(names), tmp_path / "m.csv", modes, processes=processes,
                             opener=OPENER)
    events = []
    return runner.measure_programs(plan, events.append), events


def test_rows_are_the_median_of_the_processes(tmp_path, capsys):
    report, events = run(tmp_path, "siglip", processes=3)
    rows = list(read_rows(report.out))
    ours = [row for row in rows if row["provider"] == "tritongemm"]
    assert [(r["program"], r["mode"], r["ratio_vs_torch"], r["n_processes"]) for r in ours] == [
        ("siglip-so400m", mode, pytest.approx(1.1), 3) for mode in ("eager", "compiled")]
    assert len(rows) == 6 and len(events) == 6 and {r["suite"] for r in rows} == {"programs"}
    passes = sorted((tmp_path / "passes").glob("*.csv"))
    assert [len(list(read_rows(path))) for path in passes] == [6, 6, 6]
    meta, = read_sidecars(tmp_path).values()
    assert meta["complete"] and not meta["void"]
    assert meta["programs"]["siglip-so400m"]["sizes"]["width"] == 1152
    for event in events:
        command._line(event)
    assert command._summary(report) == 0
    text = capsys.readouterr().out
    assert "1.100" in text and "geometric mean" in text
    void = replace(report, control=replace(report.control, mean_ratio=0.8))
    assert (command._summary(void), command._summary(void, tiny=True)) == (1, 0)
    assert "VOID" in (out := capsys.readouterr().out) and "sizes mean nothing" in out


def test_an_interruption_keeps_what_was_measured(tmp_path):
    plan = runner.ModelsPlan(chosen(["siglip"]), tmp_path / "m.csv", ("eager", "compiled"),
                             opener=OPENER)

    def interrupted(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.measure_programs(plan, interrupted)
    rows = list(read_rows(plan.out))
    assert [(row["mode"], row["provider"]) for row in rows] == [
        ("eager", name) for name in ("torch", "torch-control", "tritongemm")]
    meta, = read_sidecars(tmp_path).values()
    assert not meta["complete"]


def test_a_lost_process_costs_the_mode_that_it_was_on(tmp_path, capsys):
    report, events = run(tmp_path, "sac", "siglip")
    by = {(r["program"], r["mode"]): r["status"] for r in report.rows
          if r["provider"] == "tritongemm"}
    assert by == {("sac-critics", "eager"): "ok", ("sac-critics", "compiled"): "died",
                  ("siglip-so400m", "eager"): "ok", ("siglip-so400m", "compiled"): "ok"}
    assert command._summary(report) == 1
    first, _ = run(tmp_path / "other", "sac", modes=("compiled",))  # its problem is not known yet
    assert not first.rows and first.left_out[0][:2] == ("sac-critics", "compiled")
    assert command._summary(first) == 1
    beside, _ = run(tmp_path / "beside", "sac", "siglip", modes=("compiled",))
    assert len(beside.rows) == 3 and command._summary(beside) == 1


@pytest.mark.thorough
def test_a_process_that_ends_is_replaced(tmp_path):
    report, _ = run(tmp_path, "sac", "siglip", processes=2)
    assert [(r["program"], r["mode"], r["status"]) for r in report.rows
            if r["provider"] == "tritongemm"] == [
        ("siglip-so400m", "eager", "ok"), ("siglip-so400m", "compiled", "ok"),
        ("sac-critics", "eager", "ok"), ("sac-critics", "compiled", "died")]


def test_a_wrong_result_and_a_program_without_its_gpus_are_said(tmp_path, capsys):
    report, events = run(tmp_path, "mlp", "tensor", modes=("eager",))
    for event in events:
        command._line(event)
    assert command._summary(report) == 1
    text = capsys.readouterr().out
    assert "wrong: the loss is off" in text and "needs 2 GPUs" in text
    assert report.left_out[0] == ("tensor-parallel-mlp", "eager", "needs 2 GPUs")
    assert len(report.left_out) == 4


def test_the_report_takes_the_csv(tmp_path):
    pytest.importorskip("pandas")
    from tritongemm.report.load import load
    from tritongemm.report.tables import slowest_table, summary_table

    report, _ = run(tmp_path, "siglip", "whisper")
    results = load([report.out])
    assert sorted(set(results.headline["problem"])) == [
        "siglip-so400m compiled", "siglip-so400m eager", "whisper-encoder compiled",
        "whisper-encoder eager"]
    assert len(results.headline) == 12
    assert summary_table(results).cells and "siglip-so400m eager" in str(slowest_table(results))


def test_full_sizes_need_a_gpu(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(InProcess, "start", lambda self: replace(
        FakeSession.hello, device=replace(SPEC, arch=0)))
    assert main(["models", "mlp", "--out", str(tmp_path / "m.csv"), "--device", "cpu"]) == 2
    assert "--tiny" in capsys.readouterr().err and not (tmp_path / "m.csv").exists()


@pytest.mark.parametrize(("words", "expected"), [
    (["nosuch"], "gpt2-train-50257"), (["mlp", "--modes", "slow"], "eager, compiled"),
    (["mlp", "--modes", ","], "names nothing"), (["pinn", "--modes", "compiled"], "none of these"),
    (["mlp", "--processes", "0"], "--processes 0 is below 1"),
    (["mlp", "--budget", "0"], "not a positive number of seconds"),
    (["mlp", "--budget", "inf"], "not a positive number of seconds"),
    (["mlp", "--timeout", "nan"], "--timeout nan is not a number of seconds of at least 1"),
    (["mlp", "--seed", "-1"], "--seed -1 is below 0"),
    (["mlp", "--min-flops", "nan"], "--min-flops nan"),
    (["mlp", "--min-flops", "-5"], "--min-flops -5 is not a number of at least 0")],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_a_wrong_argument_says_what_is_right(words, expected, capsys, tmp_path):
    assert main(["models", *words, "--out", str(tmp_path / "m.csv")]) == 2
    assert expected in capsys.readouterr().err


def test_the_list_names_programs_and_modes(capsys):
    assert main(["models", "--list"]) == 0
    text = capsys.readouterr().out
    assert "llama-8b-decode-64" in text and "(eager, graph)" in text


def test_a_plan_of_nothing_is_refused(tmp_path):
    with pytest.raises(UsageError, match="none of these"):
        runner.ModelsPlan(chosen(["pinn"]), tmp_path / "m.csv", ("fused",))
