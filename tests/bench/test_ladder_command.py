"""``tritongemm ladder`` as a command: host rungs for real, Triton rungs in the interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tritongemm import settings
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
