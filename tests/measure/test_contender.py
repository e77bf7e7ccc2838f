"""The status word of every kind of failure."""

from __future__ import annotations

import pytest

from tritongemm import errors
from tritongemm.measure.contender import Measurement, failure_kind


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


class CompilationError(Exception):
    """As Triton names its own."""


class CompileTimeAssertionFailure(CompilationError):
    """Triton's derive from it."""


class OutOfResources(Exception):
    """As Triton names its own."""


@pytest.mark.parametrize(("error", "status"), [
    (errors.CompileError("x"), "compile"),
    (CompileTimeAssertionFailure("x"), "compile"),
    (errors.ConstraintError("x"), "constraint"),
    (errors.ConfigError("x"), "constraint"),
    (errors.UnsupportedError("x"), "constraint"),
    (errors.LaunchError("x"), "launch"),
    (OutOfResources("x"), "launch"),
    (errors.NumericsError("x"), "wrong"),
    (OutOfMemoryError("x"), "oom"),
    (MemoryError(), "oom"),
    (ZeroDivisionError("x"), "launch"),
], ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_failure_kinds(error, status):
    assert failure_kind(error) == status


def test_a_failure_keeps_its_reason_on_one_bounded_line():
    found = Measurement.failed(errors.CompileError("line one\n  line two" + "x" * 5000))
    assert found.status == "compile" and not found.ok and found.time_us_p50 is None
    assert found.error.startswith("CompileError: line one line two") and len(found.error) == 1000
    assert Measurement.failed(MemoryError()).error == "MemoryError"
