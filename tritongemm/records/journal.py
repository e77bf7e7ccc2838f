"""The sweep's journal: append-only JSON lines, one for each outcome. A killed process loses none.

Every run begins with a ``header`` line holding its environment; the records after it were made
there. A last line that a crash cut short is ignored when reading and removed when reopening.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import logging
import math
import os
import re
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tritongemm.config import KernelConfig
from tritongemm.errors import ConfigError, DataFileError, ProblemError
from tritongemm.problem import GemmProblem
from tritongemm.records import atomic, packed, reading
from tritongemm.records.codec import config_from_json, digest, problem_from_json, problem_key
from tritongemm.records.rows import STATUSES
from tritongemm.records.run import utc_now

SCHEMA_VERSION = 1
#: Seconds between flushes to the disk. A kill loses nothing in any case; a power cut loses at
#: most the records of this long.
SYNC_INTERVAL_S = 1.0
#: Fastest configs remembered of each problem when resuming; more than any sweep re-measures.
REMEMBERED = 16

log = logging.getLogger("tritongemm")
#: Reasons of ``died`` that say nothing about the config: its worker was killed from outside, by the
#: user or by a system that ran out of memory.
_KILLED = re.compile(r"was killed by SIG(KILL|TERM|INT|HUP|QUIT)\b")
_KIND = re.compile(r"[a-z][a-z_]{0,31}")
#: Distinct problems and configs whose decoding is remembered while streaming.
_CACHE_LIMIT = 100_000


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
        self._checker = _Checker(path)

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
            raw = _encode(self._checker, record)
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
                            "to; put that back and go on with --resume")

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
                 "to go on")


def _encode(checker: _Checker, record: Mapping[str, object]) -> bytes:
    """The line of a record, validated so that it can be read again."""
    try:
        raw = _to_json(record).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DataFileError(checker.path, f"the record cannot be written as JSON: {error}"
                            ) from error
    if len(raw) > reading.LINE_LIMIT:
        raise DataFileError(checker.path, f"the record has {len(raw)} bytes; at most "
                            f"{reading.LINE_LIMIT} are allowed")
    checker.check(None, record)
    return raw


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
    torn = not last.endswith(b"\n") or _parse(last) is None
    if torn and cut == 0 and start > 0:
        raise DataFileError(path, f"its last line is longer than {reading.LINE_LIMIT} bytes. "
                            "Is it the right file?")
    keep = start + cut if torn else size
    if keep > 0:
        _check_first(path, _parse(first))
    elif not first.lstrip().startswith(b'{"'):
        # Only one unfinished line: a journal only if it begins as a record does.
        raise DataFileError(path, "is not a journal; choose another path", row=1)
    if torn:
        try:
            os.truncate(path, keep)
        except OSError as error:
            raise atomic.write_error(path, error) from error


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a number that JSON allows")


# Built once: json.loads and json.dumps with arguments build a decoder or encoder for each line.
_scan = json.JSONDecoder(parse_constant=_refuse).scan_once
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _parse(raw: bytes) -> dict | None:
    """The object that is the whole of a line, or None."""
    try:
        text = raw.decode()
        record, end = _scan(text, 0)
    except (ValueError, RecursionError, StopIteration):  # the last: nothing where a value belongs
        return None
    if not isinstance(record, dict) or text[end:] not in ("\n", "\r\n", ""):
        return None
    return record


def _check_first(path: Path, record: dict | None) -> None:
    if record is None or record.get("kind") != "header":
        raise DataFileError(path, "is not a journal that `tritongemm sweep` wrote: its first line "
                            "is no header; choose another path (`tritongemm report` reads CSVs of "
                            "bench)", row=1)


class _Known(NamedTuple):
    """A decoded problem or config with 64 bits of digest of its key."""

    value: object
    digest: int


def _flat(values: object) -> tuple:
    """A key for a JSON object: its names, then its values."""
    return (*values, *values.values())  # type: ignore


class _Checker:
    """Checks records and decodes their problems and configs. Distinct ones are cached, so that a
    million rows do not build a million objects."""

    def __init__(self, path: object) -> None:
        self.path = path
        self._problems: dict[tuple, _Known] = {}
        self._configs: dict[tuple, _Known] = {}
        self._last: object = None
        self._last_known = _Known(None, 0)

    def check(self, line: int | None, record: Mapping[str, object]
              ) -> tuple[_Known, _Known] | None:
        """Checks one record; the problem and config of a result or winner.

        Raises:
            DataFileError: naming the file, the line and the field.
        """
        kind = record.get("kind")
        if kind == "result":
            status, time_us = record.get("status"), record.get("time_us")
            if status not in STATUSES:
                raise self._error(line, "status", f"{status!r:.80} is not one of "
                                  f"{', '.join(STATUSES)}")
            if time_us is not None:
                if type(time_us) not in (float, int) or not 0 < time_us < math.inf:  # type: ignore
                    raise self._error(line, "time_us", f"{time_us!r:.80} is not a positive number")
                if status != "ok":
                    raise self._error(line, "time_us", f"a result of status {status} holds a time")
        elif kind == "header":
            reading.Fields(self.path, dict(record), line).version(SCHEMA_VERSION)
            if "environment" not in record:
                raise self._error(line, "environment", "is missing")
            if reading.too_deep(record["environment"]):
                raise self._error(line, "environment", "is nested too deeply")
            return None
        elif kind != "winner":
            if not isinstance(kind, str) or not _KIND.fullmatch(kind):
                raise self._error(line, "kind", f"{kind!r:.80} is not a kind of record")
            return None
        problem, config = record.get("problem"), record.get("config")
        try:
            # Consecutive rows have the same problem: comparing is cheaper than a lookup.
            if problem != self._last:
                self._last_known = self._problems[_flat(problem)]
                self._last = dict(problem)  # type: ignore[call-overload]
            return self._last_known, self._configs[_flat(config)]
        except (KeyError, TypeError, AttributeError):
            return self._decode(line, problem, config)

    def _decode(self, line: int | None, problem: object, config: object
                ) -> tuple[_Known, _Known]:
        try:
            a_problem = problem_from_json(problem)  # type: ignore[arg-type]
        except ProblemError as error:
            raise self._error(line, "problem", str(error)[:500]) from error
        try:
            a_config = config_from_json(config)  # type: ignore[arg-type]
        except ConfigError as error:
            raise self._error(line, "config", str(error)[:500]) from error
        known = (_Known(a_problem, digest(problem_key(a_problem))),
                 _Known(a_config, digest(a_config.config_id)))
        for cache, values, entry in ((self._problems, problem, known[0]),
                                     (self._configs, config, known[1])):
            if len(cache) >= _CACHE_LIMIT:
                cache.clear()
            cache[_flat(values)] = entry
        return known

    def _error(self, line: int | None, field: str, reason: str) -> DataFileError:
        return DataFileError(self.path, reason, row=line, field=field)


def _records(path: Path) -> Iterator[tuple[int, dict]]:
    """(line number, record) of each line, unchecked beyond being objects after a header."""
    if packed.is_packed(path):
        yield from enumerate(packed.unpack(path), 1)
        return
    with reading.open_unzipped(path) as file:
        bad = 0
        number = 0
        for number, raw in reading.lines(file, path):
            if bad == 1:
                _check_first(path, None)
            if bad:
                raise DataFileError(path, "is not a JSON object, and other lines follow: the file "
                                    "was damaged. Delete the line to go on without it", row=bad)
            record = _parse(raw) if raw.endswith(b"\n") else None
            if record is None:
                bad = number  # only the last line may be: it was cut short
                continue
            if number == 1:
                _check_first(path, record)
            yield number, record
        if number == 0:
            raise DataFileError(path, "is empty; it is not a journal")
        if bad == 1:
            _check_first(path, None)


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
    checker = _Checker(path)
    for line, record in _records(path):
        known = checker.check(line, record)
        yield record, None if known is None else (
            known[0].value, known[1].value)  # type: ignore[misc]


def _outcome_key(problem: GemmProblem, config: KernelConfig, stage: str) -> int:
    return digest(problem_key(problem)) ^ digest(config.config_id) ^ digest(stage)


class DoneKeys:
    """What a journal holds of one environment: a digest an outcome with its time, and of each
    problem its fastest configs and whether it has a winner."""

    def __init__(self) -> None:
        self._outcomes: dict[int, float | None] = {}
        self._winners: dict[int, float | None] = {}
        self._fastest: dict[int, list[tuple[float, int, KernelConfig]]] = {}

    def __len__(self) -> int:
        """How many different outcomes there are."""
        return len(self._outcomes)

    def has(self, problem: GemmProblem, config: KernelConfig, stage: str = "coarse") -> bool:
        """Whether ``config`` has an outcome, good or bad, for ``problem`` at ``stage``."""
        return _outcome_key(problem, config, stage) in self._outcomes

    def time_us(self, problem: GemmProblem, config: KernelConfig, stage: str = "coarse"
                ) -> float | None:
        """The last time of ``config`` for ``problem`` at ``stage``, microseconds; None: it has no
        outcome there, or one without a time."""
        return self._outcomes.get(_outcome_key(problem, config, stage))

    def has_winner(self, problem: GemmProblem) -> bool:
        """Whether the problem has a winner, so that it is finished."""
        return digest(problem_key(problem)) in self._winners

    def searched_to(self, problem: GemmProblem) -> float | None:
        """The gain below which a search gave up when it found the problem's winner, 0.01 for 1 %;
        None: no winner, or one of another way of choosing configs, or of a search cut short."""
        return self._winners.get(digest(problem_key(problem)))

    def fastest(self, problem: GemmProblem, count: int = REMEMBERED
                ) -> list[tuple[float, KernelConfig]]:
        """At most ``count`` (and REMEMBERED) of the coarse stage's results, fastest first, as
        (time in microseconds, config)."""
        found: dict[KernelConfig, float] = {}
        for time_us, _, config in sorted(self._fastest.get(digest(problem_key(problem)), ()),
                                         reverse=True):
            found.setdefault(config, -time_us)
        return [(time_us, config) for config, time_us in found.items()][:count]


def read_done(path: str | os.PathLike[str], environment: object) -> DoneKeys:
    """What was measured in ``environment``; see :class:`DoneKeys`. Streams the file once.

    An outcome is stored as the exclusive or of the digests of its problem, config and stage, each
    hashed once. A million rows take a few seconds and about 100 bytes each.

    A config whose worker was killed from outside is not done, unless that happened twice: then it
    may be what made the system kill it.

    Raises:
        DataFileError: as :func:`read_journal`.
    """
    path = Path(path)
    return _done(_records(path), environment, path)


def done_among(records: Iterable[Mapping[str, object]], environment: object) -> DoneKeys:
    """What ``records`` of a journal, headers included, hold of ``environment``.

    Raises:
        DataFileError: as :func:`read_journal`.
    """
    return _done(enumerate(records, 1), environment, Path("records"))


def _done(records: Iterable[tuple[int, Mapping[str, object]]], environment: object,
          path: Path) -> DoneKeys:
    done = DoneKeys()
    outcomes, remembered = done._outcomes, done._fastest
    check = _Checker(path).check
    stages: dict[object, int] = {}
    killed: set[int] = set()
    wanted = _canonical(environment)
    ours = False
    for line, record in records:
        known = check(line, record)
        if known is None:
            if record["kind"] == "header":
                ours = _canonical(record["environment"]) == wanted
            continue
        if not ours:
            continue
        (_, problem), (config, config_digest) = known
        if record["kind"] == "winner":
            done._winners[problem] = record.get("gain")  # type: ignore[assignment]
            continue
        stage = str(record.get("stage", "coarse"))
        if stage not in stages:
            if len(stages) >= _CACHE_LIMIT:
                stages.clear()
            stages[stage] = digest(stage)
        outcome = problem ^ config_digest ^ stages[stage]
        time_us: float | None = record.get("time_us")  # type: ignore[assignment]
        if (record["status"] == "died" and outcome not in killed
                and _KILLED.search(str(record.get("reason")))):
            killed.add(outcome)
        else:
            outcomes[outcome] = time_us
        if time_us is not None and stage == "coarse":
            heap = remembered.setdefault(problem, [])
            if len(heap) < REMEMBERED:
                heapq.heappush(heap, (-time_us, line, config))
            elif -time_us > heap[0][0]:
                heapq.heapreplace(heap, (-time_us, line, config))
    return done


def _canonical(environment: object) -> str:
    return json.dumps(environment, sort_keys=True)
