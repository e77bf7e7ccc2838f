"""The gain of tuning for a program: its products before and after, measured in the same rounds.

A second run, separate from the sweep, measures the sweep's winners against the configs that calls
used before, interleaved with torch. The winners of the second run are published, so that a config
that won the sweep by chance replaces nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritongemm import selection
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import ConfigError, DataFileError, ProblemError, UnsupportedError
from tritongemm.problem import GemmProblem
from tritongemm.records.atomic import write_atomic
from tritongemm.records.codec import (
    config_from_json,
    config_to_json,
    problem_from_json,
    problem_to_json,
)
from tritongemm.records.journal import read_journal
from tritongemm.records.reading import read_json
from tritongemm.records.suites import Shape
from tritongemm.selection.hosttime import usual_path
from tritongemm.tuning.candidates import Candidates, PruneReport
from tritongemm.workers.messages import COARSE, FINAL

#: The note of `tritongemm record` on a product that a GPU ran.
_TIME_US = re.compile(r"\btime_us=([0-9.]+)")


@dataclass(frozen=True)
class ProgramProduct:
    """One kind of product of a program.

    Attributes:
        count: how often the program ran it.
        recorded_us: time of one call while the program was recorded; None if not timed.
    """

    problem: GemmProblem
    count: int
    recorded_us: float | None = None

    @property
    def weight(self) -> float:
        """Total time in microseconds if the product was timed, else total flops."""
        return self.count * (self.problem.flops() if self.recorded_us is None
                             else self.recorded_us)


def products_of(shapes: Iterable[Shape], *, dtype: str = "bf16", layout: str = "nn",
                precision: str = "ieee") -> list[ProgramProduct]:
    """The products of a suite, sorted by total time, or by total flops if not all were timed.
    Products with an extent of 0 are left out; equal products are merged.

    Raises:
        ProblemError: a row that is not a valid product.
    """
    counts: dict[GemmProblem, int] = {}
    spent: dict[GemmProblem, float | None] = {}
    for shape in shapes:
        problem = shape.problem(dtype=dtype, layout=layout, precision=precision)
        if problem.batch * problem.m * problem.n * problem.k == 0:
            continue
        noted = _TIME_US.search(shape.note)
        before = spent.get(problem, 0.0)
        counts[problem] = counts.get(problem, 0) + max(shape.count, 1)
        spent[problem] = (None if noted is None or before is None
                          else before + max(shape.count, 1) * float(noted[1]))
    timed = all(value is not None for value in spent.values())
    found = [ProgramProduct(problem, count, spent[problem] / count if timed else None)  # type: ignore
             for problem, count in counts.items()]
    return sorted(found, key=lambda product: -product.weight)


def choices(problems: Iterable[GemmProblem], device: DeviceSpec
            ) -> dict[GemmProblem, KernelConfig | None]:
    """The configs that calls of ``problems`` use now; None for those that run on torch.

    Raises:
        DataFileError: a damaged table or calibration.
    """
    found: dict[GemmProblem, KernelConfig | None] = {}
    for problem in problems:
        try:
            choice = selection.choose(problem, device)
        except UnsupportedError:
            found[problem] = None
        else:
            torchs = selection.torch_wins(problem, choice, device, usual_path()) is not None
            found[problem] = None if torchs else choice.config
    return found


def write_choices(path: Path, found: dict[GemmProblem, KernelConfig | None]) -> None:
    """Saves choices for a run that is resumed later. Raises DataFileError."""
    write_atomic(path, json.dumps([
        [problem_to_json(problem), None if config is None else config_to_json(config)]
        for problem, config in found.items()], indent=0) + "\n")


def read_choices(path: Path, problems: Iterable[GemmProblem]
                 ) -> dict[GemmProblem, KernelConfig | None]:
    """Reads what :func:`write_choices` saved. Raises DataFileError for any other file, and for one
    without a choice for each of ``problems``."""
    choices = read_json(path)
    try:
        found = {problem_from_json(problem): None if config is None else config_from_json(config)
                 for problem, config in choices}
    except (ValueError, TypeError, ProblemError, ConfigError) as error:
        raise DataFileError(path, f"does not hold the choices of a tuning: {error}") from error
    for problem in problems:
        if problem not in found:  # None in its place would mean torch
            raise DataFileError(path, f"does not say what ran {problem} before, so its gain is not "
                                "known; start another tuning with another --dir")
    return found


class Pairs:
    """The candidates of the second run: the sweep's winner, and the config that calls used
    before."""

    space_hash = "pairs"

    def __init__(self, winners: dict[GemmProblem, KernelConfig],
                 before: dict[GemmProblem, KernelConfig | None], space_hash: str) -> None:
        self._winners, self._before, self.space_hash = winners, before, space_hash

    def __call__(self, problem: GemmProblem, device: DeviceSpec) -> Candidates:
        """One or two configs."""
        pair = (self._winners.get(problem), self._before[problem])
        configs = tuple(dict.fromkeys(config for config in pair if config is not None))
        return Candidates(configs, PruneReport(considered=len(configs), kept=len(configs)))


def winners_in(journal: Path) -> tuple[dict[GemmProblem, KernelConfig], str]:
    """The last winner of each problem, and the hash of the spaces.

    Raises:
        DataFileError: a journal that cannot be used.
    """
    found: dict[GemmProblem, KernelConfig] = {}
    space_hash = "none"
    for record in read_journal(journal):
        if record["kind"] == "winner":
            found[problem_from_json(record["problem"])] = config_from_json(record["config"])
            space_hash = str(record.get("space_hash", space_hash))
    return found, space_hash


@dataclass(frozen=True)
class Gain:
    """A product before and after, times in microseconds, in the same rounds as torch.

    Attributes:
        before, after: configs; None is torch's kernel.
    """

    product: ProgramProduct
    before: KernelConfig | None
    after: KernelConfig | None
    before_us: float
    after_us: float
    torch_us: float

    @property
    def speedup(self) -> float:
        """Time before / time after."""
        return self.before_us / self.after_us


def gains_in(journal: Path, products: Sequence[ProgramProduct],
             before: dict[GemmProblem, KernelConfig | None],
             after: dict[GemmProblem, KernelConfig | None]) -> list[Gain]:
    """The gains of the products that the second run measured, in the order of ``products``.

    A config that was too slow to become a finalist is judged by its coarse time. A product is left
    out if the second run did not measure its config before or after.

    Raises:
        DataFileError: a journal that cannot be used.
    """
    times: dict[tuple[GemmProblem, KernelConfig], float] = {}
    torch_us: dict[GemmProblem, float] = {}
    for record in read_journal(journal):
        if record["kind"] != "result" or record["status"] != "ok" or not record.get("time_us"):
            continue
        problem, config = problem_from_json(record["problem"]), config_from_json(record["config"])
        if record.get("stage") == FINAL:
            times[problem, config] = float(record["time_us"])
            if record.get("ratio_vs_torch"):
                torch_us[problem] = float(record["time_us"]) * float(record["ratio_vs_torch"])
        elif record.get("stage") == COARSE:
            times.setdefault((problem, config), float(record["time_us"]))
    found = []
    for product in products:
        problem = product.problem
        if problem not in torch_us or problem not in after:
            continue
        old, new = before[problem], after[problem]
        old_us, new_us = (torch_us[problem] if config is None else times.get((problem, config))
                          for config in (old, new))
        if old_us is not None and new_us is not None:
            found.append(Gain(product, old, new, old_us, new_us, torch_us[problem]))
    return found


@dataclass(frozen=True)
class Total:
    """Totals over the tuned products, each weighted by its calls: milliseconds in one run of the
    program, and the share of the tuned products in all recorded products."""

    before_ms: float
    after_ms: float
    torch_ms: float
    share: float

    @classmethod
    def of(cls, gains: Sequence[Gain], products: Sequence[ProgramProduct]) -> Total:
        """The totals of ``gains``, for a program with ``products``."""
        def total(name: str) -> float:
            return sum(gain.product.count * getattr(gain, name) for gain in gains) / 1000

        whole = sum(product.weight for product in products)
        part = sum(gain.product.weight for gain in gains)
        return cls(total("before_us"), total("after_us"), total("torch_us"),
                   part / whole if whole else 0.0)


#: Columns of the table on the page.
COLUMNS = ("product", "calls", "before, us", "after, us", "torch, us", "before / after",
           "torch / after", "config")


def cells(gain: Gain) -> tuple[str, ...]:
    """A row of :data:`COLUMNS`."""
    config = "torch" if gain.after is None else gain.after.config_id
    if gain.after == gain.before:
        config += " (as before)"
    return (str(gain.product.problem), str(gain.product.count), f"{gain.before_us:.2f}",
            f"{gain.after_us:.2f}", f"{gain.torch_us:.2f}", f"{gain.speedup:.3f}",
            f"{gain.torch_us / gain.after_us:.3f}", config)


def verdict(gains: Sequence[Gain], products: Sequence[ProgramProduct]) -> list[str]:
    """A summary of the gains, as lines of text."""
    if not gains:
        return [f"none of {len(products)} products was tuned in the time"]
    total = Total.of(gains, products)
    basis = "time" if products[0].recorded_us is not None else "flops"
    faster = sum(gain.speedup >= 1.01 for gain in gains)
    return [
        f"{len(gains)} of {len(products)} products tuned, {100 * total.share:.1f} % of the "
        f"{basis} of all; {faster} are at least 1 % faster than before",
        f"one run of them takes {total.after_ms:.3f} ms; before {total.before_ms:.3f} ms "
        f"({total.before_ms / total.after_ms:.3f}x), torch {total.torch_ms:.3f} ms "
        f"({total.torch_ms / total.after_ms:.3f}x)"]


def markdown(title: str, gains: Sequence[Gain], products: Sequence[ProgramProduct],
             lines: Sequence[str]) -> str:
    """The page: the summary, ``lines`` (such as where the tables are), and a table with a row for
    each product."""
    def row(values: Iterable[str]) -> str:
        return "| " + " | ".join(values) + " |"

    parts = [f"# {title}", "", *(f"- {line}" for line in (*verdict(gains, products), *lines))]
    if gains:
        parts += ["", row(COLUMNS), row(["---", *["---:"] * 6, "---"]),
                  *(row(cells(gain)) for gain in gains), "",
                  "Times are medians of one call, before, after and torch interleaved in the same "
                  "rounds of one process."]
    return "\n".join(parts) + "\n"
