"""The door of the command line: one verb at a time, errors as one line, status by kind."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

import tritongemm
from tritongemm import cli
from tritongemm.cli import VERBS, main
from tritongemm.errors import DataFileError

CHECKOUT = Path(tritongemm.__file__).resolve().parent.parent


@pytest.fixture
def verb(monkeypatch):
    """A verb whose ``run`` does what the test says."""
    module = types.ModuleType("tritongemm.cli.trial")
    module.add_arguments = lambda parser: parser.add_argument("--size", type=int, default=1)
    monkeypatch.setitem(sys.modules, "tritongemm.cli.trial", module)
    monkeypatch.setitem(VERBS, "trial", "only for this test")

    def does(action):
        module.run = action
        return module
    return does


def raises(error):
    def run(args):
        raise error
    return run


@pytest.mark.parametrize("answer, status", [(0, 0), (1, 1), (None, 0)])
def test_the_verb_gives_the_status(verb, answer, status):
    verb(lambda args: answer)
    assert main(["trial"]) == status


def test_the_verb_gets_its_own_arguments(verb):
    seen = []
    verb(lambda args: seen.append(args.size))
    assert main(["trial", "--size", "7"]) == 0
    assert seen == [7]


def test_our_errors_are_one_line_and_status_2(verb, capsys):
    verb(raises(DataFileError("suite.csv", "is empty", row=3, field="m")))
    assert main(["trial"]) == 2
    assert capsys.readouterr().err == "tritongemm trial: suite.csv, row 3, field 'm': is empty\n"


def test_an_interrupt_is_status_130(verb, capsys):
    verb(raises(KeyboardInterrupt()))
    assert main(["trial"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("words, says", [
    ("compare a.csv b.csv --tolerance 5", "--tolerance 5 is outside 0 to 1"),
    ("compare a.csv b.csv --limit -1", "--limit -1 is below 0"),
    ("sweep square --budget 0", "--budget 0 is not a positive number of seconds"),
    ("tune --suite s.csv --compile-workers 0", "--compile-workers 0 is below 1"),
    ("bench square --timeout 0.5", "--timeout 0.5 is not a number of seconds of at least 1"),
    ("bench square --compile-workers -1", "--compile-workers -1 is below 0"),
    ("ladder --processes 0", "--processes 0 is below 1"),
    ("calibrate --quick --budget inf", "--budget inf is not a positive number of seconds"),
    ("regret j.jsonl --folds 1", "--folds 1 is below 2"),
    ("warmup square --max-extent 0", "--max-extent 0 is below 1"),
    ("cubins count f --problems 0", "--problems 0 is below 1")])
def test_a_number_outside_its_limits_names_the_option_and_the_limit(words, says, capsys):
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert f"tritongemm {words.split()[0]}: {says}" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize("verb", ["sweep", "bench", "warmup"])
@pytest.mark.parametrize("words, says", [
    ("--dtype bf17", "dtype 'bf17' is not known; use one of bf16, fp16, fp32, c64"),
    ("--dtype fp64", "--dtype fp64: no kernel takes it, and calls go to torch; use bf16, fp16"),
    ("--dtype bf16 --dtype-b fp16", "no kernel takes such operands; use one dtype for both"),
    ("--dtype fp16 --dtype-b fp32 --dtype-out bf16", "no kernel takes such operands; use one"),
    ("--scale-b row", "--scale-b row: kernels take no scales; TRITONGEMM_PLUGINS names modules")])
def test_what_no_kernel_takes_is_refused_before_any_work(verb, words, says, capsys):
    assert main([verb, "square", *words.split()]) == 2
    assert says in capsys.readouterr().err


def test_unexpected_errors_keep_their_traceback(verb):
    verb(raises(ZeroDivisionError("a mistake of ours")))
    with pytest.raises(ZeroDivisionError):
        main(["trial"])


def test_no_verb_prints_help_and_is_status_2(capsys):
    assert main([]) == 2
    out = capsys.readouterr().out
    assert all(f"  {name}" in out and text in out for name, text in VERBS.items())


def test_help_is_status_0(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "tritongemm VERB --help" in capsys.readouterr().out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tritongemm {tritongemm.__version__}\n"


@pytest.mark.parametrize("word", ["swep", "--no-such-option", "cli"])
def test_an_unknown_verb_is_status_2(word, capsys):
    with pytest.raises(SystemExit) as ended:
        main([word])
    assert ended.value.code == 2
    assert "usage: tritongemm" in capsys.readouterr().err


@pytest.mark.parametrize("word, says", [("swep", "did you mean sweep?"),
                                        ("benhc", "did you mean bench?"), ("zzz", "is not a verb")])
def test_the_closest_verb_is_suggested(word, says, capsys):
    with pytest.raises(SystemExit):
        main([word])
    error = capsys.readouterr().err.splitlines()[-1]
    assert repr(word) in error and says in error and ("did you mean" in error) == (word != "zzz")


@pytest.mark.parametrize("name", sorted(VERBS))
def test_each_verb_has_help(name, capsys):
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: tritongemm {name}" in out and VERBS[name].split(",")[0] in " ".join(out.split())


def test_every_verb_has_a_module_and_a_line():
    folder = Path(cli.__file__).parent
    assert [name for name in VERBS if not (folder / f"{name}.py").is_file()] == []


def test_python_dash_m_is_the_same_command():
    done = subprocess.run([sys.executable, "-m", "tritongemm", "--version"], cwd=CHECKOUT,
                          capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, f"tritongemm {tritongemm.__version__}\n")


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(f"{sys.executable} -u -m tritongemm doctor | head -n 1", shell=True,
                          cwd=CHECKOUT, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("ok") and "Traceback" not in done.stderr


def test_a_full_disk_for_the_output_is_one_line():
    done = subprocess.run(
        f"{sys.executable} -m tritongemm tables > /dev/full", shell=True, cwd=CHECKOUT,
        capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines() == [
        "tritongemm tables: the output cannot be written: No space left on device; free some "
        "space, or write it elsewhere"]


def _loaded_by(words: list[str]) -> set[str]:
    code = ("import sys\nfrom tritongemm.cli import main\n"
            f"try:\n    main({words!r})\nexcept SystemExit:\n    pass\n"
            "print('\\n' + ' '.join(sys.modules))")
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("words", [["--help"], ["report", "--help"], ["sweep", "--help"],
                                   ["bench", "--help"], ["explain", "--help"]])
def test_help_loads_neither_torch_nor_pandas(words):
    loaded = _loaded_by(words)
    assert loaded & {"torch", "triton", "pandas", "matplotlib", "numpy"} == set()


def test_only_the_asked_verb_is_imported():
    loaded = _loaded_by(["explain", "--help"])
    assert {name for name in VERBS if f"tritongemm.cli.{name}" in loaded} == {"explain"}


@pytest.mark.parametrize("words", [
    "warmup square", "cubins count folder", "calibrate j.jsonl", "regret j.jsonl", "tables",
    "explain 1 2 3"])
def test_a_device_is_named_by_one_option_and_the_old_one_is_hidden(words, capsys):
    verb, *rest = words.split()
    taken = [cli.parser_of(verb).parse_args([*rest, option, "h200"]).device_name
             for option in ("--device-name", "--device")]
    assert taken in ([["h200"]] * 2, ["h200"] * 2)
    text = cli.parser_of(verb).format_help()
    assert "--device-name SLUG" in text and "--device SLUG" not in text
