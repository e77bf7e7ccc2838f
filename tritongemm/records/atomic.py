"""Atomic writes and locks: a reader sees the old file or the new one, and concurrent writers lose
nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tritongemm import settings
from tritongemm.errors import DataFileError, TritonGemmError

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
    errno.ELOOP: "is a symbolic link that leads to itself; remove it",
    errno.ENXIO: "is a pipe or a socket, not a file; choose another path",
    errno.ENAMETOOLONG: "the file's name is too long; choose a shorter one",
}


def write_error(path: object, error: OSError, lost: str = "") -> DataFileError:
    """The :class:`DataFileError` for an ``OSError`` while writing ``path``.

    ``lost`` states what happened to the data, e.g. "nothing written before is lost".
    """
    reason = _REASONS.get(error.errno or 0) or f"cannot be written: {error.strerror or error}"
    cache = ""
    with contextlib.suppress(OSError, RuntimeError, TritonGemmError):  # no folder, no home
        if Path(str(path)).absolute().is_relative_to(settings.cache_root().absolute()):
            cache = "TRITONGEMM_CACHE_DIR moves the cache folder, which holds this path"
    return DataFileError(path, ". ".join(filter(None, (reason, lost, cache))))


def write_atomic(path: str | os.PathLike[str], data: str | bytes, *,
                 mode: int | None = None, follow_links: bool = False) -> None:
    """Replaces ``path`` by ``data`` (text as UTF-8) in one step; parent folders are made.

    A temporary file in the same folder is written, flushed to the disk and renamed over
    ``path``, and the folder is flushed: after a crash the file is the old one or the new one.
    Temporary files that a killed process left in the folder are removed.

    Args:
        path: the file.
        data: the whole of its content.
        mode: of the new file; None: that of the old one, or of an ordinary new file.
        follow_links: where ``path`` is a symbolic link, replace the file that it points to and keep
            the link: for files that a user names. Otherwise the link itself is replaced, as is safe
            in folders that others may write to.

    Raises:
        DataFileError: no space, not writable, not a regular file, or another refusal by the
            system; the old file is untouched.
    """
    path = Path(path)
    raw = data.encode("utf-8") if isinstance(data, str) else data
    try:
        target = link_target(path) if follow_links else path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if target.exists() and not target.is_file():  # a pipe or a device would be gone
            raise DataFileError(path, "is not a regular file; choose another path")
        _remove_leftovers(target.parent)
        with _temporary(target) as (descriptor, temporary):
            write_all(descriptor, raw)
            os.fchmod(descriptor, _mode(target) if mode is None else mode)
            os.fsync(descriptor)
            os.replace(temporary, target)
        sync_folder(target.parent)
    except OSError as error:
        raise write_error(path, error, "The file is as it was before") from error


def link_target(path: Path) -> Path:
    """What a symbolic link points to in the end, whether it is there or not; else ``path``.

    Raises:
        OSError: links that point to each other.
    """
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[int, str]]:
    """(descriptor, name) of a new file beside ``path``, locked as long as it is open, which tells
    it from one of a process that was killed. Removed unless it was renamed. Raises ``OSError``."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name[:64]}.", suffix=_SUFFIX,
                                            dir=path.parent)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # taken for a leftover before it was locked
    renamed = False
    try:
        yield descriptor, name
        renamed = True
    finally:
        if not renamed:
            with contextlib.suppress(OSError):
                os.unlink(name)
        os.close(descriptor)


_SUFFIX = ".tmp"
#: As :func:`_temporary` names them: mkstemp adds eight characters.
_LEFTOVER = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")


@functools.lru_cache(maxsize=1024)  # once a folder: it may hold thousands of files
def _remove_leftovers(folder: Path) -> None:
    """Removes the temporary files of processes that were killed while they wrote."""
    try:
        names = [entry.path for entry in os.scandir(folder)
                 if _LEFTOVER.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)]
    except OSError:  # what is written next says why
        return
    for name in names:
        with contextlib.suppress(OSError):  # in use, gone, or another user's
            descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name)
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def open_append(path: Path) -> Iterator[int]:
    """A descriptor that appends to a regular file, made if absent, in a folder that others may
    write to: neither a symbolic nor a hard link to another file is written through, and a pipe is
    not waited for.

    Raises:
        OSError: it cannot be opened.
        DataFileError: it is not a regular file with one name.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
                         | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            raise DataFileError(path, "is not a regular file of its own; delete it")
        yield descriptor
    finally:
        os.close(descriptor)


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
    """Holds the lock ``<path>.lock`` against other processes and threads; folders are made. A
    symbolic link has the lock of the file that it points to.

    The system releases the lock when its holder dies. Not re-entrant.

    Raises:
        DataFileError: the lock is held for longer than ``timeout_s`` seconds, or its file
            cannot be made.
    """
    import filelock

    path = Path(path)
    named = path
    try:
        target = link_target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        named = Path(f"{target}.lock")
        lock = filelock.FileLock(named)
        lock.acquire(timeout=timeout_s)
    except filelock.Timeout as error:
        raise DataFileError(
            path, f"is in use: another process has held {target.name}.lock for {timeout_s:g} s; "
            "wait for it or choose another path") from error
    except NotImplementedError as error:
        raise DataFileError(path, "is on a file system without locks; choose another path"
                            ) from error
    except OSError as error:
        if error.errno == errno.ELOOP and named is not path:
            raise DataFileError(named, "is a symbolic link; remove it, or choose another path for "
                                f"{path.name}") from error
        raise write_error(named, error) from error
    try:
        yield
    finally:
        lock.release()


def _mode(path: Path) -> int:
    """The mode of the file that is replaced, or the default mode of a new file."""
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        return 0o666 & ~_umask()


def _umask() -> int:
    """Of this process. It is set to be read only where the system does not tell it: what another
    thread makes meanwhile would have other rights."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(re.search(r"^Umask:\s*([0-7]+)$", status, re.MULTILINE)[1], 8)  # type: ignore
    except (OSError, TypeError):
        mask = os.umask(0o077)
        os.umask(mask)
        return mask
