"""``tritongemm ladder`` as a command: host rungs for real, Triton rungs in the interpreter."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from tritongemm import settings
from tritongemm.cli import ladder as ladder_verb
from tritongemm.cli import main
from tritongemm.cli.doctor import interpreter_obstacle
from tritongemm.records.rows import read_rows

torch = pytest.importorskip("torch")
NO_GPU = not torch.cuda.is_available()


def test_list_tells_every_rung_and_experiment(capsys):
    assert main(["ladder", "--list"]) == 0
    said = capsys.readouterr().out
    assert "warp_tiled_async" in said and "gluon_warp_specialized" in said and "S2-sizes" in said


@pytest.mark.parametrize("words, says", [
    (["--rungs", "v9"], "no rung is named"), (["--experiment", "S9"], "S2-sizes"),
    (["--experiment", "S1", "--size", "3"], "leave out --size"), (["--size", "0"], "nothing to"),
    (["--size", "-4"], "outside 0"), (["--m", "3"], "together"),
    (["--rungs", "naive+block_m=x"], "block_m=x"), (["--rungs", "naive"], "CUDA device"),
    (["--ablate", "--rungs", "triton_tiled"], "leave out --rungs"),
    (["--ablate", "--tuned"], "leave out --tuned"), (["--profile"], "leave out --device cpu"),
    (["--list", "--draw", "x"], "exclude each other"), (["--draw", "x", "--size", "64"],
     "--draw measures nothing; leave out --size"), (["--from", "x.csv", "--resume"], "--resume"),
    (["--size", "64", "--m", "3", "--n", "3", "--k", "3"], "give --size, or")])
def test_wrong_words_are_one_line_and_status_2(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["ladder", "--device", "cpu", *words]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not NO_GPU, reason="there is a GPU")
def test_cuda_rungs_without_a_gpu_say_so(tmp_path, capsys):
    assert main(["ladder", "--device", "cuda", "--rungs", "naive", "--out",
                 str(tmp_path / "x.csv")]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.thorough
def test_host_rungs_end_to_end(tmp_path, capsys):
    pytest.importorskip("numba")
    pytest.importorskip("matplotlib")
    out, text = tmp_path / "host.csv", tmp_path / "page.md"
    text.write_text("before\n<!-- tritongemm:ladder-24 -->\n<!-- /tritongemm:ladder-24 -->\n")
    words = ["ladder", "--device", "cpu", "--size", "24", "--rungs", "cpu_naive,cpu_reordered",
             "--budget", "0.05", "--out", str(out), "--markdown", str(text)]
    assert main(words) == 0
    rows = list(read_rows(out))
    assert {r["provider"] for r in rows} == {"torch", "torch-control", "cpu_naive",
                                            "cpu_reordered"}
    assert {r["suite"] for r in rows} == {"ladder"}
    assert {r["kernel"] for r in rows if r["provider"].startswith("cpu")} == {
        "cpu_naive", "cpu_reordered"}
    assert all(r["status"] == "ok" and r["time_us_p50"] > 0 for r in rows)
    assert (tmp_path / "ladder-cpu-24-fp32.png").stat().st_size > 5000
    assert "| cpu_naive |" in text.read_text() and text.read_text().startswith("before")
    said = capsys.readouterr().out
    assert "The ladder at 24" in said and "cpu_reordered" in said


@pytest.mark.thorough
def test_triton_rungs_are_proved_in_the_interpreter(tmp_path):
    if obstacle := interpreter_obstacle():
        pytest.skip(obstacle)
    out = tmp_path / "i.csv"
    done = subprocess.run(
        [sys.executable, "-m", "tritongemm", "ladder", "--m", "33", "--n", "40", "--k", "64",
         "--rungs", "triton_naive,triton_stream_k", "--out", str(out)],
        env=settings.child_environment(TRITON_INTERPRET="1"), capture_output=True, text=True,
        timeout=300)
    assert done.returncode == 0, done.stderr
    rows = {r["provider"]: r for r in read_rows(out)}
    assert rows["triton_stream_k"]["status"] == "ok"
    assert rows["triton_stream_k"]["time_us_p50"] is None
    assert 0 < rows["triton_naive"]["max_err_ratio"] <= 1


def test_a_page_without_the_marker_is_refused_before_measuring(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    words = ["ladder", "--device", "cpu", "--size", "24", "--rungs", "cpu_naive",
             "--out", str(tmp_path / "x.csv"), "--markdown"]
    assert main([*words, str(page)]) == 2 and "ladder-24" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "none.md")]) == 2
    assert not (tmp_path / "x.csv").exists()


def test_drawings_and_their_arithmetic_go_to_a_folder_and_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- tritongemm:ladder-reuse -->\n<!-- /tritongemm:ladder-reuse -->\n")
    assert main(["ladder", "--draw", str(tmp_path / "d"), "--markdown", str(page)]) == 0
    assert len(list((tmp_path / "d").glob("*.svg"))) == 30
    assert "| warp_tiled_async |" in page.read_text().replace("\\", "")


@pytest.fixture
def measured(monkeypatch):
    """The command as on a GPU: rows and counters are made up, everything else is real."""
    from tritongemm.bench import counters
    from tritongemm.device import device_named
    from tritongemm.ladder import climbing
    from tritongemm.records.rows import append_rows, derive, problem_columns

    device = device_named("nvidia-h200")

    def climb(plan, progress):
        for one in plan.climbs:
            for size in one.sizes:
                for text in ("torch", *one.rungs):
                    dtype = "fp32" if text == "torch" else plan.dtype_of(text)
                    row = {"run_id": "20261121T052300Z-1a2b3c", "device": device.slug,
                           "timestamp_utc": "2026-11-21T05:23:00Z", "tags": plan.tags,
                           "suite": "ladder", "provider": text, "status": "ok",
                           "time_us_p50": 100.0, "ratio_vs_torch": 0.5, "registers": 32,
                           **problem_columns(plan.problem(size, dtype))}
                    append_rows(plan.out, [derive(row, unit_peak_tflops=67, memory_gbps=4800)])

    def profile(problem, kernel, ncu):
        return [counters.Counters("pad", "(1, 1, 1)", "(256, 1, 1)", {"duration_ns": 1.0}),
                counters.Counters(kernel, "(8, 8, 1)", "(256, 1, 1)", {
                    "duration_ns": 50.0, "memory_pct": 77.5, "dram_pct": 3.25,
                    "stall_barrier": 2.0})]

    monkeypatch.setattr(climbing, "climb", climb)
    monkeypatch.setattr(counters, "find_ncu", lambda: "ncu")
    monkeypatch.setattr(counters, "profile", profile)
    monkeypatch.setattr("tritongemm.device.current_device", lambda: device)


def page_of(tmp_path, *markers):
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- tritongemm:{m} -->\n<!-- /tritongemm:{m} -->\n"
                            for m in markers))
    return page


def test_a_void_run_is_said_and_kept_out_of_the_page(measured, tmp_path, capsys):
    from tritongemm.records.rows import write_sidecar

    write_sidecar(tmp_path, "20261121T052300Z-1a2b3c", {"void": True, "void_reason": "off by 2 %"})
    page = page_of(tmp_path, "ladder-64")
    before = page.read_text()
    words = ["ladder", "--size", "64", "--rungs", "padded", "--no-pictures", "--markdown",
             str(page)]
    assert main([*words, "--device", "cuda", "--out", str(tmp_path / "l.csv")]) == 1
    assert "VOID, run 20261121T052300Z-1a2b3c: off by 2 %" in capsys.readouterr().out
    assert main([*words, "--from", str(tmp_path / "l.csv")]) == 1
    assert page.read_text() == before


def test_the_rows_of_one_device_make_a_table(measured, tmp_path, capsys):
    from tritongemm.records.rows import append_rows, read_rows

    out = tmp_path / "l.csv"
    words = ["--size", "64", "--rungs", "naive,padded", "--no-pictures"]
    assert main(["ladder", "--device", "cuda", "--out", str(out), *words]) == 0
    rows = list(read_rows(out))
    append_rows(out, [{**row, "device": "nvidia-l40s", "time_us_p50": 7.0} for row in rows
                      if row["provider"] != "padded"])
    capsys.readouterr()
    assert main(["ladder", "--from", str(out), *words]) == 0
    said = capsys.readouterr().out
    assert "those of nvidia-l40s" in said and "padded" not in said and "100 us" not in said


def test_two_words_of_a_tag_are_found_again(measured, tmp_path, capsys):
    assert main(["ladder", "--device", "cuda", "--size", "64", "--rungs", "padded", "--tag",
                 "two  words", "--no-pictures", "--out", str(tmp_path / "l.csv")]) == 0
    assert "padded" in capsys.readouterr().out


def test_without_ncu_nothing_is_measured(measured, tmp_path, monkeypatch, capsys):
    from tritongemm.bench import counters
    from tritongemm.errors import MissingDependencyError

    def missing():
        raise MissingDependencyError("profiling needs Nsight Compute")

    monkeypatch.setattr(counters, "find_ncu", missing)
    assert main(["ladder", "--device", "cuda", "--size", "64", "--rungs", "padded", "--profile",
                 "--out", str(tmp_path / "l.csv")]) == 2
    assert "needs Nsight Compute" in capsys.readouterr().err
    assert not (tmp_path / "l.csv").exists()


def test_profile_adds_the_counters_of_the_main_launch(measured, tmp_path, capsys):
    out = tmp_path / "l.csv"
    assert main(["ladder", "--device", "cuda", "--size", "64", "--rungs", "padded,triton_tiled",
                 "--profile", "--no-pictures", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "77.5" in said and "barrier 2.0" in said
    assert len((tmp_path / "l.counters.jsonl").read_text().splitlines()) == 4


def test_every_experiment_fills_its_place_in_the_page(measured, tmp_path, capsys):
    from pathlib import Path

    from tritongemm.ladder.experiments import EXPERIMENTS

    teaching = (Path(__file__).resolve().parents[2] / "perf" / "LADDER.md").read_text()
    for name in EXPERIMENTS:
        page = page_of(tmp_path, f"ladder-{name}")
        assert f"<!-- tritongemm:ladder-{name} -->" in teaching
        assert main(["ladder", "--device", "cuda", "--experiment", name, "--no-pictures",
                     "--profile", "--out", str(tmp_path / f"{name}.csv"), "--markdown",
                     str(page)]) == 0
        assert page.read_text().count("| 100 us |") >= len(EXPERIMENTS[name].steps)
    said = capsys.readouterr().out
    assert "471.78 us" in said and "floor of" in said and "77.5" in said


def test_ablation_fills_its_place_in_the_page(measured, tmp_path):
    page = page_of(tmp_path, "ladder-ablation")
    assert main(["ladder", "--device", "cuda", "--ablate", "--size", "512", "--no-pictures",
                 "--out", str(tmp_path / "a.csv"), "--markdown", str(page)]) == 0
    assert "without vectorised loads" in page.read_text() and "1.00x" in page.read_text()


def test_tuned_asks_the_table_of_every_sweepable_rung(measured, tmp_path):
    out = tmp_path / "t.csv"
    assert main(["ladder", "--device", "cuda", "--size", "64", "--rungs", "naive,warp_tiled",
                 "--tuned", "--no-pictures", "--out", str(out)]) == 0
    assert {r["provider"] for r in read_rows(out)} == {"torch", "naive", "warp_tiled+tuned"}


def test_tables_are_drawn_again_from_stored_rows_and_counters(measured, tmp_path, capsys,
                                                              monkeypatch):
    out, first = tmp_path / "l.csv", page_of(tmp_path, "ladder-64", "ladder-S3")
    words = ["ladder", "--device", "cuda", "--rungs", "padded,triton_tiled", "--no-pictures"]
    assert main([*words, "--size", "64", "--profile", "--out", str(out), "--markdown",
                 str(first)]) == 0
    before, rows = first.read_text(), out.read_text()
    monkeypatch.setattr("tritongemm.device.current_device", None)  # no GPU is asked for
    monkeypatch.setattr("tritongemm.ladder.climbing.climb", None)
    again = page_of(tmp_path, "ladder-64", "ladder-S3")
    assert main([*words, "--from", str(out), "--markdown", str(again)]) == 0
    assert again.read_text() == before and "77.5" in before and out.read_text() == rows
    assert main([*words, "--from", str(out), "--size", "65"]) == 2
    assert "has no rows" in capsys.readouterr().err


def test_an_experiment_is_drawn_again_with_its_floor(measured, tmp_path, capsys):
    out = tmp_path / "S3.csv"
    words = ["ladder", "--experiment", "S3", "--no-pictures"]
    assert main([*words, "--device", "cuda", "--out", str(out)]) == 0
    first = capsys.readouterr().out
    assert main([*words, "--from", str(out)]) == 0
    table = first[first.index("S3 at 4096"):]
    assert table in capsys.readouterr().out and "floor of" in table


@pytest.mark.parametrize("words, says", [
    ([], "does not exist"), (["--profile"], "leave out --profile")])
def test_what_cannot_be_drawn_again_says_why(words, says, tmp_path, capsys):
    assert main(["ladder", "--from", str(tmp_path / "x.csv"), *words]) == 2
    assert says in capsys.readouterr().err


@pytest.fixture
def without(monkeypatch):
    """``without(package, ...)``: as if these were not installed."""
    def hide(*packages):
        monkeypatch.setattr(ladder_verb, "installed", lambda name: name not in packages)

    return hide


@pytest.mark.thorough
def test_without_numba_the_triton_rungs_are_proved(tmp_path, monkeypatch, capfd, without):
    pytest.importorskip("torch")
    if obstacle := interpreter_obstacle():
        pytest.skip(obstacle)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    without("numba")
    out = tmp_path / "ladder.csv"
    assert main(["ladder", "--size", "32", "--tag", "mine", "--out", str(out)]) == 0
    said = capfd.readouterr().out
    assert "numba is not installed" in said and "TRITON_INTERPRET=1 tritongemm ladder" in said
    rows = list(read_rows(out))
    assert {"torch", "triton_naive", "triton_split_k"} <= {r["provider"] for r in rows}
    assert {r["tags"] for r in rows} == {"mine"} and not any(r["time_us_p50"] for r in rows)


def test_without_cuda_core_the_cuda_rungs_are_left_out(monkeypatch, capsys, without):
    without("cuda.core")
    args = argparse.Namespace(rungs=None, tuned=False)
    texts = ladder_verb._rungs(args, cpu=False)
    assert texts and all(text.startswith(("triton", "gluon")) for text in texts)
    assert "the cuda rungs are left out: they need cuda.core" in capsys.readouterr().out
    without()
    assert len(ladder_verb._rungs(args, cpu=False)) > len(texts)
