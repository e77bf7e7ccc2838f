"""``tritongemm bench`` and ``tritongemm demo`` as commands."""

import argparse
import json
import re
import subprocess
import sys
import types

import pytest

import tritongemm
from tritongemm import settings
from tritongemm.bench import target
from tritongemm.cli import bench, demo, main
from tritongemm.cli.doctor import interpreter_obstacle
from tritongemm.errors import DeviceError, UsageError
from tritongemm.models.session import Session
from tritongemm.records.rows import read_rows, read_sidecars


def test_list_names_suites_and_providers(capsys):
    assert main(["bench", "--list"]) == 0
    said = capsys.readouterr().out
    assert "numpy_blocked" in said and "stream_k" in said


@pytest.mark.parametrize(("words", "says"), [
    ([], "no problems named"), (["no_such"], "neither a file nor"),
    (["square", "--providers", "cublas"], "provider 'cublas' is not known"),
    (["square", "--dtype", "int4"], "dtype 'int4' is not known"),
    (["square", "--layout", "nx"], "layout 'nx' is not known"),
    (["square", "--device", "tpu"], "device 'tpu' is not known"),
    (["square", "--device", "nvidia-h200"], "is for `explain`, `warmup` and `regret`"),
    (["square", "--processes", "0"], "--processes 0 is below 1"),
    (["--fresh", "1"], "needs --family"), (["square", "--family", "odd"], "go with --fresh"),
    (["--fresh", "1", "--family", "nope"], "family 'nope' is not known"),
])
def test_a_wrong_argument_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, words, says):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    out, said = capsys.readouterr()
    assert says in said and said.count("\n") == 1 and "Traceback" not in said
    assert "starting" not in out  # the arguments are checked first
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def planned(monkeypatch):
    """The plans that ``tritongemm bench`` makes, none of which is run."""
    pytest.importorskip("torch")
    plans = []

    def bench(plan, progress):
        plans.append(plan)
        raise UsageError("only planned")

    monkeypatch.setattr("tritongemm.bench.runner.bench", bench)
    return plans


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


def test_without_a_gpu_bench_chooses_what_can_run(planned, no_gpu, capsys):
    assert main(["bench", "square"]) == 2
    (plan,) = planned
    assert (plan.device, plan.providers) == ("cpu", ("torch", "numpy_blocked"))
    assert {p.dtype_a for _, p in plan.work} == {"fp32"}
    assert max(p.m for _, p in plan.work) == 2048
    said = capsys.readouterr().out
    assert "torch sees no CUDA device: the host providers are measured on the CPU" in said
    assert "up to 2048 (--max-extent)" in said


def test_a_cpu_s_limit_that_leaves_no_shape_is_named_with_the_way_out(planned, no_gpu, capsys):
    assert main(["bench", "llm_decode"]) == 2
    said = capsys.readouterr().err
    assert "--max-extent is 2048 (the default on a CPU" in said
    least = re.search(r"Give --max-extent (\d+) or more", said)[1]
    assert main(["bench", "llm_decode", "--max-extent", least]) == 2 and len(planned) == 1


@pytest.mark.parametrize("device", ["cuda", "cuda:99"])
def test_a_gpu_that_is_not_there_is_told_before_a_process_starts(no_gpu, capsys, device):
    assert main(["bench", "square", "--device", device]) == 2
    out, said = capsys.readouterr()
    assert "sees no CUDA device" in said and out == ""


def test_on_the_cpu_bench_chooses_what_can_run(planned):
    main(["bench", "square", "--device", "cpu"])
    (plan,) = planned
    assert (plan.device, plan.providers) == ("cpu", ("torch", "numpy_blocked"))
    assert {p.dtype_a for _, p in plan.work} == {"fp32"}
    assert max(p.m for _, p in plan.work) > 2048  # the user asked for the CPU


def test_what_the_user_says_stays(planned, no_gpu, capsys):
    main(["bench", "square", "--dtype", "fp16", "--max-extent", "512"])
    (plan,) = planned
    assert {p.dtype_a for _, p in plan.work} == {"fp16"} and max(p.m for _, p in plan.work) <= 512


def test_a_provider_that_was_named_keeps_the_device(tmp_path, monkeypatch, no_gpu, capsys):
    import torch

    if torch.cuda.device_count():
        pytest.skip("there is a GPU here, which another process sees")
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "square", "--providers", "tritongemm"]) == 2
    assert "--device cpu" in capsys.readouterr().err


@pytest.mark.parametrize("name", [
    "os:path", "nowhere:Class", pytest.param("json:loads", marks=pytest.mark.thorough),
    pytest.param("json:nothing", marks=pytest.mark.thorough)])
def test_a_provider_that_is_no_class_is_named(tmp_path, capsys, name):
    pytest.importorskip("torch")
    assert main(["bench", "--m", "16", "--n", "16", "--k", "16", "--device", "cpu",
                 "--providers", name, "--out", str(tmp_path / "x.csv")]) == 2
    said = capsys.readouterr().err
    assert f"provider {name!r} cannot be loaded: " in said and "package.module:Class" in said


@pytest.mark.parametrize("budget", ["-1", "0", "nan", "inf"])
def test_a_budget_of_the_demo_that_is_none_is_refused(tmp_path, capsys, budget):
    assert main(["demo", "--budget", budget, "--out", str(tmp_path / "demo")]) == 2
    assert "is not a positive number of seconds" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("obstacle, setting, words, precision", [
    (None, "split", [], "fp16x3"), (None, "ieee", [], "ieee"), ("no GPU", "split", [], "ieee"),
    (None, "split", ["--precision", "tf32"], "tf32")])
def test_bench_measures_the_precision_that_calls_use(monkeypatch, obstacle, setting, words,
                                                     precision):
    pytest.importorskip("torch")
    monkeypatch.setattr(bench, "cpu_instead", lambda device: obstacle)
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    args = parser.parse_args(["--dtype", "fp32", *words])
    with tritongemm.fp32_compute(setting):
        bench._choose_defaults(args)
    assert args.precision == precision


def test_host_rows_end_to_end(tmp_path, capsys):
    pytest.importorskip("torch")
    out = tmp_path / "rows" / "host.csv"
    words = ["bench", "--m", "16,32", "--n", "24", "--k", "8", "--dtype", "fp32", "--device", "cpu",
             "--providers", "numpy_blocked", "--budget", "0.05", "--tag", "a", "--tag", "b,a",
             "--out", str(out)]
    assert main(words) in (0, 1)  # 1: the machine was too busy, and the run says it is void
    rows = list(read_rows(out))
    assert len(rows) == 6 and {r["tags"] for r in rows} == {"a,b"}
    assert {r["status"] for r in rows} == {"ok"} and all(r["time_us_p50"] > 0 for r in rows)
    [record] = read_sidecars(out.parent).values()
    assert record["dtypes"] == "fp32" and str(tmp_path) not in json.dumps(record)
    if not record["void"]:
        capsys.readouterr()
        assert main([*words, "--resume"]) == 0
        assert "nothing left to measure" in capsys.readouterr().out


def test_fresh_shapes_are_benched_as_a_suite_of_their_own(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "fresh.csv"
    main(["bench", "--fresh", "5", "--family", "odd", "--count", "2", "--max-extent", "600",
          "--dtype", "fp32", "--device", "cpu", "--providers", "torch", "--budget", "0.05",
          "--out", str(out)])
    assert {r["suite"] for r in read_rows(out)} == {"odd-fresh-5"}
    [record] = read_sidecars(tmp_path).values()
    assert record["fresh_seed"] == 5


def interpreted(words: str, out) -> list[dict]:
    """The rows of a bench of these words in the interpreter."""
    pytest.importorskip("torch")
    if obstacle := interpreter_obstacle():
        pytest.skip(obstacle)
    done = subprocess.run(
        [sys.executable, "-m", "tritongemm", "bench", *words.split(), "--out", str(out)],
        env=settings.child_environment(TRITON_INTERPRET="1"), capture_output=True, text=True,
        timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return list(read_rows(out))


def test_interpreter_rows_are_right_and_have_no_time(tmp_path):
    rows = interpreted("--m 33 --n 20 --k 1,40 --dtype fp16,fp32 --layout nt",
                       tmp_path / "interpreter.csv")
    ours = [r for r in rows if r["provider"] == "tritongemm"]
    assert len(ours) == 4 and {r["status"] for r in ours} == {"ok"}
    assert {r["device"] for r in rows} == {"interpreter"}
    assert all(r["kernel"] and r["config_id"] and r["selection_source"] for r in ours)
    assert not any(r["time_us_p50"] or r["ratio_vs_torch"] for r in rows)


def test_a_16_bit_input_with_a_float32_weight_is_benched(tmp_path):
    rows = interpreted("--m 32 --n 32 --k 32 --dtype fp16 --dtype-b fp32 --dtype-out fp32 "
                       "--providers torch,tritongemm-auto", tmp_path / "mixed.csv")
    assert {r["provider"] for r in rows} == {"torch", "tritongemm-auto"}
    assert {(r["status"], r["dtype_b"]) for r in rows} == {("ok", "fp32")}


@pytest.mark.parametrize("verb", ["sweep", "warmup"])
def test_such_products_are_not_swept_and_it_is_said(verb, capsys):
    assert main([verb, "square", "--dtype", "bf16", "--dtype-b", "fp32"]) == 2
    assert "no kernel takes such operands but with mixed=True" in capsys.readouterr().err


def test_the_demo_clears_only_what_a_demo_made(tmp_path):
    out = tmp_path / "out"
    demo._clear(out)
    (out / "old.csv").touch()
    demo._clear(out)
    assert not (out / "old.csv").exists()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="not a demo's"):
        demo._clear(tmp_path)
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(UsageError, match="is a file"):
        demo._clear(tmp_path / "thesis.tex")


@pytest.mark.parametrize(("status", "good"), [(0, True), (1, False)])
def test_a_step_of_the_demo_tells_a_bad_answer_from_a_good_one(monkeypatch, status, good):
    monkeypatch.setattr(sys, "executable", _python_that_exits(status, monkeypatch))
    assert demo._step(["bench"]) is good


@pytest.mark.parametrize(("status", "error"), [(2, demo.TritonGemmError),
                                               (130, KeyboardInterrupt)])
def test_a_step_that_cannot_be_done_ends_the_demo(monkeypatch, status, error):
    monkeypatch.setattr(sys, "executable", _python_that_exits(status, monkeypatch))
    with pytest.raises(error):
        demo._step(["bench"])


def _python_that_exits(status, monkeypatch):
    """Lets every step be a Python that ends with ``status`` at once."""
    real, start = sys.executable, subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, env: start(
        [real, "-c", f"raise SystemExit({status})"], env=env))
    return real


@pytest.mark.slow
def test_the_demo_without_a_gpu_ends_by_naming_files_that_are_there(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "demo"
    done = subprocess.run([sys.executable, "-m", "tritongemm", "demo", "--no-gpu", "--out",
                           str(out)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Not done here" in done.stdout
    named = [line.split()[0] for line in done.stdout.partition("\nOpen:\n")[2].splitlines()[:-1]]
    assert {str(out / "demo.csv"), str(out / "h100" / "report.html")} <= set(named)
    for said in ("3 problems for nvidia-h100-80gb-hbm3: ", "problem    1x4096x4096 bf16 nt",
                 "llm_decode", "starting: torch and Triton are imported"):
        assert said in done.stdout
    from pathlib import Path

    assert all(Path(name).exists() for name in named)


def test_warmup_without_a_gpu_says_to_name_one(no_gpu, capsys):
    assert main(["warmup", "square"]) == 2
    error = capsys.readouterr().err
    assert "torch sees no CUDA device" in error and "--device-name nvidia-h200" in error


@pytest.mark.parametrize("opened, way_out", [
    (lambda: target.resolve("cuda"), "--device cpu measures host providers"),
    (lambda: Session(types.SimpleNamespace(device="cuda")), "models --tiny --device cpu")],
    ids=["bench", "models"])
def test_what_needs_a_gpu_names_what_runs_without_one(opened, way_out, no_gpu):
    with pytest.raises(DeviceError, match=f"torch sees no CUDA device.*{way_out}"):
        opened()
