"""Sweeping the CUDA rungs of the ladder: their candidates, and what a worker does otherwise.

Everything else (journal, workers, finalists, publishing) is the sweep's own. Winners go to tables
of op ``ladder``, one row a rung, which ``tritongemm.matmul`` never reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tritongemm.baselines.cuda.rungs import CUDA_RUNGS, config_violation, rung_named
from tritongemm.baselines.cuda.rungs import violation as problem_violation
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UsageError
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem
from tritongemm.records.spaces import load_rung_space, rung_spaces
from tritongemm.tuning.candidates import Planner, PruneReport
from tritongemm.tuning.measurer import Measurer
from tritongemm.workers.builder import Builder, build_values
from tritongemm.workers.messages import Outcome

if TYPE_CHECKING:
    from tritongemm.tuning.measurer import BoundCall
    from tritongemm.tuning.sweep import SweepReport

MEASURER = "tritongemm.ladder.rung_sweep:RungMeasurer"
BUILDER = "tritongemm.ladder.rung_sweep:RungBuilder"
#: Registers a thread beside results and fragments: addresses, counters, values on their way.
_OTHER_REGISTERS = 40


class RungPlanner(Planner):
    """The candidates of one rung: its space, what is legal, the cheapest by :func:`cost` first.

    Args:
        rung: a CUDA rung that has a space.
        top, subset, seed: see :class:`~tritongemm.tuning.candidates.Planner`.

    Raises:
        UsageError: an unknown rung, one without a space, or counts below 1.
    """

    def __init__(self, rung: str, *, top: int | None = None, subset: int | None = None,
                 seed: int = 0) -> None:
        super().__init__(top=top, subset=subset, seed=seed)
        self.rung = rung_named(rung)
        self.space = load_rung_space(rung)
        unread = set(self.space.axes) - set(self.rung.axes)
        if unread:
            raise UsageError(f"the space of {rung} has axes that the rung does not read: "
                             f"{', '.join(sorted(unread))}")

    @property
    def space_hash(self) -> str:
        """Of the rung's space."""
        return self.space.hash

    def legal(self, problem: GemmProblem, device: DeviceSpec, report: PruneReport
              ) -> list[KernelConfig]:
        """See :class:`~tritongemm.tuning.candidates.Planner`; nothing for a problem that even the
        shipped parameters cannot run."""
        found: dict[KernelConfig, None] = {}
        for config in self.space.configs() if self.in_use(problem, device) else ():
            report.considered += 1
            reason = config_violation(self.rung.canonical(config), device)
            if reason is None:
                found[self.rung.canonical(config)] = None
            else:
                report.removed[self.rung.name, _rule(reason)] += 1
        return list(found)

    def by_promise(self, problem: GemmProblem, device: DeviceSpec, configs: list[KernelConfig]
                   ) -> list[KernelConfig]:
        """By :func:`cost`."""
        return sorted(configs, key=lambda c: (cost(problem, c, device), c.config_id))

    def in_use(self, problem: GemmProblem, device: DeviceSpec) -> list[KernelConfig]:
        """The shipped parameters."""
        return [v for v in self.rung.variants if problem_violation(problem, v, device) is None]


def _rule(reason: str) -> str:
    """The rule behind a reason, without its numbers."""
    if "divi" in reason or "multiple" in reason:
        return "divisibility"
    for word, rule in (("registers", "registers"), ("shared memory", "shared memory"),
                       ("threads", "threads"), ("lanes", "lanes of a warp")):
        if word in reason:
            return rule
    return "parameters"


def cost(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> float:
    """What the rung may cost on ``problem``, in multiply-adds of an SM: for an order only.

    Waves of blocks x products of a block, made dearer by the shared memory that feeds a product:
    TM + TN values serve TM TN products, and a 128-byte line of shared memory a clock feeds 128
    lanes, so a product costs ``1 + 4 (1 / TM + 1 / TN)`` while nothing hides behind another.
    """
    rung = CUDA_RUNGS[config.kernel]
    threads = rung.threads(config)
    tm, tn = max(config.thread_m, 1), max(config.thread_n, 1)
    registers = min(255, tm * tn + tm + tn + _OTHER_REGISTERS)
    shared = rung.shared(config) + rung.dynamic(config, problem.k)
    resident = max(1, min(device.registers_per_sm // (registers * threads),
                          device.blocks_by_shared(shared), 2048 // threads))
    blocks = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
    waves = -(-blocks // (device.num_sms * resident))
    # One block alone does not fill an SM's schedulers: 8 warps do.
    filled = min(1.0, resident * threads / 256)
    work = resident * config.block_m * config.block_n * problem.k / filled
    return waves * work * (1 + 4 * (1 / tm + 1 / tn))


class RungMeasurer(Measurer):
    """Measures rungs instead of Triton kernels."""

    def make(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> BoundCall:
        """Compiles and binds the rung."""
        from tritongemm.baselines.cuda.gemm import bind_cuda

        return bind_cuda(problem, config, device)


class RungBuilder(Builder):
    """Compiles rungs into the store of CUDA kernels; touches no GPU."""

    def one(self, problem: GemmProblem, config: KernelConfig) -> Outcome:
        """Compiles one config. Raises CompileError, ConstraintError."""
        from tritongemm.baselines.cuda.gemm import build

        _, report = build(rung_named(config.kernel), config, self._device, k=problem.k,
                          aligned=_aligned(problem, config))
        return Outcome("ok", values=build_values(report))

    @staticmethod
    def key(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> str:
        """One kernel serves every extent."""
        return f"{config.config_id} {device.sm} {_aligned(problem, config)}"

    @staticmethod
    def stored(key: str) -> bool:
        """Asking the store needs the compiler's version; the pool asks it in its own time."""
        return False


def _aligned(problem: GemmProblem, config: KernelConfig) -> bool:
    return all(getattr(problem, f"align_{operand}") == FULL_ALIGNMENT
               for operand in CUDA_RUNGS[config.kernel].vector)


def journal_of(journal: Path, rung: str, several: bool) -> Path:
    """Each rung's journal: a problem has one winner in a journal."""
    return journal.with_name(f"{journal.stem}-{rung}{journal.suffix}") if several else journal


def sweep_rungs(problems: Iterable[GemmProblem], journal: Path, rungs: Iterable[str], *,
                top: int | None = None, subset: int | None = None, seed: int = 0,
                **options: object) -> list[SweepReport]:
    """Sweeps one rung after another; with several, each has a journal of its own.

    Args:
        problems: fp32, nn.
        rungs: names; see :func:`~tritongemm.records.spaces.rung_spaces`.
        options: of :func:`tritongemm.tuning.sweep.sweep`.

    Raises:
        UsageError: an unknown rung, or problems that no rung can take. And as ``sweep``.
    """
    from tritongemm.tuning.sweep import sweep

    names = list(dict.fromkeys(rungs))
    problems = list(problems)
    planners = [RungPlanner(name, top=top, subset=subset, seed=seed) for name in names]
    for problem in problems:
        if problem.dtype_a != "fp32" or problem.layout != "nn" or problem.precision != "ieee":
            raise UsageError(f"{problem}: the CUDA rungs compute fp32 nn at precision ieee; use "
                             "--dtype fp32 --layout nn")
    options = {"measurer": MEASURER, "builder": BUILDER, **options}
    return [sweep(problems, journal_of(journal, planner.rung.name, len(names) > 1),
                  candidates=planner, seed=seed, **options)  # type: ignore[arg-type]
            for planner in planners]


def sweepable() -> tuple[str, ...]:
    """The rungs with a space, in the ladder's order."""
    known = rung_spaces()
    return tuple(name for name in CUDA_RUNGS if name in known)
