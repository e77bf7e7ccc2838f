"""One config for every M: so that a row of the result is the same bits in every batch.

A row of C is a sum over K. Its bits stay the same where each step of that sum is made by the same
instructions in the same order, whatever the other rows are: one kernel, one tile, no split of K
over launches (a cluster's parts of it depend on K alone) and no copy of unaligned operands (their
bounds on scratch depend on M), no swapped operands (which are for a narrow side, or an uneven one).
The choice sees N, K, the dtypes, the layout and the alignment; of M only a few sizes that stand for
all, over which the predicted times are weighed.
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
from tritongemm.problem import GemmProblem, divisor_of, dtype_of
from tritongemm.selection import shipped
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import model_for
from tritongemm.selection.work import keeps_to_the_budget
from tritongemm.settings import config_root

#: The M that a choice is weighed over; the last is the one that no tile may be too large for.
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
    """``problem`` with the M that stands for all, and the alignment that A has at every M: one row
    is aligned as its base is, several as their leading dimension allows; the same of C."""
    size, out = dtype_of(problem.dtype_a).itemsize, dtype_of(problem.dtype_out).itemsize
    rows = divisor_of(problem.k * size) if problem.layout[0] == "n" else size
    return replace(problem, m=STAND_INS[-1], align_a=min(problem.align_a, rows),
                   align_c=min(problem.align_c, divisor_of(problem.n * out)))


@functools.lru_cache(maxsize=1024)
def _config_for(problem: GemmProblem, device: DeviceSpec, root: str,
                no_gluon: str | None) -> tuple[KernelConfig, str]:
    """``root`` and ``no_gluon``: what else the choice depends on, so that neither is stale."""
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
    """Whether the config is legal, however wasteful its tile is for this M."""
    broken = violation(problem, config, device)
    return broken is None or broken.rule == WASTE
