"""One problem on the bench: operands, references and torch's own error, made once, used often.

A sweep opens one bench a problem and asks it for the coarse time of each candidate; a
comparison of a few contenders in rounds is the same bench's other question.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tritongemm import device as devices
from tritongemm.errors import DeviceError, ProblemError, UsageError
from tritongemm.measure import clocks, host
from tritongemm.measure.clocks import Reading
from tritongemm.measure.contender import CONTROL, TORCH, Contender, Measurement
from tritongemm.measure.event import EventTimer
from tritongemm.measure.graph import CaptureError, GraphTimer, measuring_stream
from tritongemm.measure.numerics import ErrorReport
from tritongemm.measure.operands import Rotation, draw, sets_for
from tritongemm.measure.power import NEAR_CAP, PowerBlocks
from tritongemm.measure.proof import Proof, worse
from tritongemm.measure.rounds import Comparison, Quantiles, Rounds, Timed, Timer, compare, orders
from tritongemm.measure.torch_baseline import TorchBaseline, fp32_precision
from tritongemm.problem import GemmProblem

#: Timed replays of a coarse measurement.
_COARSE_REPLAYS = 5
#: A candidate this many times slower than torch is not timed twice.
_HOPELESS = 4.0
#: A replay longer than this is repeated less often, seconds.
_LONG_REPLAY_S = 0.01
#: On a host a rotation costs too much memory and time to draw in hundreds.
_MOST_HOST_SETS = 8
#: Share of the device's memory that the allocator may keep unused between problems.
_IDLE_SHARE = 0.25
POWER_MODES = ("auto", "always", "never")


@dataclass
class _Entry:
    """A contender on its way: calls bound, proved, loaded; or failed."""

    contender: Contender
    calls: list[Callable[[], None]] = field(default_factory=list)
    report: ErrorReport = field(default_factory=lambda: ErrorReport(0.0, 0.0, True))
    timed: Timed | None = None
    result: Measurement | None = None

    @property
    def alive(self) -> bool:
        return self.result is None

    def judge(self, report: ErrorReport) -> None:
        """Takes a check's outcome; a wrong result ends the measurement without a time."""
        self.report = worse(self.report, report)
        if not self.report.ok:
            self.result = self._with_errors(Measurement("wrong", self.report.message))

    def _with_errors(self, result: Measurement) -> Measurement:
        return replace(result, max_err_ratio=self.report.max_err_ratio,
                       rms_err_ratio=self.report.rms_err_ratio)

    def finish(self, **values: object) -> None:
        """Right and timed."""
        self.result = self._with_errors(Measurement("ok", **values))  # type: ignore[arg-type]


class ProblemBench:
    """Measures contenders of one problem on one device.

    Args:
        problem: without a fused epilogue, and with at least one output.
        device: a torch device; by default the current CUDA device, or the CPU without CUDA.
        seed: of operands, samples and orders.

    Attributes:
        rotation: number of operand sets and whether they keep the cache cold.
        torch_backend: the BLAS library that was faster ("" where there is no choice).
        torch_time_us: torch's time of a call, coarse.

    Raises:
        UsageError, ProblemError: a problem that cannot be measured.
        torch.OutOfMemoryError: the operands or their references do not fit.
        DeviceError: the device has failed; the process must be started anew.
    """

    def __init__(self, problem: GemmProblem, device: torch.device | str | int | None = None,
                 seed: int = 0) -> None:
        if problem.epilogue != "none":
            raise UsageError(f"epilogue {problem.epilogue!r} cannot be measured: there is no "
                             "baseline for it; use none")
        if problem.m * problem.n * problem.batch == 0:
            raise ProblemError(f"{problem} has no output; there is nothing to measure")
        self.problem, self.seed = problem, seed
        self.device = _resolve(device)
        self._on_gpu = self.device.type == "cuda"
        self._timers: dict[str, Timer] = {}
        self._reading = Reading()
        self._sampler = (clocks.sampler(self.device.index) if self._on_gpu else clocks.Sampler())
        with self._settings():
            self.rotation = self._rotation()
            self.operands = draw(problem, sets=self.rotation.sets, seed=seed, device=self.device)
            self.proof = Proof(problem, self.operands, seed)
            self._baseline = TorchBaseline(problem, self.device)
            self.torch_backend, self._torch_times = self._choose_library()
            self._learn_torch_error()

    def __enter__(self) -> ProblemBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of operands and references."""
        self._timers.clear()
        del self.operands, self.proof
        if self._on_gpu:
            total = torch.cuda.get_device_properties(self.device).total_memory
            idle = (torch.cuda.memory_reserved(self.device)
                    - torch.cuda.memory_allocated(self.device))
            if idle > _IDLE_SHARE * total:
                torch.cuda.empty_cache()

    @property
    def torch_time_us(self) -> float:
        return self._torch_times.p50

    @property
    def l2_state(self) -> str:
        return "cold" if self.rotation.cold else "warm"

    # -- what is asked ------------------------------------------------------------------------

    def prove(self, contender: Contender) -> ErrorReport:
        """Runs ``contender`` on every proved set, then with operands changed in place.

        Raises whatever the contender raises.
        """
        with self._settings():
            report = self._run_proof(contender, self.proof.sets)
            return worse(report, self._changed_in_place(contender)) if report.ok else report

    def torch_coarse(self) -> Measurement:
        """Torch's own coarse time, as found when its library was chosen."""
        entry = _Entry(self.torch_contender())
        entry.judge(self._torch_report)
        if entry.alive:
            entry.finish(**_times(self._torch_times), ratio_vs_torch=1.0, **self._common())
        return entry.result  # type: ignore[return-value]

    def coarse(self, contender: Contender) -> Measurement:
        """A candidate's time, fast: one proof, one graph, a few replays, the last one checked.

        The time is comparable within this bench only; there is no ratio to torch.

        Raises:
            DeviceError: the contender has broken the device.
        """
        entry = _Entry(contender)
        try:
            with self._settings():
                self._coarse(entry)
        except Exception as error:
            entry.result = self._failure(contender, error)
        self._clear()
        return entry.result  # type: ignore[return-value]

    def compare(self, contenders: Sequence[Contender], *, baseline: str = TORCH,
                rounds: Rounds | None = None, control: bool = True, power: str = "auto",
                blocks: PowerBlocks | None = None) -> dict[str, Measurement]:
        """Proves all, times the right ones in the same rounds as torch, checks them again.

        Args:
            contenders: names other than ``torch`` and ``torch-control``, which are added.
            baseline: whose time is the ratios' numerator.
            rounds: how many rounds; see :class:`~tritongemm.measure.rounds.Rounds`.
            control: whether to measure torch a second time, as ``torch-control``.
            power: ``auto`` repeats a large problem in alternating blocks where the card is near
                its power cap or throttled, ``always`` does so for any, ``never`` for none.
            blocks: their length and number.

        Returns:
            Every contender's measurement by name, torch's first.

        Raises:
            UsageError: a name twice, an unknown baseline or mode.
            DeviceError: a contender has broken the device.
        """
        entries = self._entries(contenders, baseline, control, power)
        rounds = rounds or Rounds()
        with self._settings():
            for entry in entries:
                self._prepare(entry)
            graphed = [e for e in entries if e.alive and self._load(e)]
            reading = self._round(graphed, self._timer(), baseline, rounds)
            if self._blocks_wanted(power, graphed, reading, blocks or PowerBlocks()):
                self._power_blocks(graphed, blocks or PowerBlocks())
            self._clear()
            eager = [e for e in entries if e.alive]
            if eager:
                # Torch is timed in the same way as they are, beside them.
                beside = _Entry(self.torch_contender())
                self._prepare(beside)
                timer = self._timer("event")
                group = [e for e in (beside, *eager) if e.alive and self._load(e, "event")]
                self._round(group, timer, TORCH, rounds)
        return {e.contender.name: e.result for e in entries}  # type: ignore[misc]

    def host_time(self, contenders: Sequence[Contender], *, blocks: int = 20,
                  calls: int = 1000) -> dict[str, tuple[Quantiles, Quantiles]]:
        """Host time of a call of each, torch included, microseconds: (same pointers, rotating).

        Means something on a problem too small to fill the device's queue.
        """
        everyone = {c.name: c for c in (self.torch_contender(), *contenders)}
        with self._settings():
            bound = {name: self._bind(c, range(len(self.operands)))
                     for name, c in everyone.items()}
            contexts = {name: c.context for name, c in everyone.items()}
            same, rotating = (
                host.host_time_us(table, blocks=blocks, calls=calls, contexts=contexts,
                                  drain=self._synchronize, seed=self.seed)
                for table in ({name: calls[0] for name, calls in bound.items()},
                              {name: host.rotating(calls) for name, calls in bound.items()}))
        return {name: (same[name], rotating[name]) for name in everyone}

    def torch_contender(self, name: str = TORCH) -> Contender:
        """Torch on the library that was chosen."""
        return self._baseline.contender(self.torch_backend, name)

    # -- how it is answered -------------------------------------------------------------------

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """The problem's float32 precision, and on a GPU the measuring stream."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(fp32_precision(self.problem.precision))
            stack.enter_context(torch.no_grad())
            if self._on_gpu:
                stack.enter_context(torch.cuda.device(self.device))
                stream = measuring_stream(self.device.index)
                stream.wait_stream(torch.cuda.current_stream())
                stack.enter_context(torch.cuda.stream(stream))
            yield

    def _rotation(self) -> Rotation:
        if not self._on_gpu:
            cache = host.cache_bytes()
            rotation = sets_for(self.problem, cache)
            return (rotation if rotation.sets <= _MOST_HOST_SETS
                    else Rotation(_MOST_HOST_SETS, False))
        free = torch.cuda.mem_get_info()[0]
        free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return sets_for(self.problem, devices.cuda_device(self.device.index).l2_bytes,
                        free_bytes=free)

    def _timer(self, kind: str = "") -> Timer:
        kind = kind or ("graph" if self._on_gpu else "host")
        if not self._on_gpu:
            kind = "host"
        if kind not in self._timers:
            self._timers[kind] = (GraphTimer(self.device) if kind == "graph" else
                                  EventTimer(self.device) if kind == "event" else
                                  host.HostTimer())
        return self._timers[kind]

    def _synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self.device)

    def _clear(self) -> None:
        for timer in self._timers.values():
            timer.clear()

    def _bind(self, contender: Contender, indices: Sequence[int]) -> list[Callable[[], None]]:
        with contender.context():
            return [contender.bind(self.operands[i]) for i in indices]

    def _choose_library(self) -> tuple[str, Quantiles]:
        """The faster of torch's libraries, and its times."""
        timer, loaded, failures = self._timer(), {}, []
        for library in self._baseline.libraries:
            contender = self._baseline.contender(library)
            try:
                loaded[library] = timer.load(contender.name,
                                             self._bind(contender, range(len(self.operands))),
                                             context=contender.context)
            except Exception as error:
                self._failure(contender, error)  # raises if the device is broken
                failures.append(error)
        if not loaded:
            raise failures[0]
        names = list(loaded)
        slow = max(t.calls * t.estimate_us for t in loaded.values()) > _LONG_REPLAY_S * 1e6
        order = orders(len(names), 3 if slow else 7, np.random.default_rng(self.seed))
        flat = timer.run([loaded[names[i]] for i in order.ravel()])
        times = {name: [t for t, i in zip(flat, order.ravel(), strict=True) if names[i] == name]
                 for name in names}
        timer.clear()
        best = min(names, key=lambda name: float(np.median(times[name])))
        return best, Quantiles.of(times[best])

    def _learn_torch_error(self) -> None:
        self._run_proof(self.torch_contender(), self.proof.sets)
        self.proof.learn_from_torch()
        self._torch_report = self.proof.check(TORCH)

    def _run_proof(self, contender: Contender, sets: Sequence[int], *,
                   scale: float = 1.0) -> ErrorReport:
        """Runs and checks ``sets``, eagerly, outputs poisoned first."""
        self.operands.poison()
        calls = self._bind(contender, sets)
        with contender.context():
            for call in calls:
                call()
        changed = " after its operands changed in place" if scale != 1.0 else ""
        return self.proof.check(contender.name + changed, sets=sets, scale=scale)

    def _changed_in_place(self, contender: Contender) -> ErrorReport:
        """Once more with A negated and B doubled, exact both: nothing of the values may be kept."""
        index = self.proof.sets[0]
        one = self.operands[index]
        one.a.neg_()
        one.b.mul_(2)
        try:
            return self._run_proof(contender, [index], scale=-2.0)
        finally:
            one.a.neg_()
            one.b.mul_(0.5)

    def _coarse(self, entry: _Entry) -> None:
        contender = entry.contender
        entry.judge(self._run_proof(contender, self.proof.sets[:1]))
        if not entry.alive:
            return
        entry.calls = self._bind(contender, range(len(self.operands)))
        kind = "" if contender.capturable else "event"
        try:
            timed = self._timer(kind).load(contender.name, entry.calls, context=contender.context,
                                           expected_us=self.torch_time_us)
        except CaptureError:
            kind = "event"
            timed = self._timer(kind).load(contender.name, entry.calls, context=contender.context)
        timer = self._timer(kind)
        times = [timed.estimate_us]
        if timed.estimate_us < _HOPELESS * self.torch_time_us:
            slow = timed.estimate_us * timed.calls > _LONG_REPLAY_S * 1e6
            times = timer.run([timed] * (2 if slow else _COARSE_REPLAYS))
        self._check_closing(entry, timed, timer)
        if entry.alive:
            entry.finish(**_times(Quantiles.of(times)), n_rounds=len(times), timer=timer.kind,
                         **self._common())

    def _check_closing(self, entry: _Entry, timed: Timed, timer: Timer) -> None:
        """The last timed replay, poisoned before: what was timed is what is right."""
        self.operands.poison()
        timer.closing(timed, self.proof.sets)
        entry.judge(self.proof.check(f"{entry.contender.name}, last timed replay",
                                     everywhere=timer.kind == "graph"))

    def _entries(self, contenders: Sequence[Contender], baseline: str, control: bool,
                 power: str) -> list[_Entry]:
        added = [self.torch_contender()]
        if control:
            added.append(self.torch_contender(CONTROL))
        entries = [_Entry(c) for c in (*added, *contenders)]
        names = [e.contender.name for e in entries]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two contenders are named {name!r}; {TORCH} and {CONTROL} are "
                                 "added by the bench itself")
        if baseline not in names:
            raise UsageError(f"the baseline {baseline!r} is not among {', '.join(names)}")
        if power not in POWER_MODES:
            raise UsageError(f"power={power!r} is not one of {', '.join(POWER_MODES)}")
        return entries

    def _guarded(self, entry: _Entry, action: Callable[[], None]) -> None:
        """Runs ``action``; an exception becomes the entry's result and the others go on."""
        try:
            action()
        except CaptureError:
            raise
        except Exception as error:
            entry.result = self._failure(entry.contender, error)

    def _prepare(self, entry: _Entry) -> None:
        """Proves and binds."""
        def action() -> None:
            # Torch's own limits come from itself; the rest also face changed operands.
            entry.judge(self._run_proof(entry.contender, self.proof.sets))
            if entry.alive:
                entry.judge(self._changed_in_place(entry.contender))
            if entry.alive:
                entry.calls = self._bind(entry.contender, range(len(self.operands)))

        self._guarded(entry, action)

    def _load(self, entry: _Entry, kind: str = "") -> bool:
        """Makes ready for a timer; False where that failed, or where events must time it."""
        if not kind and self._on_gpu and not entry.contender.capturable:
            return False

        def action() -> None:
            entry.timed = self._timer(kind).load(
                entry.contender.name, entry.calls, context=entry.contender.context,
                expected_us=self.torch_time_us)

        try:
            self._guarded(entry, action)
        except CaptureError:
            return False
        return entry.alive

    def _round(self, entries: list[_Entry], timer: Timer, baseline: str,
               rounds: Rounds) -> Reading:
        """Times ``entries`` in rounds, checks each one's closing replay, writes the results."""
        if not entries:
            return Reading()
        names = [e.contender.name for e in entries]
        # Without its baseline (out of memory, say) the others still get their times.
        has_baseline = baseline in names

        def look() -> None:
            self._reading = self._sampler.read()

        outcome = compare([e.timed for e in entries], timer,  # type: ignore[misc]
                          baseline=baseline if has_baseline else names[0], seed=self.seed,
                          rounds=rounds, while_busy=look)
        reading = self._reading
        for entry in entries:
            self._guarded(entry, lambda e=entry: self._check_closing(  # type: ignore[misc]
                e, e.timed, timer))
            if entry.alive:
                entry.finish(**_times(outcome.time_us(entry.contender.name)),
                             **(_ratio(outcome, entry.contender.name) if has_baseline else {}),
                             n_rounds=outcome.n_rounds, timer=timer.kind,
                             **self._common(), **_card(reading))
        return reading

    def _common(self) -> dict[str, object]:
        return {"l2_state": self.l2_state, "torch_backend": self.torch_backend}

    def _blocks_wanted(self, power: str, entries: list[_Entry], reading: Reading,
                       blocks: PowerBlocks) -> bool:
        if power == "never" or not self._on_gpu:
            return False
        if power == "always":
            return True
        times = [e.result.time_us_p50 for e in entries if e.result and e.result.ok]
        if not times or max(times) < blocks.from_us:
            return False
        cap = self._sampler.power_cap_w()
        near = bool(cap and reading.power_w and reading.power_w >= NEAR_CAP * cap)
        return near or bool(reading.throttled)

    def _power_blocks(self, entries: list[_Entry], blocks: PowerBlocks) -> None:
        """Replaces ratios and times by those of alternating blocks, each contender with torch."""
        timer = self._timer("graph")
        base = next((e for e in entries if e.contender.name == TORCH), None)
        if base is None or not base.result or not base.result.ok:
            return
        for entry in entries:
            name = entry.contender.name
            if name in (TORCH, CONTROL) or not entry.result or not entry.result.ok:
                continue
            found = blocks.compare(base.timed, entry.timed, timer,  # type: ignore[arg-type]
                                   self._sampler)
            entry.result = replace(
                entry.result, **_times(found.b.time_us), ratio_vs_torch=found.ratio.value,
                ratio_low=found.ratio.low, ratio_high=found.ratio.high, n_rounds=found.pairs,
                timer="blocks", energy_mj=found.b.energy_mj, **_card(found.b.reading))
            base.result = replace(
                base.result, **_times(found.a.time_us), n_rounds=found.pairs, timer="blocks",
                energy_mj=found.a.energy_mj, **_card(found.a.reading))

    def _failure(self, contender: Contender, error: Exception) -> Measurement:
        """The record of an exception. Raises :class:`DeviceError` where the device is lost."""
        if self._on_gpu:
            try:
                self._synchronize()
            except RuntimeError as lost:
                raise DeviceError(f"{contender.name} on {self.problem} broke the device "
                                  f"({' '.join(str(error).split())[:300]}); this process can no "
                                  "longer use it and must be started anew") from lost
            if isinstance(error, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
        return Measurement.failed(error)


def _resolve(device: torch.device | str | int | None) -> torch.device:
    """A torch device with its index. Raises :class:`DeviceError` where there is none such."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if resolved.type == "cpu":
        return resolved
    if resolved.type != "cuda":
        raise DeviceError(f"device {device!r} cannot be measured; use a CUDA device or cpu")
    if not torch.cuda.is_available():
        raise DeviceError("torch sees no CUDA device; `tritongemm doctor` says what is missing")
    index = torch.cuda.current_device() if resolved.index is None else resolved.index
    devices.cuda_device(index)  # raises, naming the range
    return torch.device("cuda", index)


def _times(quantiles: Quantiles) -> dict[str, float]:
    return {"time_us_p50": quantiles.p50, "time_us_p20": quantiles.p20,
            "time_us_p80": quantiles.p80}


def _ratio(outcome: Comparison, name: str) -> dict[str, float]:
    ratio = outcome.ratio(name)
    return {"ratio_vs_torch": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}


def _card(reading: Reading) -> dict[str, object]:
    return {"sm_clock_mhz": reading.sm_clock_mhz, "power_w": reading.power_w,
            "throttled": reading.throttled}
