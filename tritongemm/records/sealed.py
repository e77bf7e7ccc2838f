"""Files of the cache folder that say by themselves whether they are whole.

Such a file is one line, ``tritongemm-sealed 1 KEY SHA256``, and a content. KEY names what made
the content, SHA256 is of KEY and the content together. A file that is cut, altered, of another key
or of another user is not used: whoever reads it makes the content again and replaces the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
from pathlib import Path

from tritongemm.records.atomic import write_atomic

_MAGIC = b"tritongemm-sealed 1 "
#: Bytes; the largest compiled kernel has a few hundred thousand.
_LIMIT = 64 << 20
#: Read and written by the owner, read by all: an ordinary new file would be writable by its group
#: under umask 002, and then not be loaded.
_MODE = 0o644

WHOLE, DAMAGED, FOREIGN, MISSING = "whole", "damaged", "foreign", "missing"

_log = logging.getLogger("tritongemm")
#: Folders of whose foreign files this process has warned.
_warned: set[Path] = set()


def own(info: os.stat_result) -> bool:
    """Whether nobody but this process's user and root may have written a file or folder."""
    return info.st_uid in (os.geteuid(), 0) and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def seal(key: str, content: bytes) -> bytes:
    """The bytes of a file with ``content``. ``key``: ASCII without white space."""
    return b"%s%s %s\n%s" % (_MAGIC, key.encode(), _digest(key, content), content)


def unseal(key: str, raw: bytes) -> bytes | None:
    """The content of a file's bytes; None where they are not :func:`seal` of ``key``."""
    head, _, content = raw.partition(b"\n")
    whole = head == b"%s%s %s" % (_MAGIC, key.encode(), _digest(key, content))
    return content if whole else None


def _digest(key: str, content: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\n")
    digest.update(content)
    return digest.hexdigest().encode()


def look(path: Path, key: str) -> tuple[str, bytes]:
    """One of ``WHOLE, DAMAGED, FOREIGN, MISSING`` and, of a whole file, its content.

    Foreign is a file of a user other than this process's and root, or one that its group or
    others may write to: what is in it may be anyone's. A link is damaged, as is what is no file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return MISSING, b""
    except PermissionError:
        return FOREIGN, b""
    except OSError:
        return DAMAGED, b""
    try:
        info = os.fstat(descriptor)
        if not own(info):
            return FOREIGN, b""
        if not stat.S_ISREG(info.st_mode) or info.st_size > _LIMIT:
            return DAMAGED, b""
        with open(descriptor, "rb", closefd=False) as file:
            content = unseal(key, file.read(_LIMIT))
    except OSError:
        return DAMAGED, b""
    finally:
        os.close(descriptor)
    return (DAMAGED, b"") if content is None else (WHOLE, content)


def read(path: Path, key: str, root: Path) -> bytes | None:
    """The content of a whole file, else None. Of foreign files below ``root`` a warning is logged,
    once a process."""
    state, content = look(path, key)
    if state == FOREIGN and root not in _warned:
        _warned.add(root)
        _log.warning(
            "tritongemm: %s belongs to another user, or others may write to it; such files are not "
            "loaded, and their kernels are compiled again. Set TRITONGEMM_CACHE_DIR to a folder of "
            "your own, or run: tritongemm doctor --check-cache", path)
    return content if state == WHOLE else None


def write(path: Path, key: str, content: bytes) -> None:
    """Writes or replaces a file, in one step. Raises :class:`DataFileError`."""
    if path.is_symlink() or path.exists() and not (path.is_file() or path.is_dir()):
        with contextlib.suppress(OSError):  # if it stays, write_atomic says why
            path.unlink()
    write_atomic(path, seal(key, content), mode=_MODE)
