"""The legal configs of the spaces for a problem, and how many each constraint removed."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tritongemm import selection
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UnsupportedError, UsageError
from tritongemm.kernels import SPECS, violation
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import problem_key
from tritongemm.records.spaces import Space, combined_hash, load_space, load_spaces


@dataclass
class PruneReport:
    """Counts of the configs of the spaces.

    Attributes:
        considered: configs of the spaces for the formats of the problem's operands.
        removed: configs that are illegal or repeat another one, by (kernel, first rule that the
            config violates).
        not_chosen: legal configs left out by ``top`` or ``subset``.
        kept: candidates.
    """

    considered: int = 0
    removed: Counter[tuple[str, str]] = field(default_factory=Counter)
    not_chosen: int = 0
    kept: int = 0

    def add(self, other: PruneReport) -> None:
        """Adds another problem's counts."""
        self.considered += other.considered
        self.removed += other.removed
        self.not_chosen += other.not_chosen
        self.kept += other.kept

    def lines(self) -> list[str]:
        """One line for the total, then one for each rule, largest count first. None where nothing
        was counted, as by the client of a cluster, whose workers choose the candidates."""
        if not self.considered:
            return []
        lines = [f"{self.kept} candidates of {self.considered} configurations"]
        lines += [f"  {count:>7} removed by {kernel}: {rule}"
                  for (kernel, rule), count in self.removed.most_common()]
        if self.not_chosen:
            lines.append(f"  {self.not_chosen:>7} legal, but not among those asked for")
        return lines


@dataclass(frozen=True)
class Candidates:
    """The configs to measure for one problem, sorted by estimated time, and those of them that
    calls use now."""

    configs: tuple[KernelConfig, ...]
    report: PruneReport
    in_use: tuple[KernelConfig, ...] = ()


class Planner(ABC):
    """Makes each problem's :class:`Candidates`: the legal configs, sorted by estimated time and cut
    to ``top`` or ``subset``. The configs that calls use now are always included, even if no space
    has them, so that a sweep measures what it would replace.

    Args:
        top: only that many, those with the least estimated time.
        subset: only that many, drawn at random with ``seed``.

    Raises:
        UsageError: counts below 1.
    """

    def __init__(self, *, top: int | None = None, subset: int | None = None, seed: int = 0
                 ) -> None:
        for name, count, option in (("top", top, "--top"), ("subset", subset, "--random")):
            if count is not None and count < 1:
                raise UsageError(f"{name}={count} ({option}) is below 1; at least one config is "
                                 "needed")
        self._top, self._subset, self._seed = top, subset, seed

    @property
    @abstractmethod
    def space_hash(self) -> str:
        """Hash of the spaces that candidates come from."""

    @abstractmethod
    def legal(self, problem: GemmProblem, device: DeviceSpec, report: PruneReport
              ) -> list[KernelConfig]:
        """The legal configs of the spaces, without repeats; counts the others in ``report``."""

    @abstractmethod
    def by_promise(self, problem: GemmProblem, device: DeviceSpec, configs: list[KernelConfig]
                   ) -> list[KernelConfig]:
        """``configs``, sorted by estimated time."""

    @abstractmethod
    def in_use(self, problem: GemmProblem, device: DeviceSpec) -> list[KernelConfig]:
        """The configs that calls use now, which a sweep may replace."""

    def __call__(self, problem: GemmProblem, device: DeviceSpec) -> Candidates:
        """The candidates of one problem; deterministic. A product with an extent of 0 has none."""
        report = PruneReport()
        if problem.batch * problem.m * problem.n * problem.k == 0:
            return Candidates((), report)
        ordered = self.by_promise(problem, device, self.legal(problem, device, report))
        chosen = ordered
        if self._subset is not None and self._subset < len(ordered):
            drawn = set(random.Random(f"{self._seed} {problem_key(problem)}")
                        .sample(ordered, self._subset))
            chosen = [config for config in ordered if config in drawn]
        if self._top is not None:
            chosen = chosen[:self._top]
        in_use = [_as_compiled(config, device) for config in self.in_use(problem, device)]
        chosen = [*(c for c in in_use if c not in chosen), *chosen]
        report.kept = len(chosen)
        report.not_chosen = len(set(ordered) - set(chosen))
        return Candidates(tuple(chosen), report, tuple(in_use))


def legal_among(configs: Iterable[KernelConfig], problem: GemmProblem, device: DeviceSpec,
                report: PruneReport) -> list[KernelConfig]:
    """The legal ones of ``configs``. ``report`` counts all of them, and the others by rule; as
    ``repeated`` those that another one compiles to as well: before sm_90 no launch begins before
    the one ahead of it has ended, whatever ``dependent_launch`` says."""
    found: dict[KernelConfig, KernelConfig] = {}
    for config in configs:
        report.considered += 1
        broken = violation(problem, config, device)
        if broken is not None:
            report.removed[config.kernel, broken.rule] += 1
            continue
        same = _as_compiled(config, device)
        if same in found:
            report.removed[config.kernel, "repeated"] += 1
        if same not in found or config == same:  # of two the one with the default, as rules choose
            found[same] = config
    return list(found.values())


def _as_compiled(config: KernelConfig, device: DeviceSpec) -> KernelConfig:
    """The config with the default of what changes nothing in the code for a device."""
    return config if device.arch >= 90 else replace(config, dependent_launch=1)


class KernelPlanner(Planner):
    """The candidates of the kernels that ``tritongemm.matmul`` runs, from the shipped spaces.

    Args:
        kernels: names of kernels; None: every kernel that has a space.
        top, subset, seed: see :class:`Planner`.

    Raises:
        UsageError: an unknown kernel, or counts below 1. DataFileError: a bad space.
    """

    def __init__(self, kernels: Sequence[str] | None = None, *, top: int | None = None,
                 subset: int | None = None, seed: int = 0) -> None:
        super().__init__(top=top, subset=subset, seed=seed)
        self.spaces: list[Space] = ([load_space(name) for name in dict.fromkeys(kernels)]
                                    if kernels is not None else
                                    [s for name, s in load_spaces().items() if name in SPECS])
        unknown = [space.kernel for space in self.spaces if space.kernel not in SPECS]
        if unknown:
            raise UsageError(f"kernel {unknown[0]!r} is not one that tritongemm.matmul runs; use "
                             f"{', '.join(SPECS)}")
        self._made: dict[tuple[str, str], tuple[KernelConfig, ...]] = {}

    @property
    def space_hash(self) -> str:
        """Hash of the spaces that candidates come from."""
        return combined_hash(self.spaces)

    def legal(self, problem: GemmProblem, device: DeviceSpec, report: PruneReport
              ) -> list[KernelConfig]:
        """See :class:`Planner`."""
        return legal_among((config for space in self.spaces
                            for config in self._configs(space, problem.operands)),
                           problem, device, report)

    def by_promise(self, problem: GemmProblem, device: DeviceSpec, configs: list[KernelConfig]
                   ) -> list[KernelConfig]:
        """Sorts by the selection's estimate."""
        return selection.by_promise(problem, device, configs)

    def in_use(self, problem: GemmProblem, device: DeviceSpec) -> list[KernelConfig]:
        """The selection's choice, if its kernel is swept."""
        try:
            present = selection.choose(problem, device).config
        except UnsupportedError:
            return []
        return [present] if present.kernel in {space.kernel for space in self.spaces} else []

    def _configs(self, space: Space, dtype: str) -> tuple[KernelConfig, ...]:
        """The space's configs. Cached: there are tens of thousands."""
        key = (space.kernel, dtype)
        if key not in self._made:
            self._made[key] = tuple(space.configs(dtype=dtype))
        return self._made[key]
