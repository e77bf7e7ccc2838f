"""Many cases until the time is over, in several processes, and the table of what became of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch

from .case import Case, View
from .configs import build_first, simpler
from .generate import LARGE, LONG, SMALL, Sizes, case_of
from .interpreter import round_to_nearest
from .judge import Outcome, record, run, with_configs
from .memory import forget_drawn

#: Seeds of one process; those of the next begin behind them. Modulo the number of kinds it is
#: 0.62 of that, so that the processes begin far apart.
SEEDS_A_PROCESS = 1_000_343
#: Wrong cases that one process reports in full, and runs that simplifying one may take.
_MOST_FAILURES, _SIMPLER_RUNS = 20, 60
#: For each process: NumPy, which selection uses, takes all cores otherwise.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
#: The part of a GPU's memory that torch's allocators may take, of all processes together. CUDA
#: contexts and loaded kernels take more.
_MEMORY = 0.8
_NO_MEMORY = tuple(f"torch: RuntimeError: CUDA error: CUBLAS_STATUS_{status}"
                   for status in ("EXECUTION_FAILED", "ALLOC_FAILED", "NOT_INITIALIZED"))
#: Seeds of each kind that are looked at for binaries to build.
_LOOKED_AT = 2


@dataclass
class Result:
    """Counts by (function, dtype, outcome), and the wrong cases: (seed, message, repr)."""

    counts: Counter = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Result) -> None:
        """Adds another process's."""
        self.counts += other.counts
        self.failures += other.failures
        self.seconds = max(self.seconds, other.seconds)

    @property
    def total(self) -> int:
        """Cases that ran."""
        return sum(self.counts.values())

    def to_json(self) -> dict[str, object]:
        """For ``--out``."""
        return {"cases": self.total, "seconds": round(self.seconds, 1),
                "counts": [{"function": f, "dtype": d, "outcome": o, "cases": n}
                           for (f, d, o), n in sorted(self.counts.items())],
                "failures": [{"seed": s, "message": m, "case": c} for s, m, c in self.failures]}

    def table(self) -> str:
        """By function and by dtype: one row each, outcomes as columns."""
        outcomes = ("kernel", "torch", "raises", "wrong")
        lines = [f"{'':<12}" + "".join(f"{o:>9}" for o in outcomes)]
        for place in (0, 1):
            for name in sorted({key[place] for key in self.counts}):
                lines.append(f"{name:<12}" + "".join(
                    f"{sum(n for k, n in self.counts.items() if k[place] == name and k[2] == o):>9}"
                    for o in outcomes))
        lines.append(f"{'all':<12}" + "".join(
            f"{sum(n for k, n in self.counts.items() if k[2] == o):>9}" for o in outcomes))
        return "\n".join(lines)


@dataclass(frozen=True)
class Plan:
    """What each process needs: its first seed is ``seed`` plus its number times
    :data:`SEEDS_A_PROCESS`. With a ``precision`` all cases are of float32 at that precision."""

    seed: int
    seconds: float
    cuda: bool
    host_only: bool = False
    built: frozenset[str] | None = None
    stop: int = _MOST_FAILURES
    most: int | None = None
    as_found: bool = False
    precision: str = ""

    @property
    def sizes(self) -> Sizes:
        """Of the cases."""
        return LARGE if self.cuda else LONG if self.precision else SMALL

    def case(self, seed: int) -> Case:
        """The case of a seed."""
        return case_of(seed, self.sizes, self.precision)

    @property
    def device(self) -> torch.device:
        """Where they run."""
        return torch.device("cuda" if self.cuda else "cpu")


def campaign(plan: Plan, processes: int) -> Result:
    """Runs ``plan`` in so many processes, spread over the GPUs. After an interrupt (Ctrl-C) the
    result holds what was tried until then."""
    if processes == 1:
        return work(plan, 0)
    total, context = Result(), multiprocessing.get_context("spawn")
    seeds = context.Array("q", processes, lock=False)
    stop = context.Event()
    gpus = gpus_of(plan)
    common = (seeds, stop, context.Value("i", 0), gpus)
    memory = _MEMORY / -(-processes // max(len(gpus), 1))
    with mock.patch.dict(os.environ, _ONE_THREAD), ProcessPoolExecutor(
            processes, context, begin_process, common) as pool:
        shares = [pool.submit(work, plan, i, memory) for i in range(processes)]
        for share in shares:
            try:
                total.add(_result_of(share, stop))
            except BrokenProcessPool:  # a crash ends them all, and each was at one of these
                total.counts["process", "died", "wrong"] += 1
                total.failures = [(seed, "a process died at this seed or at one that ran with it",
                                   repr(plan.case(seed))) for seed in seeds]
                break
    return total


def _result_of(share: Future[Result], stop: Any) -> Result:
    """Of one process. After an interrupt all of them end with what they have."""
    try:
        return share.result()
    except KeyboardInterrupt:
        stop.set()
        return share.result()


#: The seed that each process is at, and the event that ends them all.
_seeds: Any = None
_stop: Any = None


def begin_process(seeds: Any, stop: Any, started: Any, gpus: tuple[str, ...]) -> None:
    """In a new process: it sees one of the GPUs alone, the next for each process, and leaves an
    interrupt of the terminal to its parent."""
    global _seeds, _stop
    _seeds, _stop = seeds, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if gpus:
        with started.get_lock():
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[started.value % len(gpus)]
            started.value += 1


def gpus_of(plan: Plan) -> tuple[str, ...]:
    """The visible GPUs as ``CUDA_VISIBLE_DEVICES`` names them."""
    if not plan.cuda:
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return tuple(visible.split(",") if visible else map(str, range(torch.cuda.device_count())))


def work(plan: Plan, number: int, memory: float = 1.0) -> Result:
    """One process's share. ``memory``: the part of a GPU's memory that it may allocate."""
    torch.set_num_threads(1)
    if plan.cuda:
        torch.cuda.set_per_process_memory_fraction(memory)
    else:
        round_to_nearest()
    result, begun = Result(), time.monotonic()
    seed = plan.seed + number * SEEDS_A_PROCESS
    with contextlib.suppress(KeyboardInterrupt):
        _until_the_end(plan, number, seed, result, begun)
    result.seconds = time.monotonic() - begun
    return result


def _until_the_end(plan: Plan, number: int, seed: int, result: Result, begun: float) -> None:
    """Adds case after case to ``result``."""
    while time.monotonic() - begun < plan.seconds and len(result.failures) < plan.stop and (
            plan.most is None or result.total < plan.most) and not (_stop and _stop.is_set()):
        if _seeds is not None:
            _seeds[number] = seed
        case = plan.case(seed)
        outcome = attempt(case, plan)
        result.counts[case.function, case.dtype, outcome.kind] += 1
        if outcome.kind == "wrong":
            small, message = (case, outcome.message) if plan.as_found else simplified(
                case, outcome, lambda c: attempt(c, plan))
            result.failures.append((seed, message, repr(small)))
        seed += 1


def attempt(case: Case, plan: Plan) -> Outcome:
    """Runs a case; an error of the fuzzer itself is an outcome too, so that it is seen. Where
    torch's call alone fails with an error by which cuBLAS also reports that memory is short, unused
    memory is freed and the case runs once more."""
    try:
        outcome = run(case, plan.device, plan.built, plan.host_only)
        if outcome.message.startswith(_NO_MEMORY):
            forget_drawn()
            outcome = run(case, plan.device, plan.built, plan.host_only)
        return outcome
    except torch.OutOfMemoryError:
        return Outcome("torch", "no memory")
    except Exception as error:
        return Outcome("wrong", f"the fuzzer: {type(error).__name__}: {error}")


def prepare(plan: Plan, binaries: int) -> Plan:
    """The plan with at most so many binaries, built on all cores before the time starts.

    The first seeds of each kind of calls (:class:`~.generate.Sizes`) say which are wanted; a case
    that needs another binary later runs on torch and counts as such.
    """
    from tritongemm.device import current_device

    wanted: dict = {}
    keys: set[str] = set()
    for i in range(_LOOKED_AT * plan.sizes.kinds):
        one: dict = {}
        record(plan.case(plan.seed + i), plan.device, one)
        more = keys.union(*(key.split() for key in one)) if one else keys
        if len(more) > binaries:
            break
        keys, wanted = set(more), {**wanted, **one}
    forget_drawn()
    workers = len(os.sched_getaffinity(0))
    return replace(plan, built=build_first(wanted, current_device(), workers))


def simplified(case: Case, outcome: Outcome,
               attempt: Callable[[Case], Outcome]) -> tuple[Case, str]:
    """The simplest case found that is wrong still, and its message."""
    best, message, left = case, outcome.message, _SIMPLER_RUNS
    tried: set[str] = {repr(case)}
    again = True
    while again:
        again = False
        for other in [*with_configs(best, outcome), *_simpler(best)]:
            if repr(other) in tried:
                continue
            tried.add(repr(other))
            if left == 0:
                return best, message
            left -= 1
            found = attempt(other)
            if found.kind == "wrong" and not found.message.startswith("the fuzzer"):
                best, message, outcome, again = other, found.message, found, True
                break
    return best, message


def _simpler(case: Case) -> Iterable[Case]:
    """The case with one thing each left out."""
    plain = Case(case.function, case.operands)
    for name in ("mode", "warm", "configs", "gradients", "alpha", "beta", "activation",
                 "distribution", "precision", "dtype"):
        value = getattr(plain, name)
        if name == "activation" and case.function == "gated":
            value = "silu"
        if getattr(case, name) != value and not (name == "configs" and not isinstance(
                case.configs, int)):
            yield replace(case, **{name: value})
    if case.override and not case.function.endswith("_") and case.function != "@":
        yield replace(case, override=False)
    if case.out is not None:
        yield replace(case, out=None)
        if case.out.shares < 0:
            yield replace(case, out=_contiguous(case.out))
    for i, view in enumerate(case.operands):
        for other in (replace(view, special=()), replace(view, lazy=""),
                      replace(view, shares=-1, offset=0),
                      replace(_contiguous(view), special=view.special)):
            if other != view:
                yield replace(case, operands=(*case.operands[:i], other, *case.operands[i + 1:]))
    if not isinstance(case.configs, int) and case.configs is not None:
        for config in simpler(case.configs):
            yield replace(case, configs=config)


def _contiguous(view: View) -> View:
    strides, size = [], 1
    for extent in reversed(view.shape):
        strides.insert(0, size)
        size *= max(extent, 1)
    return replace(view, stride=tuple(strides), offset=0, shares=-1)
