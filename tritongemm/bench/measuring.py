"""The measuring process and its supervision: asked over a pipe, killed when it hangs, replaced.

A CUDA context that met an illegal address is lost, and with it the process. So the process that
writes rows never touches a device: it keeps a child for that, and starts another when it must.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tritongemm import errors
from tritongemm.bench.session import Columns, Hello, Job, SessionSpec
from tritongemm.config import KernelConfig
from tritongemm.errors import DeviceError, TritonGemmError
from tritongemm.problem import GemmProblem

DEFAULT_OPENER = "tritongemm.bench.session:open_session"
#: Seconds for importing torch, opening a device and asking the driver about it.
START_TIMEOUT_S = 300.0
_GRACE_S = 5.0


class ChildLost(Exception):
    """The measuring process gave no answer; ``status`` is ``died`` or ``timeout``."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(reason)


class Child:
    """A measuring process; started anew at the next question after it was lost.

    Args:
        spec: what its session is opened with.
        opener: ``module:function`` that opens the session there.
    """

    def __init__(self, spec: SessionSpec, opener: str = DEFAULT_OPENER) -> None:
        self._spec, self._opener = spec, opener
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Hello:
        """Starts the process where there is none, and opens its session.

        Raises:
            TritonGemmError: of the kind that the session raised while it was opened.
            DeviceError: the process ended or hung before it said anything.
        """
        self.stop()
        context = multiprocessing.get_context("spawn")  # a forked CUDA context does not work
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(far, self._spec, self._opener),
                                        name="tritongemm-bench", daemon=True)
        self._process.start()
        far.close()  # so that its end is seen here as the end of the pipe
        try:
            return self._answer(START_TIMEOUT_S)
        except ChildLost as lost:
            raise DeviceError(f"the measuring process could not start: {lost.reason}") from lost

    def builds(self, problems: list[GemmProblem]) -> list[tuple[GemmProblem, KernelConfig]]:
        """See :meth:`tritongemm.bench.session.Session.builds`. Raises :class:`ChildLost`."""
        return self._ask(("builds", problems), START_TIMEOUT_S)

    def measure(self, job: Job, timeout_s: float) -> Columns:
        """See :meth:`tritongemm.bench.session.Session.measure`.

        Raises:
            ChildLost: the process died, lost its device, or took longer than ``timeout_s``.
        """
        return self._ask(("measure", job), timeout_s)

    def stop(self) -> None:
        """Ends the process, however busy it is."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            # An idle one ends by itself when the pipe closes, and tidies up.
            self._process.join(0.2)
            if self._process.is_alive():
                self._process.terminate()
                self._process.join(_GRACE_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process = None

    def _ask(self, question: tuple[str, object], timeout_s: float) -> Any:
        if self._pipe is None:
            self.start()
        assert self._pipe is not None
        try:
            self._pipe.send(question)
        except OSError:
            raise self._lost() from None
        return self._answer(timeout_s)

    def _answer(self, timeout_s: float) -> Any:
        assert self._pipe is not None
        try:
            if not self._pipe.poll(timeout_s):
                self._kill()
                raise ChildLost("timeout", f"no answer within {timeout_s:g} s; the measuring "
                                "process was ended (--timeout allows more)")
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._lost() from None
        if kind == "answer":
            return value
        if kind == "lost":
            self._kill()
            raise ChildLost("died", value)
        name, message = value
        self._kill()
        raise _error(name, message)

    def _lost(self) -> ChildLost:
        """What is known of a process that closed its pipe."""
        assert self._process is not None
        self._process.join(_GRACE_S)
        code = self._process.exitcode
        how = "did not end" if code is None else f"ended with status {code}"
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                how = f"was ended by {signal.Signals(-code).name}"
        self._kill()
        return ChildLost("died", f"the measuring process {how}")

    def _kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()
        self.stop()


def _error(name: str, message: str) -> TritonGemmError:
    """The child's error again, by the name of its class; of another signature, its base."""
    kind = getattr(errors, name, TritonGemmError)
    return TritonGemmError(message) if kind is errors.DataFileError else kind(message)


def _serve(pipe: Connection, spec: SessionSpec, opener: str) -> None:
    """The child's whole life: open, then one answer a question until the pipe closes."""
    # Ctrl-C reaches the whole group of processes; the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module, _, function = opener.partition(":")
    try:
        session = getattr(importlib.import_module(module), function)(spec)
    except TritonGemmError as error:
        _tell(pipe, "error", (type(error).__name__, str(error)))
        return
    except Exception as error:  # an installation that is broken: the reason goes to the parent
        _tell(pipe, "error", ("DeviceError", f"the measuring process cannot work: "
                              f"{type(error).__name__}: {error}"))
        return
    _tell(pipe, "answer", session.hello)
    while True:
        try:
            what, value = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = getattr(session, what)(value)
        except DeviceError as error:
            _tell(pipe, "lost", str(error))
            return
        except Exception as error:  # a fault of the session: the row gets its kind and place
            place = traceback.extract_tb(error.__traceback__)[-1]
            _tell(pipe, "lost", f"{type(error).__name__}: {error} "
                  f"({place.name}, line {place.lineno})")
            return
        _tell(pipe, "answer", answer)


def _tell(pipe: Connection, kind: str, value: object) -> None:
    with contextlib.suppress(OSError):  # the parent is gone; the next question is the end
        pipe.send((kind, value))
