"""The configs that a choice is made among, in the groups that it asks about at once."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem
from tritongemm.records.spaces import load_spaces
from tritongemm.selection.model import Model
from tritongemm.selection.work import class_of
from tritongemm.settings import config_root

#: Configs that differ in dependent launch alone: their work is counted once.
Alike = tuple[KernelConfig, ...]
#: Configs of one class, split and way with operands: their times are near each other.
Family = tuple[Alike, ...]
#: Rules that most of the configs break, and with them a whole group: the kernel's configs by how
#: they swap and what they copy.
_ASKED_ONCE = {"alignment", "swap"}


def configs(problem: GemmProblem) -> tuple[KernelConfig, ...]:
    """Every config of the shipped spaces for operands of the problem's dtype, legal or not."""
    return _configs(str(config_root()), problem.dtype_a)


def families(problem: GemmProblem, device: DeviceSpec, model: Model) -> Iterator[Family]:
    """The contenders of ``model``, or where it has none the shipped configs that it knows, less
    groups that no member of is legal."""
    for first, group in _groups(str(config_root()), problem.dtype_a, model):
        if not any(rule.check(problem, first, device) is not None
                   for rule in SPECS[first.kernel].constraints if rule.rule in _ASKED_ONCE):
            yield from group


def forget() -> None:
    """Forgets the spaces read so far."""
    _configs.cache_clear()
    _groups.cache_clear()


@functools.lru_cache(maxsize=16)
def _configs(root: str, dtype: str) -> tuple[KernelConfig, ...]:
    found = {config: None for space in load_spaces().values() if space.kernel in SPECS
             for config in space.configs(dtype=dtype)}
    return tuple(found)


@functools.lru_cache(maxsize=16)
def _groups(root: str, dtype: str, model: Model) -> tuple[tuple[KernelConfig, tuple[Family, ...]],
                                                          ...]:
    """The families by what :data:`_ASKED_ONCE` looks at; before each group the member that is least
    likely to be refused."""
    found = ([c for c in model.contenders if c.kernel in SPECS]
             or [c for c in _configs(root, dtype) if model.knows(c)])
    pairs: dict[KernelConfig, list[KernelConfig]] = {}
    for config in found:
        pairs.setdefault(replace(config, dependent_launch=0), []).append(config)
    groups: dict[tuple, dict[tuple, list[Alike]]] = {}
    for config, alike in pairs.items():
        group = groups.setdefault((config.kernel, config.swap_ab, config.pad_operands), {})
        group.setdefault((class_of(config), config.split_k), []).append(tuple(alike))
    return tuple((min((alike[0] for family in group.values() for alike in family),
                      key=lambda c: c.split_k), tuple(map(tuple, group.values())))
                 for group in groups.values())
