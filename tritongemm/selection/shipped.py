"""The configs that selection chooses among, grouped so that a constraint which decides for a whole
group is checked once per group."""

from __future__ import annotations

import functools
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from tritongemm.config import PARAMETERS, KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem
from tritongemm.records.prepared_calibration import Configs
from tritongemm.records.spaces import usable_spaces
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import Model
from tritongemm.settings import config_root

#: Constraints that all configs of a group either satisfy or violate. A group is the configs of one
#: kernel with the same ``swap_ab`` and ``pad_operands``.
_ASKED_ONCE = {"alignment", "swap"}


def configs(problem: GemmProblem) -> tuple[KernelConfig, ...]:
    """Every config of the shipped spaces for operands of the problem's formats, legal or not."""
    return _configs(str(config_root()), problem.operands)


class ShippedCandidates(NamedTuple):
    """The configs that a model chooses among. A family is the configs of one group with the same
    class and ``split_k``; their times are close to each other.

    Attributes:
        columns: the configs, grouped by family.
        family: [configs], the number of each config's family, counted from 0.
    """

    columns: Columns
    family: np.ndarray


def candidates_of(model: Model, problem: GemmProblem, device: DeviceSpec) -> ShippedCandidates:
    """The candidates that the calibration of ``model`` lists, or, if it lists none, the shipped
    configs of classes that it measured. Groups without a legal member are left out."""
    root = str(config_root())
    return _among(root, problem.operands, model, tuple(
        not any(rule.check(problem, config, device) is not None
                for rule in SPECS[config.kernel].constraints if rule.rule in _ASKED_ONCE)
        for config in _groups(root, problem.operands, model).first))


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


class _Groups(NamedTuple):
    """Configs, group by group and in each family by family.

    Attributes:
        configs: all, in the order of the calibration or the spaces.
        order: index of each into ``configs``, as grouped.
        group, family: [order]: numbers, from 0 up.
        first: of each group the member that is least likely to break a rule of
            :data:`_ASKED_ONCE`.
    """

    configs: Configs
    order: np.ndarray
    group: np.ndarray
    family: np.ndarray
    first: tuple[KernelConfig, ...]


#: Positions in a row of :class:`Configs`.
_AT = {name: 1 + place for place, name in enumerate(PARAMETERS)}
_OF_GROUP = itemgetter(0, *(_AT[name] for name in ("swap_ab", "pad_operands")))
#: What decides :func:`~tritongemm.selection.work.class_of`, and the split.
_OF_FAMILY = itemgetter(0, *(_AT[name] for name in (
    "block_m", "block_n", "block_k", "num_warps", "pingpong", "cluster_k", "cluster_m", "cluster_n",
    "split_k")))


@functools.lru_cache(maxsize=16)
def _groups(root: str, operands: str, model: Model) -> _Groups:
    """The candidates of a model. Configs that differ in ``dependent_launch`` alone are neighbours.
    """
    configs = Configs.of(model.candidates)
    taken = [number for number, kernel in enumerate(configs.kernels) if kernel in SPECS]
    places = np.flatnonzero(np.isin(configs.rows[:, 0], taken)).tolist()
    if not places:
        configs = Configs.of([c for c in _configs(root, operands) if model.knows(c)])
        places = list(range(len(configs)))
    rows, split, early = configs.rows.tolist(), _AT["split_k"], _AT["dependent_launch"]
    groups: dict[tuple, dict[tuple, dict[tuple, list[int]]]] = {}
    for place in places:
        row = rows[place]
        families = groups.setdefault(_OF_GROUP(row), {})
        alike = (*row[:early], *row[early + 1:])
        families.setdefault(_OF_FAMILY(row), {}).setdefault(alike, []).append(place)
    order: list[int] = []
    group: list[int] = []
    family: list[int] = []
    first, count = [], 0
    for number, families in enumerate(groups.values()):
        firsts = [alike[0] for members in families.values() for alike in members.values()]
        first.append(configs[min(firsts, key=lambda place: rows[place][split])])
        for members in families.values():
            found = [place for alike in members.values() for place in alike]
            order += found
            group += [number] * len(found)
            family += [count] * len(found)
            count += 1
    return _Groups(configs, np.array(order, int), np.array(group, int), np.array(family, int),
                   tuple(first))


@functools.lru_cache(maxsize=32)
def _among(root: str, operands: str, model: Model, legal: tuple[bool, ...]) -> ShippedCandidates:
    """The candidates of the groups marked ``legal``."""
    groups = _groups(root, operands, model)
    kept = np.array(legal, bool)[groups.group] if len(groups.group) else groups.group.astype(bool)
    places = groups.order[kept]
    family = np.cumsum(np.diff(groups.family[kept], prepend=-1) != 0) - 1
    return ShippedCandidates(Columns.among(groups.configs, places), family)
