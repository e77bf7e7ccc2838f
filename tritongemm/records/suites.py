"""Suites: lists of shapes to sweep or bench, one CSV a family.

Required columns ``m,n,k``; optional ``batch, layout, dtype, precision, epilogue, count, note,
suite``. The command line sets what a suite does not.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from tritongemm.compute import precision_for
from tritongemm.errors import DataFileError, ProblemError, UsageError
from tritongemm.problem import (
    LAYOUTS,
    MAX_EXTENT,
    PRECISIONS,
    GemmProblem,
    dtype_of,
    epilogue_of,
)
from tritongemm.records import atomic, reading

REQUIRED = ("m", "n", "k")
_SUITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
#: Most characters of a note, which reports show.
_NOTE_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Shape:
    """One row of a suite: A is [batch, m, k], B is [batch, k, n].

    Attributes:
        m, n, k: extents, >= 0.
        batch: >= 1.
        layout, dtype, epilogue, precision: empty where the suite does not set them.
        count: how often a model runs this shape, for weighting.
        note: where the shape comes from.
        suite: the family's name.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    layout: str = ""
    dtype: str = ""
    epilogue: str = ""
    count: int = 1
    note: str = ""
    suite: str = ""
    precision: str = ""

    def problem(self, dtype: str = "bf16", layout: str = "nn", precision: str = "ieee",
                epilogue: str = "none", **words: str) -> GemmProblem:
        """The problem of contiguous operands; the suite's values override the arguments. ``words``:
        further ones of :meth:`GemmProblem.contiguous`, e.g. ``scale_a``.

        Args:
            precision: of the dtypes that it is for; ``ieee`` for the others.

        Raises:
            ProblemError: an unknown dtype, layout, precision, epilogue or scale, or a precision of
                the suite that is not for the dtype.
        """
        own = self.dtype or dtype
        return GemmProblem.contiguous(
            self.m, self.n, self.k, batch=self.batch, dtype=own, layout=self.layout or layout,
            epilogue=self.epilogue or epilogue,
            precision=self.precision or precision_for(precision, dtype_of(own)), **words)


COLUMNS = tuple(field.name for field in fields(Shape))


def _integer(low: int, default: int | None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text:
            if default is None:
                raise ValueError("is empty; give an integer")
            return default
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
            raise ValueError(f"{text[:40]!r} is not an integer")
        if not low <= (value := int(text)) <= MAX_EXTENT:
            raise ValueError(f"{value} is outside {low} to {MAX_EXTENT}")
        return value
    return parse


def _layout(text: str) -> str:
    if text and text not in LAYOUTS:
        raise ValueError(f"{text[:40]!r} is not a layout; use one of {', '.join(LAYOUTS)}")
    return text


def _precision(text: str) -> str:
    if text and text not in PRECISIONS:
        raise ValueError(f"{text[:40]!r} is not a precision; use one of {', '.join(PRECISIONS)}")
    return text


def _known(look_up: Callable[[str], object]) -> Callable[[str], str]:
    """A name that ``look_up`` knows, or nothing."""
    def parse(text: str) -> str:
        if text:
            try:
                look_up(text)
            except ProblemError as error:
                raise ValueError(str(error)[:200]) from error
        return text
    return parse


def _name(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text and (len(text) > 100 or not pattern.fullmatch(text)):
            raise ValueError(f"{text[:40]!r} is not a name (letters, digits and _)")
        return text
    return parse


def _note(text: str) -> str:
    if len(text) > _NOTE_LIMIT:
        raise ValueError(f"has {len(text)} characters; at most {_NOTE_LIMIT} are allowed")
    return " ".join(text.split())


_PARSERS: dict[str, Callable[[str], object]] = {
    "m": _integer(0, None), "n": _integer(0, None), "k": _integer(0, None),
    "batch": _integer(1, 1), "layout": _layout, "dtype": _known(dtype_of),
    "epilogue": _known(epilogue_of), "precision": _precision, "count": _integer(1, 1),
    "note": _note, "suite": _name(_SUITE)}


def read_suite(path: str | os.PathLike[str]) -> list[Shape]:
    """The shapes of a suite's CSV, in the file's order; at least one.

    A row without a suite belongs to the suite of the file's name.

    Raises:
        DataFileError: not there, unreadable, too large, not UTF-8, not CSV, a missing, repeated
            or unknown column, a wrong value, a row too short or too long, or no row at all; it
            names the file, the line (the header is line 1) and the field.
    """
    path = Path(path)
    records = reading.csv_records(path)
    line, header = next(records, (1, []))
    header = [name.strip() for name in header]
    _check_header(path, line, header)
    default_suite = path.stem if _SUITE.fullmatch(path.stem) and len(path.stem) <= 100 else "suite"
    shapes = []
    for line, texts in records:
        if len(texts) != len(header):
            raise DataFileError(path, f"has {len(texts)} fields; the header has {len(header)}",
                                row=line)
        values: dict[str, object] = {}
        for name, text in zip(header, texts, strict=True):
            try:
                values[name] = _PARSERS[name](text.strip())
            except ValueError as error:
                raise DataFileError(path, str(error), row=line, field=name) from error
        values["suite"] = values.get("suite") or default_suite
        shapes.append(Shape(**values))  # type: ignore[arg-type]
    if not shapes:
        raise DataFileError(path, "has a header but no shapes; add a row")
    return shapes


def _check_header(path: Path, line: int, header: list[str]) -> None:
    if not any(header):
        raise DataFileError(path, f"is empty; its first line must be a header with "
                            f"{','.join(REQUIRED)}")
    for name in header:
        if name in _PARSERS and header.count(name) > 1:
            raise DataFileError(path, "the column is given twice", row=line, field=name)
    absent = [name for name in REQUIRED if name not in header]
    if not absent:
        if others := [name for name in header if name not in _PARSERS]:
            if not others[0]:
                raise DataFileError(path, "a column has no name; is there a comma at the end of "
                                    "the line?", row=line)
            raise DataFileError(
                path, f"a suite has no such column, only {', '.join(COLUMNS)}; rename it, or "
                "remove it", row=line, field=others[0][:40])
        return
    if all(re.fullmatch(r"[+-]?[0-9.]+", name) for name in header):
        raise DataFileError(path, f"has no header; put {','.join(COLUMNS[:len(header)])} above "
                            "the numbers, in the order of their columns", row=line)
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(header) == 1 and mark in header[0]:
            raise DataFileError(path, f"is separated by {name}; a suite is separated by commas",
                                row=line)
    if {name.lower() for name in header} >= set(REQUIRED):
        raise DataFileError(path, "column names are in lower case: "
                            + ",".join(name.lower() for name in header), row=line)
    raise DataFileError(path, f"the column is missing; a suite has {', '.join(REQUIRED)} and may "
                        f"have {', '.join(COLUMNS[len(REQUIRED):])}", row=line, field=absent[0])


def write_suite(path: str | os.PathLike[str], shapes: Iterable[Shape]) -> None:
    """Writes shapes as a suite, atomically, with the columns that any of them uses.

    Raises:
        DataFileError: not writable, or there is no shape.
    """
    shapes = list(shapes)
    if not shapes:
        raise DataFileError(path, "a suite needs at least one shape")
    defaults = Shape(0, 0, 0)
    order = ("suite", "batch", "m", "n", "k", "layout", "dtype", "precision", "epilogue", "count",
             "note")
    used = [name for name in order if name in REQUIRED
            or any(getattr(s, name) != getattr(defaults, name) for s in shapes)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(used)
    writer.writerows([getattr(shape, name) for name in used] for shape in shapes)
    atomic.write_atomic(path, text.getvalue(), follow_links=True)


def suites_root() -> Path | None:
    """The folder of the shipped suites: the packaged copy, or the checkout's."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "suites", package.parent / "perf" / "suites"):
        if candidate.is_dir():
            return candidate
    return None


def known_suites() -> dict[str, Path]:
    """The shipped suites: name -> file, sorted by name."""
    root = suites_root()
    return {} if root is None else {path.stem: path for path in sorted(root.glob("*.csv"))}


def suite_path(name: str | os.PathLike[str]) -> Path:
    """The file of a shipped suite by its name, or ``name`` itself where it is an existing file.

    Raises:
        UsageError: neither; it lists the shipped ones.
    """
    known = known_suites()
    text = os.fspath(name)
    if text in known:
        return known[text]
    path = Path(text)
    try:
        if path.is_file():
            return path
    except (OSError, ValueError):  # a name too long for the system, or with a null byte
        pass
    raise UsageError(f"suite {text[:200]!r} is neither a file nor one of {', '.join(known)}")
