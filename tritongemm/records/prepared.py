"""What was made of a large validated file, kept so that a process need not read the file again.

Before a first call calibrations and tables of megabytes of JSON are read and checked: 0.3 s. What
they hold is kept under a SHA-256 of the file as a line of JSON and plain arrays, in the cache
folder, or beside shipped kernels. A file that changes has another digest: nothing is out of date.
Kept files are sealed (``sealed.py``): one that is damaged is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tritongemm import settings
from tritongemm.config import PARAMETERS
from tritongemm.errors import DataFileError
from tritongemm.formats import FORMATS
from tritongemm.problem import EPILOGUES
from tritongemm.records import sealed
from tritongemm.records.reading import read_bytes

if TYPE_CHECKING:
    import numpy as np

#: Of the kept form; part of each key.
VERSION = 1
#: Bytes; a smaller file is read as fast.
_WORTH = 16 << 10
_LIMIT = 64 << 20

_log = logging.getLogger("tritongemm")
#: Each gives folders of prepared files that come with the package; they are trusted as its code is.
shipped: list[Callable[[], Iterable[Path]]] = []


class Prepared(NamedTuple):
    """A line of JSON, and arrays by name."""

    head: dict
    arrays: dict[str, np.ndarray]


def key_of(kind: str, raw: bytes) -> str | None:
    """The key of what is made of a file's content; None where that is not worth keeping. It holds
    what a file may name, since another release may leave out rows that this one reads."""
    if len(raw) < _WORTH:
        return None
    digest = hashlib.sha256(raw)
    digest.update(repr((PARAMETERS, *map(sorted, (EPILOGUES, FORMATS)))).encode())
    return f"{kind}-{VERSION}-{digest.hexdigest()}"


def load(key: str) -> Prepared | None:
    """What is kept under ``key``, or None."""
    for folder in (folder for folders in shipped for folder in folders()):
        path = folder / f"{key}.bin"
        if path.is_file():
            try:
                content = sealed.unseal(key, read_bytes(path, _LIMIT))
            except DataFileError:  # gone meanwhile: the file itself is read
                continue
            if content is not None:
                return decode(content)
    root = _root()
    content = sealed.read(root / f"{key}.bin", key, root)
    return None if content is None else decode(content)


def keep(key: str, made: Prepared, folder: Path | None = None) -> None:
    """Keeps ``made`` for other processes: in ``folder``, which must be writable, or else in the
    cache folder, if that can be written. Raises :class:`DataFileError`."""
    try:
        sealed.write((folder or _root()) / f"{key}.bin", key, encode(made))
    except DataFileError as error:
        if folder is not None:
            raise
        _log.debug("tritongemm: not kept for other processes: %s", error)


def _root() -> Path:
    return settings.cache_root() / "prepared"


def encode(made: Prepared) -> bytes:
    """As bytes: a line of JSON, then each array's after each other."""
    import numpy as np  # here, since tables are read without numpy too

    places: dict[str, list[object]] = {}
    parts, offset = [], 0
    for name, values in made.arrays.items():
        part = np.ascontiguousarray(values)
        places[name] = [part.dtype.str, list(part.shape), offset]
        parts.append(part.tobytes())
        offset += len(parts[-1])
    head = json.dumps([made.head, places], separators=(",", ":"))
    return head.encode() + b"\n" + b"".join(parts)


_TYPES = {"<i4", "<i8", "<f2", "<f4", "<f8", "|u1"}


def decode(content: bytes) -> Prepared | None:
    """The inverse of :func:`encode`; None for what it did not make."""
    import numpy as np

    text, _, data = content.partition(b"\n")
    try:
        head, places = json.loads(text)
        arrays = {}
        for name, (dtype, shape, offset) in places.items():
            if dtype not in _TYPES:
                return None
            arrays[name] = np.frombuffer(data, dtype, int(np.prod(shape)), offset).reshape(shape)
        return Prepared(head, arrays)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def lines_of(texts: Iterable[str]) -> dict[str, np.ndarray]:
    """Texts as two arrays, ``text`` and ``ends``, for :func:`line`."""
    import numpy as np

    parts = [text.encode() for text in texts]
    return {"text": np.frombuffer(b"".join(parts), np.uint8),
            "ends": np.cumsum([len(part) for part in parts], dtype=np.int64)}


def line(arrays: Mapping[str, np.ndarray], number: int) -> str:
    """The text ``number`` of :func:`lines_of`."""
    ends = arrays["ends"]
    start = int(ends[number - 1]) if number else 0
    return arrays["text"][start:int(ends[number])].tobytes().decode()
