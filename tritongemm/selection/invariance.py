"""Batch invariance: one config for every M, so that the bits of a result row do not depend on the
other rows of the call.

A row of C is a sum over K. Its bits do not change if the same instructions compute each step of the
sum in the same order. So the config is the same for every M. It excludes split K (the number of
parts may depend on M; cluster K is allowed, because its parts depend on K alone), copies of
unaligned operands (the scratch limit depends on M) and swapped operands (they pay only for some M).

The choice depends on N, K, dtypes, layout and alignment. Predicted times are averaged over a few
representative values of M.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UnsupportedError
from tritongemm.kernels import gluon_support, violation
from tritongemm.kernels.constraints import WASTE
from tritongemm.problem import GemmProblem, divisor_of
from tritongemm.selection import shipped
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import model_for
from tritongemm.selection.work import keeps_to_the_budget
from tritongemm.settings import config_root

#: The values of M that predicted times are averaged over. The cache key uses the largest.
STAND_INS = (1, 64, 512, 4096)


def config_for(problem: GemmProblem, device: DeviceSpec) -> tuple[KernelConfig, str]:
    """The config of every problem that differs from ``problem`` in M alone, and a note.

    Raises:
        UnsupportedError: no shipped config is legal for all of them.
    """
    return _config_for(_of_every_m(problem), device, str(config_root()), gluon_support.obstacle())


def forget() -> None:
    """Forgets the choices made so far."""
    _config_for.cache_clear()


def _of_every_m(problem: GemmProblem) -> GemmProblem:
    """``problem`` with the M of the cache key, and the alignment of A and C that holds at every M:
    one row is as aligned as its base address, several rows only as far as their leading dimension
    is."""
    a, c = problem.a.format, problem.c.format
    rows = divisor_of(a.bytes_of(problem.k)) if problem.layout[0] == "n" else a.bytes_of(1)
    return replace(problem, m=STAND_INS[-1], align_a=min(problem.align_a, rows),
                   align_c=min(problem.align_c, divisor_of(c.bytes_of(problem.n))))


@functools.lru_cache(maxsize=1024)
def _config_for(problem: GemmProblem, device: DeviceSpec, root: str,
                no_gluon: str | None) -> tuple[KernelConfig, str]:
    """``root`` and ``no_gluon`` are in the cache key because the choice depends on both."""
    problems = [replace(problem, m=m) for m in STAND_INS]
    model = model_for(problem, device)
    whole = [c for c in shipped.configs(problem)
             if c.split_k == 1 and not c.pad_operands and not c.swap_ab]
    known = [c for c in whole if model.section is None or model.knows(c)]
    legal = ([c for c in known if all(_runs(p, c, device) for p in problems)]
             or [c for c in whole if all(_runs(p, c, device) for p in problems)])
    legal = [c for c in legal if violation(problem, c, device) is None] or legal
    legal = [c for c in legal if all(keeps_to_the_budget(p, c, device) for p in problems)] or legal
    if not legal:
        raise UnsupportedError(f"no shipped config runs {problem} for every M with rows that do "
                               "not depend on M; unset TRITONGEMM_BATCH_INVARIANT to run it")
    columns = Columns(legal)
    logs = sum(np.log(model.times(p, columns)) for p in problems)
    return (legal[int(np.argmin(logs))],
            "one config for every M: a row's result does not depend on the others")


def _runs(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    """Whether the config is legal, or violates only the rule against wasteful tiles."""
    broken = violation(problem, config, device)
    return broken is None or broken.rule == WASTE
