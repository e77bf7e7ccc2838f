"""A journal's records: JSON lines, each an outcome, a winner or the header of a run.

Every run begins with a ``header`` line holding its environment; the records after it were made
there. A last line that a crash cut short is ignored.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tritongemm.errors import ConfigError, DataFileError, ProblemError
from tritongemm.records import packed, reading
from tritongemm.records.codec import config_from_json, digest, problem_from_json, problem_key
from tritongemm.records.rows import STATUSES

SCHEMA_VERSION = 1
#: Distinct problems, configs and stages whose decoding is remembered while streaming.
CACHE_LIMIT = 100_000
_KIND = re.compile(r"[a-z][a-z_]{0,31}")


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a number that JSON allows")


# Built once: json.loads and json.dumps with arguments build a decoder or encoder for each line.
_scan = json.JSONDecoder(parse_constant=_refuse).scan_once
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def parse_line(raw: bytes) -> dict | None:
    """The object that is the whole of a line, or None."""
    try:
        text = raw.decode()
        record, end = _scan(text, 0)
    except (ValueError, RecursionError, StopIteration):  # the last: nothing where a value belongs
        return None
    if not isinstance(record, dict) or text[end:] not in ("\n", "\r\n", ""):
        return None
    return record


def check_header(path: Path, record: dict | None) -> None:
    """Raises :class:`DataFileError` unless a file's first record is a header."""
    if record is None or record.get("kind") != "header":
        raise DataFileError(path, "is not a journal that `tritongemm sweep` wrote: its first line "
                            "is no header; choose another path (`tritongemm report` reads CSVs of "
                            "bench)", row=1)


class Known(NamedTuple):
    """A decoded problem or config with 64 bits of digest of its key."""

    value: object
    digest: int


def _flat(values: object) -> tuple:
    """A key for a JSON object: its names, then its values."""
    return (*values, *values.values())  # type: ignore


class RecordChecker:
    """Checks records and decodes their problems and configs. Distinct ones are cached, so that a
    million rows do not build a million objects."""

    def __init__(self, path: object) -> None:
        self.path = path
        self._problems: dict[tuple, Known] = {}
        self._configs: dict[tuple, Known] = {}
        self._last: object = None
        self._last_known = Known(None, 0)

    def check(self, line: int | None, record: Mapping[str, object]
              ) -> tuple[Known, Known] | None:
        """Checks one record; the problem and config of a result or winner.

        Raises:
            DataFileError: naming the file, the line and the field.
        """
        kind = record.get("kind")
        if kind == "result":
            status, time_us = record.get("status"), record.get("time_us")
            if status not in STATUSES:
                raise self._error(line, "status", f"{status!r:.80} is not one of "
                                  f"{', '.join(STATUSES)}")
            if time_us is not None:
                if type(time_us) not in (float, int) or not 0 < time_us < math.inf:  # type: ignore
                    raise self._error(line, "time_us", f"{time_us!r:.80} is not a positive number")
                if status != "ok":
                    raise self._error(line, "time_us", f"a result of status {status} holds a time")
        elif kind == "header":
            reading.Fields(self.path, dict(record), line).version(SCHEMA_VERSION)
            if "environment" not in record:
                raise self._error(line, "environment", "is missing")
            if reading.too_deep(record["environment"]):
                raise self._error(line, "environment", "is nested too deeply")
            return None
        elif kind != "winner":
            if not isinstance(kind, str) or not _KIND.fullmatch(kind):
                raise self._error(line, "kind", f"{kind!r:.80} is not a kind of record")
            return None
        problem, config = record.get("problem"), record.get("config")
        try:
            # Consecutive rows have the same problem: comparing is cheaper than a lookup.
            if problem != self._last:
                self._last_known = self._problems[_flat(problem)]
                self._last = dict(problem)  # type: ignore[call-overload]
            return self._last_known, self._configs[_flat(config)]
        except (KeyError, TypeError, AttributeError):
            return self._decode(line, problem, config)

    def _decode(self, line: int | None, problem: object, config: object
                ) -> tuple[Known, Known]:
        try:
            a_problem = problem_from_json(problem)  # type: ignore[arg-type]
        except ProblemError as error:
            raise self._error(line, "problem", str(error)[:500]) from error
        try:
            a_config = config_from_json(config)  # type: ignore[arg-type]
        except ConfigError as error:
            raise self._error(line, "config", str(error)[:500]) from error
        known = (Known(a_problem, digest(problem_key(a_problem))),
                 Known(a_config, digest(a_config.config_id)))
        for cache, values, entry in ((self._problems, problem, known[0]),
                                     (self._configs, config, known[1])):
            if len(cache) >= CACHE_LIMIT:
                cache.clear()
            cache[_flat(values)] = entry
        return known

    def _error(self, line: int | None, field: str, reason: str) -> DataFileError:
        return DataFileError(self.path, reason, row=line, field=field)


def encode_line(checker: RecordChecker, record: Mapping[str, object]) -> bytes:
    """The line of a record, validated so that it can be read again."""
    try:
        raw = _to_json(record).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DataFileError(checker.path, f"the record cannot be written as JSON: {error}"
                            ) from error
    if len(raw) > reading.LINE_LIMIT:
        raise DataFileError(checker.path, f"the record has {len(raw)} bytes; at most "
                            f"{reading.LINE_LIMIT} are allowed")
    checker.check(None, record)
    return raw


def records(path: Path) -> Iterator[tuple[int, dict]]:
    """(line number, record) of each line, unchecked beyond being objects after a header."""
    if packed.is_packed(path):
        yield from enumerate(packed.unpack(path), 1)
        return
    with reading.open_unzipped(path) as file:
        bad = 0
        number = 0
        for number, raw in reading.lines(file, path):
            if bad == 1:
                check_header(path, None)
            if bad:
                raise DataFileError(path, "is not a JSON object, and other lines follow: the file "
                                    "was damaged. Delete the line to continue without it", row=bad)
            record = parse_line(raw) if raw.endswith(b"\n") else None
            if record is None:
                bad = number  # only the last line may be: it was cut short
                continue
            if number == 1:
                check_header(path, record)
            yield number, record
        if number == 0:
            raise DataFileError(path, "is empty; it is not a journal")
        if bad == 1:
            check_header(path, None)
