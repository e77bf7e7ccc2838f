"""The measuring process: its answers, its deaths, and its replacement."""

import os
import signal

import bench_fakes
import pytest

from tritongemm.bench.measuring import MeasuringProcess, ProcessLost
from tritongemm.bench.session import Job, SessionSpec
from tritongemm.errors import DeviceError, UsageError
from tritongemm.problem import GemmProblem

SPEC = SessionSpec("fake", ("torch", "tritongemm"))


def job(m):
    return Job(GemmProblem.contiguous(m, 64, 64), ("tritongemm",))


@pytest.mark.parametrize(("m", "status", "says"), [
    (bench_fakes.EXITS, "died", "ended with exit status 7"),
    (bench_fakes.KILLED, "died", "SIGKILL"),
    (bench_fakes.HANGS, "timeout", "within 1 s"),
    (bench_fakes.LOSES_DEVICE, "died", "an illegal address was met"),
    (bench_fakes.RAISES, "died", "KeyError: 'a fault of the session'"),
])
def test_a_lost_process_says_why_and_is_replaced(m, status, says):
    with MeasuringProcess(SPEC, bench_fakes.OPENER) as process:
        first = process.start().environment["pid"]
        with pytest.raises(ProcessLost, match=says) as caught:
            process.measure(job(m), 1.0)
        assert caught.value.status == status
        assert process.measure(job(64), 60.0)["tritongemm"]["status"] == "ok"
        assert process.start().environment["pid"] != first


@pytest.mark.parametrize(("opener", "kind", "says"), [
    ("bench_fakes:refuse", UsageError, "it has no heart"),
    ("bench_fakes:crash", DeviceError, "could not start: .* ended with exit status 3"),
    ("bench_fakes:broken", DeviceError, "RuntimeError: no such library"),
    ("no_such_module:x", DeviceError, "ModuleNotFoundError"),
])
def test_a_session_that_cannot_open_is_one_clear_error(opener, kind, says):
    with MeasuringProcess(SPEC, opener) as process, pytest.raises(kind, match=says):
        process.start()


def test_stopping_ends_the_process():
    measuring = MeasuringProcess(SPEC, bench_fakes.OPENER)
    measuring.start()
    process = measuring._worker._process
    measuring.stop()
    assert process.returncode is not None
    measuring.stop()  # twice does no harm


def test_a_process_that_ended_between_two_questions_is_lost_once():
    with MeasuringProcess(SPEC, bench_fakes.OPENER) as process:
        os.kill(process.start().environment["pid"], signal.SIGKILL)
        with pytest.raises(ProcessLost, match="before it was asked") as caught:
            process.measure(job(64), 60.0)
        assert caught.value.status == "died"
        assert process.measure(job(64), 60.0)["torch"]["status"] == "ok"
