"""Problems that no kernel could be built for or launched with, kept for ``tritongemm doctor``.

One JSON line for each failure, in the cache folder. The record is informational: a later process
tries again.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tritongemm import settings
from tritongemm.errors import DataFileError
from tritongemm.records.atomic import open_append
from tritongemm.records.reading import Fields, decode, lines, open_regular, parse_json
from tritongemm.records.run import utc_now

#: The file is restarted beyond this size, so that it stays readable.
MAX_BYTES = 256 * 1024
#: Characters of one text: a compiler's message can hold a whole program.
_MAX_TEXT = 4000

log = logging.getLogger("tritongemm")


@dataclass(frozen=True)
class Failure:
    """``problem`` went to torch on ``device`` at ``when`` (UTC), for ``reason``."""

    when: str
    device: str
    problem: str
    reason: str


_NAMES = tuple(one.name for one in fields(Failure))


def path() -> Path:
    """The file of the failures."""
    return settings.cache_root() / "failures.jsonl"


def remember(device: str, problem: str, reason: str) -> None:
    """Appends one. A cache that cannot be written loses the record, not the call: it is logged.

    Others may write to the folder, so a link is not followed, and what is not a regular file, such
    as a pipe, is left alone.
    """
    line = json.dumps(asdict(Failure(utc_now(), device[:_MAX_TEXT], problem[:_MAX_TEXT],
                                     reason[:_MAX_TEXT]))) + "\n"
    try:
        file = path()
        file.parent.mkdir(parents=True, exist_ok=True)
        with open_append(file) as descriptor:
            if os.fstat(descriptor).st_size > MAX_BYTES:
                os.ftruncate(descriptor, 0)
            os.write(descriptor, line.encode("utf-8"))  # one write: lines do not mix
    except (OSError, DataFileError) as error:
        log.debug("tritongemm: a failure cannot be kept for doctor: %s", error)


def remembered() -> tuple[Failure, ...]:
    """The failures on record, oldest first; what cannot be read is left out (:func:`damage`)."""
    try:
        return _read()
    except DataFileError:
        return ()


def damage() -> DataFileError | None:
    """Why nothing can be read, where something stands in the place of the file; else None."""
    try:
        _read()
    except DataFileError as error:
        return error
    return None


def _read() -> tuple[Failure, ...]:
    file = path()
    if not os.path.lexists(file):
        return ()
    found = []
    with open_regular(file, 2 * MAX_BYTES) as opened:
        for number, raw in lines(opened, file):
            try:
                entry = Fields(file, parse_json(file, decode(file, raw, number), number), number)
                entry.only(_NAMES)
                found.append(Failure(*(entry.text(name, MAX_BYTES) for name in _NAMES)))
            except DataFileError:  # cut off by a crash, or of another version
                continue
    return tuple(found)
