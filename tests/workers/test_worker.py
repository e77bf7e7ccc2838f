"""A station turns whatever befalls its child into events."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import wait

import fakes
import pytest

from tritongemm.errors import CompileError, ConstraintError, DeviceError, LaunchError
from tritongemm.workers.batch import COARSE, COMPILE, FINAL, Job, failure, one_line
from tritongemm.workers.worker import Broken, Finished, Ready, Refused, Result, Station


@pytest.fixture
def station():
    stations = []

    def make(target=fakes.MEASURER, **arguments):
        one = Station("test", target, arguments)
        stations.append(one)
        one.start()
        return one

    yield make
    for one in stations:
        one.kill()


def until(one: Station, kind: type, limit_s: float = 30.0) -> list:
    events: list = []
    end = time.monotonic() + limit_s
    while not any(isinstance(e, kind) for e in events):
        assert time.monotonic() < end, events
        if one.connection is not None:
            wait([one.connection], 0.1)
            events += one.read()
        events += one.check()
    return events


def job(stage: str = COARSE, count: int = 3, **changes) -> Job:
    values = {"timeout_s": 20.0, "open_timeout_s": 20.0, **changes}
    return Job(fakes.problem(), tuple(fakes.config(n + 1) for n in range(count)), stage, **values)


def test_results_come_one_by_one_and_in_order(station):
    one = station(index=0, seed=0)
    until(one, Ready)
    one.give(job())
    events = until(one, Finished)
    assert [e.config for e in events if isinstance(e, Result)] == list(job().configs)
    assert events[-1].rest == ()
    assert one.idle and one.busy_s > 0


def test_a_child_that_cannot_start_says_why_for_good(station):
    (event,) = until(station(target="fakes:NoBuilder", device=None), Refused)
    assert event.final and "No module named 'triton'" in event.reason


def test_a_target_that_does_not_exist_is_refused_with_its_name(station):
    (event,) = until(station(target="fakes:Nothing"), Refused)
    assert event.final and "Nothing" in event.reason


def test_a_child_killed_while_starting_may_be_tried_again(station):
    one = station(index=0, seed=0)
    os.killpg(one._process.pid, signal.SIGKILL)
    (event,) = until(one, Refused)
    assert not event.final and "SIGKILL" in event.reason
    assert not one.alive


def test_what_a_child_prints_reaches_neither_the_pipe_nor_our_output(station, capfd):
    one = station(index=0, seed=0, behaviour={f"coarse *:{fakes.config(1).config_id}": "exit"})
    until(one, Ready)
    one.give(job())
    events = until(one, Finished)
    assert "last words of file.py" in events[1].outcome.reason
    assert capfd.readouterr() == ("", "")


def test_the_rest_of_a_job_comes_back_when_the_child_dies(station):
    one = station(index=0, seed=0, behaviour={f"coarse *:{fakes.config(2).config_id}": "kill"})
    until(one, Ready)
    one.give(job())
    events = until(one, Finished)
    assert [e.outcome.status for e in events if isinstance(e, Result)] == ["ok", "died"]
    assert events[-1].rest == (fakes.config(3),)
    assert not one.alive
    one.start()
    until(one, Ready)
    assert one.idle


def test_finalists_that_hang_are_broken_together(station):
    one = station(index=0, seed=0, behaviour={f"final *:{fakes.config(2).config_id}": "hang"})
    until(one, Ready)
    one.give(job(FINAL, timeout_s=0.3))
    events = until(one, Finished)
    (broken,) = [e for e in events if isinstance(e, Broken)]
    assert broken.outcome.status == "timeout" and not broken.opening
    assert len(events[-1].rest) == 3


def test_ending_a_child_ends_what_it_started(station, tmp_path):
    note = tmp_path / "pid"
    (tmp_path / "forker.py").write_text(
        "import subprocess, sys, time, pathlib\n"
        "from tritongemm.workers.batch import Outcome\n"
        "class Forker:\n"
        "    def __init__(self, note): self.note = note\n"
        "    def info(self): return {}\n"
        "    def one(self, problem, config):\n"
        "        p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "        pathlib.Path(self.note).write_text(str(p.pid))\n"
        "        time.sleep(600)\n")
    sys.path.insert(0, str(tmp_path))
    try:
        one = station(target="forker:Forker", note=str(note))
    finally:
        sys.path.remove(str(tmp_path))
    until(one, Ready)
    one.give(job(COMPILE, 1, timeout_s=1.0))
    events = until(one, Finished)
    assert "compiling took over 1 s" in events[0].outcome.reason
    grandchild = int(note.read_text())
    end = time.monotonic() + 30
    while True:
        try:
            with open(f"/proc/{grandchild}/stat") as file:
                state = file.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            break
        if state == "Z":
            break
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(("error", "stage", "status", "fatal"), [
    (CompileError("x"), COARSE, "compile", False), (ConstraintError("x"), COMPILE, "constraint",
                                                    False),
    (LaunchError("x"), COMPILE, "launch", False), (DeviceError("x"), COARSE, "died", True),
    (MemoryError(), COARSE, "oom", False), (KeyError("x"), COMPILE, "compile", False),
    (KeyError("x"), COARSE, "launch", False),
])
def test_an_exception_becomes_the_status_of_its_kind(error, stage, status, fatal):
    outcome = failure(error, stage)
    assert (outcome.status, outcome.fatal) == (status, fatal)
    assert outcome.reason


@pytest.mark.parametrize(("text", "said"), [
    ("in /home/user/x/y.py line 3", "in y.py line 3"), ("a/b ratio", "a/b ratio"),
    ("two\n  lines", "two lines"), ("m/n and 3/4", "m/n and 3/4"),
    ('File "/usr/lib/python3/site.py", line 2', 'File "site.py", line 2'),
])
def test_reasons_are_one_line_without_folders(text, said):
    assert one_line(text) == said


def test_long_reasons_are_cut():
    assert len(one_line("x" * 10_000)) < 1000
