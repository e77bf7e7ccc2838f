"""A session of programs without torch's work: what it answers follows from program and seed."""

from __future__ import annotations

import os

from tritongemm.bench.measuring import ProcessLost
from tritongemm.bench.session import Hello
from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem
from tritongemm.records.columns import problem_columns

SPEC = DeviceSpec("fake-gpu", "Fake GPU", 90, 132, 232448, 233472, 65536, 50 * 2**20,
                  {"bf16": 1000.0}, 4000.0)
OPENER = "models_fakes:open_session"
PROBLEM = problem_columns(GemmProblem(64, 32, 16))


class FakeSession:
    hello = Hello(SPEC, True, {"torch": "1.2"}, "same")

    def measure(self, job):
        mode = job.modes[0]
        if job.program == "sac-critics" and mode == "compiled":
            os._exit(7)
        if job.program.startswith("tensor-parallel"):
            return {(mode, "tritongemm"): {"status": "constraint", "error": "needs 2 GPUs"}}
        ratio = 1.0 + 0.1 * job.seed
        rows = {(mode, name): {**PROBLEM, "status": "ok", "time_us_p50": 100.0 / r,
                               "ratio_vs_torch": r, "ratio_low": r, "ratio_high": r,
                               "n_rounds": 9, "timer": "host"}
                for name, r in (("torch", 1.0), ("torch-control", 1.001), ("tritongemm", ratio))}
        if job.program == "mlp-actor":
            rows[mode, "tritongemm"] = {**PROBLEM, "status": "wrong", "error": "the loss is off"}
        return rows


def open_session(spec):
    return FakeSession()


class InProcess:
    """A measuring process that is none, for tests in a hurry: its death is an exception."""

    def __init__(self, spec, opener):
        self.starts = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def start(self):
        self.starts += 1
        return FakeSession.hello

    def measure(self, job, timeout_s):
        if job.program == "sac-critics" and job.modes == ("compiled",):
            raise ProcessLost("died", "the worker ended with exit status 7")
        return FakeSession().measure(job)
