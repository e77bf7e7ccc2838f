"""The columns of a CSV row, one problem x provider each, and those derived from a time.

Units are in the names; empty means not measured. The schema grows only by appending columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritongemm.compute import PRECISIONS
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import MODIFIERS, modifiers, problem_from_json

SCHEMA_VERSION = 1
#: Outcomes of a row; only ``ok`` rows may have a time.
STATUSES = ("ok", "timeout", "compile", "launch", "wrong", "constraint", "oom", "died")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, the type of its values (``int``, ``float``, ``str``), its meaning."""

    name: str
    type: type
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("schema_version", int, "version of this schema"),
    Column("run_id", str, "the run; its environment is in runs.json"),
    Column("timestamp_utc", str, "when the row was measured, ISO 8601"),
    Column("tags", str, "the user's own words for the run"),
    Column("device", str, "slug of the device"),
    Column("arch", int, "compute capability, e.g. 90"),
    Column("op", str, "mm or bmm"),
    Column("dtype_a", str, "dtype of A"),
    Column("dtype_b", str, "dtype of B"),
    Column("dtype_out", str, "dtype of the result"),
    Column("precision", str, ", ".join(PRECISIONS)),
    Column("layout", str, "nn, nt, tn or tt"),
    Column("epilogue", str, "what is fused after the product"),
    Column("align_a", int, "bytes, modulo 16"),
    Column("align_b", int, "bytes, modulo 16"),
    Column("align_c", int, "bytes, modulo 16"),
    Column("batch", int, "matrices in the batch"),
    Column("m", int, "rows of A and C"),
    Column("n", int, "columns of B and C"),
    Column("k", int, "columns of A, rows of B"),
    Column("suite", str, "the family of shapes"),
    Column("provider", str, "whose product was measured"),
    Column("kernel", str, "the kernel that ran"),
    Column("config_id", str, "its configuration"),
    Column("selection_source", str, "where the choice came from: exact, twin, sibling, model, ..."),
    Column("status", str, "one of " + ", ".join(STATUSES)),
    Column("error", str, "the reason of a status other than ok"),
    Column("time_us_p50", float, "median time of a call, microseconds"),
    Column("time_us_p20", float, "20th percentile, microseconds"),
    Column("time_us_p80", float, "80th percentile, microseconds"),
    Column("n_rounds", int, "interleaved rounds"),
    Column("n_processes", int, "fresh processes whose median this is"),
    Column("timer", str, "graph, event, blocks or host"),
    Column("l2_state", str, "cold or warm"),
    Column("tflops", float, "operations / time, 1e12 a second (derived)"),
    Column("gbps", float, "compulsory bytes / time, 1e9 a second (derived)"),
    Column("pct_of_roof", float, "roofline time / time, per cent (derived)"),
    Column("ratio_vs_torch", float, "torch time / provider time, paired; above 1 is faster"),
    Column("ratio_low", float, "lower end of its 95 % bootstrap interval"),
    Column("ratio_high", float, "upper end of its 95 % bootstrap interval"),
    Column("torch_backend", str, "the back end that torch was fastest with"),
    Column("host_us_p50", float, "host time of a call, microseconds"),
    Column("max_err_ratio", float, "largest error / its limit; at most 1 passes"),
    Column("rms_err_ratio", float, "RMS error / its limit; at most 1 passes"),
    Column("compile_s", float, "seconds that compiling took"),
    Column("registers", int, "registers a thread"),
    Column("spills", int, "spilled registers a thread"),
    Column("shared_bytes", int, "shared memory a block, bytes"),
    Column("occupancy", float, "resident warps / the most that an SM holds"),
    Column("sm_clock_mhz", float, "SM clock while measuring"),
    Column("power_w", float, "board power while measuring"),
    Column("energy_mj", float, "energy of a call, millijoule"),
    Column("throttled", str, "empty: unknown; no; or yes or the reasons"),
    # From here on a file has a column only if one of its rows or a later column needs it.
    Column("scale_a", str, "factors of A: tensor, row or a block such as 1x128; empty: none"),
    Column("scale_b", str, "factors of B, alike"),
    Column("grouping", str, "the extent that groups cut and how many, such as m64; empty: none"),
    # Of whole programs (tritongemm models), whose problem is their product of most flops.
    Column("program", str, "the program whose step was measured; empty: one product"),
    Column("mode", str, "eager, compiled, fused or graph"),
    Column("share_taken", float, "flops of matrix products by this package's kernels / all"),
    Column("peak_bytes", int, "most memory that torch's allocator had handed out in a step"),
)
NAMES = tuple(column.name for column in COLUMNS)
#: Least number of columns of a file.
FIRST_WIDTH = NAMES.index("throttled") + 1
_OF_EVERY_PROBLEM = ("op", "dtype_a", "dtype_b", "dtype_out", "precision", "layout", "epilogue",
                     "align_a", "align_b", "align_c", "batch", "m", "n", "k")
#: The columns that a :class:`GemmProblem` fills: those of scales and groups where it has any.
PROBLEM_COLUMNS = (*_OF_EVERY_PROBLEM, *MODIFIERS)
#: Columns that every row must fill.
REQUIRED = ("schema_version", "run_id", "timestamp_utc", "device", *_OF_EVERY_PROBLEM, "provider",
            "status")
_KEY = ("device", "tags", "suite", "provider", "program", "mode", *PROBLEM_COLUMNS)
Row = dict


def problem_columns(problem: GemmProblem) -> dict[str, object]:
    """The columns that say which problem a row is about."""
    return {**{name: getattr(problem, name) for name in _OF_EVERY_PROBLEM}, **modifiers(problem)}


def problem_of(row: Mapping[str, object]) -> GemmProblem:
    """The problem of a row, the inverse of :func:`problem_columns`. Raises ProblemError."""
    values = {name: row[name] for name in _OF_EVERY_PROBLEM if name != "op"}
    values.update((name, row[name]) for name in MODIFIERS if row.get(name) is not None)
    return problem_from_json(values)


def roof_time_us(problem: GemmProblem, unit_peak_tflops: float | None,
                 memory_gbps: float | None) -> float | None:
    """The roofline's time in microseconds: the larger of operations over the unit's peak and
    compulsory bytes over the bandwidth; None where either rate is unknown."""
    if not unit_peak_tflops or not memory_gbps:
        return None
    return max(problem.flops() / (unit_peak_tflops * 1e6), problem.bytes() / (memory_gbps * 1e3))


def derive(row: Mapping[str, object], *, unit_peak_tflops: float | None,
           memory_gbps: float | None) -> Row:
    """A copy of ``row`` with tflops, gbps and pct_of_roof computed from its time; nothing else
    computes them.

    Without a time they are empty; without a peak or a bandwidth only ``pct_of_roof`` is.

    Args:
        row: with the problem's columns and ``time_us_p50``.
        unit_peak_tflops: dense peak of the unit that does the work, TFLOP/s.
        memory_gbps: bandwidth of the device memory, GB/s.
    """
    result = dict(row)
    result.update(tflops=None, gbps=None, pct_of_roof=None)
    time_us = result.get("time_us_p50")
    if time_us is None or not time_us > 0:  # type: ignore[operator]
        return result
    problem = problem_of(result)
    result["tflops"] = problem.flops() / (time_us * 1e6)  # type: ignore[operator]
    result["gbps"] = problem.bytes() / (time_us * 1e3)  # type: ignore[operator]
    roof = roof_time_us(problem, unit_peak_tflops, memory_gbps)
    if roof is not None:
        result["pct_of_roof"] = 100.0 * roof / time_us  # type: ignore[operator]
    return result


def row_key(row: Mapping[str, object]) -> tuple:
    """The key of a row for ``--resume``: problem x provider, device, suite and tags."""
    return tuple("" if row.get(name) is None else row.get(name) for name in _KEY)
