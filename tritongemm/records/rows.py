"""CSV rows, one problem x provider each: appending, reading, and the sidecar of each run.

The schema is in :mod:`tritongemm.records.columns`, whose names are here too. Versions, revision and
driver of a run go into ``<run_id>.meta.json`` beside the CSV.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from tritongemm.errors import DataFileError, ProblemError
from tritongemm.problem import GemmProblem
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
from tritongemm.records.run import is_run_id, utc_now

__all__ = ["COLUMNS", "NAMES", "PROBLEM_COLUMNS", "REQUIRED", "SCHEMA_VERSION", "STATUSES",
           "Column", "Row", "append_rows", "derive", "problem_columns", "problem_of",
           "read_rows", "read_sidecars", "roof_time_us", "row_key", "write_sidecar"]

#: Characters of a text field, so that an error message with a compiler log stays readable.
TEXT_LIMIT = 2000
_LOG = logging.getLogger("tritongemm")
_NAMES = frozenset(NAMES)
#: The header of a file, by how many columns it has.
_HEADERS = [",".join(NAMES[:width]).encode() for width in range(FIRST_WIDTH, len(NAMES) + 1)]
_POSITIVE = ("time_us_p50", "time_us_p20", "time_us_p80", "ratio_vs_torch", "ratio_low",
             "ratio_high", "host_us_p50")
#: NaN or infinity in an output makes an infinite error; nothing else may be infinite.
_MAY_BE_INFINITE = ("max_err_ratio", "rms_err_ratio")


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
    _Reader(path, list(NAMES[:len(texts)])).row(None, texts)  # what is written can be read
    return texts


def append_rows(path: str | os.PathLike[str], rows: Iterable[Mapping[str, object]]) -> int:
    """Appends rows to a CSV (made with a header if absent), under its lock, flushed to the disk.

    ``schema_version`` and ``timestamp_utc`` are filled in; NaN is written as empty; line breaks
    in texts become spaces. A last line that a crash cut short is dropped first. A file of an
    narrower schema is widened to the columns that these rows need. Returns the number of rows.

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
    """One flushed append; a failure takes back what was written of it."""
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
    """Checks the header of an existing file, mends its end and widens it to ``width`` columns;
    None where there is none yet."""
    if not path.exists():
        return None
    torn = _torn(path)
    if torn == (0, False):
        _truncate(path, 0)
        return None
    header = next(reading.csv_records(path), None)
    if header is None:
        return None
    names = header[1]
    _check_header(path, names)
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
    """Rewrites a file of ``width`` columns with ``wanted``, the new ones empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for number, (line, texts) in enumerate(reading.csv_records(path)):
        if len(texts) != width:
            raise DataFileError(path, f"has {len(texts)} fields; the header has {width}",
                                row=line)
        writer.writerow(NAMES[:wanted] if number == 0 else texts + [""] * (wanted - width))
    atomic.write_atomic(path, text.getvalue(), follow_links=True)


def _torn(path: Path) -> tuple[int, bool] | None:
    """(bytes before the last line, whether that line is whole) if no newline ends the file."""
    with reading.open_regular(path, reading.CSV_LIMIT) as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return None
        start = max(0, size - reading.LINE_LIMIT)
        file.seek(start)
        tail = file.read()
    if tail.endswith(b"\n"):
        return None
    cut = tail.rfind(b"\n") + 1
    if cut == 0 and start > 0:
        raise DataFileError(path, f"its last line is longer than {reading.LINE_LIMIT} bytes. "
                            "Is it the right file?")
    if start + cut == 0:  # one line: the beginning of our header, or judged as a header later
        return 0, tail in _HEADERS or not _HEADERS[-1].startswith(tail)
    try:
        whole = list(csv.reader([tail[cut:].decode()], strict=True))
        names = next(reading.csv_records(path))[1]
        _Reader(path, names).row(None, whole[0])
    except (csv.Error, UnicodeDecodeError, DataFileError):
        return start + cut, False
    return start + cut, True


# --- reading ------------------------------------------------------------------------------------


def _check_header(path: object, names: list[str]) -> None:
    for number, name in enumerate(names[:len(NAMES)]):
        if name != NAMES[number]:
            raise DataFileError(path, f"column {number + 1} is not {NAMES[number]!r}; this is not "
                                "a CSV of tritongemm, or it was reordered", row=1,
                                field=name[:80])
    if len(names) < FIRST_WIDTH:
        raise DataFileError(path, "the column is missing", row=1, field=NAMES[len(names)])


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _error_ratio(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise ValueError
    return value


def _int(text: str) -> int:
    if len(text) > 20:
        raise ValueError
    return int(text)


def _text(text: str) -> str:
    if len(text) > 2 * TEXT_LIMIT:
        raise ValueError
    return text


_CONVERT: dict[type, Callable[[str], object]] = {int: _int, float: _finite, str: _text}
_IS_NOT: dict[Callable[[str], object], str] = {
    _int: "an integer", _finite: "a finite number", _error_ratio: "a number of at least 0",
    _text: f"a text of at most {2 * TEXT_LIMIT} characters"}


class _Reader:
    """Turns the texts of one line into a checked row."""

    def __init__(self, path: object, names: list[str]) -> None:
        self.path, self.width = path, len(names)
        self.columns = [(i, c.name, _error_ratio if c.name in _MAY_BE_INFINITE
                         else _CONVERT[c.type]) for i, c in enumerate(COLUMNS[:len(names)])]
        self.absent = {name: None for name in NAMES[len(names):]}
        self._problems: set[tuple] = set()

    def row(self, line: int | None, texts: list[str]) -> Row:
        if len(texts) != self.width:
            raise DataFileError(self.path, f"has {len(texts)} fields; the header has "
                                f"{self.width}", row=line)
        row: Row = {}
        for i, name, convert in self.columns:
            text = texts[i]
            if not text:
                row[name] = None
                continue
            try:
                row[name] = convert(text)
            except ValueError as error:
                raise DataFileError(self.path, f"{text[:80]!r} is not {_IS_NOT[convert]}",
                                    row=line, field=name) from error
        row.update(self.absent)
        self._check(line, row)
        return row

    def _check(self, line: int | None, row: Row) -> None:
        for name in REQUIRED:
            if row[name] is None:
                raise DataFileError(self.path, "is empty", row=line, field=name)
        if row["status"] not in STATUSES:
            raise DataFileError(self.path, f"{row['status'][:80]!r} is not one of "
                                f"{', '.join(STATUSES)}", row=line, field="status")
        if row["time_us_p50"] is not None and row["status"] != "ok":
            raise DataFileError(self.path, f"a row of status {row['status']} holds a time",
                                row=line, field="time_us_p50")
        for name in _POSITIVE:
            if row[name] is not None and not row[name] > 0:
                raise DataFileError(self.path, f"{row[name]} is not a positive number", row=line,
                                    field=name)
        if not is_run_id(row["run_id"]):
            raise DataFileError(self.path, f"{row['run_id'][:80]!r} is not a run id", row=line,
                                field="run_id")
        key = tuple(row[name] for name in PROBLEM_COLUMNS)
        if key in self._problems:
            return
        try:
            problem_of(row)
        except ProblemError as error:
            raise DataFileError(self.path, str(error), row=line, field=_at_fault(row)) from error
        self._problems.add(key)


def _at_fault(row: Row) -> str:
    """The column for which no problem can be made."""
    for name in PROBLEM_COLUMNS:
        if name not in ("op", "precision") and row[name] is not None:
            try:
                GemmProblem(**{"m": 1, "n": 1, "k": 1, name: row[name]})
            except ProblemError:
                return name
    return "precision"


def read_rows(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Every row of a CSV as a dict of :data:`NAMES`, typed, None where empty; streaming.

    A last line that a crash cut short is left out, with a warning in the log.

    Raises:
        DataFileError: naming the file, the line (the header is line 1) and the field.
    """
    path = Path(path)
    torn = _torn(path)
    cut_short = torn is not None and not torn[1]
    records = reading.csv_records(path)
    header = next(records, None)
    if header is None:
        raise DataFileError(path, "is empty; its first line must be the header")
    _check_header(path, header[1])
    reader = _Reader(path, header[1])
    if not cut_short:
        for line, texts in records:
            yield reader.row(line, texts)
        return
    _LOG.warning("%s: its last line was cut short and is left out", path)
    before = next(records, None)
    while before is not None:
        try:
            after = next(records, None)
        except DataFileError:  # the torn line itself
            after = (0, [])
            records = iter(())
        if after is None:
            return
        yield reader.row(*before)
        before = after


# --- sidecars -----------------------------------------------------------------------------------


def write_sidecar(folder: str | os.PathLike[str], run_id: str, meta: Mapping[str, object]) -> Path:
    """Writes ``<folder>/<run_id>.meta.json``, the environment of a run. Returns its path.

    Raises:
        DataFileError: not a run id, not JSON, not writable.
    """
    path = Path(folder) / f"{run_id}.meta.json"
    if not is_run_id(run_id):
        raise DataFileError(folder, f"{run_id!r:.80} is not a run id", field="run_id")
    try:
        text = json.dumps({**meta, "run_id": run_id}, indent=1, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataFileError(path, f"the environment cannot be written as JSON: {error}"
                            ) from error
    atomic.write_atomic(path, text + "\n")
    return path


def read_sidecars(folder: str | os.PathLike[str]) -> dict[str, dict]:
    """run_id -> environment, of every ``*.meta.json`` in a folder. Raises DataFileError."""
    found = {}
    for path in sorted(Path(folder).glob("*.meta.json")):
        meta = reading.read_json(path)
        run_id = path.name[:-len(".meta.json")]
        if not isinstance(meta, dict):
            raise DataFileError(path, "is not an object")
        if meta.get("run_id", run_id) != run_id:
            raise DataFileError(path, f"{meta['run_id']!r:.80} does not match the file's name",
                                field="run_id")
        found[run_id] = meta
    return found
