"""What is shown while torch is imported: one line, or on a terminal a spinner that goes away."""

from __future__ import annotations

import io
import sys

from tritongemm.cli.waiting import Waiting


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
