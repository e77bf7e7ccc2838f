"""Logging as a library's: silent, and the program's own set-up untouched, unless asked."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import tritongemm
from tritongemm import settings
from tritongemm.cli import doctor, main

LOG = logging.getLogger("tritongemm")
CHECKOUT = Path(tritongemm.__file__).resolve().parent.parent


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True,
                          text=True, timeout=120, check=True,
                          env=settings.child_environment(**environment))


def test_nothing_is_shown_and_nothing_changed_unless_asked():
    done = python("import logging, tritongemm\n"
                  "from tritongemm import settings; settings.current()\n"
                  "log = logging.getLogger('tritongemm')\n"
                  "log.error('an error')\n"
                  "print(log.level, log.propagate, [type(h).__name__ for h in log.handlers])")
    assert done.stdout == "0 True ['NullHandler']\n" and done.stderr == ""


def test_the_programs_handlers_get_the_lines_at_the_programs_level():
    done = python("import logging, sys\n"
                  "logging.basicConfig(stream=sys.stdout, level='INFO',"
                  "format='mine %(message)s')\n"
                  "import tritongemm\n"
                  "from tritongemm import settings; settings.current()\n"
                  "logging.getLogger('tritongemm').info('a line')")
    assert (done.stdout, done.stderr) == ("mine a line\n", "")


def test_the_variable_adds_a_handler():
    code = ("import logging, tritongemm; from tritongemm import settings; settings.current()\n"
            "log = logging.getLogger('tritongemm'); log.info('low'); log.error('high')\n"
            "print(log.propagate)")
    for level, shown in (("info", "low\nhigh\n"), ("error", "high\n"), ("off", "")):
        done = python(code, TRITONGEMM_LOG=level)
        assert (done.stdout, done.stderr) == ("True\n", shown), level


def test_a_level_of_the_programs_stays(monkeypatch):
    before = LOG.handlers[:]
    monkeypatch.setattr(LOG, "level", logging.ERROR)
    with settings.override(log="debug"):
        assert LOG.level == logging.ERROR and len(LOG.handlers) == len(before) + 1
    assert LOG.level == logging.ERROR and LOG.handlers == before


def test_the_handler_goes_with_the_setting():
    with settings.override(log=None):
        before = LOG.handlers[:], LOG.level
        with settings.override(log="info"), settings.override(log="debug"):
            assert len(LOG.handlers) == len(before[0]) + 1 and LOG.level == logging.DEBUG
        assert (LOG.handlers, LOG.level) == before


def test_a_command_shows_warnings_and_so_do_its_children(monkeypatch):
    seen = []
    monkeypatch.setattr(doctor, "run", lambda args: seen.append(
        (settings.current().log, settings.child_environment().get("TRITONGEMM_LOG"))))
    assert main(["doctor"]) == 0
    assert seen == [("warning", "warning")]
