"""Batch invariance: a row of the result has the same bits whatever rows are computed with it.

A row of C is a sum over K. Its bits do not change if the same instructions add the same products in
the same order (``kernels/sum_order.py``). So a class of configs with one order of summation serves
all M and batches of an N, K, dtypes, layout and epilogue, and each M takes the fastest config of
the class.

The class is chosen by N, K, dtypes, layout, alignment and epilogue, never by M: the one whose
fastest configs have the least predicted time, averaged over sizes of M that stand for all. It has a
config that runs every M without scratch memory. A kernel that does not describe its order has
classes of one config each, which then must not split K, copy operands or swap them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, whole
from tritongemm.errors import UnsupportedError
from tritongemm.kernels import SPECS, gluon_support, violation
from tritongemm.kernels.sum_order import SumOrder
from tritongemm.problem import GemmProblem, divisor_of
from tritongemm.selection import shipped
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import Model, model_for
from tritongemm.selection.work import footprint_of, keeps_to_the_budget
from tritongemm.settings import config_root

#: The sizes of M that predicted times are averaged over.
STAND_INS = (1, 4, 16, 64, 256, 1024, 4096)
#: A class should have a config that is legal up to this M; one for :data:`STAND_INS` is enough.
_LARGEST = 2**20


@dataclass(frozen=True)
class SumClass:
    """Configs that sum an element of C in one order.

    Attributes:
        order: theirs; None: the class is ``config`` alone.
        config: the member that serves every M and takes no scratch.
        persistent: whether a member launches at most one program an SM, as a budget of SMs wants.
    """

    order: SumOrder | None
    config: KernelConfig
    persistent: bool

    def holds(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
        """Whether ``config`` belongs to the class."""
        if self.order is None or config == self.config:
            return config == self.config
        return (config.kernel in SPECS
                and SPECS[config.kernel].sum_order(problem, config, device) == self.order)

    def __str__(self) -> str:
        return "one config for every M" if self.order is None else f"every M summed by {self.order}"


def sum_class(problem: GemmProblem, device: DeviceSpec) -> SumClass:
    """The class of every problem that differs from ``problem`` in M and batch alone. A budget of
    SMs does not change it, unless no member is persistent.

    Raises:
        UnsupportedError: no class of the shipped configs serves all of them.
    """
    asked = _of_every_m(problem)
    found = _sum_class(asked, whole(device), str(config_root()), gluon_support.obstacle())
    if device.spare_sms and not found.persistent:
        found = _sum_class(asked, device, str(config_root()), gluon_support.obstacle())
    return found


def forget() -> None:
    """Forgets the choices made so far."""
    _sum_class.cache_clear()


def _of_every_m(problem: GemmProblem) -> GemmProblem:
    """``problem`` with an M and a batch that stand for all, and the alignment that A and C have at
    every M: a single row is aligned as its base address, several only as their leading dimension
    allows."""
    a, c = problem.a.format, problem.c.format
    rows = divisor_of(a.bytes_of(problem.k)) if problem.layout[0] == "n" else a.bytes_of(1)
    return replace(problem, m=STAND_INS[-1], batch=1, align_a=min(problem.align_a, rows),
                   align_c=min(problem.align_c, divisor_of(c.bytes_of(problem.columns))))


@functools.lru_cache(maxsize=1024)
def _sum_class(problem: GemmProblem, device: DeviceSpec, root: str,
               no_gluon: str | None) -> SumClass:
    """``root`` and ``no_gluon`` are part of the cache's key: the choice depends on both."""
    model = model_for(problem, device)
    for configs in (lambda: [c for c in model.candidates if c.kernel in SPECS],
                    lambda: [c for c in shipped.configs(problem) if model.knows(c)],
                    lambda: [c for c in shipped.configs(problem) if SPECS[c.kernel].by_rule],
                    lambda: shipped.configs(problem)):
        listed = configs()
        for persistent in (True, False) if device.spare_sms else (False,):
            if (found := _best_class(problem, listed, model, device, persistent)) is not None:
                return found
    raise UnsupportedError(f"no shipped config runs {problem} for every M with rows that do "
                           "not depend on M; unset TRITONGEMM_BATCH_INVARIANT to run it")


def _best_class(problem: GemmProblem, configs: Sequence[KernelConfig], model: Model,
                device: DeviceSpec, persistent: bool) -> SumClass | None:
    """The class of ``configs`` with the least sum of logarithms of predicted times, each the
    fastest legal member's at a size of M; None: none serves all of them.

    Only a calibrated model is trusted to choose ranges of K. Such a class must have a persistent
    member, and with ``persistent`` any class.
    """
    if not configs:
        return None
    problems = [replace(problem, m=m) for m in STAND_INS]
    columns = Columns(configs)
    logs = np.log([model.times(p, columns) for p in problems])  # [sizes of M, configs]
    members: dict[SumOrder | KernelConfig, list[int]] = {}
    for i, config in enumerate(configs):
        order = SPECS[config.kernel].sum_order(problem, config, device)
        if order is not None or config.split_k == 1 and not config.pad_operands | config.swap_ab:
            members.setdefault(config if order is None else order, []).append(i)
    bounds = {key: logs[:, index].min(axis=1).sum() for key, index in members.items()}
    best, least = None, math.inf
    for key in sorted(members, key=bounds.__getitem__):
        if bounds[key] >= least:
            break
        index = np.array(members[key])
        order = key if isinstance(key, SumOrder) else None
        ranges = order is not None and order.range_k > 0
        if ranges and model.section is None:
            continue
        steady = _persistent(problems, configs, index, device)
        if not steady and (ranges or persistent):
            continue
        score = sum(_least(p, configs, index, row, device) for p, row in zip(problems, logs))
        every = _for_every_m(problem, configs, index, logs, device) if score < least else None
        if every is not None:
            best, least = SumClass(order, every, steady), score
    return best


def _least(problem: GemmProblem, configs: Sequence[KernelConfig], index: np.ndarray,
           logs: np.ndarray, device: DeviceSpec) -> float:
    """The least of ``logs`` at ``index`` whose config is legal; of those that break the rule
    against wasteful tiles alone, where no other is; else infinity."""
    ordered = index[np.argsort(logs[index], kind="stable")]
    for allowed in (_is_legal, _runs):
        for i in ordered:
            if allowed(problem, configs[i], device):
                return float(logs[i])
    return math.inf


def _for_every_m(problem: GemmProblem, configs: Sequence[KernelConfig], index: np.ndarray,
                 logs: np.ndarray, device: DeviceSpec) -> KernelConfig | None:
    """The fastest of the configs at ``index``, on average, that runs every M, splits no K and
    copies no operand: in so far as there are any, one that keeps to the budget of SMs."""
    ordered = index[np.argsort(logs[:, index].sum(axis=0), kind="stable")]
    for sizes in ((*STAND_INS, _LARGEST), STAND_INS):
        problems = [replace(problem, m=m) for m in sizes]
        legal = (c for c in (configs[i] for i in ordered) if c.split_k == 1 and not c.pad_operands
                 and all(_runs(p, c, device) for p in problems))
        if not device.spare_sms:
            found = next(legal, None)
        else:
            every = list(legal)
            found = next((c for c in every if all(keeps_to_the_budget(p, c, device)
                                                  for p in problems)), next(iter(every), None))
        if found is not None:
            return found
    return None


def _persistent(problems: Sequence[GemmProblem], configs: Sequence[KernelConfig],
                index: np.ndarray, device: DeviceSpec) -> bool:
    """Whether a config at ``index`` runs all problems with at most one program an SM."""
    for config in (configs[i] for i in index):
        footprint = footprint_of(problems[0], config, device)
        if footprint.persistent and footprint.programs_per_sm == 1 and all(
                _runs(p, config, device) for p in problems):
            return True
    return False


def _is_legal(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    return violation(problem, config, device) is None


def _runs(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    return SPECS[config.kernel].runs(problem, config, device)
