"""Packs sweep journals into one file of columns, e.g. for perf/results/DEVICE/timings/.

    python perf/pack_journals.py OUT.npz JOURNAL...

Keeps run headers, the times of configs and the winners (tritongemm/records/packed.py). `calibrate`,
`regret`, `publish` and `report` read the file as they read journals. Packed files may be among the
journals. The order of the journals is kept: a calibration depends on it in its last digits.

A CSV of `bench`, beside its runs.json, counts as a journal whose winners are the configs that it
measured: the model learns from the times of the configs that it chose for shapes that were never
swept, and selection what torch takes there. Do not `publish` it: those configs won against none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError, TritonGemmError
from tritongemm.records.codec import problem_to_json
from tritongemm.records.columns import problem_of
from tritongemm.records.journal import read_journal
from tritongemm.records.journal_format import SCHEMA_VERSION
from tritongemm.records.packed import pack
from tritongemm.records.rows import read_rows
from tritongemm.workers.messages import COARSE


def records_of(path: Path) -> Iterator[dict[str, Any]]:
    """What a journal, or a CSV of `bench`, holds. Raises DataFileError."""
    if path.suffix != ".csv":
        yield from read_journal(path)
        return
    beside = path.parent / "runs.json"
    try:
        runs = json.loads(beside.read_text())["runs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataFileError(beside, f"does not describe the runs of {path.name}: {error!r}") from (
            error)
    rows: dict[str, list[Any]] = {}
    for row in read_rows(path):
        if row["provider"] == "tritongemm" and row["status"] == "ok":
            rows.setdefault(str(row["run_id"]), []).append(row)
    for run_id, measured in rows.items():
        if run_id not in runs:
            raise DataFileError(beside, f"has no run {run_id}, of which {path.name} has rows")
        yield {"kind": "header", "schema_version": SCHEMA_VERSION, "run_id": run_id,
               "device": measured[0]["device"], "arch": measured[0]["arch"],
               "environment": runs[run_id]["fingerprint"],
               "versions": runs[run_id]["environment"]}
        winners = []
        for row in measured:
            config = KernelConfig.from_id(row["kernel"], row["config_id"])
            timed = {"run_id": run_id, "problem": problem_to_json(problem_of(row)),
                     "config": {"kernel": config.kernel, **config.to_json()},
                     "time_us": row["time_us_p50"], "utc": row["timestamp_utc"]}
            yield {**timed, "kind": "result", "stage": COARSE, "status": "ok"}
            winners.append({**timed, "kind": "winner", **{name: row[name] for name in (
                "ratio_vs_torch", "ratio_low", "ratio_high")}})
        yield from winners


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.npz")
    parser.add_argument("journals", type=Path, nargs="+", metavar="JOURNAL")
    args = parser.parse_args()
    try:
        pack(args.out, ((path.name.split(".")[0], records_of(path)) for path in args.journals))
    except TritonGemmError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"wrote {args.out}: {args.out.stat().st_size:,} bytes from {len(args.journals)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
