"""``tritongemm tune``: from a program or a suite to its tuned table, over fake workers."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import fakes
import pytest
from test_interrupts import wait_for

import tritongemm.tuning.sweep as door
from tritongemm import selection, settings
from tritongemm.cli import main
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_to_json, problem_to_json
from tritongemm.records.journal import Journal, read_journal
from tritongemm.records.suites import Shape, read_suite, write_suite
from tritongemm.tuning.gains import Gain, ProgramProduct, markdown, products_of, write_choices

HERE = Path(__file__).resolve().parent
H200 = device_named("nvidia-h200")
#: Shapes that no shipped table has.
SUITE = "m,n,k,layout,count\n328,712,520,nt,5\n72,712,520,nt,1\n"
BIG = GemmProblem.contiguous(328, 712, 520, layout="nt")


@pytest.fixture
def faked(monkeypatch, tmp_path):
    """The verb with fake parts, in a folder of its own; tables go to a user's folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tritongemm.device.cuda_device", lambda index: H200)

    def use(**arguments):
        monkeypatch.setattr(door, "sweep", functools.partial(
            door_sweep, measurer="fakes:ModelMeasurer", builder=fakes.BUILDER,
            measurer_arguments=arguments))
    door_sweep = door.sweep
    use()
    (tmp_path / "mine.csv").write_text(SUITE)
    with settings.override(user_dir=tmp_path / "user"):
        selection.reload()
        yield use
    selection.reload()


@pytest.mark.thorough
def test_a_suite_is_swept_published_compared_and_shown_on_one_page(faked, tmp_path, capsys):
    before = selection.choose(BIG, H200)
    assert before.source != "exact"
    assert main(["tune", "--suite", "mine.csv", "--dir", "work", "--out", "won.md",
                 "--plain", "--compile-workers", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 products tuned, 100.0 % of the flops of all" in out
    assert f"published to {tmp_path / 'user' / 'tuned'}: 2 rows added" in out
    after = selection.choose(BIG, H200)
    assert after.source == "exact"
    times = [f"{t:.2f}" for t in fakes.ModelMeasurer.times(BIG, [before.config, after.config])]
    assert float(times[1]) <= float(times[0])
    page = Path("won.md").read_text()
    assert page == Path("work/page.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| 328x712x520")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:4] == ["5", *times]
    assert cells[7].startswith(after.config.config_id)
    # What was swept first is what the program spends most on.
    first = next(r for r in read_journal("work/sweep.jsonl") if r["kind"] == "winner")
    assert first["problem"]["m"] == 328
    # A second time nothing is measured, and what was before is still what was before.
    assert main(["tune", "--resume", "--dir", "work", "--plain"]) == 0
    again = capsys.readouterr().out
    assert ", 0 configs measured" in again and again.count("measured before") == 4
    assert row in Path("work/page.md").read_text()


@pytest.mark.thorough
def test_tables_can_go_elsewhere(faked, tmp_path, capsys):
    Path("mine.csv").write_text("\n".join(SUITE.splitlines()[:2]) + "\n")
    assert main(["tune", "--suite", "mine.csv", "--to", "there", "--plain",
                 "--compile-workers", "1"]) == 0
    assert list(Path("there/tuned/nvidia-h200").glob("*.json"))
    assert not (tmp_path / "user").exists()
    assert selection.choose(BIG, H200).source != "exact"


@pytest.mark.thorough
def test_what_does_not_fit_the_budget_is_left_and_a_resume_goes_on(faked, capsys):
    faked(each_s=0.05)
    Path("mine.csv").write_text("m,n,k,layout\n" + "".join(
        f"{328 + 8 * i},712,520,nt\n" for i in range(6)))
    status = main(["tune", "--suite", "mine.csv", "--dir", "work", "--budget", "3", "--plain",
                   "--compile-workers", "1"])
    out = capsys.readouterr().out
    assert "products have no winner yet; continue with tritongemm tune --resume --dir" in out
    first = {r["problem"]["m"] for r in read_journal("work/sweep.jsonl") if r["kind"] == "winner"}
    assert len(first) < 6 and status == (0 if first else 1)
    faked()
    assert main(["tune", "--resume", "--dir", "work", "--plain", "--compile-workers", "1"]) == 0
    assert "6 of 6 products tuned" in capsys.readouterr().out


def test_a_program_is_recorded_in_a_process_of_its_own(faked, monkeypatch, capsys):
    seen = []

    def record(words, env):
        seen.append(words)
        write_suite(words[words.index("--out") + 1],
                    [Shape(328, 712, 520, layout="nt", dtype="bf16", count=3,
                           note="mm; 3 of 3 taken; time_us=20.00")])
        return _Ended()

    Path("train.py").write_text("")
    monkeypatch.setattr("tritongemm.cli.tune.subprocess.Popen", record)
    monkeypatch.setattr(door, "sweep", _none_found)
    with pytest.raises(_Reached):
        main(["tune", "--budget", "9", "train.py", "--epochs", "1", "--budget", "7"])
    assert seen[0][1:4] == ["-m", "tritongemm", "record"]
    assert seen[0][-5:] == ["train.py", "--epochs", "1", "--budget", "7"]


class _Reached(Exception):
    pass


class _Ended:
    def wait(self) -> int:
        return 0


@pytest.mark.parametrize("of", ["suite", "program"])
def test_a_resume_has_the_title_and_the_problems_of_the_first_run(faked, monkeypatch, of):
    swept, shown = [], []

    def sweep(problems, journal, **options):
        swept.append([(p.dtype_a, p.layout, p.precision) for p in problems])
        Path(journal).write_text("")
        raise KeyboardInterrupt

    own = {"dtype": "fp32", "layout": "tn", "precision": "tf32"}

    def record(words, env):
        write_suite(words[words.index("--out") + 1], [Shape(328, 712, 520, **own)])
        return _Ended()

    Path("train.py").touch()
    Path("plain.csv").write_text("m,n,k\n328,712,520\n")
    monkeypatch.setattr("tritongemm.cli.tune.subprocess.Popen", record)
    monkeypatch.setattr(door, "sweep", sweep)
    named = (["--suite", "plain.csv", *(f"--{name}={value}" for name, value in own.items())]
             if of == "suite" else ["train.py"])
    assert main(["tune", "--dir", "work", *named]) == 130
    assert main(["tune", "--dir", "work", "--resume"]) == 130
    assert swept == [[("fp32", "tn", "tf32")]] * 2
    monkeypatch.setattr("tritongemm.cli.tune._measure", lambda *_: ([], []))
    monkeypatch.setattr("tritongemm.tuning.gains.markdown", lambda title, *_: shown.append(title)
                        or "")
    assert main(["tune", "--dir", "work", "--resume"]) == 1
    assert shown == ["Tuned tables of " + {"suite": "a suite", "program": "train.py"}[of]]


@pytest.mark.parametrize("text", ["7", "{}", '{"title": 1}', "no json"])
def test_damaged_options_of_a_folder_are_named(faked, capsys, text):
    Path("work").mkdir()
    Path("work/suite.csv").write_text(SUITE)
    Path("work/options.json").write_text(text)
    assert main(["tune", "--dir", "work", "--resume"]) == 2
    assert "options.json" in capsys.readouterr().err


def test_a_problem_without_a_config_of_before_is_an_error(faked, capsys):
    Path("work").mkdir()
    Path("work/suite.csv").write_text(SUITE)
    write_choices(Path("work/before.json"), {BIG: None})
    assert main(["tune", "--dir", "work", "--resume"]) == 2
    assert "before.json: does not say what ran 72x712x520" in capsys.readouterr().err
    assert not Path("work/sweep.jsonl").exists()


def test_the_second_run_gets_its_least_time_once_and_what_is_left_is_said(faked, monkeypatch,
                                                                          capsys):
    configs = [KernelConfig("tiled", m, 64, 32) for m in (64, 128)]
    budgets = []

    def sweep(problems, journal, **options):
        budgets.append(options["budget_s"])
        with Journal.open(journal, {"environment": "e", "device": H200.slug}) as kept:
            for problem, config in [*zip(problems, configs, strict=True)][:3 - len(budgets)]:
                kept.append({"kind": "winner", "problem": problem_to_json(problem),
                             "config": config_to_json(config)})
        return SimpleNamespace(device=H200.slug, wall_s=9.0, measured=2, stopped="")

    monkeypatch.setattr(door, "sweep", sweep)
    monkeypatch.setattr("tritongemm.tuning.publish.publish", lambda journals, to: SimpleNamespace(
        added=1, replaced=0, kept=()))
    main(["tune", "--suite", "mine.csv", "--dir", "work", "--budget", "2"])
    assert budgets == [pytest.approx(1.6), 10.0]
    assert ("1 winners are not compared and published yet; continue with tritongemm tune --resume"
            in capsys.readouterr().out)


def _none_found(problems, journal, **options):
    assert options["budget_s"] == pytest.approx(0.8 * 9)
    assert [p.m for p in problems] == [328]
    raise _Reached


@pytest.mark.thorough
@pytest.mark.parametrize(("program", "status", "words"), [
    ("raise SystemExit(3)", 2, "ended with status 3 while it was recorded; it had run no product"),
    ("print('no product here')", 1, "ran no product that can be tuned; nothing was changed"),
])
def test_a_program_that_fails_or_runs_no_product(faked, capsys, program, status, words):
    Path("train.py").write_text(program)
    assert main(["tune", "train.py"]) == status
    found = capsys.readouterr()
    assert words in found.out + found.err


@pytest.mark.thorough
def test_what_a_program_ran_before_it_failed_is_kept(faked, capsys):
    pytest.importorskip("torch")
    Path("train.py").write_text("import torch\na = torch.ones(64, 64)\na @ a\nraise ValueError\n")
    assert main(["tune", "--dir", "work", "train.py"]) == 2
    assert f"in {Path('work/suite.csv').absolute()}" in capsys.readouterr().err
    assert [s.m for s in read_suite("work/suite.csv")] == [64]


def test_without_a_gpu_the_program_is_not_even_run(monkeypatch, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("open('ran', 'w')")
    assert main(["tune", "train.py"]) == 2
    assert "no CUDA device" in capsys.readouterr().err
    assert not Path("ran").exists() and not list(Path().glob("tune-*"))


@pytest.mark.parametrize(("arguments", "words"), [
    ([], "name either a program or --suite"), (["--suite", "mine.csv", "x.py"], "name either"),
    (["gone.py"], "no script 'gone.py'"), (["--suite", "gone.csv"], "gone.csv"),
    (["--resume", "--dir", "begun", "x.py"], "--resume takes no x.py"),
    (["--resume", "--dir", "begun", "-m", "x"], "--resume takes no x or -m"),
    (["--resume", "--dir", "begun", "--suite", "mine.csv"], "--resume takes no --suite"),
    (["--resume", "--dir", "begun", "--dtype", "fp16"], "--resume takes no --dtype"),
    (["--resume", "--dir", "begun", "--layout", "nt"], "--resume takes no --layout"),
    (["--resume", "--dir", "begun", "--precision", "ieee"], "start another tuning without"),
    (["--resume"], "--resume needs --dir"), (["--resume", "--dir", "gone"], "--resume needs"),
    (["--suite", "mine.csv", "--budget", "0"], "--budget 0"),
    (["--suite", "mine.csv", "--gain", "0"], "--gain 0"),
    (["--suite", "mine.csv", "--dir", "full"], "holds files; use --resume"),
    (["--suite", "mine.csv", "--dir", "mine.csv"], "--dir mine.csv is a file"),
    (["--suite", "mine.csv", "--dtype", "bf1"], "'bf1' is not known"),
    (["--suite", "bare.csv", "--layout", "zz"], "'zz' is not known"),
    (["--dtype", "fp16", "--layout", "nn", "train.py"],
     "--dtype, --layout without --suite would have no effect"),
])
def test_a_wrong_argument_is_named_and_nothing_is_made(faked, tmp_path, capsys, arguments, words):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "suite.csv").write_text(SUITE)
    (tmp_path / "bare.csv").write_text("m,n,k\n1,2,3\n")
    (tmp_path / "train.py").touch()
    before = sorted(tmp_path.iterdir())
    assert main(["tune", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.thorough
def test_ctrl_c_keeps_what_was_swept_and_says_how_to_go_on(tmp_path):
    (tmp_path / "mine.csv").write_text(SUITE)
    code = (f"import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parents[1])!r}]\n"
            "import functools, fakes\nimport tritongemm.tuning.sweep as door, tritongemm.device\n"
            "from tritongemm.cli import main\n"
            "tritongemm.device.cuda_device = lambda i: tritongemm.device.device_named("
            "'nvidia-h200')\n"
            "door.sweep = functools.partial(door.sweep, measurer=fakes.MEASURER,\n"
            "    builder=fakes.BUILDER, measurer_arguments={'log': 'log', 'each_s': 0.2})\n"
            "sys.exit(main(['tune', '--suite', 'mine.csv', '--dir', 'my work']))")
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: (tmp_path / "log").exists()
             and (tmp_path / "log").read_text().count("coarse") > 2)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in err
    assert f"--resume --dir '{tmp_path / 'my work'}'" in err
    kept = list(read_journal(tmp_path / "my work" / "sweep.jsonl"))
    assert sum(r["kind"] == "result" for r in kept) >= 2


# -- the order of products --------------------------------------------------------------------

def test_products_come_by_time_where_all_were_timed_else_by_flops():
    small = Shape(64, 64, 64, count=100, note="mm; 1 of 1 taken; time_us=5.00")
    large = Shape(1024, 1024, 64, count=2, note="mm; time_us=30.0")
    assert [p.problem.m for p in products_of([large, small])] == [64, 1024]
    untimed = Shape(1024, 1024, 64, count=2)
    assert [p.problem.m for p in products_of([small, untimed])] == [1024, 64]
    assert products_of([large])[0] == ProgramProduct(large.problem(), 2, 30.0)


def test_equal_products_are_one_and_empty_ones_none():
    shape = Shape(64, 64, 64, count=3, note="mm; time_us=5.0")
    again = Shape(64, 64, 64, count=1, note="addmm; time_us=9.0")
    (one,) = products_of([shape, again, Shape(0, 64, 64)])
    assert (one.count, one.recorded_us) == (4, 6.0)


# -- the page ---------------------------------------------------------------------------------

def test_the_page_has_a_row_a_product_and_none_where_nothing_was_tuned():
    one = ProgramProduct(GemmProblem(64, 64, 64), 3)
    gain = Gain(one, None, KernelConfig("tiled", 64, 64, 32), 20.0, 10.0, 20.0)
    text = markdown("A title", [gain], [one], ["a line"])
    assert "- a line\n" in text and "- 1 of 1 products tuned, 100.0 % of the flops of all" in text
    assert text.count("\n| ") == 3 and text.endswith("rounds of one process.\n")
    assert "|" not in markdown("A title", [], [one], [])
