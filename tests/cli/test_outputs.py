"""Outputs that cannot be written are told before anything is measured."""

from __future__ import annotations

import os

import pytest

from tritongemm import settings
from tritongemm.cli import main
from tritongemm.cli.outputs import check_file, check_folder
from tritongemm.errors import DataFileError

SHAPE = ["--m", "16", "--n", "16", "--k", "16"]


@pytest.fixture
def unused(monkeypatch):
    """Fails where a command goes on to its work."""
    def used(*_, **__):
        raise AssertionError("the work began")

    for place in ("tritongemm.bench.runner.bench", "tritongemm.report.load.load"):
        monkeypatch.setattr(place, used)


@pytest.mark.parametrize("words", [
    ["bench", *SHAPE, "--out"], ["ladder", "--out"], ["record", "script.py", "--out"],
    ["regret", "j.jsonl", "--out"], ["calibrate", "j.jsonl", "--out"],
    ["sweep", *SHAPE, "--journal"], ["accuracy", "--out"],
    ["regret", "--fresh", "1", "--journal"], ["profile", "1", "1", "1", "--kernel", "x", "--out"],
], ids=lambda words: words[0])
def test_a_folder_is_not_taken_for_a_file(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    out = "results/"
    words = [*words, out] if words[0] != "record" else ["record", "--out", out, "script.py"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert f"{out} is a folder; name the file in it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [
    ["bench", *SHAPE, "--out", "{}"], ["bench", *SHAPE, "--device", "cpu", "--out", "{}"],
    ["ladder", "--out", "{}"], ["regret", "j.jsonl", "--out", "{}"],
    ["calibrate", "j.jsonl", "--out", "{}"], ["sweep", *SHAPE, "--journal", "{}"],
    ["accuracy", "--out", "{}"],
    ["record", "--out", "{}", "script.py"],
    ["report", "rows.csv", "--out", "{}"]], ids=lambda words: " ".join(words[::4]))
def test_unwritable_outputs_are_reported_first(tmp_path, monkeypatch, capsys, unused, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "script.py").write_text("raise AssertionError('the work began')")
    for out, says in (("file/out", "file/out: "), (".", "is a folder, not a file")):
        if out == "." and words[0] == "report":  # which takes a folder
            continue
        assert main([word.format(out) for word in words]) == 2
        said = capsys.readouterr().err
        assert says in said and "Traceback" not in said
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_cache_folder_that_cannot_be_written_is_told_with_its_variable(tmp_path, monkeypatch,
                                                                         capsys):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TRITONGEMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    settings.reload()
    assert main(["warmup", *SHAPE, "--device-name", "nvidia-h200"]) == 2
    assert "TRITONGEMM_CACHE_DIR moves the cache folder" in capsys.readouterr().err
    with pytest.raises(DataFileError) as raised:
        check_file(tmp_path / "file" / "other.csv")
    assert "TRITONGEMM_CACHE_DIR" not in str(raised.value)


def test_checking_changes_nothing(tmp_path):
    (tmp_path / "there.csv").write_text("rows")
    for path in ("there.csv", "absent.csv", "new/folder/absent.csv"):
        check_file(tmp_path / path)
    check_folder(tmp_path / "new" / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["there.csv"]
    assert (tmp_path / "there.csv").read_text() == "rows"
    with pytest.raises(DataFileError, match="is a folder"):
        check_file(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/full")],
                         ids=["pipe", "full"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, make, capsys):
    path = tmp_path / "a.jsonl"
    make(path)
    with pytest.raises(DataFileError, match="not a regular file"):
        check_file(path)
    assert main(["sweep", *SHAPE, "--journal", str(path)]) == 2
    assert "a.jsonl: is not a regular file" in capsys.readouterr().err
