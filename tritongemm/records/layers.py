"""Configuration files of several folders: where one is damaged, the next folder's serves."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from tritongemm.errors import DataFileError

log = logging.getLogger("tritongemm")
T = TypeVar("T")


def first_usable(paths: Iterable[Path], read: Callable[[Path], T]) -> T | None:
    """What ``read`` makes of the first of ``paths`` that it can use; None where there is none. A
    damaged file is left out with one warning."""
    for path in paths:
        try:
            return read(path)
        except DataFileError as error:
            leave_out(error)
    return None


def leave_out(error: DataFileError, what: str = "the file is left out") -> None:
    """Logs once what is wrong with a file, and what is left out for it."""
    _say(f"tritongemm: {error}; {what}")


@functools.lru_cache(maxsize=1024)
def _say(text: str) -> None:
    log.warning("%s", text)
