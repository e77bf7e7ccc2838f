"""Many configs as arrays, one array a parameter, and the kind of a problem.

Selection compares thousands of configs, so ``work.py`` counts their work on arrays. Most of what a
config does for a problem depends on the divisors of the extents, the layouts, the alignments and
the dtypes: the *kind* of the problem. That part is computed once for each config and kind. The
extents enter as arithmetic on the arrays.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from tritongemm.config import PARAMETERS, KernelConfig
from tritongemm.device import SECTOR_BYTES
from tritongemm.kernels.footprint import bits_of
from tritongemm.problem import GemmProblem
from tritongemm.records.prepared_calibration import Configs

SIZES = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m", "split_k",
         "epilogue_subtile", "cluster_k", "cluster_m", "cluster_n")
WAYS = ("swap_ab", "pad_operands", "dependent_launch", "pingpong")
_parameters = attrgetter(*SIZES, *WAYS)
#: Of a row of :class:`Configs`, the columns of these.
_OF_ROWS = [1 + PARAMETERS.index(name) for name in (*SIZES, *WAYS)]
#: Bits of an L2 sector. Kernels run alike for all row lengths that are multiples of it.
_SECTOR_BITS = 8 * SECTOR_BYTES
#: Limit on the derived arrays that a ``Columns`` caches: three or four for each kind of problem,
#: and most layers of a model have the same kind.
_KEPT = 32

T = TypeVar("T")


class Columns:
    """Configs as arrays: an attribute for each of :data:`SIZES` and :data:`WAYS`, [configs]."""

    def __init__(self, configs: Sequence[KernelConfig]) -> None:
        made: np.ndarray = np.empty(len(configs), object)
        made[:] = configs
        values = np.array([_parameters(config) for config in configs], np.int64)
        self._set(made, np.arange(len(made)), values.reshape(-1, len(SIZES) + len(WAYS)).T)

    @classmethod
    def among(cls, configs: Configs, index: np.ndarray) -> Columns:
        """The configs of an index, which are made when one of them is asked for."""
        part = object.__new__(cls)
        part._set(configs, index, configs.rows[index][:, _OF_ROWS].T.astype(np.int64))
        return part

    def _set(self, source: Any, index: np.ndarray, values: np.ndarray) -> None:
        self._source, self._index, self._values = source, index, values
        self.of: dict[str, np.ndarray] = dict(zip((*SIZES, *WAYS), values, strict=True))
        self._kept: dict[tuple, Any] = {}
        self._seen: set[GemmProblem] = set()

    @functools.cached_property
    def configs(self) -> np.ndarray:
        """[configs]: objects."""
        if isinstance(self._source, np.ndarray):
            return self._source[self._index]
        made: np.ndarray = np.empty(len(self), object)
        made[:] = [self._source[place] for place in self._index.tolist()]
        return made

    def config(self, place: int) -> KernelConfig:
        """One of them."""
        return self._source[int(self._index[place])]

    def __len__(self) -> int:
        return len(self._index)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["of"][name]
        except KeyError:
            raise AttributeError(name) from None

    def take(self, index: Any) -> Columns:
        """The configs that an index array or a mask selects."""
        part = object.__new__(Columns)
        part._set(self._source, self._index[index], self._values[:, index])
        return part

    def seen(self, kind: GemmProblem) -> bool:
        """Whether this was asked of the kind before."""
        before = kind in self._seen
        if len(self._seen) >= _KEPT:
            self._seen.clear()
        self._seen.add(kind)
        return before

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
