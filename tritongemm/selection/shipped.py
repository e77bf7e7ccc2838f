"""The configs that selection chooses among, grouped so that a constraint which decides for a whole
group is checked once per group."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem
from tritongemm.records.spaces import usable_spaces
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import Model
from tritongemm.selection.work import class_of
from tritongemm.settings import config_root

#: Constraints that all configs of a group either satisfy or violate. A group is the configs of one
#: kernel with the same ``swap_ab`` and ``pad_operands``.
_ASKED_ONCE = {"alignment", "swap"}


def configs(problem: GemmProblem) -> tuple[KernelConfig, ...]:
    """Every config of the shipped spaces for operands of the problem's formats, legal or not."""
    return _configs(str(config_root()), problem.operands)


class Candidates(NamedTuple):
    """The configs that a model chooses among. A family is the configs of one group with the same
    class and ``split_k``; their times are close to each other.

    Attributes:
        columns: the configs, grouped by family.
        family: [configs], the number of each config's family, counted from 0.
    """

    columns: Columns
    family: np.ndarray


def candidates_of(model: Model, problem: GemmProblem, device: DeviceSpec) -> Candidates:
    """The candidates that the calibration of ``model`` lists, or, if it lists none, the shipped
    configs of classes that it measured. Groups without a legal member are left out."""
    root = str(config_root())
    return _among(root, problem.operands, model, tuple(
        not any(rule.check(problem, config, device) is not None
                for rule in SPECS[config.kernel].constraints if rule.rule in _ASKED_ONCE)
        for config, _ in _groups(root, problem.operands, model)))


def forget() -> None:
    """Forgets the spaces read so far."""
    _configs.cache_clear()
    _groups.cache_clear()
    _among.cache_clear()


@functools.lru_cache(maxsize=16)
def _configs(root: str, operands: str) -> tuple[KernelConfig, ...]:
    found = {config: None for space in usable_spaces().values() if space.kernel in SPECS
             for config in space.configs(dtype=operands)}
    return tuple(found)


@functools.lru_cache(maxsize=16)
def _groups(root: str, operands: str, model: Model
            ) -> tuple[tuple[KernelConfig, tuple[tuple[KernelConfig, ...], ...]], ...]:
    """(a config, families) of each group. The config represents the group when the constraints of
    :data:`_ASKED_ONCE` are checked: it has the smallest ``split_k``. Configs that differ in
    ``dependent_launch`` alone are adjacent.
    """
    found = ([c for c in model.candidates if c.kernel in SPECS]
             or [c for c in _configs(root, operands) if model.knows(c)])
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
def _among(root: str, operands: str, model: Model, legal: tuple[bool, ...]) -> Candidates:
    """The candidates of the groups marked ``legal``."""
    groups = _groups(root, operands, model)
    families = [family for (_, group), one in zip(groups, legal, strict=True)
                if one for family in group]
    sizes = np.array([len(family) for family in families], int)
    return Candidates(Columns([config for family in families for config in family]),
                      np.repeat(np.arange(len(families)), sizes))
