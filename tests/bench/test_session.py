"""What the measuring process does, on the CPU: proves, times, and keeps failures in their row."""

import pytest

pytest.importorskip("torch")

from tritongemm.bench.session import Job, Session, SessionSpec
from tritongemm.bench.target import Target
from tritongemm.device import interpreter_device
from tritongemm.errors import DeviceError, UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.rows import NAMES

FP32 = GemmProblem.contiguous(33, 40, 17, dtype="fp32")


def session(*names):
    return Session(SessionSpec("cpu", ("torch", *names)))


def measure(*names, problem=FP32):
    return session(*names).measure(Job(problem, names, budget_s=0.05))


def test_torch_its_control_and_the_provider_are_timed():
    found = measure("numpy_blocked")
    assert set(found) == {"torch", "torch-control", "numpy_blocked"}
    assert all(row["status"] == "ok" and row["time_us_p50"] > 0 and row["timer"] == "host"
               for row in found.values())
    assert found["numpy_blocked"]["kernel"] == "numpy_blocked"
    assert found["numpy_blocked"]["ratio_low"] <= found["numpy_blocked"]["ratio_high"]


def test_every_column_is_one_of_the_csvs():
    assert {name for row in measure("numpy_blocked").values() for name in row} <= set(NAMES)


def test_a_wrong_product_has_no_time():
    name = "outside_provider:Doubled"
    found = measure(name)
    assert found[name]["status"] == "wrong" and "time_us_p50" not in found[name]
    assert found[name]["kernel"] == "wrong on purpose"
    assert found["torch"]["status"] == "ok"


@pytest.mark.parametrize(("name", "problem", "status", "says"), [
    ("outside_provider:Failing", FP32, "launch", "ZeroDivisionError: no tile fits"),
    ("numpy_blocked", GemmProblem.contiguous(8, 8, 8), "constraint", "bfloat16"),
])
def test_a_provider_that_cannot_prepare_is_a_row_with_its_reason(name, problem, status, says):
    found = measure(name, problem=problem)
    assert found[name]["status"] == status and says in found[name]["error"]
    assert found["torch"]["status"] == "ok"


def test_a_provider_without_epilogues_is_a_row_that_says_so():
    found = measure("numpy_blocked", problem=GemmProblem.contiguous(
        8, 8, 8, dtype="fp32", epilogue="bias+gelu"))
    assert found["numpy_blocked"]["status"] == "constraint"
    assert "without bias+gelu" in found["numpy_blocked"]["error"]
    assert found["torch"]["status"] == "ok"
    assert found["torch"]["torch_backend"] in ("unfused", "addmm")


def test_a_problem_that_cannot_be_measured_is_a_row_that_says_so():
    found = measure(problem=GemmProblem.contiguous(0, 8, 8))
    assert found["torch"]["status"] != "ok" and found["torch"]["error"]


def test_a_lost_device_leaves_the_session(monkeypatch):
    from tritongemm.measure import protocol

    def lose(*_, **__):
        raise DeviceError("broke the device")

    monkeypatch.setattr(protocol, "measure", lose)
    with pytest.raises(DeviceError, match="broke the device"):
        measure("numpy_blocked")


@pytest.mark.parametrize(("name", "says"), [
    ("outside_provider:Unwilling", "it has no licence"), ("tritongemm", "TRITON_INTERPRET=1"),
])
def test_a_provider_that_cannot_run_here_stops_the_bench_before_it_begins(name, says):
    with pytest.raises(UsageError, match=says):
        session(name)


def test_checking_covers_every_provider_and_times_none():
    one = session("numpy_blocked", "outside_provider:Doubled", "outside_provider:Failing")
    one.target = Target("interpreter", interpreter_device(), "cpu")
    found = one.measure(Job(FP32, tuple(one._providers)[1:]))
    assert {name: row["status"] for name, row in found.items()} == {
        "torch": "ok", "numpy_blocked": "ok", "outside_provider:Doubled": "wrong",
        "outside_provider:Failing": "launch"}
    assert not any("time_us_p50" in row for row in found.values())
    assert found["numpy_blocked"]["max_err_ratio"] <= 1


def test_the_environment_names_neither_host_nor_path():
    import platform

    record = session().hello.environment
    assert record["device"] == "cpu"
    # The CPU's model may hold any word; nothing else may hold the machine's name or a path.
    text = str({name: value for name, value in record.items() if name != "cpu"})
    assert "/" not in text and (platform.node() or "/") not in text


def test_nothing_is_compiled_ahead_for_the_host():
    assert session("numpy_blocked").builds([FP32]) == []
