"""Hardware counters: ncu's command line, its output, and what to say where it is missing."""

from __future__ import annotations

import json
import shutil
import stat

import pytest

from tritongemm.bench import counters, profiled
from tritongemm.cli import main
from tritongemm.errors import DataFileError, DeviceError, MissingDependencyError, UsageError
from tritongemm.problem import GemmProblem

PROBLEM = GemmProblem.contiguous(512, 512, 512, dtype="fp32")
_FIXED = {"ID": "0", "Process ID": "7", "Process Name": "python", "Host Name": "secret-host",
          "Kernel Name": "naive", "Context": "1", "Stream": "7", "Block Size": "(32, 32, 1)",
          "Grid Size": "(16, 16, 1)", "Device": "0", "CC": "9.0"}


def raw(*launches):
    names = [*_FIXED, *counters.METRICS.values()]
    units = ["" for _ in _FIXED] + ["%" for _ in counters.METRICS]
    lines = ["==PROF== Connected to process 7", "a line of the program", _csv(names), _csv(units)]
    for number, launch in enumerate(launches):
        fixed = {**_FIXED, "ID": str(number), "Kernel Name": launch.get("kernel", "naive")}
        lines.append(_csv([*fixed.values(), *(str(launch.get(short, "n/a"))
                                              for short in counters.METRICS)]))
    return "\n".join([*lines, "==PROF== Disconnected"]) + "\n"


def _csv(cells):
    return ",".join(f'"{cell}"' for cell in cells)


def fake_ncu(tmp_path, text, status=0):
    (tmp_path / "said").write_text(text)
    path = tmp_path / "ncu"
    path.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat {tmp_path}/said\n'
                    f"exit {status}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_launches_and_values_are_read_and_noise_is_skipped():
    text = raw({"kernel": "pad", "duration_ns": 900, "memory_pct": 10.5},
               {"duration_ns": "1,234.5", "stall_barrier": 3.5, "stall_wait": 9})
    first, second = counters.parse(text)
    assert first.kernel == "pad" and first.values == {"duration_ns": 900.0, "memory_pct": 10.5}
    assert second.values["duration_ns"] == 1234.5 and second.grid == "(16, 16, 1)"
    assert counters.main_launch([first, second]) is second
    assert counters.stalls(second.values) == [("barrier", 3.5)]


@pytest.mark.parametrize("text", ["", "==ERROR== nothing\n", '"ID"\n', "not,csv\n"])
def test_output_without_launches_gives_none(text):
    assert counters.parse(text) == []


def test_profile_brackets_the_call_and_leaves_the_clock_alone(tmp_path):
    ncu = fake_ncu(tmp_path, raw({"duration_ns": 5}))
    (one,) = counters.profile(PROBLEM, "naive", ncu=ncu)
    assert one.values == {"duration_ns": 5.0}
    words = (tmp_path / "words").read_text()
    assert "--profile-from-start off" in words and "--clock-control none" in words
    assert "tritongemm.bench.profiled" in words and words.strip().endswith("naive")


@pytest.mark.parametrize("text, status, says", [
    ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", 1, "administrators"),
    ("rung naive cannot\nsomething broke\n", 1, "something broke")])
def test_a_failure_of_ncu_says_why(tmp_path, text, status, says):
    with pytest.raises(DeviceError, match=says):
        counters.profile(PROBLEM, "naive", ncu=fake_ncu(tmp_path, text, status))


def test_an_absent_ncu_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(counters.Path, "is_file", lambda self: False)
    with pytest.raises(MissingDependencyError, match="nsight-compute"):
        counters.find_ncu()
    assert main(["profile", "64", "64", "64", "--kernel", "naive"]) == 2
    assert "nsight-compute" in capsys.readouterr().err


def test_counters_are_stored_without_the_host_and_read_again(tmp_path):
    path = tmp_path / "sub" / "c.jsonl"
    counters.store(path, PROBLEM, "naive", counters.parse(raw({"duration_ns": 5})), device="d")
    counters.store(path, PROBLEM, "naive", counters.parse(raw({"duration_ns": 6})), device="d")
    assert [r["values"]["duration_ns"] for r in counters.read(path)] == [5.0, 6.0]
    assert "secret-host" not in path.read_text()
    path.write_text("{}\n")
    with pytest.raises(DataFileError, match="row 1"):
        counters.read(path)
    with pytest.raises(DataFileError, match="does not exist"):
        counters.read(tmp_path / "none")


def test_cells_of_the_table():
    values = {"memory_pct": 96.94, "bank_conflicts_ld": 1000, "bank_conflicts_st": 24,
              "stall_barrier": 1.25, "stall_long_scoreboard": 7.0, "stall_mio_throttle": 0.5}
    assert counters.shown(values, "memory %") == "96.9"
    assert counters.shown(values, "DRAM %") == ""
    assert counters.shown(values, "bank conflicts") == "1,024"
    assert counters.shown(values, "waits for") == "long_scoreboard 7.0, barrier 1.2"
    assert all(counters.shown({}, name) == "" for name in counters.SHOWN)


@pytest.mark.parametrize("words, says", [
    (["64", "64", "64", "--kernel", "v9"], "kernel 'v9' is not known"),
    (["0", "64", "64", "--kernel", "naive"], "M=0"),
    (["64", "64", "64", "--kernel", "cpu_naive"], "runs on the CPU"),
    (["64", "64", "64", "--kernel", "naive+what=3"], "what=3")])
def test_profile_refuses_what_it_cannot_run(words, says, capsys):
    assert main(["profile", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tiled", "torch", "tritongemm", "warp_tiled_async",
                                  "gluon_warp_specialized", "naive+block_m=16+block_n=16"])
def test_kernels_rungs_and_providers_can_be_profiled(name):
    profiled.known(name)


def test_the_profiled_process_says_why_it_cannot(capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    from tritongemm.records.codec import problem_to_json

    assert profiled.main([json.dumps(problem_to_json(PROBLEM)), "naive"]) == 1
    assert "no CUDA device" in capsys.readouterr().err
    with pytest.raises(UsageError):
        profiled.known("nothing")
