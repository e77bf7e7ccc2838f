"""Time and memory of resuming a long journal.

Writes a journal of ROWS results (60 configs a problem, some of them failures) into a temporary
folder through the same code as the sweep, then resumes it in a fresh process and prints seconds,
bytes a row and the peak of resident memory. The goal: 1,000,000 rows in under 10 s.

    python perf/bench_journal.py [ROWS]          # where tritongemm is installed
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIGS_A_PROBLEM = 60
ENVIRONMENT = {"gpu": "NVIDIA H200", "torch": "2.13.0", "triton": "3.7.1", "driver": "580.95"}


def write(path: Path, rows: int) -> float:
    """Writes ``rows`` results; returns microseconds an append."""
    from tritongemm.config import KernelConfig
    from tritongemm.problem import GemmProblem
    from tritongemm.records.codec import config_to_json, problem_to_json
    from tritongemm.records.journal import Journal
    from tritongemm.records.run import new_run_id

    blocks = [(m, n, k) for m in (64, 128, 256) for n in (64, 128, 256) for k in (32, 64)]
    configs = [config_to_json(KernelConfig("tiled", *block, num_warps=warps, num_stages=stages))
               for block in blocks for warps in (4, 8) for stages in (3, 4)][:CONFIGS_A_PROBLEM]
    run_id = new_run_id()
    start = time.perf_counter()
    with Journal.open(path, {"environment": ENVIRONMENT, "run_id": run_id}) as journal:
        for i in range(rows):
            problem, number = divmod(i, CONFIGS_A_PROBLEM)
            if number == 0:
                values = problem_to_json(GemmProblem.contiguous(
                    128 + problem, 4096, 4096 - problem % 97, layout="nt"))
            record = {"kind": "result", "problem": values, "config": configs[number],
                      "stage": "coarse", "run_id": run_id}
            if number % 10 == 9:
                record.update(status="compile", reason="out of resource: shared memory, "
                              "required 262144, limit 232448")
            else:
                record.update(status="ok", time_us=100.0 + number * 1.37, max_err_ratio=0.0625)
            journal.append(record)
    return (time.perf_counter() - start) / rows * 1e6


def resume(path: Path) -> None:
    """Resumes the journal and prints its time and memory."""
    from tritongemm.records.resume import read_done

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu = time.perf_counter(), time.process_time()
    done = read_done(path, ENVIRONMENT)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"resume   {len(done)} outcomes in {wall:.2f} s wall, {cpu:.2f} s of one core")
    print(f"memory   {peak / 1024:.0f} MiB at the peak, {before / 1024:.0f} MiB before: "
          f"{(peak - before) * 1024 / max(1, len(done)):.0f} bytes a row")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.resume is not None:
        resume(args.resume)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.jsonl"
        append_us = write(path, args.rows)
        size = os.path.getsize(path)
        print(f"append   {append_us:.1f} us a record (validated, one write, flushed once a second)")
        print(f"journal  {args.rows} rows, {size / 1e6:.0f} MB, {size / args.rows:.0f} bytes a row",
              flush=True)
        return subprocess.run([sys.executable, __file__, "--resume", str(path)],
                              check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
