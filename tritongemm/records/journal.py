"""The sweep's journal: append-only JSON lines, one for each outcome. A killed process loses none.

A last line that a crash cut short is ignored when reading and removed when reopening. The records
are described in ``journal_format``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError
from tritongemm.problem import GemmProblem
from tritongemm.records import atomic, reading
from tritongemm.records.journal_format import (
    SCHEMA_VERSION,
    RecordChecker,
    check_header,
    encode_line,
    parse_line,
    records,
)
from tritongemm.records.resume import DoneKeys, read_done
from tritongemm.records.run import utc_now

#: Seconds between flushes to the disk. A kill loses nothing in any case; a power cut loses at
#: most the records of this long.
SYNC_INTERVAL_S = 1.0

log = logging.getLogger("tritongemm")


class Journal:
    """A journal open for appending; made by :meth:`open`, usable as a context manager.

    One process at a time: the file is locked while it is open.
    """

    def __init__(self, path: Path, descriptor: int, lock: ExitStack, sync_interval_s: float
                 ) -> None:
        self.path = path
        self._descriptor = descriptor
        self._lock = lock
        self._sync_interval_s = sync_interval_s
        self._synced = time.monotonic()
        self._one = threading.Lock()
        self._checker = RecordChecker(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], header: Mapping[str, object], *,
             sync_interval_s: float = SYNC_INTERVAL_S) -> Journal:
        """Creates a journal or continues an existing one, and writes this run's header.

        Args:
            path: the file; folders are created.
            header: of this run; ``environment`` in it is the part that makes timings comparable
                (any JSON), compared by :meth:`done_keys`.
            sync_interval_s: seconds between flushes to the disk; 0 flushes every record.

        Raises:
            DataFileError: the file is not a journal, is compressed, is in use by another sweep, or
                cannot be written.
        """
        path = Path(path)
        if path.suffix == ".gz":
            raise DataFileError(path, "is the name of a compressed journal, which nothing can be "
                                "appended to; gunzip it, or choose another name")
        if "environment" not in header:
            raise DataFileError(path, "the header needs the run's environment",
                                field="environment")
        with ExitStack() as stack:
            stack.enter_context(atomic.locked(path, timeout_s=1.0))
            new = not path.exists() or (path.is_file() and path.stat().st_size == 0)
            if not new:
                _drop_torn_line(path)
            try:
                descriptor = _open(path)
                if new:
                    atomic.sync_folder(path.parent)
            except OSError as error:
                raise atomic.write_error(path, error) from error
            journal = cls(path, descriptor, stack, sync_interval_s)
            stack.callback(journal._release)
            journal.append({**header, "kind": "header", "schema_version": SCHEMA_VERSION,
                            "opened_utc": utc_now()})
            journal.sync()
            journal._lock = stack.pop_all()
        return journal

    def append(self, record: Mapping[str, object]) -> None:
        """Appends one record as one line by one write.

        A journal that was removed or moved away meanwhile is written again, whole, with a warning.

        Raises:
            DataFileError: not a record, no space left, or another refusal by the system. No
                record appended before is lost, and this one leaves no trace; appending may go on
                once there is space. Also where another file has taken the journal's place.
        """
        with self._one:
            raw = encode_line(self._checker, record)
            if self._descriptor < 0:
                raise DataFileError(self.path, "is closed; no record can be appended")
            self._keep_in_place()
            size = os.fstat(self._descriptor).st_size
            try:
                written = os.write(self._descriptor, raw)
                if written != len(raw):  # a full disk can take a part of a line
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                with contextlib.suppress(OSError):  # a torn line is left out by readers
                    os.ftruncate(self._descriptor, size)
                raise atomic.write_error(self.path, error, _NOTHING_LOST) from error
            if time.monotonic() - self._synced >= self._sync_interval_s:
                self._sync()

    def sync(self) -> None:
        """Flushes what was appended to the disk. Raises :class:`DataFileError`."""
        with self._one:
            self._sync()

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise atomic.write_error(self.path, error, _NOTHING_LOST) from error
        self._synced = time.monotonic()

    def _keep_in_place(self) -> None:
        """Writes the journal again where its path names it no longer. Raises DataFileError."""
        ours = os.fstat(self._descriptor)
        try:
            there = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            self._write_again(self.path)
            log.warning("tritongemm: %s was removed or moved while it was written; it is there "
                        "again, with every record", self.path)
            return
        except OSError as error:
            raise atomic.write_error(self.path, error, _NOTHING_LOST) from error
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return
        kept = self.path.with_name(f"{self.path.name}.recovered")
        if not ours.st_nlink and not os.path.lexists(kept):
            self._write_again(kept)
        raise DataFileError(self.path, "was replaced by another file while it was written. The "
                            f"records of this run are in {kept}, or in the file that it was moved "
                            "to; put that back and continue with --resume")

    def _write_again(self, path: Path) -> None:
        """Copies what was written to a new file at ``path`` and goes on there."""
        try:
            path = atomic.link_target(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, _FLAGS | os.O_EXCL, 0o666)
            try:
                at = 0
                while piece := os.pread(self._descriptor, 1 << 20, at):
                    atomic.write_all(descriptor, piece)
                    at += len(piece)
                os.fsync(descriptor)
                atomic.sync_folder(path.parent)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise atomic.write_error(path, error, "It was removed while it was written, and its "
                                     "records cannot be written again") from error
        os.close(self._descriptor)
        self._descriptor = descriptor

    def _release(self) -> None:
        os.close(self._descriptor)

    def done_keys(self, environment: object) -> DoneKeys:
        """What was measured in ``environment``, by this run or an earlier one."""
        return read_done(self.path, environment)

    def close(self) -> None:
        """Flushes and closes; a second time does nothing. Raises :class:`DataFileError`."""
        with self._one:
            if self._descriptor < 0:
                return
            try:
                self._keep_in_place()
                self._sync()
            finally:
                self._lock.close()
                self._descriptor = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


#: For reading too: what was written can be written again.
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC


def _open(path: Path) -> int:
    """A descriptor that appends to a regular file. Raises OSError, DataFileError."""
    descriptor = os.open(path, _FLAGS, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DataFileError(path, "is not a regular file; choose another path")
    return descriptor


_NOTHING_LOST = ("Nothing that was journalled before is lost: run the same command with --resume "
                 "to continue")


def _drop_torn_line(path: Path) -> None:
    """Removes a last line that a crash cut short, and checks that the file is a journal."""
    with reading.open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - reading.LINE_LIMIT - 1)
        file.seek(start)
        tail = file.read()
        file.seek(0)
        first = file.readline(reading.LINE_LIMIT)
    cut = tail.rfind(b"\n", 0, len(tail) - 1) + 1
    last = tail[cut:]
    torn = not last.endswith(b"\n") or parse_line(last) is None
    if torn and cut == 0 and start > 0:
        raise DataFileError(path, f"its last line is longer than {reading.LINE_LIMIT} bytes. "
                            "Is it the right file?")
    keep = start + cut if torn else size
    if keep > 0:
        check_header(path, parse_line(first))
    elif not first.lstrip().startswith(b'{"'):
        # Only one unfinished line: a journal only if it begins as a record does.
        raise DataFileError(path, "is not a journal; choose another path", row=1)
    if torn:
        try:
            os.truncate(path, keep)
        except OSError as error:
            raise atomic.write_error(path, error) from error


def read_journal(path: str | os.PathLike[str]) -> Iterator[dict]:
    """Every record in order, headers included, one in memory at a time.

    Each is checked: headers have a known version and an environment; results and winners have a
    problem and a config that decode, results a known status. A torn last line is left out. A file
    of gzip is read as what was compressed, a packed journal (``records/packed.py``) as the records
    that it keeps.

    Raises:
        DataFileError: naming the file, the line and the field.
    """
    for record, _ in read_decoded(path):
        yield record


def read_decoded(path: str | os.PathLike[str]
                 ) -> Iterator[tuple[dict, tuple[GemmProblem, KernelConfig] | None]]:
    """Every record as :func:`read_journal` yields it, and of results and winners the problem and
    the config, each distinct one decoded once. Raises as that."""
    path = Path(path)
    checker = RecordChecker(path)
    for line, record in records(path):
        known = checker.check(line, record)
        yield record, None if known is None else (
            known[0].value, known[1].value)  # type: ignore[misc]
