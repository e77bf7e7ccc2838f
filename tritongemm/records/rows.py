"""CSV rows, one problem x provider each: appending, and the sidecar of each run.

The schema is in :mod:`tritongemm.records.columns`, reading in :mod:`tritongemm.records.row_reader`;
their names are here too. Versions, revision and driver of a run go into ``runs.json`` beside
the CSV; older folders have a ``<run_id>.meta.json`` for each run, which is read too.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import operator
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tritongemm.errors import DataFileError
from tritongemm.records import atomic, reading
from tritongemm.records.columns import (
    COLUMNS,
    FIRST_WIDTH,
    NAMES,
    PROBLEM_COLUMNS,
    REQUIRED,
    SCHEMA_VERSION,
    STATUSES,
    Column,
    Row,
    derive,
    problem_columns,
    problem_of,
    roof_time_us,
    row_key,
)
from tritongemm.records.row_reader import (
    TEXT_LIMIT,
    RowReader,
    check_header,
    read_columns,
    read_rows,
    torn_end,
)
from tritongemm.records.run import read_sidecars, utc_now, write_sidecar

__all__ = ["COLUMNS", "NAMES", "PROBLEM_COLUMNS", "REQUIRED", "SCHEMA_VERSION", "STATUSES",
           "Column", "Row", "append_rows", "derive", "problem_columns", "problem_of",
           "read_columns", "read_rows", "read_sidecars", "roof_time_us", "row_key", "write_sidecar"]

_LOG = logging.getLogger("tritongemm")
_NAMES = frozenset(NAMES)


# --- writing ------------------------------------------------------------------------------------


def _text_of(path: object, column: Column, value: object) -> str:
    if value is None or value == "":
        return ""
    try:
        if column.type is str:
            if isinstance(value, bool):
                return "yes" if value else "no"
            if not isinstance(value, str):
                raise TypeError
            text = " ".join(value.replace("\0", " ").split())
            text = text.encode("utf-8", "replace").decode()
            return text if len(text) <= TEXT_LIMIT else text[:TEXT_LIMIT - 3] + "..."
        if isinstance(value, (bool, str)):
            raise TypeError
        if column.type is int:
            return str(operator.index(value))  # type: ignore[arg-type]
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise DataFileError(path, f"{value!r:.80} is not of type {column.type.__name__}",
                            field=column.name) from error
    if math.isnan(number):
        return ""
    return f"{number:.7g}"


def _texts(path: object, row: Mapping[str, object]) -> list[str]:
    for name in row:
        if name not in _NAMES:
            raise DataFileError(path, "no column has this name", field=str(name)[:80])
    full = {"schema_version": SCHEMA_VERSION, "timestamp_utc": utc_now(), **row}
    texts = [_text_of(path, column, full.get(column.name)) for column in COLUMNS]
    while len(texts) > FIRST_WIDTH and not texts[-1]:
        texts.pop()
    RowReader(path, NAMES[:len(texts)]).row(None, texts)  # what is written can be read
    return texts


def append_rows(path: str | os.PathLike[str], rows: Iterable[Mapping[str, object]]) -> int:
    """Appends rows to a CSV (made with a header if absent), under its lock, flushed to the disk.

    ``schema_version`` and ``timestamp_utc`` are filled in; NaN is written as empty; line breaks
    in texts become spaces. An incomplete last line from a crash is dropped first. A file with fewer
    columns is extended to the columns that these rows need. Returns the number of rows.

    Raises:
        DataFileError: an unknown column, a value of the wrong type, another schema, no space,
            not writable. The file is then as it was.
    """
    path = Path(path)
    texts = [_texts(path, row) for row in rows]
    with atomic.locked(path):
        width = max(map(len, texts), default=FIRST_WIDTH)
        names = _prepare(path, width)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if names is None:
            names = list(NAMES[:width])
            writer.writerow(names)
        writer.writerows(line + [""] * (len(names) - len(line)) for line in texts)
        _append(path, text.getvalue().encode())
    return len(texts)


def _append(path: Path, raw: bytes) -> None:
    """Appends and flushes; a failure removes what was written."""
    try:
        new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            try:
                atomic.write_all(descriptor, raw)
                os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        if new:
            atomic.sync_folder(path.parent)
    except OSError as error:
        raise atomic.write_error(path, error, "The rows in the file are as they were before"
                                 ) from error


def _prepare(path: Path, width: int) -> list[str] | None:
    """Checks the header of an existing file, repairs its end and extends it to ``width`` columns.
    None for a new file."""
    if not path.exists():
        return None
    torn = torn_end(path)
    if torn == (0, False):
        _truncate(path, 0)
        return None
    header = next(reading.csv_records(path), None)
    if header is None:
        return None
    names = header[1]
    check_header(path, names)
    if torn is not None and torn[1]:
        _append(path, b"\n")
    elif torn is not None:
        _LOG.warning("%s: its last line was cut short and is dropped", path)
        _truncate(path, torn[0])
    if len(names) < width:
        _widen(path, len(names), width)
        return list(NAMES[:width])
    return names


def _truncate(path: Path, size: int) -> None:
    try:
        os.truncate(path, size)
    except OSError as error:
        raise atomic.write_error(path, error) from error


def _widen(path: Path, width: int, wanted: int) -> None:
    """Rewrites a file of ``width`` columns with ``wanted`` columns; the new ones are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, (line, texts) in enumerate(reading.csv_records(path)):
        if len(texts) != width:
            raise DataFileError(path, f"has {len(texts)} fields; the header has {width}",
                                row=line)
        writer.writerow(NAMES[:wanted] if number == 0 else texts + [""] * (wanted - width))
    atomic.write_atomic(path, text.getvalue(), follow_links=True)
