"""A calibration in minutes for a device without measurements: ``calibrate --quick``.

Problems are drawn from the families of the shipped suites and interleaved, so that the sample stays
balanced wherever the budget ends it. For each problem, half of the configs are those that the model
with typical constants expects to be fastest, and half are drawn over the tiles. All problems share
one pool of configs, so that differences between problems show on the same configs, and several
problems use the same binary.

Typical constants rank configs badly, so what a model learns grows with the number of different
configs more than with that of problems. For the same reason the calibration lists no candidates: of
the pool's configs even the best may be slow for a problem, and selection goes through all configs
of the tiles that were measured.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tritongemm import device as devices
from tritongemm import settings
from tritongemm.bench.fresh import draw
from tritongemm.calibration.calibrate import calibrate
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UsageError
from tritongemm.ops.float32 import default_precision
from tritongemm.problem import GemmProblem
from tritongemm.records.atomic import write_atomic
from tritongemm.records.calibration import Calibration
from tritongemm.records.codec import problem_key
from tritongemm.selection.work import class_of
from tritongemm.tuning.candidates import KernelPlanner, PruneReport, legal_among
from tritongemm.tuning.sweep import SweepReport, sweep

BUDGET_S = 480.0
#: Share of the budget for sweeping; the rest is for start-up and the fit.
_FOR_SWEEPING = 0.92
#: Suite -> number of problems drawn from its family. More than most devices measure in eight
#: minutes: the sweep ends with its budget.
FAMILIES = {"aligned_random": 48, "llm_prefill": 48, "llm_decode": 48, "square": 20,
            "stream_k": 16, "wide_k": 16, "odd": 16, "training": 16, "low_rank": 12, "split_k": 12,
            "batched": 12}
_SEED = 1126
#: Products of linear layers are the most frequent.
_LAYOUTS = ("nt", "nn", "nt", "tn", "nt", "tt")
#: Larger problems take seconds per config on a small device.
_MOST_FLOPS, _MOST_BYTES = 2e12, 2**31
#: Configs of each problem, and number of finalists that are measured again in rounds with torch. A
#: config takes 0.02 s, what else a problem takes 1.3 s (an H200).
CONFIGS, FINALISTS = 40, 3
#: The pool has one random config of each tile, and of so many anchor problems the configs that are
#: expected to be fastest. In the 443 s of an H200 with 16 cores 203 of 264 problems were measured
#: (perf/results/nvidia-h200/timings/quick.npz).
_ANCHORS, _OF_ANCHOR = 24, 12


@dataclass(frozen=True)
class QuickReport:
    """The result of ``calibrate --quick``: the sweep, the file, and its contents."""

    sweep: SweepReport
    path: Path
    calibration: Calibration


def quick_problems(dtype: str = "bf16", seed: int = _SEED, precision: str | None = None
                   ) -> list[GemmProblem]:
    """The problems, with each family spread evenly over the list. ``precision``: of fp32; None:
    that of calls."""
    precision = precision or default_precision("fp32")
    placed: list[tuple[float, GemmProblem]] = []
    for family, count in FAMILIES.items():
        # Neighbours in a family share a model or a row, so an evenly spaced subset is taken.
        shapes = draw(family, seed, 5 * count)
        random.Random(f"{family} {seed}").shuffle(shapes)
        found = 0
        for shape in shapes:
            problem = shape.problem(dtype=shape.dtype or dtype,
                                    layout=_LAYOUTS[found % len(_LAYOUTS)],
                                    precision=precision)
            if problem.flops() <= _MOST_FLOPS and problem.bytes() <= _MOST_BYTES:
                placed.append(((found + 0.5) / count, problem))
                found += 1
            if found == count:
                break
    placed.sort(key=lambda item: item[0])
    return list(dict.fromkeys(problem for _, problem in placed))


def spread(by_promise: Sequence[KernelConfig], count: int, seed: str) -> list[KernelConfig]:
    """``count`` configs: alternately the next by estimated time, and a random one from the tiles
    that were drawn least."""
    rng = random.Random(seed)
    promising = list(by_promise)
    drawn = rng.sample(promising, len(promising))
    tiles: dict[str, int] = {}
    chosen: dict[KernelConfig, None] = {}
    while len(chosen) < min(count, len(promising)):
        if len(chosen) % 2 == 0:
            config = next(c for c in promising if c not in chosen)
        else:
            config = min((c for c in drawn if c not in chosen),
                         key=lambda c: tiles.get(class_of(c), 0))
        chosen[config] = None
        tiles[class_of(config)] = tiles.get(class_of(config), 0) + 1
    return list(chosen)


class QuickPlanner(KernelPlanner):
    """The candidates of a quick calibration.

    Args:
        anchors: problems whose best configs by estimate are in the pool, beside one of each tile.
    """

    def __init__(self, anchors: Sequence[GemmProblem], count: int = CONFIGS) -> None:
        super().__init__(top=count)
        self._anchors, self._count = list(anchors), count
        self._pools: dict[str, list[KernelConfig]] = {}

    def legal(self, problem: GemmProblem, device: DeviceSpec, report: PruneReport
              ) -> list[KernelConfig]:
        """The legal configs of the pool."""
        return legal_among(self._pool(problem, device), problem, device, report)

    def by_promise(self, problem: GemmProblem, device: DeviceSpec, configs: list[KernelConfig]
                   ) -> list[KernelConfig]:
        """See :func:`spread`; the first ``count`` are measured."""
        ordered = super().by_promise(problem, device, configs)
        first = spread(ordered, self._count, problem_key(problem))
        return [*first, *(config for config in ordered if config not in first)]

    def _pool(self, problem: GemmProblem, device: DeviceSpec) -> list[KernelConfig]:
        if problem.operands not in self._pools:
            pool: dict[KernelConfig, None] = {}
            for anchor in self._anchors:
                if anchor.operands == problem.operands:
                    legal = super().legal(anchor, device, PruneReport())
                    pool.update(dict.fromkeys(
                        super().by_promise(anchor, device, legal)[:_OF_ANCHOR]))
            rng = random.Random(f"{_SEED} {problem.operands}")
            of_tile: dict[str, list[KernelConfig]] = {}
            for space in self.spaces:
                for config in self._configs(space, problem.operands):
                    of_tile.setdefault(class_of(config), []).append(config)
            pool.update(dict.fromkeys(map(rng.choice, of_tile.values())))
            self._pools[problem.operands] = list(pool)
        return self._pools[problem.operands]


def remember(device: DeviceSpec) -> Path | None:
    """Writes a device file from the driver's data, so that ``calibrate`` and ``--device-name`` know
    the device. Returns its path; None if there is one already.

    Raises:
        DataFileError: the file is not writable.
    """
    if device.slug in devices.known_devices():
        return None
    path = settings.config_root() / "devices" / f"{device.slug}.json"
    values = {name: getattr(device, name) for name in (
        "name", "arch", "num_sms", "shared_bytes_per_block", "shared_bytes_per_sm",
        "registers_per_sm", "l2_bytes")}
    write_atomic(path, json.dumps({**values, "sources": {"limits": "the driver"}}, indent=2) + "\n")
    devices.forget()
    return path


def quick(journal: str | os.PathLike[str], *, budget_s: float = BUDGET_S, dtype: str = "bf16",
          path: str | os.PathLike[str] | None = None,
          problems: Sequence[GemmProblem] | None = None, **options: object) -> QuickReport:
    """Sweeps for ``budget_s`` seconds, fits, and writes the device's calibration.

    Args:
        journal: the sweep's journal; a new file.
        path: the calibration's file; None: where selection reads it.
        problems: by default :func:`quick_problems`.
        options: options of :func:`tritongemm.tuning.sweep.sweep`.

    Raises:
        UsageError: a bad budget. Otherwise as ``sweep`` and ``calibrate``.
    """
    if not 0 < budget_s < float("inf"):
        raise UsageError(f"budget_s={budget_s} is not a positive number of seconds")
    wanted = list(quick_problems(dtype) if problems is None else problems)
    options.setdefault("candidates", QuickPlanner(wanted[:_ANCHORS]))
    options.setdefault("finalists", FINALISTS)
    swept = sweep(wanted, journal, budget_s=_FOR_SWEEPING * budget_s, **options)  # type: ignore
    written, calibration = calibrate([journal], path=path, listed=False)
    return QuickReport(swept, written, calibration)
