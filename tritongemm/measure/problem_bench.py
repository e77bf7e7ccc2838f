"""The bench of one problem: operands, references and torch's error, made once and reused.

A sweep opens one bench for each problem and measures the coarse time of each candidate on it. The
same bench compares a few contenders in rounds.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from tritongemm import device as devices
from tritongemm.errors import DeviceError, ProblemError, UnsupportedError
from tritongemm.measure import clocks, host
from tritongemm.measure.comparison import Comparing
from tritongemm.measure.contender import TORCH, Contender, Measurement
from tritongemm.measure.entry import Entry, time_fields
from tritongemm.measure.event import EventTimer
from tritongemm.measure.graph import CaptureError, GraphTimer, measuring_stream
from tritongemm.measure.numerics import ErrorReport
from tritongemm.measure.operands import Rotation, draw, sets_for
from tritongemm.measure.power import PowerBlocks
from tritongemm.measure.proof import Proof, worse
from tritongemm.measure.rounds import Quantiles, Rounds, Timer, orders
from tritongemm.measure.torch_baseline import TorchBaseline, fp32_precision
from tritongemm.problem import GemmProblem, epilogue_of

#: Timed replays of a coarse measurement, and of a slow one.
_COARSE_REPLAYS, _COARSE_SLOW = 5, 2
#: A candidate slower than torch by this factor is not timed again.
_HOPELESS = 4.0
#: A candidate whose single call, timed from the host, is slower than torch by this factor is not
#: captured: one rotation could take seconds. The second value is the cost of that host timing,
#: microseconds.
_BEYOND_HOPE, _LOOK_US = 20.0, 300.0
#: Longer host timings than this are not delays of the host, microseconds. Shorter ones can be, many
#: in a row, while other processes compile on every core.
_SURELY_US = 50_000.0
#: Replays longer than this are repeated fewer times, microseconds.
_LONG_REPLAY_US = 10_000
#: Most operand sets on a CPU, where drawing hundreds takes too long.
_MOST_HOST_SETS = 8
#: Share of the device's memory that the allocator may keep unused between problems.
_IDLE_SHARE = 0.25


class ProblemBench:
    """Measures contenders of one problem on one device; close it, or use it in a ``with``.

    Args:
        problem: with at least one output.
        device: a torch device; by default the current CUDA device, or the CPU without CUDA.
        seed: of operands, samples and orders.

    Attributes:
        rotation: number of operand sets and whether they keep the cache cold.
        operands, proof: the drawn sets, and the references of some of them.
        torch_backend: the BLAS library that was faster, and the way of an epilogue ("" where
            there is no choice).
        torch_time_us: torch's time of a call, coarse.

    Raises:
        ProblemError: a problem that cannot be measured.
        UnsupportedError: torch itself cannot compute it.
        torch.OutOfMemoryError: the operands or their references do not fit.
        DeviceError: no such device, or it has failed.
    """

    def __init__(self, problem: GemmProblem, device: torch.device | str | int | None = None,
                 seed: int = 0) -> None:
        if problem.m * problem.n * problem.batch == 0:
            raise ProblemError(f"{problem} has no output; there is nothing to measure")
        self.problem, self.seed = problem, seed
        self.device = _resolve(device)
        self._on_gpu = self.device.type == "cuda"
        self.default_timer = "graph" if self._on_gpu else "host"
        self._timers: dict[str, Timer] = {}
        self.sampler = clocks.sampler(self.device.index) if self._on_gpu else clocks.Sampler()
        with self.settings():
            self.rotation = self._rotation()
            self.operands = draw(problem, sets=self.rotation.sets, seed=seed, device=self.device)
            self.proof = Proof(problem, self.operands, seed)
            self._baseline = TorchBaseline(problem, self.device)
            self.torch_backend, self._torch_times = self._choose_back_end()
            self.torch_time_us = self._torch_times.p50
            self.run_proof(self.torch_contender())
            self.proof.learn_from_torch()
            self._torch_report = self.proof.check(TORCH)

    def __enter__(self) -> ProblemBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees timers, operands and references."""
        self._timers.clear()
        self.__dict__.pop("operands", None)
        self.__dict__.pop("proof", None)
        if self._on_gpu:
            total = torch.cuda.get_device_properties(self.device).total_memory
            idle = (torch.cuda.memory_reserved(self.device)
                    - torch.cuda.memory_allocated(self.device))
            if idle > _IDLE_SHARE * total:
                torch.cuda.empty_cache()

    # --- what is asked ---------------------------------------------------------------------------

    def prove(self, contender: Contender) -> ErrorReport:
        """Runs ``contender`` on every proved set, then with operands changed in place.

        Raises whatever the contender raises.
        """
        with self.settings():
            report = self.run_proof(contender)
            return worse(report, self.run_proof_changed(contender)) if report.ok else report

    def torch_coarse(self) -> Measurement:
        """torch's coarse time, measured when its library was chosen."""
        entry = Entry(self.torch_contender())
        entry.judge(self._torch_report)
        if entry.alive:
            entry.finish(**time_fields(self._torch_times), timer=self.default_timer,
                         **self.common_fields())
        return entry.result  # type: ignore[return-value]

    def coarse(self, contender: Contender) -> Measurement:
        """Measures a candidate's coarse time: one check, one graph, a few replays, the outputs of
        the last one checked.

        The time is comparable within this bench only; there is no ratio to torch. A candidate that
        is far slower than torch in two host timings is not timed further.

        Raises:
            DeviceError: the contender has broken the device.
        """
        entry = Entry(contender)
        try:
            with self.settings():
                self._coarse(entry)
        except Exception as error:
            entry.result = self.failure(contender, error)
        self.clear()
        return entry.result  # type: ignore[return-value]

    def compare(self, contenders: Sequence[Contender], *, baseline: str = TORCH,
                rounds: Rounds | None = None, control: bool = True, power: str = "auto",
                blocks: PowerBlocks | None = None) -> dict[str, Measurement]:
        """Verifies all contenders, times the correct ones in the same rounds as torch, and checks
        them again.

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
        comparing = Comparing(self, contenders, baseline=baseline, rounds=rounds or Rounds(),
                              control=control, power=power, blocks=blocks or PowerBlocks())
        with self.settings():
            return comparing.run()

    def host_time(self, contenders: Sequence[Contender], *, blocks: int = 20,
                  calls: int = 1000) -> dict[str, tuple[Quantiles, Quantiles]]:
        """Host time of a call of each, torch included, microseconds: (same pointers, rotating).

        Only meaningful for a problem too small to fill the GPU's queue.
        """
        everyone = {c.name: c for c in (self.torch_contender(), *contenders)}
        contexts = {name: c.context for name, c in everyone.items()}
        with self.settings():
            bound = {name: self.bind(c) for name, c in everyone.items()}
            same, rotating = (
                host.host_time_us(table, blocks=blocks, calls=calls, contexts=contexts,
                                  drain=self._synchronize, seed=self.seed)
                for table in ({name: of_sets[0] for name, of_sets in bound.items()},
                              {name: host.rotating(of_sets) for name, of_sets in bound.items()}))
        return {name: (same[name], rotating[name]) for name in everyone}

    # --- what a comparison is made of ------------------------------------------------------------

    def torch_contender(self, name: str = TORCH) -> Contender:
        """The torch contender with the chosen library."""
        return self._baseline.contender(self.torch_backend, name)

    def common_fields(self) -> dict[str, object]:
        """A :class:`Measurement`'s fields that are the bench's."""
        return {"l2_state": "cold" if self.rotation.cold else "warm",
                "torch_backend": self.torch_backend}

    @contextlib.contextmanager
    def settings(self) -> Iterator[None]:
        """The problem's float32 precision, and on a GPU the measuring stream."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(fp32_precision(self.problem.compute.input_precision))
            stack.enter_context(torch.no_grad())
            if not self._on_gpu:
                yield
                return
            stack.enter_context(torch.cuda.device(self.device))
            stream, outside = measuring_stream(self.device.index), torch.cuda.current_stream()
            stream.wait_stream(outside)
            with torch.cuda.stream(stream):
                yield
            outside.wait_stream(stream)

    def timer(self, kind: str) -> Timer:
        """The bench's timer of a kind, made at first use; on a CPU always the host's."""
        kind = kind if self._on_gpu else "host"
        if kind not in self._timers:
            # Each timer runs what it has loaded itself.
            self._timers[kind] = (GraphTimer(self.device)  # type: ignore[assignment]
                                  if kind == "graph" else EventTimer(self.device)
                                  if kind == "event" else host.HostTimer())
        return self._timers[kind]

    def clear(self) -> None:
        """Frees everything that the timers have loaded."""
        for timer in self._timers.values():
            timer.clear()

    def bind(self, contender: Contender,
             sets: Sequence[int] | None = None) -> list[Callable[[], None]]:
        """One call an operand set (all by default)."""
        with contender.context():
            return [contender.bind(self.operands[i])
                    for i in (range(len(self.operands)) if sets is None else sets)]

    def run_proof(self, contender: Contender, sets: Sequence[int] | None = None) -> ErrorReport:
        """Runs and checks ``sets`` (all that are proved by default), outputs poisoned first."""
        sets = self.proof.sets if sets is None else sets
        self.operands.poison()
        calls = self.bind(contender, sets)
        with contender.context():
            for call in calls:
                call()
        return self.proof.check(contender.name, sets=sets)

    def run_proof_changed(self, contender: Contender) -> ErrorReport:
        """Checks that nothing derived from operand values outlives a call: calls, negates A and
        doubles B in place (both exact), scales what is added as the product is scaled, negates a
        factor (the argument of a derivative stays), and calls again."""
        index = self.proof.sets[0]
        one = self.operands[index]
        epilogue = epilogue_of(self.problem.epilogue)
        further = tuple(x for x in (one.d, one.bias) if x is not None)
        by, scale = -2.0, -2.0
        if epilogue.gradient_of != "none":
            further = ()
        elif epilogue.multiplies:
            by, scale = -1.0, 2.0
        call, = self.bind(contender, [index])
        self.operands.poison()
        with contender.context():
            call()
            one.a.neg_()
            one.b.mul_(2)
            for added in further:
                added.mul_(by)
            try:
                self.operands.poison()
                call()
                return self.proof.check(f"{contender.name} after its operands changed in place",
                                        sets=[index], scale=scale)
            finally:
                one.a.neg_()
                one.b.mul_(0.5)
                for added in further:
                    added.div_(by)

    def check_closing(self, entry: Entry, timer: Timer) -> None:
        """Runs one last timed replay on poisoned outputs, so that the timed code itself is checked.

        It is left out of the quantiles, since poisoning leaves the cache full of dirty lines.
        """
        self.operands.poison()
        timer.closing(entry.timed, self.proof.sets)  # type: ignore[arg-type]
        entry.judge(self.proof.check(f"{entry.name}, last timed replay",
                                     everywhere=timer.kind == "graph"))

    def failure(self, contender: Contender, error: Exception) -> Measurement:
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

    # --- inside ----------------------------------------------------------------------------------

    def _rotation(self) -> Rotation:
        if not self._on_gpu:
            return sets_for(self.problem, host.cache_bytes(), most=_MOST_HOST_SETS)
        free = torch.cuda.mem_get_info()[0]
        free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return sets_for(self.problem, devices.cuda_device(self.device.index).l2_bytes,
                        free_bytes=free)

    def _synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self.device)

    def _choose_back_end(self) -> tuple[str, Quantiles]:
        """The fastest of torch's back ends, and its times."""
        timer, loaded, failures = self.timer(self.default_timer), {}, []
        for back_end in self._baseline.back_ends:
            contender = self._baseline.contender(back_end)
            try:
                loaded[back_end] = timer.load(back_end, self.bind(contender),
                                              context=contender.context)
            except Exception as error:
                self.failure(contender, error)  # raises if the device is lost
                failures.append(error)
        if not loaded:
            if isinstance(failures[0], (torch.OutOfMemoryError, MemoryError)):
                raise failures[0]
            raise UnsupportedError(f"torch itself cannot compute {self.problem} on {self.device}, "
                                   f"so there is no baseline: {failures[0]}") from failures[0]
        items = list(loaded.values())
        slow = max(item.calls * item.estimate_us for item in items) > _LONG_REPLAY_US
        order = orders(len(items), 3 if slow else 7, np.random.default_rng(self.seed))
        flat = np.array(timer.run([items[i] for i in order.ravel()]))
        times = [flat[order.ravel() == i] for i in range(len(items))]
        timer.clear()
        best = min(range(len(items)), key=lambda i: float(np.median(times[i])))
        return items[best].name, Quantiles.of(times[best])

    def _beyond_hope(self, contender: Contender) -> tuple[float, str] | None:
        """(microseconds, the timer) of a call that is too slow to be captured, else None. Two calls
        from the host show that most are not; of the others an event timer, which the host's delays
        affect less, says how slow the kernel is."""
        limit_us = _BEYOND_HOPE * self.torch_time_us + _LOOK_US
        seen_us = math.inf
        for _ in range(2):
            seen_us = min(seen_us, self._seen_from_host(contender))
            if seen_us <= limit_us:
                return None
        if seen_us > _SURELY_US:
            return seen_us, "host"
        timer = self.timer("event")
        eager = timer.load(contender.name, self.bind(contender, self.proof.sets[:1]),
                           context=contender.context)
        seen_us = min(eager.estimate_us, *timer.run([eager]))
        return (seen_us, timer.kind) if seen_us > limit_us else None

    def _seen_from_host(self, contender: Contender) -> float:
        """Microseconds from a call to the end of its work, including launch and synchronization."""
        call, = self.bind(contender, self.proof.sets[:1])
        with contender.context():
            self._synchronize()
            start = time.perf_counter_ns()
            call()
            self._synchronize()
        return (time.perf_counter_ns() - start) * 1e-3

    def _coarse(self, entry: Entry) -> None:
        contender = entry.contender
        entry.judge(self.run_proof(contender, self.proof.sets[:1]))
        if not entry.alive:
            return
        slow = self._beyond_hope(contender) if self._on_gpu else None
        if slow is not None:
            slow_us, timer_kind = slow
            entry.finish(**time_fields(Quantiles(slow_us, slow_us, slow_us)), n_rounds=1,
                         timer=timer_kind, **self.common_fields())
            return
        entry.calls = self.bind(contender)
        timer = self.timer(self.default_timer if contender.capturable else "event")
        try:
            entry.timed = timer.load(contender.name, entry.calls, context=contender.context,
                                     expected_us=self.torch_time_us)
        except CaptureError as error:
            self.failure(contender, error)  # raises if the device is lost
            timer = self.timer("event")
            entry.timed = timer.load(contender.name, entry.calls, context=contender.context)
        seen_us = entry.timed.estimate_us
        if seen_us >= _HOPELESS * self.torch_time_us:  # or a hiccup: again
            seen_us = min(seen_us, *timer.run([entry.timed]))
        times = [seen_us]
        if seen_us < _HOPELESS * self.torch_time_us:
            slow = seen_us * entry.timed.calls > _LONG_REPLAY_US
            times = timer.run([entry.timed] * (_COARSE_SLOW if slow else _COARSE_REPLAYS))
        self.check_closing(entry, timer)
        if entry.alive:
            entry.finish(**time_fields(Quantiles.of(times)), n_rounds=len(times),
                         timer=timer.kind, **self.common_fields())


def _resolve(device: torch.device | str | int | None) -> torch.device:
    """A torch device with its index. Raises :class:`DeviceError` where there is none such."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        resolved = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"device {device!r} is not a device of torch: {error}") from error
    if resolved.type == "cpu":
        return resolved
    if resolved.type != "cuda":
        raise DeviceError(f"device {device!r} cannot be measured; use a CUDA device or cpu")
    if not torch.cuda.is_available():
        raise DeviceError("torch sees no CUDA device; `tritongemm doctor` says what is missing")
    index = torch.cuda.current_device() if resolved.index is None else resolved.index
    devices.cuda_device(index)  # raises, naming the range
    return torch.device("cuda", index)
