"""The entry point of the sweep: :func:`sweep` for a journal, :func:`tune` for Python."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm import selection, settings
from tritongemm.device import DeviceSpec
from tritongemm.errors import UsageError
from tritongemm.formats import format_named
from tritongemm.notebook import table
from tritongemm.ops.float32 import default_precision
from tritongemm.problem import GemmProblem
from tritongemm.records.run import new_run_id
from tritongemm.records.suites import Shape
from tritongemm.tuning.candidates import Candidates, KernelPlanner, PruneReport
from tritongemm.tuning.expected_device import expected_device
from tritongemm.tuning.loop import Loop
from tritongemm.tuning.options import Options
from tritongemm.tuning.progress import Progress
from tritongemm.tuning.search import GAIN
from tritongemm.tuning.sweep_journal import RowSink, check_journal
from tritongemm.tuning.task import ProblemReport
from tritongemm.workers.compile_pool import BUILDER, COMPILE_TIMEOUT_S

if TYPE_CHECKING:
    import torch

    from tritongemm.tuning.publish import PublishReport

MEASURER = "tritongemm.tuning.measurer:Measurer"
PER_CONFIG_TIMEOUT_S = 20.0
#: Default number of finalists. The coarse stage cannot rank configs that are 1 % apart: for 59 of
#: the 95 problems of ``bf16_cold_mid-top`` the winner ranks fifth or lower there, and is 0.9 %
#: faster than the first four.
FINALISTS = 9
#: How to choose the configs to measure: by the model until it expects too little gain, all configs,
#: or a random sample.
SEARCHES = ("model", "full", "random")
#: Default size of the ``random`` sample.
RANDOM = 150


@dataclass(frozen=True)
class SweepReport:
    """The result of a sweep.

    Attributes:
        run_id, journal, device: of this run. The journal is None if records went to a function; the
            device is a slug.
        problems: one report for each problem, in the order in which they ended.
        prune: how many configs each rule removed, over all problems.
        measured: configs with an outcome of this run; resumed: configs measured by earlier runs (on
            a cluster: problems finished by them).
        failures: outcomes other than ok of this run, by status.
        wall_s, gpu_busy_s, compile_s: seconds; compile_s summed over the processes.
        gpu_waited_s: seconds that a device waited while configs were being compiled.
        stopped: ``budget`` if time ran out before every problem was begun, else "".
        published: what :func:`tune` published.
    """

    run_id: str
    journal: Path | None
    device: str
    problems: tuple[ProblemReport, ...]
    prune: PruneReport
    measured: int
    resumed: int
    failures: Mapping[str, int]
    wall_s: float
    gpu_busy_s: float
    gpu_waited_s: float
    compile_s: float
    stopped: str = ""
    published: PublishReport | None = None

    @property
    def winners(self) -> tuple[ProblemReport, ...]:
        """The problems that have a winner of this run."""
        return tuple(p for p in self.problems if p.winner is not None)

    def _repr_html_(self) -> str:
        rows = [(p.problem, p.winner.config_id if p.winner else p.note,
                 "" if p.time_us is None else f"{p.time_us:.2f}",
                 "" if p.ratio_vs_torch is None else f"{p.ratio_vs_torch:.3f}")
                for p in self.problems]
        return table(("problem", "config", "us", "torch time / ours"), rows,
                     f"{self.measured} configs measured in {self.wall_s:.0f} s on {self.device}")

    @property
    def gpu_waited_share(self) -> float:
        """Share of the devices' time that was lost waiting for compilation."""
        total = self.gpu_busy_s + self.gpu_waited_s
        return self.gpu_waited_s / total if total else 0.0


def sweep(problems: Iterable[GemmProblem], journal: str | os.PathLike[str] | RowSink, *,
          devices: Sequence[int | None] | None = (0,), kernels: Sequence[str] | None = None,
          top: int | None = None, subset: int | None = None, budget_s: float | None = None,
          share_budget: bool = True, search: str | None = None, gain: float = GAIN,
          resume: bool = False, compile_workers: int | None = None,
          per_config_timeout_s: float = PER_CONFIG_TIMEOUT_S,
          compile_timeout_s: float = COMPILE_TIMEOUT_S, finalists: int = FINALISTS,
          seed: int = 0, progress: Progress | None = None,
          candidates: Callable[[GemmProblem, DeviceSpec], Candidates] | None = None,
          measurer: str = MEASURER, measurer_arguments: Mapping[str, object] | None = None,
          builder: str = BUILDER, loop_type: Callable[..., Loop] = Loop,
          expect: Callable[[int | None], DeviceSpec | None] | None = None) -> SweepReport:
    """Measures the candidates of each problem and journals every outcome as it happens.

    Args:
        problems: repeated ones are left out.
        journal: the file. An existing file is refused unless ``resume`` is set; then nothing that
            was measured in the same environment is repeated. Or a
            :class:`~tritongemm.tuning.sweep_journal.RowSink`, which hands each record to a function
            and has its own ``known`` records in place of ``resume``.
        devices: CUDA indices, each taking the next problem; None: all; (None,): the CPU, by
            Triton's interpreter.
        kernels, top, subset: see :class:`~tritongemm.tuning.candidates.KernelPlanner`.
        search: which candidates are measured. ``model``: batches chosen by the selection's model
            and the times so far, until the expected gain of the rest is below ``gain``
            (``search.py``). ``full``: all. ``random``: ``subset``, by default :data:`RANDOM`. None:
            ``model``, and ``full`` where ``top``, ``subset`` or ``candidates`` name what to
            measure.
        gain: 0.01 for 1 % of the fastest time.
        budget_s: seconds for the whole sweep, shared evenly among the problems. Measurements in
            progress are finished, so a sweep may take a few seconds more.
        share_budget: False: the problems are swept in their order until the budget is used up.
        compile_workers: number of processes; by default one per core.
        per_config_timeout_s: limit for checking and timing one config. A worker that takes longer
            is ended, and the config's status is ``timeout``.
        compile_timeout_s: limit for compiling one config.
        finalists: at most that many of each problem are measured again, interleaved with torch.
        seed: seed of operands, orders and ``subset``.
        progress: what to show; nothing by default.
        candidates, measurer, measurer_arguments, builder: replacements of these parts.
        loop_type: makes the loop; a cluster's worker uses one that receives problems while it runs.
        expect: describes the device of an index before its worker is ready, so that the first
            problem is planned and compiled meanwhile; by default the driver does, for the default
            measurer.

    Raises:
        UsageError: a bad argument, or a journal that exists. DataFileError: a journal that cannot
            be used or written. DeviceError: no usable device. CompileError: no process that
            compiles can start.
        KeyboardInterrupt: on SIGINT or SIGTERM, with all processes ended and the journal whole.
    """
    for name, value in (("budget_s", budget_s), ("per_config_timeout_s", per_config_timeout_s),
                        ("compile_timeout_s", compile_timeout_s)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{name}={value} is not a positive number of seconds")
    for name, count in (("finalists", finalists), ("compile_workers", compile_workers)):
        if count is not None and count < 1:
            raise UsageError(f"{name}={count} is below 1")
    named = candidates is not None or top is not None or subset is not None
    search = search or ("full" if named else "model")
    if search not in SEARCHES:
        raise UsageError(f"search={search!r} is not one of {', '.join(SEARCHES)}")
    if not 0 < gain < 1:
        raise UsageError(f"gain={gain} is not a share between 0 and 1, such as 0.01 for 1 %")
    if search == "random":
        subset = RANDOM if subset is None else subset
    elif search == "model" and subset is not None:
        raise UsageError("configs drawn at random are all measured; leave out the search")
    if devices is not None and not devices:
        raise UsageError("no device named; give indices, or None for all")
    where = journal if isinstance(journal, RowSink) else check_journal(journal, resume)
    if candidates is None:
        candidates = KernelPlanner(kernels, top=top, subset=subset, seed=seed)
    space_hash = getattr(candidates, "space_hash", "none")
    options = Options(
        devices=tuple(devices) if devices is not None else None, budget_s=budget_s,
        compile_workers=compile_workers or len(os.sched_getaffinity(0)),
        per_config_timeout_s=per_config_timeout_s, compile_timeout_s=compile_timeout_s,
        finalists=finalists, seed=seed, measurer=measurer,
        measurer_arguments=dict(measurer_arguments or {}), builder=builder,
        gain=gain if search == "model" else None, share_budget=share_budget,
        expect=expect or (expected_device if measurer == MEASURER else None))
    loop = loop_type(list(problems), candidates, space_hash, where, options, progress or Progress())
    loop.run()
    found = loop.problems
    return SweepReport(
        run_id=loop.run_id, journal=None if isinstance(where, RowSink) else where,
        device=loop.device, problems=tuple(found.reports),
        prune=found.prune, measured=found.measured, resumed=found.resumed,
        failures=dict(Counter(found.failures)), wall_s=loop.wall_s, gpu_busy_s=loop.gpu_busy_s,
        gpu_waited_s=loop.gpu_waited_s, compile_s=loop.compile_s, stopped=loop.stopped)


def tune(problems: Iterable[GemmProblem | Shape | tuple[int, ...]], *,
         dtype: str | torch.dtype = "bf16", layout: str = "nn", precision: str | None = None,
         publish: bool = True, journal: str | os.PathLike[str] | None = None,
         **options: object) -> SweepReport:
    """Finds the best config of each problem on this machine's GPU, for ``tritongemm.matmul``.

    Args:
        problems: problems, shapes of a suite, or tuples (m, n, k) or (batch, m, n, k).
        dtype, layout: for items that do not state their own; ``dtype`` may be torch's.
        precision: of float32 products; None: that of calls while torch's own setting is ``ieee``.
        publish: whether to write the winners to the tuned tables, which ``tritongemm.matmul`` uses
            from the next call on. A row of another config is replaced by a faster one only.
        journal: by default a new file in the cache folder.
        options: of :func:`sweep`, e.g. ``top=60, budget_s=120, devices=None``.

    Returns:
        The report; ``report.winners`` has configs, times and ratios to torch.

    Raises:
        ProblemError: a problem that cannot exist. Otherwise as :func:`sweep`.
    """
    from dataclasses import replace

    from tritongemm.tuning.publish import publish as publish_journals

    precision = precision or default_precision("fp32")
    dtype = format_named(dtype).name
    wanted = [problem_of_item(item, dtype, layout, precision) for item in problems]
    if not wanted:
        raise UsageError("no problems to tune")
    path = (Path(journal) if journal is not None else
            settings.cache_root() / "journals" / f"tune-{new_run_id()}.jsonl")
    report = sweep(wanted, path, **options)  # type: ignore[arg-type]
    if publish:
        report = replace(report, published=publish_journals([path]))
        selection.reload()
    return report


def problem_of_item(item: object, dtype: str, layout: str, precision: str) -> GemmProblem:
    """A problem, a shape of a suite or a tuple as a problem. Raises :class:`UsageError`."""
    if isinstance(item, GemmProblem):
        return item
    if isinstance(item, (tuple, list)) and len(item) in (3, 4):
        batch, m, n, k = item if len(item) == 4 else (1, *item)
        item = Shape(m, n, k, batch)
    if isinstance(item, Shape):
        return item.problem(dtype=dtype, layout=layout, precision=precision)
    raise UsageError(f"{item!r} is no problem; use a GemmProblem, (m, n, k) or (batch, m, n, k)")
