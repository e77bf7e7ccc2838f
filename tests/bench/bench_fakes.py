"""A measuring session without torch: what it answers follows from the problem's M."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

from tritongemm.bench.session import Hello
from tritongemm.device import DeviceSpec, slug_of
from tritongemm.errors import DeviceError, UsageError

SPEC = DeviceSpec("fake-gpu", "Fake GPU", 90, 132, 232448, 233472, 65536, 50 * 2**20,
                  {"bf16": 1000.0}, 4000.0)
#: M of a problem on which the provider tritongemm does it.
EXITS, KILLED, HANGS, LOSES_DEVICE, RAISES, WRONG, DEADLY_TO_TORCH = range(101, 108)
OPENER = "bench_fakes:open_session"


class FakeSession:
    def __init__(self, spec):
        self.fingerprint = spec.device
        self.hello = Hello(SPEC, spec.device != "untimed",
                           {"torch": "1.2", "pid": os.getpid()}, spec.device)

    def builds(self, problems):
        return []

    def measure(self, job):
        m = job.problem.m
        if m == DEADLY_TO_TORCH:
            os._exit(9)
        if "tritongemm" in job.providers:
            if m == EXITS:
                os._exit(7)
            if m == KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            if m == HANGS:
                time.sleep(600)
            if m == LOSES_DEVICE:
                raise DeviceError("an illegal address was met")
            if m == RAISES:
                raise KeyError("a fault of the session")
        # The seed of pass i is i: a ratio that differs from pass to pass.
        ratio = 1.0 + 0.1 * job.seed
        control = 1.5 if self.fingerprint == "drifting" else 1.001
        rows = {"torch": timed(10.0, 1.0), "torch-control": timed(10.0 / control, control)}
        for name in job.providers:
            rows[name] = timed(10.0 / ratio, ratio)
            if m == WRONG and name == "tritongemm":
                rows[name] = {"status": "wrong", "error": "largest error 3 exceeds 1"}
        if not self.hello.timed:
            rows = {name: {"status": "ok", "max_err_ratio": 0.1} for name in ("torch",
                                                                               *job.providers)}
        return rows


def timed(us, ratio):
    return {"status": "ok", "time_us_p50": us, "time_us_p20": us, "time_us_p80": us,
            "ratio_vs_torch": ratio, "ratio_low": ratio * 0.99, "ratio_high": ratio * 1.01,
            "timer": "graph", "n_rounds": 15}


def open_session(spec):
    return FakeSession(spec)


def refuse(spec):
    raise UsageError("provider 'inductor' cannot run on Fake GPU: it has no heart")


def crash(spec):
    os._exit(3)


def broken(spec):
    raise RuntimeError("no such library")


class PlacedSession(FakeSession):
    """On the device FAKE_NAME; a problem takes a while where the device asked for is ``slow``,
    and waits for the file FAKE_GATE."""

    def __init__(self, spec):
        super().__init__(spec)
        name = os.environ.get("FAKE_NAME", SPEC.name)
        self.hello = replace(self.hello, fingerprint=name, device=replace(
            SPEC, name=name, slug=slug_of(name)))

    def measure(self, job):
        gate = os.environ.get("FAKE_GATE")
        while gate and not os.path.exists(gate):
            time.sleep(0.02)
        if self.fingerprint == "slow":
            time.sleep(0.1)
        return super().measure(job)


def open_placed(spec):
    return PlacedSession(spec)
