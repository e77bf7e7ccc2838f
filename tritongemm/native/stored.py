"""A folder with a built library, and a manifest that says what it was built for.

``manifest.json`` names the library's file, which contains its own hash in its name, its SHA-256 and
its :class:`~tritongemm.native.abi.Abi`. The manifest is replaced by one rename after the library is
there, so that a reader sees the old pair or the new one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tritongemm.errors import DataFileError
from tritongemm.native.abi import Abi
from tritongemm.records.atomic import write_atomic
from tritongemm.records.reading import Fields, read_bytes, read_json
from tritongemm.records.sealed import own

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
#: The name under which the library is imported.
MODULE = "_dispatcher"
_FILE = re.compile(rf"{MODULE}-[0-9a-f]{{16}}\.so")
_HEAD = ("schema_version", "file", "sha256", "abi")
#: Bytes; a library has 1 MB.
_LIMIT = 256 << 20
#: What is said of a path that :func:`foreign` finds.
FOREIGN = ("belongs to another user, or others may write to it. Remove it, or set "
           "TRITONGEMM_CACHE_DIR to a folder of your own")


@dataclass(frozen=True)
class Stored:
    """What a manifest says of a library.

    Attributes:
        path: of the library.
        sha256: of its content.
        abi: what it was built for.
    """

    path: Path
    sha256: str
    abi: Abi

    def damaged(self) -> bool:
        """Whether the file is missing or not what was built."""
        try:
            return hashlib.sha256(read_bytes(self.path, _LIMIT)).hexdigest() != self.sha256
        except (OSError, DataFileError):
            return True


def read(folder: Path) -> Stored | None:
    """What lies in ``folder``; None where it has no manifest.

    Raises:
        DataFileError: the manifest is damaged or of a later release.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    head = Fields(path, read_json(path), what="manifest").only(_HEAD)
    head.version(SCHEMA_VERSION)
    file = head.text("file", 100)
    if not _FILE.fullmatch(file):
        raise head.error("file", f"{file!r} is no name of a library")
    values = Fields(path, head.values["abi"], what="abi").only(x.name for x in fields(Abi))
    found = {x.name: _boolean(values, x.name) if x.type == "bool" else values.text(x.name)
             for x in fields(Abi)}
    return Stored(folder / file, head.text("sha256", 64), Abi(**found))  # type: ignore[arg-type]


def _boolean(values: Fields, name: str) -> bool:
    value = values.values[name]
    if not isinstance(value, bool):
        raise values.error(name, f"{str(value)[:80]!r} is neither true nor false")
    return value


def foreign(folder: Path, found: Stored | None = None) -> Path | None:
    """Which of ``folder`` and, where ``found`` lies in it, its manifest and its library a user
    other than this process's and root may have written; None: none. A library is executable code:
    from such a folder it must be neither loaded nor passed on. Raises OSError."""
    paths = (folder,) if found is None else (folder, folder / MANIFEST, found.path)
    return next((path for path in paths if path.exists() and not own(path.stat())), None)


def read_whole(folder: Path) -> Stored | None:
    """:func:`read`, where the library is not damaged. Raises :class:`DataFileError`.

    A library that a writer replaced between the two readings is read again.
    """
    for _ in range(2):
        found = read(folder)
        if found is None or not found.damaged():
            return found
    raise DataFileError(found.path, "is damaged")


def write(folder: Path, library: bytes, abi: Abi) -> Stored:
    """Puts a library into ``folder``, in place of the one that it has. Raises DataFileError.

    The one before stays, for readers that have just read its name; older ones are removed.
    """
    sha256 = hashlib.sha256(library).hexdigest()
    path = folder / f"{MODULE}-{sha256[:16]}.so"
    with contextlib.suppress(DataFileError):
        before = read(folder)
        for old in folder.glob(f"{MODULE}-*.so"):
            if old.name not in (path.name, before.path.name if before else ""):
                old.unlink(missing_ok=True)
    write_atomic(path, library, mode=0o700)
    write_atomic(folder / MANIFEST, manifest(path.name, sha256, abi), mode=0o600)
    return Stored(path, sha256, abi)


def manifest(file: str, sha256: str, abi: Abi) -> str:
    """The text of a manifest."""
    return json.dumps(dict(zip(_HEAD, (SCHEMA_VERSION, file, sha256, asdict(abi)), strict=True)),
                      indent=1) + "\n"
