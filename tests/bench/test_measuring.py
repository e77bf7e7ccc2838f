"""The measuring process: its answers, its deaths, and its replacement."""

import bench_fakes
import pytest

from tritongemm.bench.measuring import Child, ChildLost
from tritongemm.bench.session import Job, SessionSpec
from tritongemm.errors import DeviceError, UsageError
from tritongemm.problem import GemmProblem

SPEC = SessionSpec("fake", ("torch", "tritongemm"))


def job(m):
    return Job(GemmProblem.contiguous(m, 64, 64), ("tritongemm",))


@pytest.mark.parametrize(("m", "status", "says"), [
    (bench_fakes.EXITS, "died", "ended with status 7"),
    (bench_fakes.KILLED, "died", "SIGKILL"),
    (bench_fakes.HANGS, "timeout", "within 1 s"),
    (bench_fakes.LOSES_DEVICE, "died", "an illegal address was met"),
    (bench_fakes.RAISES, "died", "KeyError: 'a fault of the session'"),
])
def test_a_lost_process_says_why_and_is_replaced(m, status, says):
    with Child(SPEC, bench_fakes.OPENER) as child:
        first = child.start().environment["pid"]
        with pytest.raises(ChildLost, match=says) as caught:
            child.measure(job(m), 1.0)
        assert caught.value.status == status
        assert child.measure(job(64), 60.0)["tritongemm"]["status"] == "ok"
        assert child.start().environment["pid"] != first


@pytest.mark.parametrize(("opener", "kind", "says"), [
    ("bench_fakes:refuse", UsageError, "it has no heart"),
    ("bench_fakes:crash", DeviceError, "could not start: .* ended with status 3"),
    ("bench_fakes:broken", DeviceError, "RuntimeError: no such library"),
    ("no_such_module:x", DeviceError, "ModuleNotFoundError"),
])
def test_a_session_that_cannot_open_is_one_clear_error(opener, kind, says):
    with Child(SPEC, opener) as child, pytest.raises(kind, match=says):
        child.start()


def test_stopping_ends_the_process():
    child = Child(SPEC, bench_fakes.OPENER)
    child.start()
    process = child._process
    child.stop()
    assert process.exitcode is not None
    child.stop()  # twice does no harm
