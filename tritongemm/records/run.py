"""What a run is called and when it happened: run ids and UTC timestamps."""

from __future__ import annotations

import re
import secrets
from datetime import datetime, timezone

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
