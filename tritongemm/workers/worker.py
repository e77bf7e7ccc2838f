"""A station: one child process, the job it is on, and its deadline.

It turns whatever can befall the child (a hang, a kill, a crash, a sticky fault) into events, so
that the loop above sees outcomes only. A dead child is started again by :meth:`Station.start`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from tritongemm.config import KernelConfig
from tritongemm.errors import DeviceError
from tritongemm.workers.batch import COMPILE, FINAL, OPENING, TOGETHER, Job, Outcome, one_line

#: Importing torch from a cold disk and making a context can take a minute.
START_TIMEOUT_S = 180.0
_REAP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Ready:
    """The child serves; ``info`` is what the served object says of itself."""

    info: Mapping[str, object]


@dataclass(frozen=True)
class Refused:
    """The child could not start. ``final``: it said why, so that trying again is no use."""

    reason: str
    final: bool


@dataclass(frozen=True)
class Opened:
    """The problem's operands are made."""

    job: Job
    info: Mapping[str, object]


@dataclass(frozen=True)
class Result:
    """One config's outcome."""

    job: Job
    config: KernelConfig
    outcome: Outcome


@dataclass(frozen=True)
class Broken:
    """Opening the problem, or measuring the finalists together, failed as a whole."""

    job: Job
    outcome: Outcome
    opening: bool


@dataclass(frozen=True)
class Finished:
    """The job is over; ``rest`` are the configs that got no outcome."""

    job: Job
    rest: tuple[KernelConfig, ...]


Event = Ready | Refused | Opened | Result | Broken | Finished


class Station:
    """A place for one child that serves ``target`` (see ``child.py``), one job at a time."""

    def __init__(self, name: str, target: str, arguments: Mapping[str, object]) -> None:
        self.name = name
        self._target, self._arguments = target, dict(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._words = None
        self.connection: Connection | None = None
        self.ready = False
        self.job: Job | None = None
        self._item: int | None = None
        self._left: set[int] = set()
        self._deadline = float("inf")
        self._since = 0.0
        self.busy_s = 0.0
        self.starts = 0

    @property
    def alive(self) -> bool:
        """Whether there is a child, ready or starting."""
        return self._process is not None

    @property
    def idle(self) -> bool:
        """Whether a job can be given."""
        return self.ready and self.job is None

    @property
    def deadline(self) -> float:
        """When (``time.monotonic``) :meth:`check` will end the child."""
        return self._deadline

    def start(self) -> None:
        """Starts a fresh interpreter in a session of its own; it answers with :class:`Ready`.

        Not ``multiprocessing``: that would run the caller's ``__main__`` again in the child. A
        session of its own keeps the terminal's Ctrl-C away and lets :meth:`kill` end the
        compilers that the child started. CUDA is never forked.

        Raises:
            DeviceError: the system refuses another process.
        """
        assert self._process is None
        try:
            ours, theirs = Pipe()
            self._words = tempfile.TemporaryFile()
        except OSError as error:
            raise DeviceError(f"no process can be started: {error}") from error
        code = (f"import sys; sys.path[:] = {sys.path!r}; "
                "from tritongemm.workers.child import main; "
                f"main({theirs.fileno()}, {os.getpid()})")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=self._words,
                stderr=self._words, pass_fds=(theirs.fileno(),), start_new_session=True)
        except OSError as error:
            ours.close()
            self._words.close()
            raise DeviceError(f"no process can be started: {error}") from error
        finally:
            theirs.close()
        self.connection = ours
        self.starts += 1
        self._deadline = time.monotonic() + START_TIMEOUT_S
        try:
            ours.send((self._target, self._arguments))
        except OSError:
            pass  # it died already: reading the pipe will say so

    def give(self, job: Job) -> None:
        """Hands the child a job. Its death meanwhile shows as events of the next :meth:`read`."""
        assert self.idle
        self.job, self._left, self._item = job, set(range(len(job.configs))), None
        self._since = time.monotonic()
        # Until it begins: a child that is alive answers at once.
        self._deadline = self._since + job.open_timeout_s + job.timeout_s
        try:
            self.connection.send(job)  # type: ignore[union-attr]
        except OSError:
            pass

    def read(self) -> list[Event]:
        """The events that wait in the pipe. Call it when :attr:`connection` is readable."""
        events: list[Event] = []
        while self.connection is not None:
            try:
                if not self.connection.poll():
                    break
                message = self.connection.recv()
            except (EOFError, OSError):
                events += self._ended(Outcome("died", self._death()))
                break
            events += self._message(message)
        return events

    def check(self) -> list[Event]:
        """Ends the child if its deadline has passed."""
        now = time.monotonic()
        if self._process is None or now < self._deadline:
            return []
        events = self.read()  # it may have answered at the last moment
        if self._process is None or now < self._deadline:
            return events
        what = {None: "starting", OPENING: "making the operands", TOGETHER: "the final stage"}
        stage = self.job.stage if self.job else ""
        text = what.get(self._item, "compiling" if stage == COMPILE else "measuring")
        limit = self._deadline - self._since if self.job else START_TIMEOUT_S
        self.kill()
        return events + self._ended(Outcome("timeout", f"{text} took over {limit:.3g} s"))

    def kill(self) -> None:
        """Ends the child and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            process.wait(_REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass  # in the driver, beyond signals; the system ends it when it can
        self.connection.close()  # type: ignore[union-attr]
        self._words.close()  # type: ignore[attr-defined]
        self.connection, self.ready, self._deadline = None, False, float("inf")

    def _message(self, message: tuple) -> list[Event]:
        kind, *rest = message
        now = time.monotonic()
        job = self.job
        if kind == "ready":
            self.ready, self._deadline = True, float("inf")
            return [Ready(rest[0])]
        if kind == "unready":
            self.kill()
            return [Refused(rest[0], final=True)]
        assert job is not None
        if kind == "begin":
            self._item = rest[0]
            limit = job.open_timeout_s if self._item == OPENING else job.timeout_s
            self._limit_from(now, limit)
            return []
        if kind == "opened":
            self._limit_from(now, job.timeout_s)
            return [Opened(job, rest[0])]
        if kind == "outcome":
            item, outcome = rest
            self._limit_from(now, job.timeout_s)
            events = self._settle(item, outcome)
            if outcome.fatal:
                self.kill()
                events += self._finish()
            return events
        assert kind == "end"
        return self._finish()

    def _limit_from(self, now: float, limit: float) -> None:
        self.busy_s += now - self._since
        self._since, self._deadline = now, now + limit

    def _settle(self, item: int, outcome: Outcome) -> list[Event]:
        job = self.job
        assert job is not None
        if item in (OPENING, TOGETHER):
            return [Broken(job, outcome, opening=item == OPENING)]
        self._left.discard(item)
        return [Result(job, job.configs[item], outcome)]

    def _finish(self) -> list[Event]:
        job, self.job = self.job, None
        assert job is not None
        self.busy_s += time.monotonic() - self._since
        self._deadline = float("inf")
        rest = tuple(job.configs[i] for i in sorted(self._left))
        self._left, self._item = set(), None
        return [Finished(job, rest)]

    def _ended(self, outcome: Outcome) -> list[Event]:
        """The events of a child's end, by itself or by our hand."""
        starting = not self.ready and self.job is None
        self.kill()
        if starting:
            return [Refused(f"the process did not start: {outcome.reason}", final=False)]
        if self.job is None:
            return []  # it died idle; the next job starts another
        item = self._item
        if self.job.stage == FINAL and item != OPENING:
            item = TOGETHER
        if item is None or (item >= 0 and item not in self._left):
            # Between two configs: the next one has not been touched, and none is guilty.
            return self._finish()
        return self._settle(item, outcome) + self._finish()

    def _death(self) -> str:
        """How the child died, with its last words."""
        process = self._process
        assert process is not None and self._words is not None
        try:
            code = process.wait(_REAP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "the process closed its pipe and hangs"
        if code < 0:
            try:
                how = f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                how = f"was killed by signal {-code}"
        else:
            how = f"ended with exit status {code}"
        size = self._words.seek(0, os.SEEK_END)
        self._words.seek(max(0, size - 2000))
        lines = self._words.read().decode(errors="replace").strip().splitlines()
        words = one_line(" | ".join(lines[-4:]))
        return f"the worker {how}" + (f": {words}" if words else "")
