"""exact tuned row -> calibrated model -> nearest legal row -> rule default, with its source."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UnsupportedError
from tritongemm.kernels import SPECS, violation
from tritongemm.problem import GemmProblem
from tritongemm.records.spaces import load_spaces
from tritongemm.records.tables import TunedRow, TunedTable, key_of, path_for, read_table
from tritongemm.selection.model import Model, forget, model_for
from tritongemm.settings import config_root

#: A row further than this from a problem says little about it: the sum over batch, m, n and k of
#: |log2| of the ratios, e.g. two extents each twice as long.
NEAREST_LIMIT = 4.0


@dataclass(frozen=True)
class Choice:
    """A config and where it came from.

    Attributes:
        config: what to launch.
        source: ``exact``, ``model``, ``nearest`` or ``rule``.
        row: the tuned row behind it, where there is one.
        note: one line for ``explain`` and the log.
        predicted_us: by the model, where that made the choice.
    """

    config: KernelConfig
    source: str
    row: TunedRow | None = None
    note: str = ""
    predicted_us: float | None = None


@functools.lru_cache(maxsize=256)
def _table(path: str) -> TunedTable | None:
    """The table at ``path``, read once; None where there is none. A bad file is an error."""
    try:
        return read_table(path)
    except FileNotFoundError:
        return None


def reload() -> None:
    """Forgets the tables, spaces and calibrations read so far, so that new ones are seen."""
    _table.cache_clear()
    _shipped_configs.cache_clear()
    _groups.cache_clear()
    forget()


def table_for(problem: GemmProblem, device: DeviceSpec) -> TunedTable | None:
    """The tuned table of ``problem`` on ``device``, or None where none is shipped."""
    path = path_for(problem, device.slug)
    return _table(str(path)) if path.exists() else None


def choose(problem: GemmProblem, device: DeviceSpec) -> Choice:
    """The config for ``problem``. Never measures.

    Raises:
        UnsupportedError: no kernel of this package runs it; the message names each one's reason.
        DataFileError: the tuned table, the calibration or a space is damaged.
    """
    table = table_for(problem, device)
    if table is not None:
        row = table.rows.get(key_of(problem))
        if row is not None and violation(problem, row.config, device) is None:
            return Choice(row.config, "exact", row, f"tuned row of run {row.run_id}")
    best = by_model(problem, device)
    if best is not None:
        return best
    if table is not None:
        near = nearest_row(problem, device, table)
        if near is not None:
            distance, row = near
            return Choice(row.config, "nearest", row,
                          f"tuned for {row.batch}x{row.m}x{row.n}x{row.k}, {distance:.2f} away")
    return Choice(default_config(problem, device), "rule", None, "rule default")


def by_model(problem: GemmProblem, device: DeviceSpec) -> Choice | None:
    """The legal config of the shipped spaces with the least predicted time, ties by the spaces'
    order.

    None where no calibration of ``device`` holds problems of this kind, or none of the config
    classes that it measured is legal.
    """
    model = model_for(problem, device)
    if model.section is None or problem.batch * problem.m * problem.n * problem.k == 0:
        return None
    predicted = []
    for first, group in _groups(str(config_root()), problem.dtype_a, model):
        if not _refused(problem, first, device):
            for alike in group:
                predicted += [(e.total_us, config) for e, config
                              in zip(model.estimates(problem, alike), alike, strict=True)]
    predicted.sort(key=lambda x: x[0])
    for total_us, config in predicted:  # few are asked: the first legal one is the choice
        if violation(problem, config, device) is None:
            note = (f"predicted {total_us:.2f} us, calibrated by {model.section.results} timings "
                    f"of {model.section.problems} problems")
            if model.neighbours is not None:
                near = model.neighbours.nearest(problem, 1)[0]
                p = near.neighbour.problem
                note += f", the nearest {p.m}x{p.n}x{p.k}"
            return Choice(config, "model", None, note, total_us)
    return None


Alike = tuple[KernelConfig, ...]


@functools.lru_cache(maxsize=16)
def _groups(root: str, dtype: str, model: Model) -> tuple[tuple[KernelConfig, tuple[Alike, ...]],
                                                          ...]:
    """The shipped configs that ``model`` knows, those together that differ in dependent launch
    alone, in groups that :data:`_ASKED_ONCE` treats alike; before each group the member that is
    least likely to be refused."""
    pairs: dict[KernelConfig, list[KernelConfig]] = {}
    for config in _shipped_configs(root, dtype):
        if model.knows(config):
            pairs.setdefault(replace(config, dependent_launch=0), []).append(config)
    groups: dict[tuple, list[Alike]] = {}
    for config, alike in pairs.items():
        key = (config.kernel, config.swap_ab, config.pad_operands)
        groups.setdefault(key, []).append(tuple(alike))
    return tuple((min((alike[0] for alike in group), key=lambda c: c.split_k), tuple(group))
                 for group in groups.values())


#: Rules that most of the shipped configs break, and a whole group with them.
_ASKED_ONCE = {"alignment", "swap"}


def _refused(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    """Whether one of those rules refuses ``config``, and so its group."""
    return any(c.check(problem, config, device) is not None
               for c in SPECS[config.kernel].constraints if c.rule in _ASKED_ONCE)


@functools.lru_cache(maxsize=16)
def _shipped_configs(root: str, dtype: str) -> tuple[KernelConfig, ...]:
    found = {config: None for space in load_spaces().values() if space.kernel in SPECS
             for config in space.configs(dtype=dtype)}
    return tuple(found)


def shipped_configs(problem: GemmProblem) -> tuple[KernelConfig, ...]:
    """Every config of the shipped spaces for operands of the problem's dtype, legal or not."""
    return _shipped_configs(str(config_root()), problem.dtype_a)


def distance(problem: GemmProblem, row: TunedRow) -> float:
    """Sum of |log2| of the ratios of batch, m, n, k; 1 more a differing alignment."""
    total = 0.0
    for mine, other in ((problem.m, row.m), (problem.n, row.n), (problem.k, row.k),
                        (problem.batch, row.batch)):
        total += abs(math.log2(max(mine, 1) / max(other, 1)))
    for mine, other in ((problem.align_a, row.align_a), (problem.align_b, row.align_b),
                        (problem.align_c, row.align_c)):
        total += 1.0 if mine != other else 0.0
    return total


def nearest_row(problem: GemmProblem, device: DeviceSpec,
                table: TunedTable) -> tuple[float, TunedRow] | None:
    """(distance, row) of the closest row whose config is legal here, ties by the table's order;
    None: none within :data:`NEAREST_LIMIT`."""
    rows = ((distance(problem, row), index, row)
            for index, row in enumerate(table.rows.values()) if row.epilogue == problem.epilogue)
    for far, _, row in sorted(rows, key=lambda x: x[:2]):
        if far > NEAREST_LIMIT:
            return None
        if violation(problem, row.config, device) is None:
            return far, row
    return None


def default_config(problem: GemmProblem, device: DeviceSpec) -> KernelConfig:
    """The best estimate among the kernels' own defaults that are legal.

    Raises:
        UnsupportedError: none is legal.
    """
    legal, reasons = [], []
    for spec in SPECS.values():
        config = spec.default(problem, device)
        broken = spec.supports(problem, device) or spec.violation(problem, config, device)
        if broken is None:
            legal.append(config)
        else:
            reasons.append(f"{spec.name}: {broken.message}")
    if not legal:
        raise UnsupportedError(f"no kernel runs {problem} on {device.name}: "
                               + "; ".join(reasons))
    model = model_for(problem, device)
    return min(legal, key=lambda c: model.estimate(problem, c).total_us)


def candidates(problem: GemmProblem, device: DeviceSpec,
               top: int | None = None) -> list[KernelConfig]:
    """The legal configs of every shipped space, the most promising by estimate first."""
    model = model_for(problem, device)
    legal = [c for c in shipped_configs(problem) if violation(problem, c, device) is None]
    ordered = sorted(legal, key=lambda c: (model.estimate(problem, c).total_us, c.config_id))
    return ordered if top is None else ordered[:top]
