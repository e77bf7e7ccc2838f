"""Compiles ahead: the kernels that selection would choose, into the store from which calls load."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.config import KernelConfig
from tritongemm.device import (
    DeviceSpec,
    cuda_device,
    current_device,
    device_named,
    within_budget,
)
from tritongemm.errors import CompileError, UnsupportedError, UsageError
from tritongemm.formats import format_named
from tritongemm.ops.float32 import default_precision
from tritongemm.problem import NOTHING_TO_MULTIPLY, GemmProblem
from tritongemm.records.suites import Shape, read_suite, suite_path
from tritongemm.selection import choose, torch_wins
from tritongemm.selection.hosttime import usual_path
from tritongemm.tuning.sweep import problem_of_item
from tritongemm.workers.builder import Builder
from tritongemm.workers.compile_pool import BUILDER, compile_all
from tritongemm.workers.messages import COMPILE, Outcome, failure

if TYPE_CHECKING:
    import torch

#: Fewer missing builds than this are compiled in this process: starting a worker takes longer.
_WORTH_A_PROCESS = 3

What = str | os.PathLike[str] | GemmProblem | Iterable[GemmProblem | Shape | tuple[int, ...]]


@dataclass(frozen=True)
class WarmupReport:
    """The result of a warm-up.

    Attributes:
        device: slug.
        problems: number of distinct problems. torchs: those among them that a call gives to torch,
            with the reason.
        binaries: number of distinct binaries that the other problems need.
        compiled, found: builds compiled now, and builds that the store already had. A build is all
            launches of one config.
        failed: (problem, reason) of builds that failed.
        seconds: wall time.
    """

    device: str
    problems: int
    torchs: tuple[tuple[GemmProblem, str], ...]
    binaries: int
    compiled: int
    found: int
    failed: tuple[tuple[GemmProblem, str], ...]
    seconds: float

    def __str__(self) -> str:
        text = (f"{_counted(self.problems, 'problem')} for {self.device}: "
                f"{_counted(self.compiled, 'config')} compiled, {self.found} already in the cache, "
                f"{_counted(self.binaries, 'binary', 'binaries')} in all, {self.seconds:.1f} s")
        if self.torchs:
            text += f"; calls of {_counted(len(self.torchs), 'problem')} go to torch"
        return text + (f"; {_counted(len(self.failed), 'config')} failed to compile"
                       if self.failed else "")


def _counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def warmup(what: What, *, dtype: str | torch.dtype = "bf16", layout: str = "nn",
           precision: str | None = None, device: DeviceSpec | str | int | None = None,
           workers: int | None = None, progress: Callable[[int, int], None] | None = None
           ) -> WarmupReport:
    """Compiles the kernels that calls of these problems need, so that the first call of each loads
    them.

    Operands are assumed to be contiguous. Nothing runs on a GPU, and if ``device`` is named, none
    is needed: binaries go to the cache folder (``TRITONGEMM_CACHE_DIR``), which may be copied.

    Args:
        what: a suite by name or path, a problem, or problems, shapes of a suite, or tuples
            (m, n, k) or (batch, m, n, k).
        dtype, layout: for items that do not state their own; ``dtype`` may be torch's.
        precision: of float32 products; None: that of calls while torch's own setting is ``ieee``.
        device: a slug of ``configs/devices``, a CUDA index or a spec; None: the current device.
        workers: number of compiling processes; by default one per core.
        progress: called with (done, total).

    Raises:
        UsageError: no problem, or an item that is not a problem. ProblemError, DataFileError,
        DeviceError: a problem, a suite or a device that cannot be used. CompileError: no compile
            process can start.
    """
    started = time.monotonic()
    if workers is not None and workers < 1:
        raise UsageError(f"workers={workers} is below 1")
    spec = within_budget(_device(device))
    problems = dict.fromkeys(_problems(what, format_named(dtype).name, layout,
                                      precision or default_precision("fp32")))
    if not problems:
        raise UsageError("no problems to warm up for")
    torchs: list[tuple[GemmProblem, str]] = []
    builds: dict[str, tuple[GemmProblem, KernelConfig]] = {}
    for problem in problems:
        if problem.batch * problem.m * problem.n * problem.k == 0:
            torchs.append((problem, NOTHING_TO_MULTIPLY))
            continue
        try:
            choice = choose(problem, spec)
        except UnsupportedError as error:
            torchs.append((problem, str(error)))
            continue
        if faster := torch_wins(problem, choice, spec, usual_path()):
            torchs.append((problem, faster))
        else:
            builds.setdefault(Builder.key(problem, choice.config, spec), (problem, choice.config))
    missing = {key: build for key, build in builds.items() if not Builder.stored(key)}
    outcomes = _build(missing, spec, workers or len(os.sched_getaffinity(0)),
                      progress or (lambda done, total: None))
    failed = tuple((missing[key][0], outcome.reason)
                   for key, outcome in outcomes.items() if not outcome.ok)
    return WarmupReport(spec.slug, len(problems), tuple(torchs),
                        len({part for key in builds for part in key.split()}),
                        len(missing) - len(failed), len(builds) - len(missing), failed,
                        time.monotonic() - started)


def _device(device: DeviceSpec | str | int | None) -> DeviceSpec:
    if device is None:
        return current_device()
    if isinstance(device, DeviceSpec):
        return device
    return device_named(device) if isinstance(device, str) else cuda_device(device)


def _problems(what: What, dtype: str, layout: str, precision: str) -> Iterable[GemmProblem]:
    if isinstance(what, (str, Path)):
        what = read_suite(suite_path(str(what)))
    elif isinstance(what, GemmProblem) or (
            isinstance(what, tuple) and what and all(isinstance(x, int) for x in what)):
        what = [what]
    elif not isinstance(what, Iterable):
        raise UsageError(f"{what!r} is no suite, problem, shape or list of them")
    for item in what:
        yield problem_of_item(item, dtype, layout, precision)


def _build(missing: dict[str, tuple[GemmProblem, KernelConfig]], device: DeviceSpec, workers: int,
           progress: Callable[[int, int], None]) -> dict[str, Outcome]:
    """The outcome of each build, by key."""
    if len(missing) < _WORTH_A_PROCESS:
        found: dict[str, Outcome] = {}
        builder = Builder(device)
        for key, build in missing.items():
            try:
                found[key] = builder.one(*build)
            except CompileError as error:
                found[key] = failure(error, COMPILE)
            progress(len(found), len(missing))
        return found
    builds = [(key, problem, config) for key, (problem, config) in missing.items()]
    return compile_all(builds, {"device": device}, target=BUILDER, workers=workers,
                       progress=progress)
