"""Heat maps of a sweep's journal over block_m x block_n: the best time over that of each tile size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tritongemm.config import KernelConfig
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_from_json, problem_from_json
from tritongemm.records.journal import read_journal

T = TypeVar("T")


@dataclass
class Cell:
    """One block_m x block_n of one kernel: the fastest config over all other parameters.

    Attributes:
        time_us: the best time; infinity where nothing ran.
        config: the config with that time.
        tried: configs measured with this tile size, failed ones included.
        failed: failures by status.
    """

    time_us: float = math.inf
    config: KernelConfig | None = None
    tried: int = 0
    failed: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class HeatMap:
    """The cells of one problem, by kernel and then by (block_m, block_n)."""

    problem: GemmProblem
    kernels: Mapping[str, Mapping[tuple[int, int], Cell]]

    @property
    def best_us(self) -> float:
        """The best time of any kernel; infinity where nothing ran."""
        return min((cell.time_us for cells in self.kernels.values() for cell in cells.values()),
                   default=math.inf)

    def share(self, kernel: str, block: tuple[int, int]) -> float | None:
        """Best time / this cell's time, in 0 to 1; None where nothing ran."""
        cell = self.kernels[kernel].get(block)
        if cell is None or math.isinf(cell.time_us):
            return None
        return self.best_us / cell.time_us


def read_maps(paths: Iterable[str | Path]) -> list[HeatMap]:
    """The maps of every problem in the journals, in order of first appearance.

    Only times of one stage are compared: where a problem has coarse times, the times of its
    finalists are left out, because they were measured under other conditions.

    Raises:
        DataFileError: a journal that cannot be used.
    """
    stages: dict[GemmProblem, dict[bool, dict[str, dict[tuple[int, int], Cell]]]] = {}
    problems: dict[tuple, GemmProblem] = {}
    configs: dict[tuple, KernelConfig] = {}
    for path in map(Path, paths):
        for record in read_journal(path):
            if record["kind"] != "result":
                continue
            problem = _once(problems, record["problem"], problem_from_json)
            config = _once(configs, record["config"], config_from_json)
            final = record.get("stage") == "final"
            kernels = stages.setdefault(problem, {}).setdefault(final, {})
            cell = kernels.setdefault(config.kernel, {}).setdefault(
                (config.block_m, config.block_n), Cell())
            _add(cell, config, record)
    return [HeatMap(problem, by_stage.get(False) or by_stage[True])
            for problem, by_stage in stages.items()]


def spread(maps: Sequence[HeatMap], count: int) -> list[HeatMap]:
    """At most ``count`` of the maps, spread evenly by work, smallest and largest among them."""
    maps = sorted((m for m in maps if not math.isinf(m.best_us)),
                  key=lambda m: (m.problem.flops(), str(m.problem)))
    if len(maps) <= count:
        return maps
    if count <= 1:
        return maps[len(maps) // 2:][:count]
    return [maps[round(i * (len(maps) - 1) / (count - 1))] for i in range(count)]


def mean_shares(maps: Sequence[HeatMap]) -> dict[str, dict[tuple[int, int], tuple[float, int]]]:
    """By kernel and tile size: the geometric mean of best time / time over the problems where that
    tile size ran, and the number of these problems."""
    logs: dict[str, dict[tuple[int, int], list[float]]] = {}
    for one in maps:
        for kernel, cells in one.kernels.items():
            for block in cells:
                share = one.share(kernel, block)
                if share is not None:
                    logs.setdefault(kernel, {}).setdefault(block, []).append(math.log(share))
    return {kernel: {block: (math.exp(math.fsum(v) / len(v)), len(v)) for block, v in cells.items()}
            for kernel, cells in logs.items()}


def _once(known: dict[tuple, T], values: Mapping[str, Any], make: Callable[[Any], T]) -> T:
    # A journal of a million lines names few problems and configs; each is decoded once.
    key = tuple(values.items())
    if key not in known:
        known[key] = make(values)
    return known[key]


def _add(cell: Cell, config: KernelConfig, record: Mapping[str, Any]) -> None:
    cell.tried += 1
    if record["status"] != "ok":
        cell.failed[record["status"]] += 1
        return
    time = record.get("time_us")
    if time is not None and time < cell.time_us:  # the interpreter verifies and does not time
        cell.time_us, cell.config = float(time), config
