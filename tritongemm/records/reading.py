"""Reading files that may be malformed or hostile: sizes, encodings, JSON, CSV, typed fields.

Every failure is one :class:`DataFileError` that names the file and, where it can, row and field.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tritongemm.errors import DataFileError

#: Bytes; a tuned table of 100,000 rows is about 30 MB.
JSON_LIMIT = 64 << 20
#: Bytes; a CSV of 500,000 bench rows is about 200 MB.
CSV_LIMIT = 256 << 20
#: Bytes; a device file is about 1 kB, a calibration or a table larger.
SMALL_LIMIT = 1 << 20
#: Bytes of one line of a CSV or a journal; real ones stay under a few thousand.
LINE_LIMIT = 1 << 20

#: Objects and lists inside each other; real files have at most five.
DEPTH_LIMIT = 64

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+>-]*")


@contextlib.contextmanager
def open_regular(path: str | os.PathLike[str], limit: int | None = None) -> Iterator[BinaryIO]:
    """Opens a regular file of at most ``limit`` bytes for reading bytes.

    Raises:
        DataFileError: it does not exist, is a folder, a pipe or a device, cannot be read or is
            too large. Also for an ``OSError`` while the file is being read.
    """
    path = Path(path)
    try:
        info = os.stat(path)
        if stat.S_ISDIR(info.st_mode):
            raise DataFileError(path, "is a folder, not a file; give the path of a file")
        if not stat.S_ISREG(info.st_mode):
            raise DataFileError(path, "is not a regular file; copy its content into one")
        if limit is not None and info.st_size > limit:
            raise DataFileError(path, f"has {info.st_size} bytes; at most {limit} are read. "
                                "Is it the right file? If so, split it")
        # Without O_NONBLOCK a pipe that was put there since would wait for its writer.
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataFileError(path, "is not a regular file; copy its content into one")
            yield file
    except FileNotFoundError as error:
        raise DataFileError(path, "does not exist; check the path") from error
    except OSError as error:
        raise DataFileError(path, f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        if isinstance(error, DataFileError) or "null" not in str(error):
            raise
        raise DataFileError(repr(str(path)), "is not a path: it holds a null byte") from error


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """The whole of a regular file of at most ``limit`` bytes. Raises :class:`DataFileError`."""
    with open_regular(path, limit) as file:
        # The file may grow between the check and the read.
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise DataFileError(path, f"has more than {limit} bytes. Is it the right file?")
    return raw


def read_text(path: str | os.PathLike[str], limit: int = JSON_LIMIT) -> str:
    """The whole of a UTF-8 file of at most ``limit`` bytes. Raises :class:`DataFileError`."""
    return decode(path, read_bytes(path, limit))


def decode(path: object, raw: bytes, row: int | None = None) -> str:
    """UTF-8 bytes as text (a byte-order mark is dropped). Raises :class:`DataFileError`."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if row is None:
            row = raw.count(b"\n", 0, error.start) + 1
        raise DataFileError(path, f"is not UTF-8: byte 0x{raw[error.start]:02x} cannot be "
                            "decoded; save the file as UTF-8", row=row) from error


# --- JSON ---------------------------------------------------------------------------------------


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number that JSON allows")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:80]} is too large for a number")
    return value


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice[:80]!r} is given twice")
    return result


def parse_json(path: object, text: str, row: int | None = None) -> object:
    """Strict JSON: no NaN or infinity, no field twice, at most :data:`DEPTH_LIMIT` objects and
    lists inside each other. Raises :class:`DataFileError`."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite,
                           object_pairs_hook=_no_duplicates)
        if too_deep(value):
            raise RecursionError
        return value
    except json.JSONDecodeError as error:
        if not text.strip():
            raise DataFileError(path, "is empty", row=row) from error
        where = "" if row is not None else f" (column {error.colno})"
        raise DataFileError(path, f"is not JSON, or cut short: {error.msg}{where}",
                            row=error.lineno if row is None else row) from error
    except ValueError as error:
        raise DataFileError(path, f"is not valid: {error}", row=row) from error
    except RecursionError as error:
        raise DataFileError(path, "is nested too deeply: more than "
                            f"{DEPTH_LIMIT} objects and lists inside each other",
                            row=row) from error


def too_deep(value: object) -> bool:
    """Whether more than :data:`DEPTH_LIMIT` objects and lists are inside each other."""
    level = [value]
    for _ in range(DEPTH_LIMIT + 1):
        level = [inner for outer in level if isinstance(outer, (dict, list))
                 for inner in (outer.values() if isinstance(outer, dict) else outer)
                 if isinstance(inner, (dict, list))]
        if not level:
            return False
    return True


def read_json(path: str | os.PathLike[str], limit: int = JSON_LIMIT) -> object:
    """The strict JSON of a whole file. Raises :class:`DataFileError`."""
    return parse_json(path, read_text(path, limit))


# --- lines --------------------------------------------------------------------------------------

_GZIP = b"\x1f\x8b"


@contextlib.contextmanager
def open_unzipped(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """As :func:`open_regular`, but decompresses a gzip file, which is recognized by its first
    bytes.

    Raises:
        DataFileError: also where that is damaged or cut short.
    """
    with open_regular(path) as file:
        packed = file.read(len(_GZIP)) == _GZIP
        file.seek(0)
        if not packed:
            yield file
            return
        try:
            with gzip.GzipFile(fileobj=file) as unzipped:
                yield unzipped  # type: ignore[misc]
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataFileError(path, f"is gzip, and damaged: {error}") from error


def lines(file: BinaryIO, path: object) -> Iterator[tuple[int, bytes]]:
    """(1-based number, line with its newline) of a file, no line longer than LINE_LIMIT.

    Raises:
        DataFileError: a longer line.
    """
    number = 0
    while raw := file.readline(LINE_LIMIT + 1):
        number += 1
        if len(raw) > LINE_LIMIT:
            raise DataFileError(path, f"the line is longer than {LINE_LIMIT} bytes. "
                                "Is it the right file?", row=number)
        yield number, raw


# --- CSV ----------------------------------------------------------------------------------------


def csv_records(path: str | os.PathLike[str], limit: int = CSV_LIMIT
                ) -> Iterator[tuple[int, list[str]]]:
    """(line number where it ends, fields) of each record of a UTF-8 CSV; blank lines are skipped.

    The first record is the header. Line numbers start at 1, as an editor shows them.

    Raises:
        DataFileError: unreadable, too large, not UTF-8, or not CSV.
    """
    with open_regular(path, limit) as file:
        def decoded() -> Iterator[str]:
            for number, raw in lines(file, path):
                if b"\0" in raw:
                    raise DataFileError(path, "holds a null byte; it is not text, or was damaged",
                                        row=number)
                try:  # a byte-order mark is the file's first character alone
                    yield raw.decode() if number > 1 else decode(path, raw, number)
                except UnicodeDecodeError:
                    decode(path, raw, number)  # raises, naming the byte

        reader = csv.reader(decoded(), strict=True)
        try:
            for fields in reader:
                if fields:
                    yield reader.line_num, fields
        except csv.Error as error:
            raise DataFileError(path, f"is not CSV, or cut short: {error}",
                                row=reader.line_num) from error


# --- typed fields -------------------------------------------------------------------------------


class Fields:
    """Typed access to the fields of one JSON object; errors name file, row and field."""

    def __init__(self, path: object, value: object, row: int | None = None,
                 what: str = "entry") -> None:
        self.path, self.row = path, row
        if not isinstance(value, dict):
            raise DataFileError(path, f"the {what} is {_kind(value)}, not an object", row=row)
        self.values: Mapping[str, object] = value

    def error(self, field: str, reason: str) -> DataFileError:
        """The error of one field."""
        return DataFileError(self.path, reason, row=self.row, field=field)

    def only(self, required: Iterable[str], optional: Iterable[str] = ()) -> Fields:
        """Checks that the required fields are there and that no other is. Returns self."""
        required = tuple(required)
        known = {*required, *optional}
        for name in required:
            if name not in self.values:
                raise self.error(name, "is missing")
        for name in self.values:
            if name not in known:
                raise self.error(name[:80], f"is not known; known: {', '.join(sorted(known))}")
        return self

    def integer(self, field: str, low: int, high: int, default: int | None = None) -> int:
        """An integer from ``low`` to ``high``."""
        if default is not None and field not in self.values:
            return default
        value = self.values.get(field)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(field, f"{_short(value)} is not an integer")
        if not low <= value <= high:
            raise self.error(field, f"{_short(value)} is outside {low} to {high}")
        return value

    def number(self, field: str, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number from ``low`` to ``high``."""
        value = self.values.get(field)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(field, f"{_short(value)} is not a number")
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value) or value < low:
            raise self.error(field, f"{value} is not a finite number of at least {low:g}")
        if value > high:
            raise self.error(field, f"{value:g} is above {high:g}")
        return value

    def numbers(self, field: str, low: float, high: float) -> dict[str, float]:
        """An object of names with numbers from ``low`` to ``high``; absent: empty."""
        inner = Fields(self.path, self.values.get(field, {}), self.row, field)
        return {name: inner.number(name, low, high) for name in inner.values}

    def text(self, field: str, limit: int = 1000) -> str:
        """A string of at most ``limit`` characters."""
        value = self.values.get(field)
        if not isinstance(value, str):
            raise self.error(field, f"{_short(value)} is not a string")
        if len(value) > limit:
            raise self.error(field, f"has {len(value)} characters; at most {limit} are allowed")
        return value

    def word(self, field: str) -> str:
        """A name: letters, digits and ``_ . + > -``, starting with a letter or digit."""
        value = self.text(field, 100)
        if not _WORD.fullmatch(value):
            raise self.error(field, f"{_short(value)} is not a name (letters, digits, _ . + > -)")
        return value

    def version(self, known: int) -> int:
        """The field ``schema_version``, which must be one that this release reads."""
        value = self.integer("schema_version", 1, 10**6)
        if value > known:
            raise self.error("schema_version", f"{value} is newer than {known}, the newest that "
                             "this release reads; upgrade tritongemm")
        return value


def _kind(value: object) -> str:
    return {type(None): "null", bool: "a boolean", int: "a number", float: "a number",
            str: "a string", list: "a list", dict: "an object"}.get(type(value), "not JSON")


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a huge integer"
    return text if len(text) <= 80 else text[:77] + "..."
