"""The state of one contender during a measurement: bound, verified, loaded, timed or failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tritongemm.measure.clocks import Reading
from tritongemm.measure.contender import Contender, Measurement
from tritongemm.measure.numerics import ErrorReport
from tritongemm.measure.proof import worse
from tritongemm.measure.rounds import Quantiles, Timed


@dataclass
class Entry:
    """One contender, its prepared calls and, once known, its result."""

    contender: Contender
    calls: list[Callable[[], None]] = field(default_factory=list)
    report: ErrorReport = field(default_factory=lambda: ErrorReport(0.0, 0.0, True))
    timed: Timed | None = None
    result: Measurement | None = None

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def alive(self) -> bool:
        """Whether the contender has neither failed nor finished."""
        return self.result is None

    @property
    def ok(self) -> bool:
        """Whether the result is correct and timed."""
        return self.result is not None and self.result.ok

    def judge(self, report: ErrorReport) -> None:
        """Records the outcome of a check. A wrong result ends the measurement without a time."""
        self.report = worse(self.report, report)
        if not self.report.ok:
            self.result = self._with_errors(Measurement("wrong", self.report.message))

    def finish(self, **values: object) -> None:
        """Finishes with a correct, timed result. ``values`` are fields of :class:`Measurement`."""
        self.result = self._with_errors(Measurement("ok", **values))  # type: ignore[arg-type]

    def _with_errors(self, result: Measurement) -> Measurement:
        return replace(result, max_err_ratio=self.report.max_err_ratio,
                       rms_err_ratio=self.report.rms_err_ratio)


def time_fields(quantiles: Quantiles) -> dict[str, float]:
    """A :class:`Measurement`'s time fields."""
    return {"time_us_p50": quantiles.p50, "time_us_p20": quantiles.p20,
            "time_us_p80": quantiles.p80}


def card_fields(reading: Reading) -> dict[str, object]:
    """A :class:`Measurement`'s fields of the card."""
    return {"sm_clock_mhz": reading.sm_clock_mhz, "power_w": reading.power_w,
            "throttled": reading.throttled}
