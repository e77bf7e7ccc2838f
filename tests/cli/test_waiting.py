"""What is shown while torch is imported: one line, or on a terminal a spinner that goes away; and
counts of what is done."""

from __future__ import annotations

import io
import sys

import pytest

from tritongemm.cli.waiting import Waiting, counting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_it_is_one_line(capsys):
    waiting = Waiting("importing")
    waiting.start()
    waiting.stop()
    waiting.stop()
    assert capsys.readouterr().out == "importing ...\n"


def test_on_a_terminal_it_is_a_spinner_with_the_time(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("TERM", "xterm")
    waiting = Waiting("importing")
    waiting.start()
    waiting.stop()
    waiting.stop()
    assert "importing" in shown.getvalue() and "0:00:0" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[2K")  # its line is taken away


def test_without_rich_it_is_one_line(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    waiting = Waiting("importing")
    waiting.start()
    waiting.stop()
    assert shown.getvalue() == "importing ...\n"


@pytest.mark.parametrize("total, lines", [(3, 3), (10, 10), (2500, 10)])
def test_a_count_elsewhere_is_a_line_for_each_tenth_at_most(capsys, total, lines):
    progress = counting("choices")
    for done in range(1, total + 1):
        progress(done, total)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == lines and said[-1] == f"{total} of {total} choices"


def test_a_count_on_a_terminal_is_one_line(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    progress = counting("choices")
    for done in range(1, 101):
        progress(done, 100)
    assert shown.getvalue().count("\r") == 100 and shown.getvalue().count("\n") == 1
