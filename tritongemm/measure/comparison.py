"""Compares contenders with torch: verifies them, times them in the same rounds, verifies again.

Calls that can be captured are timed with CUDA graphs. The others are timed with events in a second
group, together with the baseline. Large problems near the power cap are timed again in alternating
blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tritongemm.errors import UsageError
from tritongemm.measure.clocks import Reading
from tritongemm.measure.contender import TORCH, Contender, Measurement
from tritongemm.measure.entry import Entry, card_fields, time_fields
from tritongemm.measure.graph import CaptureError
from tritongemm.measure.power import NEAR_CAP, PowerBlocks
from tritongemm.measure.rounds import Rounds, compare
from tritongemm.records.control import CONTROL

POWER_MODES = ("auto", "always", "never")


class Bench(Protocol):
    """What a comparison needs of its bench; see
    :class:`~tritongemm.measure.problem_bench.ProblemBench`."""

    default_timer: str
    seed: int
    torch_time_us: float
    sampler: Any

    def torch_contender(self, name: str = TORCH) -> Contender: ...
    def common_fields(self) -> dict[str, object]: ...
    def timer(self, kind: str) -> Any: ...
    def clear(self) -> None: ...
    def bind(self, contender: Contender) -> list[Callable[[], None]]: ...
    def run_proof(self, contender: Contender) -> Any: ...
    def run_proof_changed(self, contender: Contender) -> Any: ...
    def check_closing(self, entry: Entry, timer: Any) -> None: ...
    def failure(self, contender: Contender, error: Exception) -> Measurement: ...


class Comparing:
    """One comparison on one bench; see :meth:`ProblemBench.compare` for the arguments.

    Raises:
        UsageError: a name twice, an unknown baseline or mode.
    """

    def __init__(self, bench: Bench, contenders: Sequence[Contender], *, baseline: str,
                 rounds: Rounds, control: bool, power: str, blocks: PowerBlocks) -> None:
        added = [bench.torch_contender()]
        if control:
            added.append(bench.torch_contender(CONTROL))
        self.entries = [Entry(c) for c in (*added, *contenders)]
        names = [e.name for e in self.entries]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two contenders are named {name!r}; {TORCH} and {CONTROL} are "
                                 "added by the bench itself")
        if baseline not in names:
            raise UsageError(f"the baseline {baseline!r} is not among {', '.join(names)}")
        if power not in POWER_MODES:
            raise UsageError(f"power={power!r} is not one of {', '.join(POWER_MODES)}")
        self.bench, self.baseline, self.rounds = bench, baseline, rounds
        self.power, self.blocks = power, blocks
        self._reading = Reading()

    def run(self) -> dict[str, Measurement]:
        """Every contender's measurement by name, torch's first."""
        for entry in self.entries:
            self._prepare(entry)
        kind = self.bench.default_timer
        # A group is loaded and released together: see graph.py on cuBLAS workspaces.
        group = [e for e in self.entries if e.alive and self._load(e, kind)]
        self._round(group, kind)
        if self._blocks_wanted(group):
            self._alternate(group)
        self.bench.clear()
        eager = [e for e in self.entries if e.alive]
        if eager:
            if self.baseline not in [e.name for e in eager]:
                base = next(e for e in self.entries if e.name == self.baseline)
                eager.insert(0, Entry(base.contender))
                self._prepare(eager[0])
            self._round([e for e in eager if e.alive and self._load(e, "event")], "event")
            self.bench.clear()
        return {e.name: e.result for e in self.entries}  # type: ignore[misc]

    def _guarded(self, entry: Entry, action: Callable[[], None]) -> None:
        """Runs ``action``. An exception becomes the entry's result; the other entries continue."""
        try:
            action()
        except CaptureError:
            raise
        except Exception as error:
            entry.result = self.bench.failure(entry.contender, error)

    def _prepare(self, entry: Entry) -> None:
        """Binds the contender and verifies its results."""
        def action() -> None:
            entry.judge(self.bench.run_proof(entry.contender))
            if entry.alive:
                entry.judge(self.bench.run_proof_changed(entry.contender))
            if entry.alive:
                entry.calls = self.bench.bind(entry.contender)

        self._guarded(entry, action)

    def _load(self, entry: Entry, kind: str) -> bool:
        """Loads the contender into the timer. False if that failed or if the call needs the event
        timer."""
        if kind == "graph" and not entry.contender.capturable:
            return False

        def action() -> None:
            entry.timed = self.bench.timer(kind).load(
                entry.name, entry.calls, context=entry.contender.context,
                expected_us=self.bench.torch_time_us)

        try:
            self._guarded(entry, action)
        except CaptureError as error:
            self.bench.failure(entry.contender, error)  # raises if the device is lost
            return False
        return entry.alive

    def _round(self, entries: list[Entry], kind: str) -> None:
        """Times ``entries`` in rounds, checks the outputs of each last replay and stores the
        results."""
        if not entries:
            return
        names = [e.name for e in entries]
        # Without its baseline (out of memory, say) the others still get their times.
        has_baseline = self.baseline in names

        def look() -> None:
            self._reading = self.bench.sampler.read()

        timer = self.bench.timer(kind)
        if self.bench.torch_time_us < self.blocks.from_us:
            # Start at the clock of this problem: a larger one before it may have lowered the clock.
            # Longer calls lower it themselves; alternating blocks are for those.
            self.bench.sampler.settle()
        outcome = compare([e.timed for e in entries], timer,  # type: ignore[misc]
                          baseline=self.baseline if has_baseline else names[0],
                          seed=self.bench.seed, rounds=self.rounds, while_busy=look)
        for entry in entries:
            self._guarded(entry, lambda e=entry: self.bench.check_closing(  # type: ignore[misc]
                e, timer))
            if not entry.alive:
                continue
            paired = {}
            if has_baseline:
                ratio = outcome.ratio(entry.name)
                paired = {"ratio_vs_torch": ratio.value, "ratio_low": ratio.low,
                          "ratio_high": ratio.high}
            entry.finish(**time_fields(outcome.time_us(entry.name)), **paired,
                         n_rounds=outcome.n_rounds, timer=timer.kind,
                         **self.bench.common_fields(), **card_fields(self._reading))

    def _blocks_wanted(self, entries: list[Entry]) -> bool:
        if self.power == "never" or self.bench.default_timer != "graph":
            return False
        if self.power == "always":
            return True
        times = [e.result.time_us_p50 or 0.0 for e in entries if e.ok and e.result]
        if max(times, default=0.0) < self.blocks.from_us:
            return False
        cap, drawn = self.bench.sampler.power_cap_w(), self._reading.power_w
        return bool(cap and drawn and drawn >= NEAR_CAP * cap) or bool(self._reading.throttled)

    def _alternate(self, entries: list[Entry]) -> None:
        """Replaces ratios and times by those of alternating blocks of the baseline and all
        contenders except the torch control."""
        base = next((e for e in entries if e.name == self.baseline and e.ok), None)
        others = [e for e in entries if e.ok and e.name not in (self.baseline, TORCH, CONTROL)]
        if base is None or not others:
            return
        group = [base, *others]
        sides = self.blocks.compare([e.timed for e in group],  # type: ignore[misc]
                                    self.bench.timer("graph"), self.bench.sampler)
        for entry, side in zip(group, sides):
            entry.result = replace(
                entry.result, **time_fields(side.time_us),  # type: ignore[type-var]
                ratio_vs_torch=side.ratio.value, ratio_low=side.ratio.low,
                ratio_high=side.ratio.high, energy_mj=side.energy_mj,
                **card_fields(side.reading), n_rounds=side.pairs, timer="blocks")
