"""The sweep's journal: append-only JSON lines, one outcome a line, that survive a kill.

Every run begins with a ``header`` line holding its environment; the records after it were made
there. A last line that a crash cut short is ignored when reading and removed when reopening.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

from tritongemm.config import KernelConfig
from tritongemm.errors import ConfigError, DataFileError, ProblemError
from tritongemm.problem import GemmProblem
from tritongemm.records import atomic, reading
from tritongemm.records.codec import config_from_json, digest, problem_from_json, problem_key
from tritongemm.records.rows import STATUSES
from tritongemm.records.run import utc_now

SCHEMA_VERSION = 1
#: Seconds between flushes to the disk. A kill loses nothing in any case; a power cut loses at
#: most the records of this long.
SYNC_INTERVAL_S = 1.0
#: Fastest configs remembered of each problem when resuming; more than any sweep re-measures.
REMEMBERED = 32

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

    @classmethod
    def open(cls, path: str | os.PathLike[str], header: Mapping[str, object], *,
             sync_interval_s: float = SYNC_INTERVAL_S) -> Journal:
        """Makes a journal or goes on with an existing one, and writes this run's header.

        Args:
            path: the file; folders are made.
            header: of this run; ``environment`` in it is the part that makes timings comparable
                (any JSON), compared by :meth:`done_keys`.
            sync_interval_s: seconds between flushes to the disk; 0 flushes every record.

        Raises:
            DataFileError: the file is not a journal, is in use by another sweep, or cannot be
                written.
        """
        path = Path(path)
        if "environment" not in header:
            raise DataFileError(path, "the header needs the run's environment",
                                field="environment")
        with ExitStack() as stack:
            stack.enter_context(atomic.locked(path, timeout_s=1.0))
            new = not path.exists() or path.stat().st_size == 0
            if not new:
                _drop_torn_line(path)
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
                stack.callback(os.close, descriptor)
                if new:
                    atomic.sync_folder(path.parent)
            except OSError as error:
                raise atomic.write_error(path, error) from error
            journal = cls(path, descriptor, stack, sync_interval_s)
            journal.append({**header, "kind": "header", "schema_version": SCHEMA_VERSION,
                            "opened_utc": utc_now()})
            journal.sync()
            journal._lock = stack.pop_all()
        return journal

    def append(self, record: Mapping[str, object]) -> None:
        """Appends one record as one line by one write.

        Raises:
            DataFileError: not a record, no space left, or another refusal by the system. No
                record appended before is lost, and this one leaves no trace; appending may go on
                once there is space.
        """
        raw = _encode(self.path, record)
        with self._one:
            if self._descriptor < 0:
                raise DataFileError(self.path, "is closed; no record can be appended")
            size = os.fstat(self._descriptor).st_size
            try:
                written = os.write(self._descriptor, raw)
                if written != len(raw):  # a full disk can take a part of a line
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
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

    def done_keys(self, environment: object) -> DoneKeys:
        """What was measured in ``environment``, by this run or an earlier one."""
        return read_done(self.path, environment)

    def close(self) -> None:
        """Flushes and closes; a second time does nothing. Raises :class:`DataFileError`."""
        with self._one:
            if self._descriptor < 0:
                return
            try:
                self._sync()
            finally:
                self._descriptor = -1
                self._lock.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_NOTHING_LOST = ("Nothing that was journalled before is lost: run the same command with --resume "
                 "to go on")


def _encode(path: Path, record: Mapping[str, object]) -> bytes:
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataFileError(path, f"the record cannot be written as JSON: {error}") from error
    raw = text.encode() + b"\n"
    if len(raw) > reading.LINE_LIMIT:
        raise DataFileError(path, f"the record has {len(raw)} bytes; at most "
                            f"{reading.LINE_LIMIT} are allowed")
    _Checker(path).check(None, record)
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
        # Nothing but one unfinished line: ours only if it begins as a record does.
        raise DataFileError(path, "is not a journal; choose another path", row=1)
    if torn:
        try:
            os.truncate(path, keep)
        except OSError as error:
            raise atomic.write_error(path, error) from error


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is not a number that JSON allows")


# One decoder for all lines: json.loads with arguments would build one a line.
_decode = json.JSONDecoder(parse_constant=_refuse).decode


def _parse(raw: bytes) -> dict | None:
    """The object of a line, or None."""
    try:
        record = _decode(raw.decode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _check_first(path: Path, record: dict | None) -> None:
    if record is None or record.get("kind") != "header":
        raise DataFileError(path, "is not a journal: its first line is no header; "
                            "choose another path", row=1)


class _Checker:
    """Checks records and decodes their problems and configs, remembering the distinct ones."""

    def __init__(self, path: object) -> None:
        self.path = path
        self._problems: dict[tuple, GemmProblem] = {}
        self._configs: dict[tuple, KernelConfig] = {}

    def check(self, line: int | None, record: Mapping[str, object]) -> None:
        kind = record.get("kind")
        if kind == "result":
            if record.get("status") not in STATUSES:
                raise self._error(line, "status", f"{record.get('status')!r:.80} is not one of "
                                  f"{', '.join(STATUSES)}")
            self.problem(line, record)
            self.config(line, record)
            time_us = record.get("time_us")
            if time_us is not None and (type(time_us) not in (float, int)
                                        or not 0 < time_us < float("inf")):  # type: ignore
                raise self._error(line, "time_us", f"{time_us!r:.80} is not a positive number")
            if time_us is not None and record["status"] != "ok":
                raise self._error(line, "time_us",
                                  f"a result of status {record['status']} holds a time")
        elif kind == "winner":
            self.problem(line, record)
            self.config(line, record)
        elif kind == "header":
            reading.Fields(self.path, dict(record), line).version(SCHEMA_VERSION)
            if "environment" not in record:
                raise self._error(line, "environment", "is missing")
        elif not isinstance(kind, str) or not _KIND.fullmatch(kind):
            raise self._error(line, "kind", f"{kind!r:.80} is not a kind of record")

    def problem(self, line: int | None, record: Mapping[str, object]) -> GemmProblem:
        """The problem of a record."""
        values = record.get("problem")
        try:
            return self._problems[tuple(values.items())]  # type: ignore[union-attr]
        except (KeyError, TypeError, AttributeError):
            pass
        try:
            problem = problem_from_json(values)  # type: ignore[arg-type]
        except ProblemError as error:
            raise self._error(line, "problem", str(error)[:500]) from error
        if len(self._problems) >= _CACHE_LIMIT:
            self._problems.clear()
        self._problems[tuple(values.items())] = problem  # type: ignore[union-attr]
        return problem

    def config(self, line: int | None, record: Mapping[str, object]) -> KernelConfig:
        """The config of a record."""
        values = record.get("config")
        try:
            return self._configs[tuple(values.items())]  # type: ignore[union-attr]
        except (KeyError, TypeError, AttributeError):
            pass
        try:
            config = config_from_json(values)  # type: ignore[arg-type]
        except ConfigError as error:
            raise self._error(line, "config", str(error)[:500]) from error
        if len(self._configs) >= _CACHE_LIMIT:
            self._configs.clear()
        self._configs[tuple(values.items())] = config  # type: ignore[union-attr]
        return config

    def _error(self, line: int | None, field: str, reason: str) -> DataFileError:
        return DataFileError(self.path, reason, row=line, field=field)


def _records(path: Path) -> Iterator[tuple[int, dict]]:
    """(line number, record) of each line, unchecked beyond being objects after a header."""
    with reading.open_regular(path) as file:
        bad = 0
        number = 0
        for number, raw in reading.lines(file, path):
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
    problem and a config that decode, results a known status. A torn last line is left out.

    Raises:
        DataFileError: naming the file, the line and the field.
    """
    path = Path(path)
    checker = _Checker(path)
    for line, record in _records(path):
        checker.check(line, record)
        yield record


class DoneKeys:
    """What a journal holds of one environment: 8 bytes of digest an outcome, and of each problem
    its fastest configs and whether it has a winner."""

    def __init__(self) -> None:
        self._outcomes: set[int] = set()
        self._winners: set[int] = set()
        self._fastest: dict[int, list[tuple[float, int, KernelConfig]]] = {}

    def __len__(self) -> int:
        """How many different outcomes there are."""
        return len(self._outcomes)

    def has(self, problem: GemmProblem, config: KernelConfig, stage: str = "coarse") -> bool:
        """Whether ``config`` has an outcome, good or bad, for ``problem`` at ``stage``."""
        return digest(problem_key(problem), config.config_id, stage) in self._outcomes

    def has_winner(self, problem: GemmProblem) -> bool:
        """Whether a winner was journalled, so that nothing is left to do."""
        return digest(problem_key(problem)) in self._winners

    def fastest(self, problem: GemmProblem, count: int = REMEMBERED
                ) -> list[tuple[float, KernelConfig]]:
        """The fastest of the coarse stage, (time in microseconds, config), fastest first."""
        found: dict[KernelConfig, float] = {}
        for time_us, _, config in sorted(self._fastest.get(digest(problem_key(problem)), ()),
                                         reverse=True):
            found.setdefault(config, -time_us)
        return [(time_us, config) for config, time_us in found.items()][:count]


def read_done(path: str | os.PathLike[str], environment: object) -> DoneKeys:
    """What was measured in ``environment``; see :class:`DoneKeys`. Streams the file once.

    Raises:
        DataFileError: as :func:`read_journal`.
    """
    path = Path(path)
    done = DoneKeys()
    checker = _Checker(path)
    # Digests of the distinct problems and ids of the distinct configs: computed once each.
    ids: dict[int, tuple[GemmProblem, str, int]] = {}
    wanted = _canonical(environment)
    ours = False
    add, remembered = done._outcomes.add, done._fastest
    for line, record in _records(path):
        checker.check(line, record)
        kind = record.get("kind")
        if kind == "header":
            ours = _canonical(record["environment"]) == wanted
        if not ours or kind not in ("result", "winner"):
            continue
        problem, config = checker.problem(line, record), checker.config(line, record)
        entry = ids.get(id(problem))
        if entry is None or entry[0] is not problem:
            key = problem_key(problem)
            if len(ids) >= _CACHE_LIMIT:
                ids.clear()
            entry = ids[id(problem)] = (problem, key, digest(key))
        if kind == "winner":
            done._winners.add(entry[2])
            continue
        stage = record.get("stage") or "coarse"
        add(digest(entry[1], config.config_id, str(stage)))
        if stage == "coarse" and record["status"] == "ok" and record.get("time_us"):
            heap = remembered.setdefault(entry[2], [])
            item = (-record["time_us"], line, config)
            if len(heap) < REMEMBERED:
                heapq.heappush(heap, item)
            else:
                heapq.heappushpop(heap, item)
    return done


def _canonical(environment: object) -> str:
    return json.dumps(environment, sort_keys=True)
