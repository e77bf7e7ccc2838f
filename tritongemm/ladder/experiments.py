"""The sources' own experiments: which rungs, with which parameters, at which sizes.

S1 to S4 are the texts named in :mod:`tritongemm.ladder.catalog`. Each experiment is run by one
command, ``tritongemm ladder --experiment NAME``, and printed beside what its source measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tritongemm.bench.counters import shown
from tritongemm.device import DeviceSpec
from tritongemm.errors import UsageError
from tritongemm.ladder import catalog
from tritongemm.ladder.climbing import Climb, Row, duration, pick
from tritongemm.problem import GemmProblem
from tritongemm.records.columns import roof_time_us
from tritongemm.records.control import BASELINE


@dataclass(frozen=True)
class Step:
    """One line of a source's table: what the source calls it, the rung, and the sizes."""

    label: str
    rung: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Experiment:
    """One experiment of a source.

    Attributes:
        name: as ``--experiment`` takes it.
        source: ``S1`` to ``S4``.
        title: what it shows.
        steps: in the source's order.
        profiled: the source gives the profiler's columns.
        floor: the source computes the least time possible.
    """

    name: str
    source: str
    title: str
    steps: tuple[Step, ...]
    profiled: bool = False
    floor: bool = False

    @property
    def climbs(self) -> tuple[Climb, ...]:
        """What has to be measured: rungs of equal sizes together."""
        groups: dict[tuple[int, ...], list[str]] = {}
        for step in self.steps:
            groups.setdefault(step.sizes, []).append(step.rung)
        return tuple(Climb(tuple((s, s, s) for s in sizes), tuple(dict.fromkeys(rungs)))
                     for sizes, rungs in groups.items())


def _parameters(name: str, **axes: int) -> str:
    return "+".join((name, *(f"{axis}={value}" for axis, value in axes.items())))


_SMALL_OUTER = _parameters("outer_product", block_m=16, block_n=16, block_k=16, thread_m=2,
                           thread_n=2)
_TRANSPOSED_64 = _parameters("transposed_a", block_m=64, block_n=64, block_k=64, thread_m=4,
                             thread_n=4)
_S4_SIZES = (256, 512, 1024, 2048)

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (
    Experiment("S1", "S1", "S1 at 512, with the profiler's two columns (v1 at 256)", (
        Step("v0 global memory", _parameters("coalesced", block_m=16, block_n=16), (512,)),
        Step("v1 strips in shared memory", "smem_strip", (256,)),
        Step("v2 tiles in shared memory", _parameters("smem_tiled", block_m=16, block_n=16,
                                                      block_k=16), (512,)),
        Step("v3 four results a thread", "strided_2x2", (512,)),
        Step("v4 float4 loads", "float4", (512,)),
        Step("v5 outer product", _SMALL_OUTER, (512,)),
        Step("v6 outer product, float4", "outer_product_float4", (512,)),
        Step("v7 A transposed", _TRANSPOSED_64, (512,)),
        Step("v8 two buffers", "double_buffered_smem", (512,))), profiled=True),
    Experiment("S2", "S2", "S2 at 8176: from global memory to padded 128-bit loads", (
        Step("v1", _parameters("coalesced", block_m=16, block_n=16), (8176,)),
        Step("v2", "smem_tiled", (8176,)), Step("v3", "strided_2x2", (8176,)),
        Step("v4", "padded", (8176,)), Step("v5", "column_8", (8176,)),
        Step("v6", "outer_product", (8176,)), Step("v7", "ldg_vectorized", (8176,)))),
    Experiment("S2-sizes", "S2", "S2: its best padded rung against cuBLAS by size", (
        Step("v7", "ldg_vectorized", tuple(f.m for f in catalog.S2_BY_SIZE)),)),
    Experiment("S3", "S3", "S3 at 4096: from naive to warp tiles", (
        Step("naive", "naive", (4096,)), Step("coalesced", "coalesced", (4096,)),
        Step("shared memory", "smem_tiled", (4096,)),
        Step("thread tiling", "thread_tile_2d", (4096,)),
        Step("vectorised, A transposed", "transposed_a", (4096,)),
        Step("double buffering", "double_buffered", (4096,)),
        Step("warp tiling", "warp_tiled", (4096,))), floor=True),
    Experiment("S4", "S4", "S4 at 256 to 2048", (
        Step("naive", "naive", _S4_SIZES), Step("shared memory", "smem_tiled", _S4_SIZES),
        Step("1D thread tile", "thread_tile_1d", _S4_SIZES),
        Step("2D thread tile", "thread_tile_2d", _S4_SIZES),
        Step("vectorised", "transposed_a", _S4_SIZES))),
)}


def experiment(name: str) -> Experiment:
    """The experiment ``name``. Raises :class:`UsageError` listing them."""
    try:
        return EXPERIMENTS[name]
    except KeyError:
        raise UsageError(f"no experiment is named {name!r}; there are "
                         f"{', '.join(EXPERIMENTS)}") from None


def source_figures(one: Experiment, step: Step, size: int) -> dict[str, catalog.Figure]:
    """What the source measured for a step at a size: unit -> figure."""
    if one.name == "S2-sizes":
        return {f.unit: f for f in catalog.S2_BY_SIZE if f.m == size}
    # S3 says "thread tiling" once; the list keeps that figure at the rung of one dimension.
    name = step.rung.partition("+")[0]
    if one.name == "S3" and name == "thread_tile_2d":
        name = "thread_tile_1d"
    return {f.unit: f for f in catalog.rung(name).figures if f.source == one.source and f.m == size}


def table(one: Experiment, rows: Sequence[Row],
          counters: Mapping[str, Mapping[str, float]] | None = None
          ) -> tuple[tuple[str, ...], list[list[str]]]:
    """The source's figures and ours, step by step and size by size: heads and cells."""
    heads = ["step", "rung", "size", f"{one.source}: {_hardware(one)}"]
    if one.profiled:
        heads += [f"{one.source}: memory %", f"{one.source}: DRAM %"]
    heads += ["here", "TFLOPS", "% of torch"]
    if one.profiled:
        heads += ["memory %", "DRAM %"]
    cells = []
    for step in one.steps:
        for size in step.sizes:
            told = source_figures(one, step, size)
            own = next((f"{f.value:g} {f.unit}" for u, f in told.items()
                        if not u.endswith("throughput %")), "")
            line = [step.label, step.rung, str(size), own]
            if one.profiled:
                line += [f"{told[u].value:g}" if u in told else ""
                         for u in ("memory throughput %", "DRAM throughput %")]
            line += _measured(pick(rows, step.rung, (size, size, size)))
            if one.profiled:
                values = (counters or {}).get(f"{step.rung} {size}", {})
                line += [shown(values, "memory %"), shown(values, "DRAM %")]
            cells.append(line)
    for size in dict.fromkeys(s for step in one.steps for s in step.sizes):
        row = pick(rows, BASELINE, (size, size, size))
        own = next((f"{f.value:g} {f.unit}" for f in catalog.BASELINES
                    if f.source == one.source and f.m == size and f.note == "cuBLAS"), "")
        line = ["cuBLAS", "torch", str(size), own, *([""] * 2 if one.profiled else []),
                *_measured(row), *([""] * 2 if one.profiled else [])]
        cells.append(line)
    return tuple(heads), cells


def _hardware(one: Experiment) -> str:
    for step in one.steps:
        for size in step.sizes:
            for figure in source_figures(one, step, size).values():
                return figure.hardware
    return ""


def _measured(row: Row | None) -> list[str]:
    if row is None:
        return ["", "", ""]
    if row["status"] != "ok":
        return [str(row["status"]), "", ""]
    ratio = row["ratio_vs_torch"]
    tflops = row["tflops"]
    return [duration(row["time_us_p50"]),  # type: ignore[arg-type]
            "" if tflops is None else f"{tflops:.3g}",
            "100" if row["provider"] == BASELINE else
            "" if ratio is None else f"{100 * ratio:.1f}"]  # type: ignore[operator]


def floor_text(one: Experiment, device: DeviceSpec) -> str:
    """The least time of the experiment's largest problem on ``device``, and why; S3's own for an
    A100 is 7 ms (137 GFLOP at 19.5 TFLOPS) and 0.1 ms (268 MB at 2039 GB/s)."""
    size = max(s for step in one.steps for s in step.sizes)
    problem = GemmProblem.contiguous(size, size, size, dtype="fp32")
    peak, memory = device.peak_tflops.get("fp32"), device.memory_gbps
    least = roof_time_us(problem, peak, memory)
    if least is None:
        return f"no peak is on record for {device.name}, so its floor is not known"
    return (f"floor of {device.name} at {size}: {duration(least)}: {problem.flops() / 1e9:.0f} "
            f"GFLOP at {peak:g} TFLOPS is {duration(problem.flops() / (peak * 1e6))}, "
            f"{problem.bytes() / 1e6:.0f} MB at {memory:g} GB/s is "
            f"{duration(problem.bytes() / (memory * 1e3))}")


# -- ablation ---------------------------------------------------------------------------------

def ablation(dtype: str) -> dict[str, str]:
    """Technique -> the Triton rung without it; ``everything`` is the one with all of them.

    One thing is changed at a time, from the 128 x 128 tile of ``triton_warp_tiled``.
    """
    whole = "triton_warp_tiled"
    fp32 = dtype == "fp32"
    unhinted = _parameters("triton_grouped", block_m=128, block_n=128,
                           block_k=16 if fp32 else 64, num_warps=8, num_stages=3)
    return {"everything": whole, "without tiling": "triton_naive",
            "without warp tiling": "triton_pipelined",
            "without vectorised loads": unhinted,
            "without grouped order": f"{whole}+group_m=1",
            **{f"num_stages = {stages}": f"{whole}+num_stages={stages}"
               for stages in (1, 2, 4)}}


def ablation_table(dtype: str, rows: Sequence[Row], size: tuple[int, int, int]
                   ) -> tuple[tuple[str, ...], list[list[str]]]:
    """What each technique brings: the time without it over the time with everything."""
    found = {label: pick(rows, text, size) for label, text in ablation(dtype).items()}
    base = found["everything"]
    base_us = base["time_us_p50"] if base else None
    cells = []
    for label, row in found.items():
        time_us = row["time_us_p50"] if row else None
        brings = f"{time_us / base_us:.2f}x" if time_us and base_us else ""  # type: ignore
        cells.append([label, ablation(dtype)[label], *_measured(row),
                      "" if label == "everything" else brings])
    return ("variant", "rung", "time", "TFLOPS", "% of torch", "everything is faster by"), cells
