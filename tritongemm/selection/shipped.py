"""The configs of the shipped spaces, in the groups that a choice asks about at once."""

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
from tritongemm.settings import config_root

#: Configs that differ in dependent launch alone: their work is counted once.
Alike = tuple[KernelConfig, ...]
#: Rules that most of the shipped configs break, and a whole group with them.
_ASKED_ONCE = {"alignment", "swap"}


def configs(problem: GemmProblem) -> tuple[KernelConfig, ...]:
    """Every config of the shipped spaces for operands of the problem's dtype, legal or not."""
    return _configs(str(config_root()), problem.dtype_a)


def promising(problem: GemmProblem, device: DeviceSpec, model: Model) -> Iterator[Alike]:
    """Those that ``model`` knows, less groups that no member of is legal."""
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
def _groups(root: str, dtype: str,
            model: Model) -> tuple[tuple[KernelConfig, tuple[Alike, ...]], ...]:
    """The configs that ``model`` knows, in groups that :data:`_ASKED_ONCE` treats alike; before
    each group the member that is least likely to be refused."""
    pairs: dict[KernelConfig, list[KernelConfig]] = {}
    for config in _configs(root, dtype):
        if model.knows(config):
            pairs.setdefault(replace(config, dependent_launch=0), []).append(config)
    groups: dict[tuple, list[Alike]] = {}
    for config, alike in pairs.items():
        key = (config.kernel, config.swap_ab, config.pad_operands)
        groups.setdefault(key, []).append(tuple(alike))
    return tuple((min((alike[0] for alike in group), key=lambda c: c.split_k), tuple(group))
                 for group in groups.values())
