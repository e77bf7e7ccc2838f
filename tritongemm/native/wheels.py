"""Puts the library of this torch and this Python into a wheel of the package.

The pure wheel becomes a wheel for this machine. Run in several environments on the same wheel, it
holds a library for each torch and Python; a process loads the one that fits it, or none.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from tritongemm.errors import UsageError
from tritongemm.native.abi import SOURCE
from tritongemm.native.stored import MANIFEST, Stored, manifest
from tritongemm.records.atomic import write_error

_PREBUILT = "tritongemm/native/prebuilt"
_SOURCE = f"tritongemm/native/{SOURCE.name}"
#: <name>-<version>-<Python>-<ABI>-<platform>.whl (PyPA, "Binary distribution format").
_NAME = re.compile(r"(tritongemm-[^-]+)-py3-none-([^-]+)\.whl")
#: Mode of the files in the archive.
_MODE = 0o100644


def check(wheel: Path) -> tuple[str, str]:
    """The name and version of the wheel's package, and the platform of this machine.

    Raises:
        UsageError: it is no file, or by its name of another package or platform.
    """
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    name = _NAME.fullmatch(wheel.name)
    if name is None or name[2] not in ("any", platform):
        raise UsageError(f"{wheel} is no wheel of tritongemm for py3-none-any or "
                         f"py3-none-{platform}; make one: pip wheel --no-deps .")
    if not wheel.is_file():
        raise UsageError(f"{wheel} cannot be read: there is no such file")
    return name[1], platform


def add(wheel: Path, library: Stored, into: Path) -> Path:
    """Writes the wheel with ``library`` to the folder ``into``; its path. A library of the same
    torch and Python that ``wheel`` has is replaced, others are kept.

    Args:
        wheel: of this package, pure or for this machine.
        library: built from the ``dispatcher.cpp`` that the wheel has.
        into: may be the folder of ``wheel``. A pure wheel there stays.

    Raises:
        UsageError: the wheel is of another package, platform or revision, or damaged.
        DataFileError: the new wheel cannot be written.
    """
    name, platform = check(wheel)
    target = into / f"{name}-py3-none-{platform}.whl"
    try:
        contents = _read(wheel)
        if hashlib.sha256(contents[_SOURCE]).hexdigest() != library.abi.source:
            raise UsageError(f"{wheel} has another revision of {SOURCE.name} than the library "
                             f"{library.path}; make the wheel from the same checkout")
        (about,) = (x for x in contents if re.fullmatch(r"[^/]+\.dist-info/WHEEL", x))
        contents[about] = _described(contents[about].decode(), platform).encode()
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{wheel} is no whole wheel of tritongemm: {error}") from error
    except OSError as error:
        raise UsageError(f"{wheel} cannot be read: {error.strerror or error}") from error
    folder = f"{_PREBUILT}/{library.abi.tag}/"
    contents = {file: raw for file, raw in contents.items() if not file.startswith(folder)}
    contents[folder + library.path.name] = library.path.read_bytes()
    contents[folder + MANIFEST] = manifest(library.path.name, library.sha256,
                                           library.abi).encode()
    record = about.replace("WHEEL", "RECORD")
    contents.pop(record, None)
    contents[record] = _recorded(contents, record)
    try:
        _write(target, contents)
    except OSError as error:
        raise write_error(target, error) from error
    return target


def _read(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {x.filename: archive.read(x) for x in archive.infolist() if not x.is_dir()}


def _described(text: str, platform: str) -> str:
    """The file WHEEL for ``platform``. A wheel with a library is not pure."""
    text = re.sub(r"(?m)^Root-Is-Purelib:.*$", "Root-Is-Purelib: false", text)
    return re.sub(r"(?m)^Tag:.*$", f"Tag: py3-none-{platform}", text)


def _recorded(contents: dict[str, bytes], record: str) -> bytes:
    """The file RECORD: name, hash and size of each file but itself."""
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    for file, raw in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(raw).digest()).rstrip(b"=").decode()
        rows.writerow((file, f"sha256={digest}", len(raw)))
    rows.writerow((record, "", ""))
    return table.getvalue().encode()


def _write(target: Path, contents: dict[str, bytes]) -> None:
    """Replaces ``target`` in one step. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wheel-") as folder:
        made = Path(folder, target.name)
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, raw in contents.items():
                entry = zipfile.ZipInfo(file)  # dated 1980: the same content, the same wheel
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, _MODE << 16
                archive.writestr(entry, raw)
        os.replace(made, target)
