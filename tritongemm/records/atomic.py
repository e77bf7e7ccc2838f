"""Atomic writes and locks: a reader sees the old file or the new one, and concurrent writers lose
nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tritongemm.errors import DataFileError

#: Seconds that a writer waits for the lock; a merge holds it for milliseconds.
LOCK_TIMEOUT_S = 60.0

_REASONS = {
    errno.ENOSPC: "no space left on the disk; free some and run again",
    errno.EDQUOT: "the disk quota is used up; free some space and run again",
    errno.EACCES: "not writable: permission denied; choose another path or change its mode",
    errno.EPERM: "not writable: operation not permitted; choose another path",
    errno.EROFS: "not writable: the file system is read-only; choose another path",
    errno.EISDIR: "is a folder, not a file; give the path of a file",
    errno.ENOTDIR: "a part of the path is a file, not a folder; choose another path",
    errno.EEXIST: "a part of the path is a file, not a folder; choose another path",
    errno.ENAMETOOLONG: "the file's name is too long; choose a shorter one",
}


def write_error(path: object, error: OSError, lost: str = "") -> DataFileError:
    """The :class:`DataFileError` for an ``OSError`` while writing ``path``.

    ``lost`` states what happened to the data, e.g. "nothing written before is lost".
    """
    reason = _REASONS.get(error.errno or 0) or f"cannot be written: {error.strerror or error}"
    return DataFileError(path, f"{reason}. {lost}" if lost else reason)


def write_atomic(path: str | os.PathLike[str], data: str | bytes, *,
                 mode: int | None = None) -> None:
    """Replaces ``path`` by ``data`` (text as UTF-8) in one step; parent folders are made.

    A temporary file in the same folder is written, flushed to the disk and renamed over
    ``path``, and the folder is flushed: after a crash the file is the old one or the new one.
    ``mode`` is the new file's; None: that of the old one, or of an ordinary new file.

    Raises:
        DataFileError: no space, not writable, or another refusal by the system; the old file is
            untouched.
    """
    path = Path(path)
    raw = data.encode("utf-8") if isinstance(data, str) else data
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=".tmp",
                                                 dir=path.parent)
        try:
            write_all(descriptor, raw)
            os.fchmod(descriptor, _mode(path) if mode is None else mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        temporary = None
        sync_folder(path.parent)
    except OSError as error:
        raise write_error(path, error, "The file is as it was before") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def write_all(descriptor: int, raw: bytes) -> None:
    """``os.write`` until every byte is written. Raises ``OSError``."""
    view = memoryview(raw)
    while view:
        view = view[os.write(descriptor, view):]


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries, so that a rename or a new file survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE file systems cannot flush a folder; the file itself is safe.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Holds the lock ``<path>.lock`` against other processes and threads; folders are made.

    The system releases the lock when its holder dies. Not re-entrant.

    Raises:
        DataFileError: the lock is held for longer than ``timeout_s`` seconds, or its file
            cannot be made.
    """
    import filelock

    path = Path(path)
    lock = filelock.FileLock(f"{path}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=timeout_s)
    except filelock.Timeout as error:
        raise DataFileError(
            path, f"is in use: another process has held {path.name}.lock for {timeout_s:g} s; "
            "wait for it or choose another path") from error
    except OSError as error:
        raise write_error(path, error) from error
    try:
        yield
    finally:
        lock.release()


def _mode(path: Path) -> int:
    """The mode of the file that is replaced, or the default mode of a new file."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
