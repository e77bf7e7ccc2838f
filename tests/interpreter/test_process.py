"""What must not end or block a process that interprets: wide strides, forks, an old Triton."""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
import warnings

import pytest
import torch

import tritongemm as tg
from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.errors import LaunchError, UnsupportedError
from tritongemm.kernels import interpret
from tritongemm.ops.execute import clear_plans
from tritongemm.ops.plan import bind_config
from tritongemm.problem import GemmProblem

pytestmark = pytest.mark.interpreter
#: A stride with which 40 rows reach past 2^31 elements.
WIDE = 2**31 // 39 // 8 * 8 + 8


def spread(shape: tuple[int, int], strides: tuple[int, int]) -> torch.Tensor:
    """Random bf16 with ``strides``, in address space of which only what is written takes memory."""
    size = sum((extent - 1) * stride for extent, stride in zip(shape, strides)) + 1
    memory = mmap.mmap(-1, 2 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                       | getattr(mmap, "MAP_NORESERVE", 0x4000))
    result = torch.frombuffer(memory, dtype=torch.bfloat16).as_strided(shape, strides)
    return result.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(size % 1000)))


def check(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(result.double(), a.double() @ b.double(), rtol=2**-7, atol=0.1)


@pytest.mark.parametrize("shape, strides", [
    ((5, 40), (3, WIDE)), ((40, 24), (WIDE, 1)), ((2, 24), (2**31 + 8, 1)),
    ((24, 2), (1, 2**31 + 8))], ids=str)
def test_strides_past_two_to_the_31_are_read_and_written(shape, strides):
    a, b = spread(shape, strides), torch.randn(shape[1], 24).bfloat16()
    check(tg.mm(a, b, strict=True), a, b)
    check(tg.mm(b.t(), a.t(), strict=True), b.t(), a.t())
    out = spread(shape, strides)
    a = torch.randn(shape[0], 16).bfloat16()
    b = torch.randn(16, shape[1]).bfloat16()
    check(tg.mm(a, b, out=out, strict=True), a, b)


def test_a_descriptor_over_wide_strides_is_read_and_written():
    a, out = spread((40, 48), (WIDE, 1)), spread((40, 64), (WIDE, 1))
    b = torch.randn(48, 64).bfloat16()
    bind_config(GemmProblem.contiguous(40, 64, 48, dtype="bf16"),
                KernelConfig("persistent_tma", 64, 64, 64, num_stages=3),
                interpreter_device())(a, b, out)
    check(out, a, b)


def child_status(pid: int, seconds: float) -> int | None:
    """The exit status of a child, ended and None where it takes longer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def test_a_child_forked_while_another_thread_runs_a_kernel_runs_one_too():
    torch.manual_seed(0)
    a, b, stop = torch.randn(16, 16), torch.randn(16, 16), threading.Event()
    expected = tg.mm(a, b, strict=True)

    def multiply():
        while not stop.is_set():
            tg.mm(a, b, strict=True)

    thread = threading.Thread(target=multiply)
    thread.start()
    try:
        for _ in range(4):
            time.sleep(0.02)
            with warnings.catch_warnings():  # Python 3.12 warns of forks beside threads
                warnings.simplefilter("ignore")
                pid = os.fork()
            if pid == 0:
                os._exit(0 if torch.equal(tg.mm(a, b, strict=True), expected) else 1)
            assert child_status(pid, 20) == 0
    finally:
        stop.set()
        thread.join()


def test_an_interpreter_that_does_not_work_with_numpy_leaves_calls_to_torch(monkeypatch):
    reason = "the interpreter of Triton 3.6.0 does not work with numpy 2.4.0; it needs numpy < 2.4"
    monkeypatch.setattr(interpret, "_obstacle", lambda: reason)
    a, b = torch.randn(9, 17), torch.randn(17, 5)
    clear_plans()
    try:
        with pytest.raises((UnsupportedError, LaunchError), match="needs numpy < 2.4"):
            tg.mm(a, b, strict=True)
        assert torch.equal(tg.mm(a, b), torch.mm(a, b))
        out = torch.empty(9, 5)
        assert tg.mm(a, b, out=out) is out and torch.equal(out, torch.mm(a, b))
    finally:
        clear_plans()
