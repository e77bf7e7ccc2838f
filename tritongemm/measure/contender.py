"""What is measured and what comes out: :class:`Contender`, :class:`Measurement`, failure kinds."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritongemm.errors import (
    CompileError,
    ConfigError,
    ConstraintError,
    LaunchError,
    NumericsError,
    UnsupportedError,
)
from tritongemm.records.control import BASELINE

if TYPE_CHECKING:
    from tritongemm.measure.operands import OperandSet

TORCH = BASELINE


@dataclass(frozen=True)
class Contender:
    """Something that computes the problem's product, and its epilogue.

    Attributes:
        name: unique within one measurement.
        bind: given one :class:`~tritongemm.measure.operands.OperandSet`, returns a call without
            arguments that computes ``a @ b`` (and with ``d``, alpha and beta what the epilogue
            asks for) into ``out`` on torch's current stream. It is called
            once an operand set; whatever it prepares may depend on pointers, shapes and strides,
            never on operand values.
        capturable: whether the call can be captured into a CUDA graph. Otherwise it and torch are
            timed with events.
        context: entered around every call from the host (warm-up, verification, capture), not
            around replays. Use it for a process-wide setting that must not leak.
    """

    name: str
    bind: Callable[[OperandSet], Callable[[], None]]
    capturable: bool = True
    context: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext


@dataclass(frozen=True)
class Measurement:
    """The result of measuring one contender. None and "" mean not measured.

    Attributes:
        status: ``ok``, or the kind of failure (``wrong, compile, launch, constraint, oom``).
        error: the reason of a failure.
        time_us_p50, time_us_p20, time_us_p80: device time of one call, over the rounds.
        ratio_vs_torch: torch's time / this one's, paired by round: above 1 is faster than torch.
        ratio_low, ratio_high: its 95 % interval.
        n_rounds: rounds (timer ``graph``, ``event``, ``host``) or pairs of blocks (``blocks``)
            that the ratio rests on.
        timer: ``graph``, ``blocks`` (graphs in alternating blocks), ``event`` or ``host``.
        l2_state: ``cold`` where the operand sets total more than three times the cache, else
            ``warm``.
        torch_backend: the library that the baseline used, ``cublas`` or ``cublaslt``, and with
            an epilogue torch's way of it, e.g. ``cublaslt addmm``.
        max_err_ratio, rms_err_ratio: error / limit; the largest over every check made.
        sm_clock_mhz, power_w: read while the device was busy with this measurement.
        energy_mj: energy of one call, where blocks were long enough to tell.
        throttled: throttle reasons joined by ``|``, "" where there were none or none was read.
    """

    status: str
    error: str = ""
    time_us_p50: float | None = None
    time_us_p20: float | None = None
    time_us_p80: float | None = None
    ratio_vs_torch: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    n_rounds: int | None = None
    timer: str = ""
    l2_state: str = ""
    torch_backend: str = ""
    max_err_ratio: float | None = None
    rms_err_ratio: float | None = None
    sm_clock_mhz: float | None = None
    power_w: float | None = None
    energy_mj: float | None = None
    throttled: str = ""

    @property
    def ok(self) -> bool:
        """Whether the result is correct and has a time."""
        return self.status == "ok"

    @classmethod
    def failed(cls, error: BaseException) -> Measurement:
        """The record of an exception: its kind and its reason on one line."""
        reason = " ".join(str(error).split())
        name = type(error).__name__
        return cls(failure_kind(error), f"{name}: {reason}"[:1000] if reason else name)


_KINDS: tuple[tuple[type[BaseException], str], ...] = (
    (NumericsError, "wrong"),
    (CompileError, "compile"),
    (ConstraintError, "constraint"),
    (ConfigError, "constraint"),
    (UnsupportedError, "constraint"),
    (LaunchError, "launch"),
    (MemoryError, "oom"),
)
#: By class name, so that neither torch nor triton need be imported to tell them.
_KINDS_BY_NAME = {
    "OutOfMemoryError": "oom",        # torch
    "CompilationError": "compile",    # triton, all its front-end errors
    "PTXASError": "compile",          # triton
    "OutOfResources": "launch",       # triton: shared memory or registers at load time
}


def failure_kind(error: BaseException) -> str:
    """The status word of an exception that a contender raised; ``launch`` if nothing says more."""
    for kind, status in _KINDS:
        if isinstance(error, kind):
            return status
    for cls in type(error).__mro__:
        if cls.__name__ in _KINDS_BY_NAME:
            return _KINDS_BY_NAME[cls.__name__]
    return "launch"
