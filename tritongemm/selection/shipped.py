"""The configs that a choice is made among, in the groups that it asks about at once."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem
from tritongemm.records.spaces import load_spaces
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import Model
from tritongemm.selection.work import class_of
from tritongemm.settings import config_root

#: Rules that most of the configs break, and with them a whole group: the kernel's configs by how
#: they swap and what they copy.
_ASKED_ONCE = {"alignment", "swap"}


def configs(problem: GemmProblem) -> tuple[KernelConfig, ...]:
    """Every config of the shipped spaces for operands of the problem's dtype, legal or not."""
    return _configs(str(config_root()), problem.dtype_a)


class Contenders(NamedTuple):
    """What a model chooses among. A family is the configs of one class, split and way with
    operands: their times are near each other.

    Attributes:
        columns: the configs, those of a family after each other.
        family: the number of each config's family, from 0 up.
    """

    columns: Columns
    family: np.ndarray


def contenders(problem: GemmProblem, device: DeviceSpec, model: Model) -> Contenders:
    """The contenders of ``model``, or where it has none the shipped configs that it knows, less
    groups that no member of is legal."""
    root = str(config_root())
    return _among(root, problem.dtype_a, model, tuple(
        not any(rule.check(problem, config, device) is not None
                for rule in SPECS[config.kernel].constraints if rule.rule in _ASKED_ONCE)
        for config, _ in _groups(root, problem.dtype_a, model)))


def forget() -> None:
    """Forgets the spaces read so far."""
    _configs.cache_clear()
    _groups.cache_clear()
    _among.cache_clear()


@functools.lru_cache(maxsize=16)
def _configs(root: str, dtype: str) -> tuple[KernelConfig, ...]:
    found = {config: None for space in load_spaces().values() if space.kernel in SPECS
             for config in space.configs(dtype=dtype)}
    return tuple(found)


@functools.lru_cache(maxsize=16)
def _groups(root: str, dtype: str, model: Model
            ) -> tuple[tuple[KernelConfig, tuple[tuple[KernelConfig, ...], ...]], ...]:
    """The families by what :data:`_ASKED_ONCE` looks at; before each group the member that is least
    likely to be refused. Configs that differ in their launch alone come after each other."""
    found = ([c for c in model.contenders if c.kernel in SPECS]
             or [c for c in _configs(root, dtype) if model.knows(c)])
    groups: dict[tuple, dict[tuple, dict[KernelConfig, list[KernelConfig]]]] = {}
    for config in found:
        group = groups.setdefault((config.kernel, config.swap_ab, config.pad_operands), {})
        family = group.setdefault((class_of(config), config.split_k), {})
        family.setdefault(replace(config, dependent_launch=0), []).append(config)
    return tuple((min((alike[0] for family in group.values() for alike in family.values()),
                      key=lambda c: c.split_k),
                  tuple(tuple(config for alike in family.values() for config in alike)
                        for family in group.values()))
                 for group in groups.values())


@functools.lru_cache(maxsize=32)
def _among(root: str, dtype: str, model: Model, legal: tuple[bool, ...]) -> Contenders:
    """The configs of the groups that are ``legal``."""
    families = [family for (_, group), one in zip(_groups(root, dtype, model), legal, strict=True)
                if one for family in group]
    sizes = np.array([len(family) for family in families], int)
    return Contenders(Columns([config for family in families for config in family]),
                      np.repeat(np.arange(len(families)), sizes))
