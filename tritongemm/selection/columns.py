"""Configs as columns, so that what a choice among thousands costs is counted at once.

What a config makes of a problem depends on little of its extents but their size: on what divides
them, layouts, alignments and types, the *kind*. That part is worked out config by config, once a
kind; the sizes come in as arithmetic on arrays (``work.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem, dtype_of

KERNELS = tuple(sorted(SPECS))
SIZES = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m", "split_k",
         "epilogue_subtile", "cluster_k", "cluster_m", "cluster_n")
WAYS = ("swap_ab", "pad_operands", "dependent_launch", "pingpong")
_axes = attrgetter("kernel", *SIZES, *WAYS)
#: Bytes of a sector of the L2: of what divides rows, more is the same to every kernel.
_SECTOR = 32
#: What is kept of configs at a time: three of a kind, of which a model's layers mostly have one.
_KEPT = 24

T = TypeVar("T")


class Columns:
    """Configs, an array an axis: ``kernel`` is the place in :data:`KERNELS`, then :data:`SIZES` and
    :data:`WAYS`."""

    def __init__(self, configs: Sequence[KernelConfig]) -> None:
        self.configs: np.ndarray = np.empty(len(configs), object)
        self.configs[:] = configs
        axes = [(KERNELS.index(kernel), *rest) for kernel, *rest in map(_axes, configs)]
        self._set(np.array(axes, np.int64).reshape(-1, 1 + len(SIZES) + len(WAYS)).T)

    def _set(self, axes: np.ndarray) -> None:
        self._axes = axes
        self.of: dict[str, np.ndarray] = dict(zip(("kernel", *SIZES, *WAYS), axes, strict=True))
        self._kept: dict[tuple, Any] = {}

    def __len__(self) -> int:
        return len(self.configs)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["of"][name]
        except KeyError:
            raise AttributeError(name) from None

    def take(self, index: Any) -> Columns:
        """The configs of an index or mask."""
        part = object.__new__(Columns)
        part.configs = self.configs[index]
        part._set(self._axes[:, index])
        return part

    def kept(self, key: tuple, make: Callable[[], T]) -> T:
        """What ``make`` gives of the configs, never None, made once by ``key``."""
        found = self._kept.get(key)
        if found is None:
            found = make()
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[key] = found  # another thread may clear it at once
        return found


def kind_of(problem: GemmProblem) -> GemmProblem:
    """A problem of least extents that stands for all of ``problem``'s kind: the same but for its
    sizes, with the same divisors of what is a leading dimension, of A, B or C."""
    most = _SECTOR // min(dtype_of(dtype).itemsize for dtype in (
        problem.dtype_a, problem.dtype_b, problem.dtype_out))
    n, k = math.gcd(problem.n, most), math.gcd(problem.k, most)
    return replace(problem, m=math.gcd(problem.m, most) if problem.layout[0] == "t" else 1, n=n,
                   k=k, batch=1)
