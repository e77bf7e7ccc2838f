"""Timings as rounds of finalists have them: what is learned of them, and what stays."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tritongemm.calibration import training
from tritongemm.calibration.sustained import sustained
from tritongemm.calibration.timings import DeviceTimings, Final, Timing, read_timings
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_to_json, problem_to_json
from tritongemm.records.journal import Journal

H200 = device_named("nvidia-h200")
RUN = "20260101T000000Z-abcdef"
COLD, HOT = (KernelConfig("warp_specialized", 128, 128, 64, num_warps=8, num_stages=4, cluster_m=m)
             for m in (2, 8))
LOSS = 0.08


def source(problems=training.LEAST // 2):
    """HOT is a little faster in the coarse stage, and loses 8 % in the rounds with COLD, where
    clocks are a problem's own."""
    rng = np.random.default_rng(3)
    timings, finals = [], []
    for _ in range(problems):
        m, n, k = (int(x) * 8 for x in rng.integers(16, 512, 3))
        problem = GemmProblem.contiguous(m, n, k, layout="nt")
        clock = rng.uniform(0.0, 0.2)
        for config, time_us, loss in ((COLD, 101.0, 0.0), (HOT, 100.0, LOSS)):
            timings.append(Timing(problem, config, time_us))
            finals.append(Final(problem, config, RUN, time_us, time_us * math.exp(loss + clock)))
    return DeviceTimings(H200, tuple(timings), tuple(finals), (RUN,), "3.6.0", {})


def test_a_config_that_loses_in_rounds_is_no_longer_the_fastest():
    before = source()
    after = sustained(before)
    assert [(t.problem, t.config) for t in after.timings] == [
        (t.problem, t.config) for t in before.timings]
    cold, hot = (np.array([t.time_us for t in after.timings[i::2]]) for i in (0, 1))
    assert np.log(hot / cold) == pytest.approx(LOSS + math.log(100 / 101), abs=0.02)
    assert np.sqrt(cold * hot) == pytest.approx(np.sqrt(100 * 101), rel=0.02)  # no clock of theirs


def test_too_few_finalists_and_those_alone_in_their_rounds_change_nothing():
    few = source(problems=20)
    assert sustained(few) == few
    whole = source()
    alone = DeviceTimings(H200, whole.timings, tuple(
        replace(f, run_id=f.config.config_id) for f in whole.finals), (RUN,), "3.6.0", {})
    assert sustained(alone) == alone


def test_finalists_are_read_with_the_coarse_time_of_their_own_run(tmp_path):
    problem = GemmProblem.contiguous(512, 512, 512)

    def write(name, run, *results):
        with Journal.open(tmp_path / name, {"environment": "e", "run_id": run, "arch": 90,
                                            "device": "nvidia-h200"}) as journal:
            for config, stage, time_us in results:
                journal.append({"kind": "result", "problem": problem_to_json(problem),
                                "config": config_to_json(config), "stage": stage,
                                "status": "ok", "time_us": time_us})
        return tmp_path / name

    first = write("a.jsonl", RUN, (COLD, "coarse", 10.0), (HOT, "coarse", 9.0),
                  (COLD, "final", 11.0), (HOT, "final", 12.0))
    other = write("b.jsonl", "20260102T000000Z-abcdef", (COLD, "coarse", 8.0),
                  (HOT, "final", 12.0))
    found = read_timings([first, other])
    assert [(f.config, f.coarse_us, f.final_us) for f in found.finals] == [
        (COLD, 10.0, 11.0), (HOT, 9.0, 12.0)]
    assert {f.rounds for f in found.finals} == {(RUN, problem)}
    assert {t.config: t.time_us for t in found.timings} == {COLD: 8.0, HOT: 9.0}
