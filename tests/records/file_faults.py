"""Faults that tests inject: a full disk, a refused write, a file far too large, and what stands
where a file belongs: a pipe, a folder, links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest


def full_disk(monkeypatch, after: int = 0) -> None:
    """From now on the disk takes ``after`` bytes more, then os.write raises ENOSPC.

    As on a real disk, the last write that fits only in part is cut short, not refused.
    """
    real, left = os.write, [after]

    def write(descriptor: int, data) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(descriptor, memoryview(data)[:left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(os, "write", write)


def failing_fsync(monkeypatch, code: int = errno.ENOSPC) -> None:
    """From now on os.fsync raises: the disk turned out to be full when it was flushed."""
    def fsync(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)


def refusing_open(monkeypatch, code: int = errno.EACCES) -> None:
    """From now on no file can be opened for writing (root ignores modes, so they are no test)."""
    real = os.open

    def refuse(path, flags, *args, **kwargs):
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(code, os.strerror(code), path)
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)


def sparse(path: Path, size: int = 1 << 30, head: bytes = b"") -> Path:
    """A file of ``size`` bytes that takes no space: ``head``, then zeros."""
    path.write_bytes(head)
    os.truncate(path, size)
    return path


def pipe(path: Path) -> None:
    """A FIFO: to open it waits for its other end."""
    os.mkfifo(path)


def endless(path: Path) -> None:
    """A link to a device that can be read for ever."""
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    """A link to itself."""
    path.symlink_to(path)


def folder(path: Path) -> None:
    """A folder."""
    path.mkdir()


#: What may stand where a file belongs, as a parameter of a test.
NOT_A_FILE = [pytest.param(make, id=make.__name__) for make in (pipe, endless, loop, folder)]
