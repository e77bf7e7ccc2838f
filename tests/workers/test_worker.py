"""A worker's supervisor turns whatever befalls its process into events."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.connection import wait

import fakes
import pytest

from tritongemm.errors import CompileError, ConstraintError, DeviceError, LaunchError
from tritongemm.workers.messages import (
    COARSE,
    COMPILE,
    SETUP,
    Call,
    Request,
    failure,
    one_line,
)
from tritongemm.workers.worker import Failed, Finished, Ready, Refused, Returned, Worker


@pytest.fixture
def worker():
    workers = []

    def make(target=fakes.MEASURER, **arguments):
        one = Worker("test", target, arguments)
        workers.append(one)
        one.start()
        return one

    yield make
    for one in workers:
        one.kill()


def until(one: Worker, kind: type, limit_s: float = 300.0) -> list:
    events: list = []
    end = time.monotonic() + limit_s
    while not any(isinstance(e, kind) for e in events):
        assert time.monotonic() < end, events
        if one.connection is not None:
            wait([one.connection], 0.1)
            events += one.read()
        events += one.check()
    return events


def request(count: int = 3, timeout_s: float = 20.0, doing: str = "measuring",
            setup: bool = True) -> Request:
    """A set-up and ``count`` measurements."""
    calls = tuple(Call("one", (fakes.problem(), fakes.config(n + 1)), timeout_s, doing)
                  for n in range(count))
    return Request(calls, Call("open", (fakes.problem(),), 20.0, "setting up") if setup else None)


def results(events: list) -> list:
    return [e for e in events if isinstance(e, (Returned, Failed)) and e.index != SETUP]


def test_results_come_one_by_one_and_in_order(worker):
    one = worker(index=0, seed=0)
    until(one, Ready)
    asked = request()
    one.send(asked)
    events = until(one, Finished)
    assert [(e.index, e.value.values["time_us"]) for e in results(events)] == [
        (0, 16.0), (1, 32.0), (2, 48.0)]
    assert events[-1].rest == () and events[-1].request is asked
    assert one.idle and one.busy_s > 0


def test_a_setup_is_made_once_and_again_in_a_new_process(worker, tmp_path):
    log = tmp_path / "log"
    one = worker(index=0, seed=0, log=str(log))
    for _ in range(2):
        until(one, Ready)
        for _ in range(2):
            one.send(request())
            until(one, Finished)
        one.kill()
        one.start()
    assert [line for line in log.read_text().splitlines() if line.startswith("open")] == [
        "open 64x64x64 0"] * 2


@pytest.mark.parametrize(("behaviour", "status"), [("oom", "oom"), ("kill", "died"),
                                                   ("sticky", "died")])
def test_where_the_setup_fails_no_call_is_made(worker, behaviour, status):
    one = worker(index=0, seed=0, behaviour={"open 64x64x64": behaviour})
    until(one, Ready)
    one.send(request())
    failed, finished = until(one, Finished)
    assert (failed.index, failed.outcome.status) == (SETUP, status)
    assert finished.rest == (0, 1, 2)
    assert one.idle == (behaviour == "oom") == one.alive


def test_a_process_that_cannot_start_says_why_for_good(worker):
    (event,) = until(worker(target="fakes:NoBuilder", device=None), Refused)
    assert event.final and "No module named 'triton'" in event.reason
    assert event.error == "ImportError"


def test_a_target_that_does_not_exist_is_refused_with_its_name(worker):
    (event,) = until(worker(target="fakes:Nothing"), Refused)
    assert event.final and "Nothing" in event.reason


def test_a_process_killed_while_starting_may_be_tried_again(worker):
    one = worker(index=0, seed=0)
    os.killpg(one._process.pid, signal.SIGKILL)
    (event,) = until(one, Refused)
    assert not event.final and "SIGKILL" in event.reason
    assert not one.alive


def test_a_process_that_does_not_start_in_time_is_ended(worker):
    one = Worker("test", fakes.MEASURER, {"index": 0, "seed": 0}, start_timeout_s=0.01)
    one.start()
    process = one._process
    time.sleep(0.02)
    (event,) = one.check()  # what it may have sent meanwhile is not read
    assert isinstance(event, Refused) and not event.final
    assert "starting took over 0.01 s" in event.reason
    assert not one.alive and process.returncode is not None


def test_what_a_process_prints_reaches_neither_the_pipe_nor_our_output(worker, capfd):
    one = worker(index=0, seed=0, behaviour={f"coarse *:{fakes.config(1).config_id}": "exit"})
    until(one, Ready)
    one.send(request())
    (failed,) = results(until(one, Finished))
    assert "last words of file.py" in failed.outcome.reason
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("behaviour", "says"), [
    ("kill", "SIGKILL"), ("exit", "exit status 3"), ("hang", "measuring took over 0.5 s"),
    ("sticky", "device fault: an illegal memory access")])
def test_a_death_costs_its_call_and_the_rest_comes_back(worker, behaviour, says):
    second = f"coarse *:{fakes.config(2).config_id}"
    one = worker(index=0, seed=0, behaviour={second: behaviour})
    until(one, Ready)
    one.send(request(timeout_s=0.5 if behaviour == "hang" else 20.0))
    events = until(one, Finished)
    first, failed = results(events)
    assert first.value.ok and failed.index == 1 and says in failed.outcome.reason
    assert failed.outcome.status == ("timeout" if behaviour == "hang" else "died")
    assert events[-1].rest == (2,)
    assert not one.alive
    one.start()
    until(one, Ready)
    assert one.idle


def test_a_call_that_raises_says_where_and_the_next_is_made(worker):
    second = f"coarse *:{fakes.config(2).config_id}"
    one = worker(index=0, seed=0, behaviour={second: "unexpected"})
    until(one, Ready)
    one.send(request())
    events = until(one, Finished)
    assert [type(e) for e in results(events)] == [Returned, Failed, Returned]
    failed = results(events)[1]
    assert failed.outcome.reason == "ZeroDivisionError: a slip in the measurer"
    assert failed.where.startswith("behave, line ")
    assert events[-1].rest == () and one.idle


def test_the_user_of_one_worker_waits_for_its_events(worker):
    one = worker(index=0, seed=0, behaviour={f"coarse *:{fakes.config(1).config_id}": "hang"})
    (ready,) = one.wait_for(Ready, Refused)
    assert ready.info["device"].slug == "nvidia-h200"
    one.send(request(1, timeout_s=0.3, setup=False))
    failed, finished = one.wait_for(Finished)
    assert failed.outcome.status == "timeout" and finished.rest == ()
    assert one.wait_for(Finished) == []  # there is no process


def test_ending_a_process_ends_what_it_started(worker, tmp_path):
    note = tmp_path / "pid"
    (tmp_path / "forker.py").write_text(
        "import subprocess, sys, time, pathlib\n"
        "class Forker:\n"
        "    def __init__(self, note): self.note = note\n"
        "    def info(self): return {}\n"
        "    def one(self, problem, config):\n"
        "        p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "        pathlib.Path(self.note).write_text(str(p.pid))\n"
        "        time.sleep(600)\n")
    sys.path.insert(0, str(tmp_path))
    try:
        one = worker(target="forker:Forker", note=str(note))
    finally:
        sys.path.remove(str(tmp_path))
    until(one, Ready)
    one.send(request(1, timeout_s=1.0, doing=COMPILE, setup=False))
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
