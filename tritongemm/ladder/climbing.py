"""Climbing the ladder: rungs x sizes through the bench, rows of suite ``ladder``.

Each rung is a provider (:mod:`tritongemm.ladder.provider`); isolation, rounds, rows and
sidecars are the bench's. Rungs of one dtype share a run, so that torch is measured once a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritongemm.bench import runner
from tritongemm.bench.runner import BenchEvent, BenchPlan, BenchReport
from tritongemm.errors import UsageError
from tritongemm.ladder import catalog
from tritongemm.ladder.provider import parse
from tritongemm.problem import GemmProblem
from tritongemm.records.control import BASELINE
from tritongemm.records.rows import read_rows, read_sidecars
from tritongemm.records.suites import Shape

SUITE = "ladder"
Size = tuple[int, int, int]
Row = Mapping[str, object]


@dataclass(frozen=True)
class Climb:
    """Some rungs at some sizes.

    Attributes:
        sizes: (m, n, k).
        rungs: names, parameters behind them where they are not the shipped ones.
    """

    sizes: tuple[Size, ...]
    rungs: tuple[str, ...]


@dataclass(frozen=True)
class LadderPlan:
    """What is climbed, and how; the other fields are :class:`BenchPlan`'s.

    Attributes:
        climbs: rungs and sizes.
        dtype: of the Triton rungs; CUDA and host rungs compute in fp32.
        cpu: run the host rungs on the CPU; else the others on the GPU.
    """

    climbs: tuple[Climb, ...]
    out: Path
    dtype: str = "bf16"
    cpu: bool = False
    device: str = "auto"
    tags: str = ""
    budget_s: float | None = None
    processes: int = 1
    resume: bool = False
    seed: int = 0
    timeout_s: float = 1800.0
    compile_workers: int | None = None
    notes: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for climb in self.climbs:
            for text in climb.rungs:
                one, _, _ = parse(text)
                if (one.kind == catalog.HOST) != self.cpu:
                    where = "--device cpu" if one.kind == catalog.HOST else "a CUDA device"
                    raise UsageError(f"rung {one.name} runs on {where}; choose rungs of one kind "
                                     f"of machine: {', '.join(r.name for r in _of(self.cpu))}")

    def dtype_of(self, text: str) -> str:
        """The dtype in which a rung is measured."""
        return self.dtype if parse(text)[0].kind == catalog.TRITON else "fp32"

    def problem(self, size: Size, dtype: str) -> GemmProblem:
        """The product of one size: row-major operands, IEEE precision."""
        return GemmProblem.contiguous(*size, dtype=dtype)


def _of(cpu: bool) -> tuple[catalog.Rung, ...]:
    return tuple(r for r in catalog.RUNGS if (r.kind == catalog.HOST) == cpu)


def climb(plan: LadderPlan, progress: Callable[[BenchEvent], None] = lambda event: None
          ) -> list[BenchReport]:
    """Measures everything of ``plan``; rows are on the disk as they come.

    Raises:
        UsageError, DeviceError: a rung or a device that is not there. DataFileError: the CSV.
    """
    reports = []
    for one in plan.climbs:
        groups: dict[str, list[str]] = {}
        for text in one.rungs:
            groups.setdefault(plan.dtype_of(text), []).append(text)
        for dtype, texts in groups.items():
            work = [(Shape(m=m, n=n, k=k, suite=SUITE), plan.problem((m, n, k), dtype))
                    for m, n, k in one.sizes]
            reports.append(runner.bench(BenchPlan(
                work=work, providers=(BASELINE, *texts), out=plan.out, tags=plan.tags,
                resume=plan.resume, processes=plan.processes, seed=plan.seed,
                budget_s=plan.budget_s, timeout_s=plan.timeout_s,
                device="cpu" if plan.cpu else plan.device,
                compile_workers=plan.compile_workers, notes=plan.notes), progress))
    return reports


def rows_of(plan: LadderPlan) -> list[Row]:
    """The plan's rows in its CSV, the last of each rung and size, torch's among them: those of the
    device that was measured last."""
    if not plan.out.exists():
        return []
    wanted = {(size, plan.dtype_of(text), provider)
              for one in plan.climbs for size in one.sizes for text in one.rungs
              for provider in (text, BASELINE)}
    found: dict[object, dict[tuple, Row]] = {}
    device: object = None
    for row in read_rows(plan.out):
        key = ((row["m"], row["n"], row["k"]), row["dtype_a"], row["provider"])
        if row["suite"] == SUITE and (row["tags"] or "") == plan.tags and key in wanted:
            device = row["device"]
            found.setdefault(device, {})[key] = row
    return list(found.get(device, {}).values())


def void_runs(rows: Iterable[Row], out: Path) -> dict[str, str]:
    """The runs of ``rows`` that torch against torch voids -> why, by the records beside ``out``.

    Raises:
        DataFileError: the records cannot be read.
    """
    found = {str(row["run_id"]) for row in rows}
    return {run_id: str(meta.get("void_reason", "")) for run_id, meta in
            read_sidecars(out.parent).items() if run_id in found and meta.get("void")}


def sizes_in(path: Path) -> tuple[Size, ...]:
    """The sizes of which a CSV has rows of the ladder, the smallest first.

    Raises:
        UsageError: it is not there, or has none.
        DataFileError: it cannot be read.
    """
    found: set[Size] = set()
    if path.exists():
        found = {(row["m"], row["n"], row["k"]) for row in read_rows(path)
                 if row["suite"] == SUITE}
    if not found:
        raise UsageError(f"{path} has no rows of the ladder" if path.exists() else
                         f"{path} does not exist; measure first: tritongemm ladder --out {path}")
    return tuple(sorted(found, key=lambda size: (size[0] * size[1] * size[2], size)))


def pick(rows: Iterable[Row], text: str, size: Size) -> Row | None:
    """The row of a rung at a size."""
    for row in rows:
        if row["provider"] == text and (row["m"], row["n"], row["k"]) == size:
            return row
    return None


# -- tables -----------------------------------------------------------------------------------

HEADS = ("rung", "time", "TFLOPS", "% of torch", "gain", "% of roof", "regs", "spills",
         "smem B", "occ", "source's own")


def table(rows: Sequence[Row], size: Size, rungs: Sequence[str],
          counters: Mapping[str, Mapping[str, float]] | None = None
          ) -> tuple[tuple[str, ...], list[list[str]]]:
    """One size's table: heads and cells, torch first (once a dtype), rung by rung.

    ``gain`` is over the rung before it of the same kind. ``counters``: rung -> profiled values
    by short name, further columns (see :mod:`tritongemm.bench.counters`).
    """
    from tritongemm.bench import counters as profiling

    extra = profiling.SHOWN if counters else ()
    cells: list[list[str]] = []
    at = [r for r in rows if (r["m"], r["n"], r["k"]) == size]
    for row in at:
        if row["provider"] == BASELINE:
            name = f"torch {row['dtype_a']}" + (f" ({row['torch_backend']})"
                                                if row["torch_backend"] else "")
            cells.append(_cells(name, row, None, "") + [""] * len(extra))
    before: dict[str, float] = {}
    for text in rungs:
        found = pick(at, text, size)
        if found is None:
            continue
        one = parse(text)[0]
        time_us = found["time_us_p50"]
        line = _cells(text, found, before.get(one.kind),
                      catalog.figure_text(catalog.figure_for(one, *size), size[0]))
        if time_us is not None:
            before[one.kind] = float(time_us)  # type: ignore[arg-type]
        told = (counters or {}).get(text, {})
        cells.append(line + [profiling.shown(told, name) for name in extra])
    return (*HEADS, *extra), cells


def _cells(name: str, row: Row, before_us: float | None, beside: str) -> list[str]:
    if row["status"] != "ok":
        reason = " ".join(str(row["error"] or "").split())
        return [name, f"{row['status']}: {reason[:60]}", *[""] * 8, beside]
    time_us = row["time_us_p50"]
    gain = f"{before_us / time_us:.2f}x" if before_us and time_us else ""  # type: ignore
    ratio = row["ratio_vs_torch"]
    return [name, duration(time_us), _number(row["tflops"], 3),  # type: ignore[arg-type]
            "100" if row["provider"] == BASELINE else
            f"{100 * ratio:.1f}" if ratio is not None else "",  # type: ignore[operator]
            gain, _number(row["pct_of_roof"], 3), _number(row["registers"]),
            _number(row["spills"]), _number(row["shared_bytes"]), _number(row["occupancy"], 2),
            beside]


def duration(time_us: float | None) -> str:
    """``471.8 us``, ``9.19 ms``, ``1.2 s``; ``right`` where only the result was checked."""
    if time_us is None:
        return "right"
    if time_us < 1e4:
        return f"{time_us:.4g} us"
    return f"{time_us * 1e-3:.4g} ms" if time_us < 1e7 else f"{time_us * 1e-6:.4g} s"


def _number(value: object, digits: int = 6) -> str:
    return "" if value is None else f"{value:.{digits}g}"
