"""What a sweep shows while it runs: nothing, plain lines, or a live display."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tritongemm.tuning.task import ProblemReport

if TYPE_CHECKING:
    from rich.console import Console

_REFRESHES_PER_S = 4
_LINE_INTERVAL_S = 30.0


@dataclass(frozen=True)
class OnDevice:
    """The state of one device: its problem, the numbers of settled and expected configs, the best
    time and torch's in microseconds, and the gain that a search expects from the rest (0.01 for 1
    %)."""

    device: str
    problem: str
    settled: int
    total: int
    best_us: float | None
    torch_us: float | None
    gain_left: float | None = None


@dataclass(frozen=True)
class Snapshot:
    """The state of the sweep; ``eta_s`` is None while unknown."""

    done: int
    problems: int
    measured: int
    failures: Counter[str]
    compiling: int
    elapsed_s: float
    eta_s: float | None
    devices: list[OnDevice] = field(default_factory=list)


class Progress:
    """Shows nothing; base class of the two displays."""

    def say(self, text: str) -> None:
        """Shows one line permanently."""

    def update(self, snapshot: Snapshot) -> None:
        """Receives the state, several times a second."""

    def closed(self, report: ProblemReport, done: int, problems: int) -> None:
        """Reports a finished problem."""
        self.say(f"[{done}/{problems}] {describe(report)}")

    def close(self) -> None:
        """Called at the end of the sweep, also after an error."""


class Plain(Progress):
    """Passes lines to ``write``: one for each problem, and one at intervals."""

    def __init__(self, write: Callable[[str], object], interval_s: float = _LINE_INTERVAL_S
                 ) -> None:
        self._write, self._interval_s = write, interval_s
        self._last = time.monotonic()

    def say(self, text: str) -> None:
        self._last = time.monotonic()
        self._write(text)

    def update(self, snapshot: Snapshot) -> None:
        if time.monotonic() - self._last >= self._interval_s:
            self.say(" | ".join([head(snapshot), *(device_line(d) for d in snapshot.devices)]))


class Live(Progress):
    """A live display on a terminal; permanent lines scroll above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live as Display

        self._console = console
        self._display = Display(console=console, refresh_per_second=_REFRESHES_PER_S,
                                transient=True)
        self._display.start()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def update(self, snapshot: Snapshot) -> None:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        self._display.update(Group(
            ProgressBar(total=max(snapshot.problems, 1), completed=snapshot.done, width=60),
            Text(head(snapshot)), *(Text("  " + device_line(d)) for d in snapshot.devices)))

    def close(self) -> None:
        self._display.stop()


def head(snapshot: Snapshot) -> str:
    """``3/40 problems, 180 configs measured, 12 compiling, failures: ..., 0:31, 6:40 left``."""
    parts = [f"{snapshot.done}/{snapshot.problems} problems",
             f"{snapshot.measured} configs measured"]
    if snapshot.compiling:
        parts.append(f"{snapshot.compiling} to compile")
    if snapshot.failures:
        parts.append("failed: " + " ".join(f"{status} {count}" for status, count
                                           in sorted(snapshot.failures.items())))
    parts.append(clock(snapshot.elapsed_s))
    if snapshot.eta_s is not None:
        parts.append(f"{clock(snapshot.eta_s)} left")
    return ", ".join(parts)


def device_line(one: OnDevice) -> str:
    """``device 0: 4096x4096x4096 bf16 nt 31/60, best 180.1 us, 0.98 of torch's speed, 0.7 % to
    gain``."""
    text = f"{one.device}: {one.problem} {one.settled}/{one.total}"
    if one.best_us is not None:
        text += f", best {one.best_us:.2f} us"
        if one.torch_us is not None:
            text += f", {one.torch_us / one.best_us:.3f} of torch's speed"
    if one.gain_left is not None:
        text += f", {100 * one.gain_left:.1f} % to gain"
    return text


def describe(report: ProblemReport) -> str:
    """A problem's result in one line."""
    text = f"{report.problem}: "
    if report.winner is None:
        text += report.note or "no winner"
    else:
        text += f"{report.winner.config_id} {report.time_us:.2f} us"
        if report.ratio_vs_torch is not None:
            text += f", {report.ratio_vs_torch:.3f} of torch's speed"
            if report.ratio_low is not None and report.ratio_high is not None:
                text += f" ({report.ratio_low:.3f} to {report.ratio_high:.3f})"
    if report.measured:
        text += f"; {report.measured} configs measured"
    if report.gain_left is not None and report.left:
        text += (f", {100 * report.gain_left:.1f} % to gain expected of the {report.left} others")
    if report.failures:
        text += "; failed: " + " ".join(f"{s} {n}" for s, n in sorted(report.failures.items()))
    return text


def clock(seconds: float) -> str:
    """``75.2`` -> ``1:15``."""
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return (f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours
            else f"{rest // 60}:{rest % 60:02}")
