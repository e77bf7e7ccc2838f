"""A kernel's hardware counters, read by Nsight Compute's command line (``ncu``).

``ncu`` runs a process that launches the kernel once between the profiler's start and stop, so that
nothing else is profiled. Clocks are not locked.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tritongemm import settings
from tritongemm.errors import DataFileError, DeviceError, MissingDependencyError
from tritongemm.problem import GemmProblem
from tritongemm.records.atomic import write_error
from tritongemm.records.codec import problem_from_json, problem_to_json
from tritongemm.records.reading import decode, lines, open_regular, parse_json
from tritongemm.records.run import new_run_id, utc_now

#: Warp stall reasons, as the metrics name them.
STALLS = ("long_scoreboard", "short_scoreboard", "barrier", "mio_throttle", "lg_throttle",
          "math_pipe_throttle", "wait", "not_selected", "no_instruction", "dispatch_stall",
          "branch_resolving", "membar", "drain", "imc_miss", "sleeping", "tex_throttle")
#: Short name -> Nsight Compute's metric. "Memory throughput" and "DRAM throughput" are those of
#: its Speed Of Light section.
METRICS: dict[str, str] = {
    "duration_ns": "gpu__time_duration.sum",
    "memory_pct": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_pct": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_hit_pct": "l1tex__t_sector_hit_rate.pct",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "bank_conflicts_ld": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "bank_conflicts_st": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "sectors_a_load": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "warps_active_pct": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    **{f"stall_{reason}":
       f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio" for reason in STALLS},
}
#: What ``ladder --profile`` adds to its table.
SHOWN = ("memory %", "DRAM %", "L1 hit %", "L2 hit %", "bank conflicts", "waits for")
_SHOWN_AS = {"memory %": "memory_pct", "DRAM %": "dram_pct", "L1 hit %": "l1_hit_pct",
             "L2 hit %": "l2_hit_pct"}
#: Stall reasons that are not stalls: the warp could issue, or did.
_NO_STALL = ("not_selected", "wait")
_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Counters:
    """One launch's counters.

    Attributes:
        kernel: its name; grid, block: extents as ``ncu`` writes them.
        values: short name of :data:`METRICS` -> value; what this device lacks is left out.
    """

    kernel: str
    grid: str
    block: str
    values: Mapping[str, float] = field(default_factory=dict)


def find_ncu() -> str:
    """The path of ``ncu``. Raises :class:`MissingDependencyError` with where to get it."""
    found = shutil.which("ncu")
    if found is None:
        for folder in ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute"):
            for path in (Path(folder) / "ncu", *sorted(Path(folder).glob("*/ncu"))):
                if path.is_file():
                    return str(path)
        raise MissingDependencyError(
            "profiling needs Nsight Compute's command line, `ncu`, which is neither on PATH nor "
            "under /usr/local/cuda. It comes with the CUDA toolkit; alone: "
            "`apt-get install nsight-compute` from NVIDIA's repository, or "
            "https://developer.nvidia.com/nsight-compute")
    return found


def command(ncu: str, problem: GemmProblem, kernel: str) -> list[str]:
    """The command line that profiles one call of ``kernel``."""
    return [ncu, "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off",
            "--target-processes", "all", "--clock-control", "none", "--metrics",
            ",".join(METRICS.values()), sys.executable, "-m", "tritongemm.bench.profiled",
            json.dumps(problem_to_json(problem)), kernel]


def profile(problem: GemmProblem, kernel: str, *, ncu: str | None = None,
            timeout_s: float = _TIMEOUT_S) -> list[Counters]:
    """Counters of every launch of one call of ``kernel``, in order.

    Args:
        kernel: a rung, a kernel of tritongemm, or a provider (``torch``, ``tritongemm``).
        ncu: its path; looked up by default.

    Raises:
        MissingDependencyError: no ``ncu``. DeviceError: the counters cannot be read, with the
            reason; the profiled process failed.
    """
    words = command(ncu or find_ncu(), problem, kernel)
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s,
                              env=settings.child_environment(), check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"profiling {kernel} took longer than {timeout_s:g} s; use a smaller "
                          "problem") from error
    except OSError as error:
        raise DeviceError(f"ncu cannot be started: {error}") from error
    said = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in said:
        raise DeviceError("the driver lets only administrators read hardware counters here "
                          "(ERR_NVGPUCTRPERM). Run as root or with CAP_SYS_ADMIN, or load the "
                          "driver with NVreg_RestrictProfilingToAdminUsers=0")
    found = parse(done.stdout)
    if not found:
        tail = " | ".join(line.strip() for line in said.splitlines()[-6:] if line.strip())
        raise DeviceError(f"ncu gave no counters for {kernel} (status {done.returncode}): {tail}")
    return found


def parse(text: str) -> list[Counters]:
    """``ncu --csv --page raw``'s output: a line of names, a line of units, and a line for each
    launch. Other output of ncu is skipped."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    table = list(csv.reader(io.StringIO("\n".join(
        line for line in lines[start:] if line.startswith('"')))))
    names = table[0]
    found = []
    for cells in table[1:]:
        row = dict(zip(names, cells))
        if not row.get("ID", "").strip():
            continue  # the units
        values = {short: number for short, metric in METRICS.items()
                  if (number := _number(row.get(metric, ""))) is not None}
        found.append(Counters(row.get("Kernel Name", ""), row.get("Grid Size", ""),
                              row.get("Block Size", ""), values))
    return found


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None  # n/a


def main_launch(launches: Sequence[Counters]) -> Counters:
    """The launch that took longest: the product, not its copies."""
    return max(launches, key=lambda one: one.values.get("duration_ns", 0.0))


def stalls(values: Mapping[str, float]) -> list[tuple[str, float]]:
    """Stall reasons, the largest first: (reason, warps stalled for each warp that issues)."""
    found = [(reason, values[f"stall_{reason}"]) for reason in STALLS
             if values.get(f"stall_{reason}") and reason not in _NO_STALL]
    return sorted(found, key=lambda item: -item[1])


def shown(values: Mapping[str, float], name: str) -> str:
    """The cell of a column of :data:`SHOWN`."""
    if not values:
        return ""
    if name == "bank conflicts":
        total = values.get("bank_conflicts_ld", 0) + values.get("bank_conflicts_st", 0)
        return f"{total:,.0f}"
    if name == "waits for":
        return ", ".join(f"{reason} {value:.1f}" for reason, value in stalls(values)[:2])
    value = values.get(_SHOWN_AS[name])
    return "" if value is None else f"{value:.1f}"


def store(path: Path, problem: GemmProblem, kernel: str, launches: Sequence[Counters], *,
          device: str) -> None:
    """Appends the launches to a JSONL file, one a line.

    Raises:
        DataFileError: not writable.
    """
    run_id, utc = new_run_id(), utc_now()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():
            raise DataFileError(path, "is not a regular file; choose another path")
        with path.open("a", encoding="utf-8") as file:
            for number, one in enumerate(launches):
                file.write(json.dumps({
                    "run_id": run_id, "utc": utc, "device": device,
                    "problem": problem_to_json(problem), "provider": kernel, "launch": number,
                    **asdict(one)}) + "\n")
    except OSError as error:
        raise write_error(path, error) from error


def read(path: Path) -> list[dict]:
    """What :func:`store` wrote. Raises :class:`DataFileError`."""
    found = []
    with open_regular(path) as file:
        for number, raw in lines(file, path):
            record = parse_json(path, decode(path, raw, number), number)
            try:
                record["values"] = {  # type: ignore[index]
                    str(k): float(v)
                    for k, v in record["values"].items()}  # type: ignore[index]
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
                raise DataFileError(path, f"is not a record of counters: {error}",
                                    row=number) from error
            found.append(record)
    return found


def latest(path: Path) -> dict[tuple[str, tuple[int, int, int]], Mapping[str, float]]:
    """(rung, (m, n, k)) -> the counters of its main launch, of the last time it was profiled.

    Raises:
        DataFileError: the file cannot be read, or is not :func:`store`'s.
    """
    runs: dict[tuple, tuple[str, list[Counters]]] = {}
    for record in read(path):
        one = problem_from_json(record["problem"])
        key = record["provider"], (one.m, one.n, one.k)
        if key not in runs or runs[key][0] != record["run_id"]:
            runs[key] = record["run_id"], []
        runs[key][1].append(Counters(record["kernel"], record["grid"], record["block"],
                                     record["values"]))
    return {key: main_launch(launches).values for key, (_, launches) in runs.items()}
