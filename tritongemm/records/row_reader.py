"""Reading CSV rows: many lines at a time, column by column, every value checked.

A million rows of fifty columns are read in some 15 s: the texts of a column repeat, so each
distinct one is converted and checked once a block of lines.
"""

from __future__ import annotations

import csv
import functools
import itertools
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tritongemm.errors import DataFileError, ProblemError
from tritongemm.problem import MAX_EXTENT, GemmProblem
from tritongemm.records import reading
from tritongemm.records.columns import (
    COLUMNS,
    FIRST_WIDTH,
    NAMES,
    PROBLEM_COLUMNS,
    REQUIRED,
    STATUSES,
    Column,
    Row,
    problem_of,
)
from tritongemm.records.run import is_run_id

#: Characters of a text field, so that an error message with a compiler log stays readable.
TEXT_LIMIT = 2000
#: Lines that are read and checked together: few enough that their texts stay in the L2 cache.
BLOCK = 1000
_LOG = logging.getLogger("tritongemm")
_POSITIVE = ("time_us_p50", "time_us_p20", "time_us_p80", "ratio_vs_torch", "ratio_low",
             "ratio_high", "host_us_p50")
#: NaN or infinity in an output makes an infinite error; nothing else may be infinite.
_MAY_BE_INFINITE = ("max_err_ratio", "rms_err_ratio")
_EXTENTS = ("batch", "m", "n", "k")
#: Bounds against damage, far beyond any measurement, whose products and quotients are still
#: numbers: of a number that is not 0, and of an integer (what a float64 holds exactly).
_LEAST, _LARGEST, _LARGEST_INT = 1e-15, 1e15, 2**53
#: The columns that decide whether a problem can exist, but for the extents, which have a range.
_WORDS = tuple(name for name in PROBLEM_COLUMNS if name not in _EXTENTS)

#: Checked values of many rows by column; None where empty.
Columns = Mapping[str, Sequence[object]]


def check_header(path: object, names: list[str]) -> None:
    """Raises :class:`DataFileError` where ``names`` do not begin as those of a CSV of ours."""
    for number, name in enumerate(names[:len(NAMES)]):
        if name != NAMES[number]:
            raise DataFileError(path, f"column {number + 1} is not {NAMES[number]!r}; this is not "
                                "a CSV that `tritongemm bench` wrote, or its columns were "
                                "reordered", row=1, field=name[:80])
    if len(names) < FIRST_WIDTH:
        raise DataFileError(path, "the column is missing", row=1, field=NAMES[len(names)])


# Converters of one text that is not empty. They raise ValueError with what is wrong with it.


def _number(text: str, positive: bool) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("is not a finite number")
    if positive and not value > 0:
        raise ValueError("is not a positive number")
    if value and not _LEAST <= value <= _LARGEST:
        raise ValueError(f"is outside 0 to {_LARGEST:g}, or nearer to 0 than {_LEAST:g}")
    return value


def _measured(text: str) -> float:
    return _number(text, False)


def _positive(text: str) -> float:
    return _number(text, True)


def _error_ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise ValueError("is not a number of at least 0")
    return value


def _integer(most: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        try:
            value = int(text if len(text) <= 20 else "")
        except ValueError:
            raise ValueError("is not an integer") from None
        if not 0 <= value <= most:
            raise ValueError(f"is outside 0 to {most}")
        return value
    return convert


def _text(text: str) -> str:
    if len(text) > 2 * TEXT_LIMIT:
        raise ValueError(f"is not a text of at most {2 * TEXT_LIMIT} characters")
    return text


def _status(text: str) -> str:
    if text not in STATUSES:
        raise ValueError(f"is not one of {', '.join(STATUSES)}")
    return text


def _run_id(text: str) -> str:
    if not is_run_id(text):
        raise ValueError("is not a run id")
    return text


@functools.cache
def _converter(column: Column) -> Callable[[str], object]:
    special: dict[str, Callable[[str], object]] = {
        "status": _status, "run_id": _run_id,
        **dict.fromkeys(_POSITIVE, _positive), **dict.fromkeys(_MAY_BE_INFINITE, _error_ratio),
        **dict.fromkeys(_EXTENTS, _integer(MAX_EXTENT))}
    usual = {int: _integer(_LARGEST_INT), float: _measured, str: _text}
    return special.get(column.name) or usual[column.type]


def _plain_numbers(texts: Sequence[str]) -> list[float | None] | None:
    """The numbers of a column, None where empty; None if one must be looked at by itself."""
    try:
        values = [float(text) if text else None for text in texts]
    except ValueError:
        return None
    numbers = [value for value in values if value]
    # The sum is not a number where one is not, whatever the order; min and max may miss that.
    if 0.0 in values or numbers and not (
            _LEAST <= min(numbers) and max(numbers) <= _LARGEST and sum(numbers) >= 0):
        return None
    return values


class RowReader:
    """Turns the texts of lines into checked values, column by column."""

    def __init__(self, path: object, names: Sequence[str]) -> None:
        self.path, self.width = path, len(names)
        self.columns = [(column, _converter(column)) for column in COLUMNS[:len(names)]]
        self.absent = NAMES[len(names):]
        self._problems: set[tuple] = set()

    def row(self, line: int | None, texts: list[str]) -> Row:
        """One line. Raises :class:`DataFileError` naming the line and the field."""
        return {name: values[0] for name, values in self.block([line], [texts]).items()}

    def block(self, lines: Sequence[int | None], records: Sequence[list[str]]) -> Columns:
        """Several lines by column.

        Raises:
            DataFileError: naming the first line that is wrong and its field.
        """
        for at, texts in enumerate(records):
            if len(texts) != self.width:
                if at:
                    self.block(lines[:at], records[:at])
                raise DataFileError(self.path, f"has {len(texts)} fields; the header has "
                                    f"{self.width}", row=lines[at])
        found: dict[str, Sequence[object]] = {}
        nothing = [None] * len(records)
        faults: list[tuple[int, str, str]] = []  # (row, field, reason), by column
        for (column, convert), texts in zip(self.columns, zip(*records), strict=False):
            values: Sequence[object] | None = nothing if not any(texts) else None
            if values is None and column.type is float:
                values = _plain_numbers(texts)
            found[column.name] = values if values is not None else _converted(
                column.name, convert, texts, faults)
        found.update((name, nothing) for name in self.absent)
        self._check_together(found, faults)
        if faults:
            at, field, reason = min(faults, key=lambda fault: fault[0])
            raise DataFileError(self.path, reason, row=lines[at], field=field)
        return found

    def _check_together(self, found: Columns, faults: list[tuple[int, str, str]]) -> None:
        """What takes more than one value to check."""
        for name in REQUIRED:
            if None in found[name]:
                faults.append((found[name].index(None), name, "is empty"))
        if faults:
            return
        for at, (status, time_us) in enumerate(zip(found["status"], found["time_us_p50"])):
            if time_us is not None and status != "ok":
                faults.append((at, "time_us_p50", f"a row of status {status} holds a time"))
                break
        batched = [batch != 1 for batch in found["batch"]]  # groups need a batch of 1
        keys = list(zip(*(found[name] for name in _WORDS), batched))
        for key in set(keys) - self._problems:
            at = keys.index(key)
            row = {name: found[name][at] for name in PROBLEM_COLUMNS}
            try:
                problem_of(row)
            except ProblemError as error:
                faults.append((at, _at_fault(row), str(error)))
            else:
                self._problems.add(key)


def _converted(name: str, convert: Callable[[str], object], texts: Sequence[str],
               faults: list[tuple[int, str, str]]) -> Sequence[object]:
    """The values of a column's texts; the first fault is appended."""
    known: dict[str, object] = {"": None}
    bad: dict[str, str] = {}
    for text in set(texts):
        if text:
            try:
                known[text] = convert(text)
            except ValueError as error:
                known[text], bad[text] = "", f"{text[:80]!r} {error}"
    if bad:
        at = min(map(texts.index, bad))
        faults.append((at, name, bad[texts[at]]))
    return [known[text] for text in texts]


def _at_fault(row: Row) -> str:
    """The column for which no problem can be made."""
    for name in PROBLEM_COLUMNS:
        if name not in ("op", "precision") and row[name] is not None:
            try:
                GemmProblem(**{"m": 1, "n": 1, "k": 1, name: row[name]})
            except ProblemError:
                return name
    return "precision"


def torn_end(path: Path) -> tuple[int, bool] | None:
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
        headers = [",".join(NAMES[:width]).encode() for width in range(FIRST_WIDTH, len(NAMES) + 1)]
        return 0, tail in headers or not headers[-1].startswith(tail)
    try:
        whole = list(csv.reader([tail[cut:].decode()], strict=True))
        names = next(reading.csv_records(path))[1]
        RowReader(path, names).row(None, whole[0])
    except (csv.Error, UnicodeDecodeError, DataFileError):
        return start + cut, False
    return start + cut, True


def read_columns(path: str | os.PathLike[str]) -> Iterator[Columns]:
    """The rows of a CSV, :data:`BLOCK` lines at a time, as typed values by column of
    :data:`NAMES`, None where empty.

    A last line that a crash cut short is left out, with a warning in the log.

    Raises:
        DataFileError: naming the file, the line (the header is line 1) and the field.
    """
    path = Path(path)
    torn = torn_end(path)
    records = reading.csv_records(path)
    header = next(records, None)
    if header is None:
        raise DataFileError(path, "is empty; its first line must be the header")
    check_header(path, header[1])
    reader = RowReader(path, header[1])
    if torn is not None and not torn[1]:
        _LOG.warning("%s: its last line was cut short and is left out", path)
        records = _without_last(records)
    while block := list(itertools.islice(records, BLOCK)):
        yield reader.block(*zip(*block))


def _without_last(records: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """All records but the torn one at the end."""
    before = next(records, None)
    while before is not None:
        try:
            after = next(records, None)
        except DataFileError:  # the torn line itself
            after, records = (0, []), iter(())
        if after is None:
            return
        yield before
        before = after


def read_rows(path: str | os.PathLike[str]) -> Iterator[Row]:
    """Every row of a CSV as a dict of :data:`NAMES`; see :func:`read_columns`."""
    for columns in read_columns(path):
        names = tuple(columns)
        for values in zip(*columns.values()):
            yield dict(zip(names, values, strict=True))
