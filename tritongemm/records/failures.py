"""Problems that no kernel could be built for or launched with, kept for ``tritongemm doctor``.

One JSON line for each failure, in the cache folder. The record is informational: a later process
tries again.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tritongemm import settings
from tritongemm.records.run import utc_now

#: The file is restarted beyond this size, so that it stays readable.
MAX_BYTES = 256 * 1024

log = logging.getLogger("tritongemm")


@dataclass(frozen=True)
class Failure:
    """``problem`` went to torch on ``device`` at ``when`` (UTC), for ``reason``."""

    when: str
    device: str
    problem: str
    reason: str


def path() -> Path:
    """The file of the failures."""
    return settings.cache_root() / "failures.jsonl"


def remember(device: str, problem: str, reason: str) -> None:
    """Appends one. A cache that cannot be written loses the record, not the call: it is logged."""
    line = json.dumps(asdict(Failure(utc_now(), device, problem, reason))) + "\n"
    try:
        file = path()
        file.parent.mkdir(parents=True, exist_ok=True)
        full = file.exists() and file.stat().st_size > MAX_BYTES
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if full else os.O_APPEND)
        descriptor = os.open(file, flags, 0o644)
        try:
            os.write(descriptor, line.encode("utf-8"))  # one write: lines do not mix
        finally:
            os.close(descriptor)
    except OSError as error:
        log.debug("tritongemm: a failure cannot be kept for doctor: %s", error)


def remembered() -> tuple[Failure, ...]:
    """The failures on record, oldest first; a line that cannot be read is left out."""
    try:
        text = path().read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    found = []
    for line in text.splitlines():
        try:
            found.append(Failure(**json.loads(line)))
        except (ValueError, TypeError):  # cut off by a crash, or of another version
            continue
    return tuple(found)
