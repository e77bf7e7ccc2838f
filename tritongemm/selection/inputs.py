"""The inputs of the network for a config and a problem: the problem, the config, traits of the
kernel, counts of work, and the terms that the constants predict. There is no input for a single
kernel. Numbers that span orders of magnitude enter as logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tritongemm.kernels.footprint import bits_of
from tritongemm.problem import GemmProblem, divisor_of
from tritongemm.selection.columns import SIZES, Columns

#: Traits of a kernel, 0 or 1 each. The first four distinguish the shipped kernels and are linearly
#: independent over them, so that a network can learn an offset for each kernel.
_TRAITS = ("copy_engine", "producer_warps", "tensor_cores", "k_over_threads", "persistent")
#: Traits that are positive numbers: they enter as logarithms.
_AMOUNTS = ("programs_per_sm", "registers", "in_flight_kib", "products", "bits_a", "bits_b")
#: Categorical parameters of a config, one-hot without the first value: one input for each other
#: value.
_WAYS = {"swap_ab": (1, 2), "pad_operands": (1, 2), "dependent_launch": (1, 2), "pingpong": (1,)}
#: Counts of work that no other input holds.
_COUNTS = ("tiles", "waves", "per_sm", "steps", "step_flops", "sm_bytes", "l2_bytes", "dram_bytes",
           "load_a", "load_b", "spilled", "store_kib", "split_bytes", "pad_bytes", "pad_elements")
_TERMS = ("fill_us", "k_loop_us", "unit_us", "store_us", "split_us", "pad_us")
_BOUNDS = ("unit", "pace", "sm", "l2", "dram")
_OF_PROBLEM = ("m", "n", "k", "batch", "align_a", "align_b", "align_c", "lead_a", "lead_b",
               "lead_c", "a_turned", "b_turned")
#: Largest power of two that the inputs distinguish as a divisor of a tile's sides (stores and
#: swizzles work in powers of two and are slower at other widths), and of the bytes from row to row
#: (two L2 lines).
_MOST_SIDE, _MOST_LEAD = 128, 256
#: The inputs that depend only on the config and the kind of the problem.
_FIXED = (*_TRAITS, *_AMOUNTS, *SIZES, "block_m_power", "block_n_power",
          *(f"{name}.{value}" for name, values in _WAYS.items() for value in values))
#: The name of each input.
NAMES = (*_FIXED, *_OF_PROBLEM, "rows_used", "cols_used", "tiles_down", "tiles_along", *_COUNTS,
         "waves_used", "last_wave", "steps_a_stage", "total_us", *_TERMS, *_BOUNDS)


def fixed_inputs(configs: Columns, work: Any) -> np.ndarray:
    """[configs, inputs] in float32: the first of :data:`NAMES`, which depend only on the config and
    the kind of the problem. ``work``: as for :func:`inputs_of`, of problems of that kind."""
    sides = np.stack([configs.of["block_m"], configs.of["block_n"]])
    return _joined([
        *(getattr(work, name) for name in _TRAITS),
        *(np.log2(getattr(work, name)) for name in _AMOUNTS),
        *(np.log2(configs.of[name]) for name in SIZES),
        *np.log2(np.minimum(sides & -sides, _MOST_SIDE)),
        *(configs.of[name] == value for name, values in _WAYS.items() for value in values)])


def inputs_of(fixed: np.ndarray, configs: Columns, problems: Sequence[GemmProblem],
              which: np.ndarray, work: Any, bounds: Sequence[np.ndarray], terms: Any,
              num_sms: int) -> np.ndarray:
    """[configs, inputs] in float32, the inputs in the order of :data:`NAMES`.

    Args:
        fixed: the result of :func:`fixed_inputs`.
        which: [configs], the index of each config's problem.
        work: the fields of :class:`~tritongemm.selection.work.Work`, as arrays.
        bounds: the lower bounds of the K loop's time, microseconds, in the order of
            ``model.bounds_of``.
        terms: the ``Estimate`` (of arrays) that the network corrects.
    """
    block_m, block_n = configs.of["block_m"], configs.of["block_n"]
    of = np.array([_of_problem(p) for p in problems], float)[which].T
    m, n = of[0], of[1]
    swapped = configs.of["swap_ab"] > 0
    rows, cols = np.where(swapped, n, m), np.where(swapped, m, n)
    down, along = np.ceil(rows / block_m), np.ceil(cols / block_n)
    total = terms.total_us
    return np.concatenate([fixed, _joined([
        *np.log2(of[:10]), *of[10:],
        rows / (down * block_m), cols / (along * block_n),
        np.log2(down), np.log2(along),
        *(np.log2(getattr(work, name) + 1e-3) for name in _COUNTS),
        work.tiles / (work.waves * num_sms), work.tiles / num_sms % 1,
        np.minimum(work.steps / work.stages, 8),
        np.log(total), *(getattr(terms, name) / total for name in _TERMS),
        *(bound / total for bound in bounds)])], axis=1)


def _joined(columns: Sequence[np.ndarray]) -> np.ndarray:
    """[configs, columns] in float32."""
    joined: np.ndarray = np.empty((len(columns[0]), len(columns)), np.float32)
    for place, values in enumerate(columns):
        joined[:, place] = values
    return joined


def _of_problem(problem: GemmProblem) -> tuple[int, ...]:
    """Extents (0 counts as 1); for A, B and C the alignments, then the power of two that divides
    the bytes from row to row; whether A and B are stored transposed."""
    lead_a, lead_b = problem.leading_dimensions()
    extents = (max(x, 1) for x in (problem.m, problem.n, problem.k, problem.batch))
    leads = ((lead_a, problem.dtype_a), (lead_b, problem.dtype_b), (problem.n, problem.dtype_out))
    return (*extents, problem.align_a, problem.align_b, problem.align_c,
            *(divisor_of(lead * bits_of(dtype) // 8, _MOST_LEAD) for lead, dtype in leads),
            problem.layout[0] == "t", problem.layout[1] == "t")
