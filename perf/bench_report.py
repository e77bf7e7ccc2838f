"""Time of a report of many rows: a seeded synthetic CSV, timed step by step.

    python perf/bench_report.py [--rows 100000] [--out FOLDER]

The limit is 20 s for 100,000 rows, imports included. The figures in the CSV are made up; nothing
here is a measurement of a kernel.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from tritongemm.device import known_devices
from tritongemm.problem import GemmProblem
from tritongemm.records import rows as records

PROVIDERS = ("torch", "tritongemm", "tritongemm-auto", "inductor")
SUITES = ("square", "llm_prefill", "llm_decode", "stream_k", "aligned_random", "odd")
DTYPES = (("bf16", "nt"), ("fp16", "nn"), ("fp32", "nn"))


def synthetic_rows(count: int, seed: int = 0) -> list[dict]:
    """``count`` rows like those of a bench of several runs: mostly ok, some failed."""
    random = np.random.default_rng(seed)
    device = known_devices()["nvidia-h200"]
    made: list[dict] = []
    while len(made) < count:
        suite = SUITES[random.integers(len(SUITES))]
        dtype, layout = DTYPES[random.integers(len(DTYPES))]
        m, n, k = _shape(random, suite)
        problem = GemmProblem.contiguous(m, n, k, dtype=dtype, layout=layout)
        peak = device.peak_tflops[problem.unit]
        roof = records.roof_time_us(problem, peak, device.memory_gbps) or 1.0
        torch_us = float(roof * random.uniform(1.15, 1.6) + random.uniform(2, 4))
        run = f"20260101T00{int(random.integers(60)):02d}00Z-{int(random.integers(4096)) % 8:06x}"
        for provider in PROVIDERS:
            ratio = 1.0 if provider == "torch" else float(np.exp(random.normal(0.03, 0.12)))
            failed = provider == "inductor" and random.random() < 0.02
            row = {**records.problem_columns(problem), "run_id": run, "device": device.slug,
                   "timestamp_utc": f"{run[:4]}-{run[4:6]}-{run[6:11]}:{run[11:13]}:00Z",
                   "arch": device.arch, "suite": suite, "provider": provider, "tags": "synthetic",
                   "status": "compile" if failed else "ok",
                   "error": "out of shared memory" if failed else ""}
            if not failed:
                time_us, width = torch_us / ratio, float(random.uniform(0.001, 0.02))
                source = ("exact", "nearest", "rule", "torch")[int(random.integers(4))]
                row |= {"time_us_p50": time_us, "time_us_p20": time_us * (1 - width),
                        "time_us_p80": time_us * (1 + width), "n_rounds": 20, "n_processes": 1,
                        "timer": "graph", "l2_state": "cold", "ratio_vs_torch": ratio,
                        "ratio_low": ratio * (1 - width), "ratio_high": ratio * (1 + width),
                        "torch_backend": "cublaslt",
                        "max_err_ratio": float(random.uniform(0.1, 0.7)),
                        "selection_source": source if provider == "tritongemm-auto" else "",
                        "config_id": "" if provider == "torch" else "tiled_128x128x64_w8_s3_g8"}
            made.append(records.derive(row, unit_peak_tflops=peak,
                                       memory_gbps=device.memory_gbps))
    return made[:count]


def _shape(random: np.random.Generator, suite: str) -> tuple[int, int, int]:
    if suite == "square":
        side = int(random.integers(2, 128)) * 128
        return side, side, side
    m, n, k = (int(v) for v in np.exp2(random.uniform(7, 13, 3)))
    if suite == "llm_decode":
        m = int(2 ** random.integers(0, 7))
    if suite != "odd":
        n, k = max(16, n // 16 * 16), max(16, k // 16 * 16)
    return m, n, k


def main() -> None:
    """Makes the CSV, then times the report of it, from the first import on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--out", type=Path, help="keep the CSV and the report here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.out or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "synthetic.csv"
        path.unlink(missing_ok=True)
        records.append_rows(path, synthetic_rows(args.rows))
        print(f"{args.rows:,} rows, {path.stat().st_size / 1e6:.0f} MB")
        start = before = time.perf_counter()

        def lap(what: str) -> None:
            nonlocal before
            now = time.perf_counter()
            print(f"{now - before:7.2f} s  {what}")
            before = now

        from tritongemm.report import load, markdown, page, plots

        results = load.load([path])
        lap("import, read and check the CSV")
        text = markdown.document(results)
        lap(f"tables as Markdown ({len(text)} characters)")
        drawn = plots.write_plots(results, folder / "report")
        lap(f"{len(drawn)} PNG plots")
        out = page.write_page(folder / "report" / "report.html", results)
        lap(f"HTML page ({out.stat().st_size / 1e6:.1f} MB)")
        print(f"{time.perf_counter() - start:7.2f} s  all")


if __name__ == "__main__":
    main()
