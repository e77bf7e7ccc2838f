"""What the network sees of configs at problems: the problem, the config, what work it makes of the
problem, and the terms that the constants give. Numbers that span decades enter as logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tritongemm.problem import GemmProblem, divisor_of, dtype_of
from tritongemm.selection.columns import KERNELS, SIZES, Columns
from tritongemm.selection.work import NUMBERS

#: Ways of doing, each with its values beside the first.
_WAYS = {"swap_ab": (1, 2), "pad_operands": (1, 2), "dependent_launch": (1, 2), "pingpong": (1,)}
#: Of the counts of work; the others are ways of doing or the config's own.
_COUNTS = tuple(name for name in NUMBERS if name not in ("stages", "dependent", "split"))
_TERMS = ("fill_us", "k_loop_us", "unit_us", "store_us", "split_us", "pad_us")
_BOUNDS = ("unit", "pace", "sm", "l2", "dram")
_OF_PROBLEM = ("m", "n", "k", "batch", "align_a", "align_b", "align_c", "lead_a", "lead_b",
               "lead_c", "a_turned", "b_turned")
#: The largest power of two that is told apart in a tile's sides (what is stored and swizzled in
#: powers of two is slower at other widths) and in the bytes from row to row: two lines of the L2.
_MOST_SIDE, _MOST_LEAD = 128, 256
#: What each input is.
NAMES = (*KERNELS, *SIZES, "block_m_power", "block_n_power",
         *(f"{name}.{value}" for name, values in _WAYS.items() for value in values), *_OF_PROBLEM,
         "rows_used", "cols_used", "tiles_down", "tiles_along", *_COUNTS, "waves_used", "last_wave",
         "steps_a_stage", "total_us", *_TERMS, *_BOUNDS)


def inputs_of(configs: Columns, problems: Sequence[GemmProblem], which: np.ndarray, work: Any,
              bounds: Sequence[np.ndarray], terms: Any, num_sms: int) -> np.ndarray:
    """[configs, inputs] in float32, the inputs by :data:`NAMES`.

    Args:
        which: of each config, the number of its problem.
        work: :class:`~tritongemm.selection.work.Work` of arrays; terms: the ``Estimate`` that is
            to be corrected; bounds: what bounds the K loop, each in microseconds.
    """
    sizes = {name: configs.of[name] for name in SIZES}
    sides = np.stack([configs.of["block_m"], configs.of["block_n"]])
    ways = {name: configs.of[name] for name in _WAYS}
    of = np.array([_of_problem(p) for p in problems], float)[which].T
    m, n = of[0], of[1]
    turned = ways["swap_ab"] > 0
    rows, cols = np.where(turned, n, m), np.where(turned, m, n)
    down, along = np.ceil(rows / sizes["block_m"]), np.ceil(cols / sizes["block_n"])
    total = terms.total_us
    columns = [
        *(configs.of["kernel"] == i for i in range(len(KERNELS))),
        *map(np.log2, sizes.values()),
        *np.log2(np.minimum(sides & -sides, _MOST_SIDE)),
        *(ways[name] == value for name, values in _WAYS.items() for value in values),
        *np.log2(of[:10]), *of[10:],
        rows / (down * sizes["block_m"]), cols / (along * sizes["block_n"]),
        np.log2(down), np.log2(along),
        *(np.log2(getattr(work, name) + 1e-3) for name in _COUNTS),
        work.tiles / (work.waves * num_sms), work.tiles / num_sms % 1,
        np.minimum(work.steps / work.stages, 8),
        np.log(total), *(getattr(terms, name) / total for name in _TERMS),
        *(bound / total for bound in bounds)]
    inputs: np.ndarray = np.empty((len(configs), len(columns)), np.float32)
    for place, values in enumerate(columns):
        inputs[:, place] = values
    return inputs


def _of_problem(problem: GemmProblem) -> tuple[int, ...]:
    """Extents, of which 0 counts as 1; alignments, then what divides the bytes from row to row, of
    A, B and C; layouts."""
    lead_a, lead_b = problem.leading_dimensions()
    size, out = dtype_of(problem.dtype_a).itemsize, dtype_of(problem.dtype_out).itemsize
    extents = (max(x, 1) for x in (problem.m, problem.n, problem.k, problem.batch))
    leads = (lead_a * size, lead_b * size, problem.n * out)
    return (*extents, problem.align_a, problem.align_b, problem.align_c,
            *(divisor_of(x, _MOST_LEAD) for x in leads),
            problem.layout[0] == "t", problem.layout[1] == "t")
