"""Rows, CSVs, sidecars and journals made up for the report's tests."""

from __future__ import annotations

import contextlib

from tritongemm.problem import GemmProblem
from tritongemm.records import rows as records
from tritongemm.records.codec import config_to_json, problem_to_json
from tritongemm.records.journal import Journal

RUN, LATER = "20260101T000000Z-00000a", "20260102T000000Z-00000b"


def stamp(run: str) -> str:
    return f"{run[:4]}-{run[4:6]}-{run[6:11]}:{run[11:13]}:{run[13:15]}Z"


def make_row(m=64, n=64, k=64, *, provider="tritongemm", ratio=None, width=0.01, time_us=None,
             run=RUN, suite="square", dtype="bf16", layout="nt", batch=1, status="ok",
             device="nvidia-h200", **more):
    """One derived row; with a ratio it also has a time unless one is given."""
    problem = GemmProblem.contiguous(m, n, k, batch=batch, dtype=dtype, layout=layout)
    row = {**records.problem_columns(problem), "run_id": run, "timestamp_utc": stamp(run),
           "device": device, "arch": 90, "suite": suite, "provider": provider, "status": status}
    if ratio is not None:
        time_us = time_us if time_us is not None else 10.0 / ratio
        row |= {"ratio_vs_torch": ratio, "ratio_low": ratio * (1 - width),
                "ratio_high": ratio * (1 + width), "timer": "graph", "l2_state": "cold"}
    if time_us is not None:
        row |= {"time_us_p50": time_us, "time_us_p20": time_us * (1 - width),
                "time_us_p80": time_us * (1 + width)}
    return records.derive({**row, **more}, unit_peak_tflops=989.0, memory_gbps=4800.0)


def write_csv(path, rows):
    """A CSV of ``rows``; with none, only the header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    records.append_rows(path, rows)
    return path


def write_journal(path, results):
    """A journal of (problem, config, status, time_us or None, stage)."""
    with contextlib.closing(Journal.open(path, {"environment": {"gpu": "test"}})) as journal:
        for problem, config, status, time_us, stage in results:
            record = {"kind": "result", "problem": problem_to_json(problem),
                      "config": config_to_json(config), "status": status, "stage": stage,
                      "run_id": RUN}
            journal.append(record if time_us is None else {**record, "time_us": time_us})
    return path
