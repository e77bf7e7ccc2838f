"""The measuring process of a bench: it answers one request at a time and is replaced when it is
lost.

An illegal memory access destroys the CUDA context and with it the process. The process that writes
rows therefore never uses a device: a worker process does, and another is started when it is lost.
"""

from __future__ import annotations

from typing import Any

from tritongemm import errors
from tritongemm.bench.session import Columns, Hello, SessionSpec
from tritongemm.config import KernelConfig
from tritongemm.errors import DeviceError, TritonGemmError
from tritongemm.problem import GemmProblem
from tritongemm.workers.messages import Call, Request
from tritongemm.workers.worker import Failed, Finished, Ready, Refused, Returned, Worker

DEFAULT_OPENER = "tritongemm.bench.session:open_session"
_SERVED = "tritongemm.bench.session:SessionServer"
#: Seconds allowed for importing torch, opening a device and querying the driver.
START_TIMEOUT_S = 300.0


class ProcessLost(Exception):
    """The measuring process gave no answer; ``status`` is ``died`` or ``timeout``."""

    def __init__(self, status: str, reason: str) -> None:
        self.status, self.reason = status, reason
        super().__init__(reason)


class MeasuringProcess:
    """A process with an open session. After it was lost, the next request starts a new one.

    Args:
        spec: what its session is opened with.
        opener: ``module:function`` that opens the session there.
    """

    def __init__(self, spec: SessionSpec, opener: str = DEFAULT_OPENER) -> None:
        self._worker = Worker("measuring process", _SERVED, {"spec": spec, "opener": opener},
                              START_TIMEOUT_S)

    def __enter__(self) -> MeasuringProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Hello:
        """Ends the process if there is one, and starts another with an open session.

        Raises:
            TritonGemmError: of the kind that the session raised while it was opened.
            DeviceError: the process ended or hung before its first answer.
        """
        self.stop()
        self._worker.start()
        event = self._worker.wait_for(Ready, Refused)[-1]
        if isinstance(event, Refused):
            if event.final:
                raise _error(event.error, event.reason)
            raise DeviceError(f"the measuring process could not start: {event.reason}")
        assert isinstance(event, Ready) and isinstance(event.info, Hello)
        return event.info

    def builds(self, problems: list[GemmProblem]) -> list[tuple[GemmProblem, KernelConfig]]:
        """See :meth:`tritongemm.bench.session.Session.builds`. Raises :class:`ProcessLost`."""
        return self._ask("builds", problems, START_TIMEOUT_S)

    def measure(self, job: Any, timeout_s: float) -> Columns:
        """See :meth:`tritongemm.bench.session.Session.measure`; another opener's session has jobs
        of its own.

        Raises:
            ProcessLost: the process died, lost its device, or took longer than ``timeout_s``.
        """
        return self._ask("measure", job, timeout_s)

    def stop(self) -> None:
        """Ends the process and its children, even while it is busy."""
        self._worker.kill()

    def _ask(self, method: str, argument: object, timeout_s: float) -> Any:
        if not self._worker.idle:
            self.start()
        self._worker.send(Request((Call(method, (argument,), timeout_s),)))
        first = self._worker.wait_for(Finished)[0]
        if isinstance(first, Returned):
            return first.value
        self.stop()
        if not isinstance(first, Failed):
            raise ProcessLost("died", "the measuring process ended before it was asked")
        if first.outcome.status == "timeout":
            raise ProcessLost("timeout", f"no answer within {timeout_s:g} s; the measuring "
                              "process was ended (--timeout allows more)")
        # Errors of a provider are in its row; an exception here is an error of the session.
        where = f" ({first.where})" if first.where else ""
        raise ProcessLost("died", first.outcome.reason + where)


def _error(name: str, message: str) -> TritonGemmError:
    """Recreates the session's error from the name of its class; from its base class if the
    signature differs."""
    kind = getattr(errors, name, None)
    if kind is None:  # an installation that is broken
        return DeviceError(f"the measuring process failed: {message}")
    return TritonGemmError(message) if kind is errors.DataFileError else kind(message)
