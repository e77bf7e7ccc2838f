"""Runs: their ids and timestamps, and the record of each that ``runs.json`` keeps.

A bench writes ``runs.json`` into the folder of its CSV: for each run its environment, arguments and
verdict. The file holds an object with ``schema_version`` and ``runs``, an object from run id to
record, one run a line. Older results have a file ``<run_id>.meta.json`` for each run instead.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from tritongemm.errors import DataFileError
from tritongemm.records import atomic, reading

#: Name of the file of a folder.
RUNS = "runs.json"
RUNS_SCHEMA = 1
_OLD = ".meta.json"

#: A run id: UTC time to the second, then six random hexadecimal digits. Ids sort by time.
RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")


def new_run_id() -> str:
    """A new id such as ``20261121T052300Z-1a2b3c``."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def is_run_id(text: object) -> bool:
    """Whether ``text`` has the form of :func:`new_run_id` (and so is safe in a file's name)."""
    return isinstance(text, str) and RUN_ID.fullmatch(text) is not None


def utc_now() -> str:
    """The time as ISO 8601 to the second, e.g. ``2026-11-21T05:23:00Z``."""
    return f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"


def write_sidecar(folder: str | os.PathLike[str], run_id: str, meta: Mapping[str, object]) -> Path:
    """Sets the record of a run in ``<folder>/runs.json``, under the file's lock; the records of
    other runs stay. Returns the file's path.

    Raises:
        DataFileError: not a run id, not JSON, a ``runs.json`` that cannot be used, not writable.
    """
    path = Path(folder) / RUNS
    if not is_run_id(run_id):
        raise DataFileError(folder, f"{run_id!r:.80} is not a run id", field="run_id")
    try:
        json.dumps(meta, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataFileError(path, f"the environment cannot be written as JSON: {error}"
                            ) from error
    with atomic.locked(path):
        runs = _read_runs(path) if path.exists() else {}
        runs[run_id] = {**meta, "run_id": run_id}
        lines = [f"  {json.dumps(name)}: {json.dumps(record, sort_keys=True)}"
                 for name, record in sorted(runs.items())]
        atomic.write_atomic(path, f'{{"schema_version": {RUNS_SCHEMA}, "runs": {{\n'
                            + ",\n".join(lines) + "\n}}\n")
    return path


def read_sidecars(folder: str | os.PathLike[str]) -> dict[str, dict]:
    """run_id -> record, of the folder's ``runs.json`` and of each ``*.meta.json`` in it.

    Where a run has both, ``runs.json`` counts.

    Raises:
        DataFileError: a file that cannot be used; a record whose ``run_id`` is another's, or whose
            ``void`` is neither true nor false.
    """
    found = {}
    for path in sorted(Path(folder).glob(f"*{_OLD}")):
        found[path.name[:-len(_OLD)]] = _checked(path, path.name[:-len(_OLD)],
                                                 reading.read_json(path))
    path = Path(folder) / RUNS
    if path.exists():
        found.update(_read_runs(path))
    return found


def _read_runs(path: Path) -> dict[str, dict]:
    content = reading.read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("runs"), dict):
        raise DataFileError(path, "has no object of runs; it is not a file of `tritongemm bench`",
                            field="runs")
    reading.Fields(path, content).version(RUNS_SCHEMA)
    return {name: _checked(path, name, record) for name, record in content["runs"].items()}


def _checked(path: Path, run_id: str, meta: object) -> dict:
    """The record of a run, if it is one."""
    if not isinstance(meta, dict):
        raise DataFileError(path, f"the record of {run_id[:80]} is not an object")
    if meta.get("run_id", run_id) != run_id:
        raise DataFileError(path, f"{meta['run_id']!r:.80} does not match {run_id[:80]}, the name "
                            "of its record", field="run_id")
    if not isinstance(meta.get("void", False), bool):
        raise DataFileError(path, f"{meta['void']!r:.80} of {run_id[:80]} is neither true nor "
                            "false", field="void")
    return meta
