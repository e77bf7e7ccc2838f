"""``tritongemm sweep`` on the command line, over fake workers."""

from __future__ import annotations

import argparse
import functools
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import fakes
import pytest
from test_interrupts import wait_for

import tritongemm.tuning.sweep as door
from tritongemm import settings
from tritongemm.cli import main
from tritongemm.cli.sweep import add_arguments
from tritongemm.device import device_named
from tritongemm.records.journal import read_journal

HERE = Path(__file__).resolve().parent
SHAPE = ["--m", "64", "--n", "64", "--k", "64"]


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """The verb with fake parts, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def use(**arguments):
        monkeypatch.setattr(door, "sweep", functools.partial(
            door.sweep, measurer=fakes.MEASURER, builder=fakes.BUILDER,
            measurer_arguments=arguments))
    use()
    return use


def test_a_sweep_of_ranges_reports_rules_times_and_the_next_command(faked, capsys):
    assert main(["sweep", *SHAPE, "--m", "64,128", "--top", "3", "--journal", "j.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "[2/2]" in out and "128x64x64" in out
    assert "removed by tiled: " in out
    assert "configs measured in" in out and "GPU busy" in out
    assert "tritongemm publish j.jsonl" in out
    assert sum(r["kind"] == "winner" for r in read_journal("j.jsonl")) == 2


def test_where_nothing_was_measured_there_is_nothing_to_publish(faked, tmp_path, capsys):
    (tmp_path / "mine.csv").write_text("m,n,k,dtype\n64,64,64,fp64\n")
    assert main(["sweep", "--shapes", "mine.csv", "--journal", "j.jsonl"]) == 1
    out = capsys.readouterr().out
    assert "0 configs measured" in out and "journal: j.jsonl" in out and "publish" not in out


def test_a_suite_file_and_kernels_and_a_random_subset(faked, tmp_path, capsys):
    (tmp_path / "mine.csv").write_text("m,n,k\n64,64,64\n96,64,64\n")
    assert main(["sweep", "--shapes", "mine.csv", "--kernels", "tiled", "--random", "2",
                 "--seed", "7", "--journal", "j.jsonl"]) == 0
    kernels = {r["config"]["kernel"] for r in read_journal("j.jsonl") if r["kind"] == "result"}
    assert kernels == {"tiled"}


def test_the_way_of_searching_and_the_gain_are_passed_on(faked, monkeypatch):
    asked = []

    def sweep(problems, journal, **options):
        asked.append((options["search"], options["subset"], options["gain"]))
        raise KeyboardInterrupt

    monkeypatch.setattr(door, "sweep", sweep)
    for words in ([], ["--search", "full"], ["--search", "random"],
                  ["--search", "random", "--random", "7"], ["--gain", "2.5"]):
        assert main(["sweep", *SHAPE, *words]) == 130
    assert asked == [(None, None, 0.01), ("full", None, 0.01), ("random", door.RANDOM, 0.01),
                     ("random", 7, 0.01), (None, None, 0.025)]


def test_options_have_the_defaults_of_the_function():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    said, door_takes = parser.parse_args([]), inspect.signature(door.sweep).parameters
    for ours, theirs in (("timeout", "per_config_timeout_s"), ("finalists", "finalists"),
                         ("compile_timeout", "compile_timeout_s"), ("seed", "seed")):
        assert getattr(said, ours) == door_takes[theirs].default
    assert said.gain / 100 == door_takes["gain"].default and said.search is None


def test_rows_that_the_model_expects_more_of_come_first_and_those_without_a_row_last(
        faked, monkeypatch, capsys):
    gains = {64: None, 96: 1.01, 128: 1.03, 160: 1.2}
    monkeypatch.setattr("tritongemm.device.cuda_device", lambda index: device_named("nvidia-h200"))
    monkeypatch.setattr("tritongemm.selection.expected_gain", lambda p, device: gains[p.m])
    words = ["sweep", *SHAPE, "--m", "64,96,128,160", "--top", "1", "--journal", "j.jsonl"]
    assert main([*words, "--expected", "1.02"]) == 0
    assert ("of 3 tuned rows, the device's own or its sibling's, the model expects 2 to be beaten "
            "by 1.02 or more; 1 problems have no row") in capsys.readouterr().out
    swept = [r["problem"]["m"] for r in read_journal("j.jsonl") if r["kind"] == "winner"]
    assert swept == [160, 128, 64]
    gains[64] = 0.9
    assert main([*words[:-1], "k.jsonl", "--expected", "1.5"]) == 0
    assert "expects 0 to be beaten" in capsys.readouterr().out and not Path("k.jsonl").exists()


def test_without_a_name_the_journal_is_named_after_the_run(faked, tmp_path, capsys):
    assert main(["sweep", *SHAPE, "--top", "1"]) == 0
    (journal,) = tmp_path.glob("sweep-*.jsonl")
    assert journal.name in capsys.readouterr().out


def test_a_problem_without_a_winner_is_answered_by_status_1(faked, capsys):
    faked(behaviour={"open 64x64x64": "oom"})
    assert main(["sweep", *SHAPE, "--top", "2", "--journal", "j.jsonl"]) == 1
    out = capsys.readouterr().out
    assert "oom" in out and "failed: oom" in out


def test_resume_goes_on_and_says_what_was_taken_over(faked, capsys):
    arguments = ["sweep", *SHAPE, "--top", "2", "--journal", "j.jsonl"]
    assert main(arguments) == 0
    assert main(arguments) == 2
    assert "--resume" in capsys.readouterr().err
    assert main([*arguments, "--resume"]) == 0
    assert "taken over from the journal" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "words"), [
    ([*SHAPE, "--resume"], "--journal"), ([*SHAPE, "--dtype", "int3"], "int3"),
    ([*SHAPE, "--dtype", "bf16,fp64"], "--dtype fp64: no kernel takes it"),
    ([*SHAPE, "--scale-a", "row"], "--scale-a row: kernels take no scales; TRITONGEMM_PLUGINS"),
    ([*SHAPE, "--layout", "xx"], "xx"), (["no_such_suite"], "no_such_suite"),
    ([*SHAPE, "--kernels", "mystery"], "mystery"), ([*SHAPE, "--top", "0"], "--top 0 is below 1"),
    ([*SHAPE, "--random", "0"], "--random"),
    ([*SHAPE, "--search", "random", "--random", "0"], "--random"),
    ([*SHAPE, "--budget", "-3"], "--budget -3 is not a positive number"),
    ([*SHAPE, "--timeout", "0"], "--timeout 0 is not a positive number of seconds"),
    ([*SHAPE, "--compile-timeout", "nan"], "--compile-timeout nan is not a positive number"),
    ([*SHAPE, "--finalists", "0"], "--finalists 0 is below 1"),
    ([*SHAPE, "--devices", "one"], "one"), ([], "no problems named"),
    ([*SHAPE, "--expected", "-1"], "--expected -1.0 is not a positive factor"),
    ([*SHAPE, "--rungs", "all", "--expected", "1.02"], "exclude each other"),
    ([*SHAPE, "--rungs", "all", "--search", "model"], "no model knows rungs"),
    ([*SHAPE, "--gain", "0"], "--gain 0"), ([*SHAPE, "--gain", "100"], "--gain 100"),
    ([*SHAPE, "--search", "model", "--random", "3"], "drawn at random are all measured"),
])
def test_a_wrong_argument_is_named_and_nothing_is_left(faked, tmp_path, capsys, arguments, words):
    assert main(["sweep", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.glob("*.jsonl*")) == []


def test_no_gpu_is_a_clear_error(faked, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    monkeypatch.setattr(door, "sweep", door.sweep.func)
    assert main(["sweep", *SHAPE, "--journal", "j.jsonl"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(tmp_path):
    code = (f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]\n"
            "import functools, fakes\nimport tritongemm.tuning.sweep as door\n"
            "from tritongemm.cli import main\n"
            "door.sweep = functools.partial(door.sweep, measurer=fakes.MEASURER,\n"
            "    builder=fakes.BUILDER, measurer_arguments={'log': 'log', 'each_s': 0.2})\n"
            "sys.exit(main(['sweep', '--m', '64', '--n', '64', '--k', '64', "
            "'--journal', 'my j.jsonl']))")
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: (tmp_path / "log").exists())
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume --journal 'my j.jsonl'" in err
    assert "Traceback" not in err
    assert all(r for r in read_journal(tmp_path / "my j.jsonl"))


def test_a_terminal_gets_the_live_display(tmp_path):
    rich = pytest.importorskip("rich.console")
    from tritongemm.tuning.progress import Live

    with open(tmp_path / "screen", "w+") as screen:
        display = Live(rich.Console(file=screen, force_terminal=True, width=120))
        fakes.run(tmp_path / "j.jsonl", [fakes.config(1), fakes.config(2)], each_s=0.3,
                  progress=display, behaviour={f"coarse *:{fakes.config(2).config_id}": "wrong"})
        screen.seek(0)
        text = screen.read()
    assert "0/1 problems" in text and "device 0" in text
    assert "[1/1] 64x64x64 bf16 nn: tiled_16x64x32" in text


@pytest.mark.parametrize("words, devices", [([], (None,)), (["--devices", "all"], (None,))])
def test_in_the_interpreter_the_cpu_is_the_device(faked, monkeypatch, words, devices):
    asked = {}
    monkeypatch.setattr(door, "sweep", lambda *_, **options: asked.update(options) or sys.exit(0))
    with settings.override(interpret=True), pytest.raises(SystemExit):
        main(["sweep", *SHAPE, *words])
    assert asked["devices"] == devices


def test_another_device_in_the_interpreter_is_refused(faked, capsys):
    with settings.override(interpret=True):
        assert main(["sweep", *SHAPE, "--devices", "1"]) == 2
    assert "--devices 1 under TRITON_INTERPRET=1" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_sweep_in_the_interpreter_ends_with_a_winner(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tritongemm", "sweep", "--m", "16", "--n", "16", "--k", "32",
         "--kernels", "tiled", "--search", "random", "--random", "1", "--plain", "--journal",
         str(tmp_path / "i.jsonl")], capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "TRITON_INTERPRET": "1"})
    assert done.returncode == 0, done.stderr
    assert [r["kind"] for r in read_journal(tmp_path / "i.jsonl")].count("winner") == 1


@pytest.mark.parametrize("words", [["sweep", "--stale"], ["tune", "--suite", "square"],
                                   ["sweep", *SHAPE, "--expected", "1.02"]], ids=" ".join)
def test_what_needs_a_gpu_is_refused_in_the_interpreter(words, faked, capsys):
    with settings.override(interpret=True):
        assert main(words) == 2
    assert "this needs a GPU, and TRITON_INTERPRET=1 is set" in capsys.readouterr().err
