"""The supervisor of one worker process: its requests, deadlines, end and restart.

It turns a hang, a kill, a crash or a sticky CUDA error into events, so that the caller sees only
outcomes: if a worker hangs or dies, only the current call is lost. :meth:`Worker.start` restarts a
dead worker. :meth:`Worker.read` and :meth:`Worker.check` never block, so that one thread can watch
many workers; :meth:`Worker.wait_for` blocks, for a caller with a single worker.
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
from multiprocessing.connection import Connection, wait

from tritongemm.errors import DeviceError
from tritongemm.workers.messages import COMPILE, SETUP, Outcome, Request, one_line

#: Importing torch from a cold disk, creating a CUDA context and querying the driver can take
#: minutes.
START_TIMEOUT_S = 180.0
_REAP_TIMEOUT_S = 10.0
_WAIT_S = 0.5
#: The names of stages in a timeout's reason.
_VERBS = {COMPILE: "compiling"}


@dataclass(frozen=True)
class Ready:
    """The worker is ready; ``info`` is the result of the served object's ``info()``."""

    info: object


@dataclass(frozen=True)
class Refused:
    """The worker could not start. ``final``: it reported an exception, so a retry is useless;
    ``error`` is the name of the exception's class."""

    reason: str
    final: bool
    error: str = ""


@dataclass(frozen=True)
class Returned:
    """A call returned ``value``; ``index`` is its number in the request, or ``SETUP``."""

    request: Request
    index: int
    value: object


@dataclass(frozen=True)
class Failed:
    """A call raised, hung, or ended its process; ``where``: the function and line that raised."""

    request: Request
    index: int
    outcome: Outcome
    where: str = ""


@dataclass(frozen=True)
class Finished:
    """The request is done; ``rest`` are the calls that neither returned nor failed."""

    request: Request
    rest: tuple[int, ...]


Event = Ready | Refused | Returned | Failed | Finished


class Worker:
    """One process at a time that serves ``target`` (see ``child.py``), one request at a time.

    Args:
        name: the worker's name in errors.
        target: ``"module:attribute"``, called with ``arguments`` in the process.
        start_timeout_s: seconds until it must be ready.
    """

    def __init__(self, name: str, target: str, arguments: Mapping[str, object],
                 start_timeout_s: float = START_TIMEOUT_S) -> None:
        self.name = name
        self._start_timeout_s = start_timeout_s
        self._target, self._arguments = target, dict(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._output = None
        self.connection: Connection | None = None
        self.ready = False
        self.request: Request | None = None
        self._index: int | None = None
        self._left: set[int] = set()
        self._deadline = float("inf")
        self._since = 0.0
        self.busy_s = 0.0

    @property
    def alive(self) -> bool:
        """Whether there is a process, ready or starting."""
        return self._process is not None

    @property
    def idle(self) -> bool:
        """Whether a request can be sent."""
        return self.ready and self.request is None

    @property
    def deadline(self) -> float:
        """When (``time.monotonic``) :meth:`check` will end the process."""
        return self._deadline

    def start(self) -> None:
        """Starts a new interpreter in its own session; it answers with :class:`Ready`.

        Not ``multiprocessing``, which would run the caller's ``__main__`` again in the child. The
        separate session shields the child from the terminal's Ctrl-C and lets :meth:`kill` end the
        compilers that the child started. CUDA is never forked.

        Raises:
            DeviceError: the system cannot start another process.
        """
        assert self._process is None
        try:
            near, far = Pipe()
            self._output = tempfile.TemporaryFile()
        except OSError as error:
            raise DeviceError(f"no process can be started: {error}") from error
        code = (f"import sys; sys.path[:] = {sys.path!r}; "
                "from tritongemm.workers.child import main; "
                f"main({far.fileno()}, {os.getpid()})")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=self._output,
                stderr=self._output, pass_fds=(far.fileno(),), start_new_session=True)
        except OSError as error:
            near.close()
            self._output.close()
            raise DeviceError(f"no process can be started: {error}") from error
        finally:
            far.close()
        self.connection = near
        self._deadline = time.monotonic() + self._start_timeout_s
        try:
            near.send((self._target, self._arguments))
        except OSError:
            pass  # it died already: reading the pipe reports that

    def send(self, request: Request) -> None:
        """Sends the process a request. If the process has died, the next :meth:`read` returns the
        events."""
        assert self.idle
        self.request, self._left, self._index = request, set(range(len(request.calls))), None
        self._since = time.monotonic()
        # Limit until the request begins: a live process answers at once.
        first = [call.timeout_s for call in (request.setup, *request.calls[:1]) if call]
        self._deadline = self._since + sum(first)
        try:
            self.connection.send((request.calls, request.setup))  # type: ignore[union-attr]
        except OSError:
            pass

    def read(self) -> list[Event]:
        """The events that are ready in the pipe. Call this when :attr:`connection` is readable."""
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
        """Ends the process if its deadline has passed."""
        now = time.monotonic()
        if self._process is None or now < self._deadline:
            return []
        events = self.read()  # it may have answered just before the deadline
        if self._process is None or now < self._deadline:
            return events
        limit = self._deadline - self._since if self.request else self._start_timeout_s
        reason = f"{self._doing()} took over {limit:.3g} s"
        self.kill()
        return events + self._ended(Outcome("timeout", reason))

    def wait_for(self, *kinds: type) -> list[Event]:
        """Waits for an event of one of ``kinds`` and returns all events up to it. A process that
        hangs is ended at its deadline, which also produces events."""
        events: list[Event] = []
        while self.alive and not any(isinstance(event, kinds) for event in events):
            left = max(0.0, min(_WAIT_S, self._deadline - time.monotonic()))
            wait([self.connection], left)  # type: ignore[list-item]
            events += self.read() or self.check()
        return events

    def kill(self) -> None:
        """Ends the process and everything it started."""
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
            pass  # stuck in the driver; the system ends it later
        self.connection.close()  # type: ignore[union-attr]
        self._output.close()  # type: ignore[attr-defined]
        self.connection, self.ready, self._deadline = None, False, float("inf")

    def _message(self, message: tuple) -> list[Event]:
        kind, *rest = message
        if kind == "ready":
            self.ready, self._deadline = True, float("inf")
            return [Ready(rest[0])]
        if kind == "unready":
            self.kill()
            return [Refused(rest[0], final=True, error=rest[1])]
        request = self.request
        assert request is not None
        if kind == "end":
            return self._finish()
        index, *result = rest
        if kind == "begin":
            self._index = index
        self._limit_from_now()
        if kind == "begin":
            return []
        self._index = None
        self._left.discard(index)
        if kind == "returned":
            return [Returned(request, index, result[0])]
        assert kind == "failed"
        where, outcome = result
        events: list[Event] = [Failed(request, index, outcome, where)]
        if outcome.fatal:
            self.kill()
            events += self._finish()
        return events

    def _limit_from_now(self) -> None:
        """A running call has its own limit; between calls the last call's limit applies."""
        now, request = time.monotonic(), self.request
        assert request is not None and self._index is not None
        call = request.setup if self._index == SETUP else request.calls[self._index]
        assert call is not None
        self.busy_s += now - self._since
        self._since, self._deadline = now, now + call.timeout_s

    def _doing(self) -> str:
        if self.request is None or self._index is None:
            return "starting"
        call = self.request.setup if self._index == SETUP else self.request.calls[self._index]
        assert call is not None
        return _VERBS.get(call.doing, call.doing)

    def _finish(self) -> list[Event]:
        request, self.request = self.request, None
        assert request is not None
        self.busy_s += time.monotonic() - self._since
        self._deadline = float("inf")
        rest, self._left, self._index = tuple(sorted(self._left)), set(), None
        return [Finished(request, rest)]

    def _ended(self, outcome: Outcome) -> list[Event]:
        """The events of a process that ended or was ended."""
        starting = not self.ready and self.request is None
        self.kill()
        if starting:
            return [Refused(f"the process did not start: {outcome.reason}", final=False)]
        request, index = self.request, self._index
        if request is None:
            return []  # it died while idle; the next request starts another
        if index is None:  # between two calls: the next call did not begin
            return self._finish()
        self._left.discard(index)
        return [Failed(request, index, outcome), *self._finish()]

    def _death(self) -> str:
        """How the process ended, with the last lines of its output."""
        process = self._process
        assert process is not None and self._output is not None
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
        size = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, size - 2000))
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        last = one_line(" | ".join(lines[-4:]))
        return f"the worker {how}" + (f": {last}" if last else "")
