"""Many configs as arrays, one array a parameter, and the kind of a problem.

Selection compares thousands of configs, so ``work.py`` counts their work on arrays. Most of what a
config does for a problem depends on the divisors of the extents, the layouts, the alignments and
the dtypes: the *kind* of the problem. That part is computed once for each config and kind. The
extents enter as arithmetic on the arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.kernels.footprint import bits_of
from tritongemm.problem import GemmProblem

SIZES = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m", "split_k",
         "epilogue_subtile", "cluster_k", "cluster_m", "cluster_n")
WAYS = ("swap_ab", "pad_operands", "dependent_launch", "pingpong")
_parameters = attrgetter(*SIZES, *WAYS)
#: Bits of an L2 sector (32 bytes). Kernels run alike for all row lengths that are multiples of it.
_SECTOR_BITS = 8 * 32
#: Limit on the derived arrays that a ``Columns`` caches: three or four for each kind of problem,
#: and most layers of a model have the same kind.
_KEPT = 32

T = TypeVar("T")


class Columns:
    """Configs as arrays: an attribute for each of :data:`SIZES` and :data:`WAYS`, [configs]."""

    def __init__(self, configs: Sequence[KernelConfig]) -> None:
        self.configs: np.ndarray = np.empty(len(configs), object)
        self.configs[:] = configs
        values = np.array([_parameters(config) for config in configs], np.int64)
        self._set(values.reshape(-1, len(SIZES) + len(WAYS)).T)

    def _set(self, values: np.ndarray) -> None:
        self._values = values
        self.of: dict[str, np.ndarray] = dict(zip((*SIZES, *WAYS), values, strict=True))
        self._kept: dict[tuple, Any] = {}

    def __len__(self) -> int:
        return len(self.configs)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["of"][name]
        except KeyError:
            raise AttributeError(name) from None

    def take(self, index: Any) -> Columns:
        """The configs that an index array or a mask selects."""
        part = object.__new__(Columns)
        part.configs = self.configs[index]
        part._set(self._values[:, index])
        return part

    def kept(self, key: tuple, make: Callable[[], T]) -> T:
        """The result of ``make``, which is never None; computed once for each ``key``."""
        found = self._kept.get(key)
        if found is None:
            found = make()
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = found  # another thread may clear it at once
        return found


def kind_of(problem: GemmProblem) -> GemmProblem:
    """The smallest problem of ``problem``'s kind, used as the key of the kind. It differs from
    ``problem`` in the extents only; each leading dimension of A, B and C keeps its divisors."""
    most = _SECTOR_BITS // min(bits_of(dtype) for dtype in (
        problem.dtype_a, problem.dtype_b, problem.dtype_out))
    n, k = math.gcd(problem.n, most), math.gcd(problem.k, most)
    return replace(problem, m=math.gcd(problem.m, most) if problem.layout[0] == "t" else 1, n=n,
                   k=k, batch=1)
