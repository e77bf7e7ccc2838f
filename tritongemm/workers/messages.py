"""The messages between a supervisor and its worker process: requests and outcomes."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tritongemm.errors import DataFileError, DeviceError, LaunchError
from tritongemm.measure.contender import failure_kind

#: Stages of a config: compiled; checked and timed quickly; timed interleaved with torch.
COMPILE, COARSE, FINAL = "compile", "coarse", "final"
#: The index of a request's set-up, which is not one of its calls.
SETUP = -1
_REASON_LIMIT = 800


@dataclass(frozen=True)
class Outcome:
    """The outcome of one config in one stage.

    Attributes:
        status: a word of ``records.rows.STATUSES``.
        reason: why it failed, in one line, without paths.
        values: the measured values, as JSON values (``time_us`` only if ``ok``).
        fatal: the worker must be replaced (a sticky CUDA error).
        stop: the machine is at fault (for example a full disk), so the outcome must not be
            journalled as the config's: the sweep ends.
    """

    status: str
    reason: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    fatal: bool = False
    stop: bool = False

    @property
    def ok(self) -> bool:
        """Whether the config passed the stage."""
        return self.status == "ok"


@dataclass(frozen=True)
class Call:
    """One method of the served object, its arguments, and the seconds it may take.

    Attributes:
        doing: the name of the step in a timeout's reason. If it is :data:`COMPILE`, an exception of
            unknown kind counts as the compiler's.
    """

    method: str
    arguments: tuple
    timeout_s: float
    doing: str = "measuring"


@dataclass(frozen=True)
class Request:
    """Calls for one worker, in order.

    Attributes:
        setup: a call that runs first, unless it was this process's last set-up and succeeded. If it
            fails, no call is made.
        tag: identifies the request for the supervisor; it is not sent.
    """

    calls: tuple[Call, ...]
    setup: Call | None = None
    tag: object = None


_FOLDERS = re.compile(r"(?<![\w.])/(?:[^\s/:'\"<>|]+/)+")


def one_line(text: str) -> str:
    """``text`` on one line, truncated, without the folders of paths, because journals are
    published."""
    text = _FOLDERS.sub("", " ".join(text.split()))
    return text if len(text) <= _REASON_LIMIT else text[:_REASON_LIMIT] + " ..."


#: Errors of a full or failing machine, for which no config is to blame.
_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.ENFILE,
            errno.EIO}


def _machine_failed(error: BaseException | None) -> bool:
    """Whether the exception, or one that caused it, is the machine's fault."""
    while error is not None:
        if isinstance(error, DataFileError) or (isinstance(error, OSError)
                                                and error.errno in _MACHINE):
            return True
        error = error.__cause__ or error.__context__
    return False


def failure(error: BaseException, stage: str) -> Outcome:
    """The outcome of an exception: a :class:`DeviceError` is fatal, a full disk stops the sweep,
    others count as the config's failure."""
    text = one_line(str(error))
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if _machine_failed(error):
        return Outcome("died", text, stop=True)
    if isinstance(error, DeviceError):
        return Outcome("died", f"device fault: {text}", fatal=True)
    status = failure_kind(error)
    if status == "launch" and stage == COMPILE and not isinstance(error, LaunchError):
        status = "compile"
    return Outcome(status, reason)
