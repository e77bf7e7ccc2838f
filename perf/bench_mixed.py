"""bf16 inputs with float32 weights (`mixed=True`) beside torch: routers and gates.

    python perf/bench_mixed.py OUT.csv [--rounds 11] [--calls 20] [--rows 1,8,64]

For each weight [N, K] and number of rows M, microseconds a call: `torch` multiplies an input that
was converted before, `torch_converting` converts it in each call, `ours` is `tritongemm.linear`
with `mixed=True`. `gpu_` columns: `--calls` calls in a CUDA graph; the others: as many calls in
eager mode, host included. Medians of `--rounds` rounds that alternate between all. Each result is
compared with float64 before it is timed. The goal: `ours` never takes longer than `torch`.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_two_strides import time_us  # beside this file

import tritongemm as tg
from tritongemm.device import current_device
from tritongemm.errors import DeviceError

#: N, K of routers: Mixtral 8x7B, Qwen3-30B-A3B, DeepSeek-V2 and -V3, Kimi K2, OLMoE, Switch-Base;
#: and a square layer.
WEIGHTS = ((8, 4096), (128, 2048), (160, 5120), (256, 7168), (384, 7168), (64, 2048), (128, 768),
           (4096, 4096))
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
NAMES = ("torch", "torch_converting", "ours")
COLUMNS = ("m", "n", "k", *(f"gpu_{x}_us" for x in NAMES), *(f"{x}_us" for x in NAMES),
           "gpu_ratio", "ratio", "error", "device")
#: Of |A| |B|, as the tests hold these products to.
LIMIT = 4e-6


def captured(call: Callable[[], object], calls: int) -> Callable[[], object]:
    """A replay of ``calls`` calls in a CUDA graph, after a warm-up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph.replay


def wall_us(call: Callable[[], object], calls: int) -> float:
    """Of one of ``calls`` eager calls in a row, until the last is done."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin) / calls


def medians(samples: list[Callable[[], float]], rounds: int) -> list[float]:
    """Of each, in rounds of random order after one that does not count."""
    found: list[list[float]] = [[] for _ in samples]
    for number in range(rounds + 1):
        for place in random.sample(range(len(samples)), len(samples)):
            value = samples[place]()
            if number:
                found[place].append(value)
    return [statistics.median(x) for x in found]


def measured(m: int, n: int, k: int, rounds: int, calls: int) -> dict[str, object]:
    """The row of one product. Raises SystemExit where a result is wrong."""
    a, w = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda")
    wide = a.float()
    exact, size = a.double() @ w.double().mT, a.double().abs() @ w.double().abs().mT
    error = ((tg.linear(a, w, mixed=True).double() - exact).abs() / size).max().item()
    if not error <= LIMIT:
        raise SystemExit(f"{m}x{n}x{k}: an error of {error:.2e} of |A| |B|, above {LIMIT:.2e}")
    linear = torch.nn.functional.linear
    eager: list[Callable[[], object]] = [
        functools.partial(linear, wide, w), lambda: linear(a.float(), w),
        functools.partial(tg.linear, a, w, mixed=True)]
    graphs = [captured(call, calls) for call in eager]
    on_gpu = medians([functools.partial(time_us, x, 1) for x in graphs], rounds)
    on_gpu = [x / calls for x in on_gpu]
    with_host = medians([functools.partial(wall_us, x, calls) for x in eager], rounds)
    values = (m, n, k, *(f"{x:.2f}" for x in (*on_gpu, *with_host)),
              f"{on_gpu[0] / on_gpu[2]:.3f}", f"{with_host[0] / with_host[2]:.3f}",
              f"{error:.1e}", current_device().slug)
    return dict(zip(COLUMNS, values, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="comma-separated")
    args = parser.parse_args()
    try:
        current_device()
    except DeviceError as error:
        raise SystemExit(str(error)) from None
    torch.backends.cuda.matmul.allow_tf32 = False
    ratios: dict[str, list[float]] = {"gpu_ratio": [], "ratio": []}
    with open(args.out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for n, k in WEIGHTS:
            for m in map(int, args.rows.split(",")):
                row = measured(m, n, k, args.rounds, args.calls)
                writer.writerow(row)
                file.flush()
                for name, found in ratios.items():
                    found.append(float(str(row[name])))
    for name, found in ratios.items():
        mean = math.exp(statistics.fmean(map(math.log, found)))
        print(f"{name}: geometric mean {mean:.3f}, the least {min(found):.3f}, "
              f"{sum(x < 1.0 for x in found)} of {len(found)} below 1")
    return int(min(ratios["ratio"]) < 1.0)


if __name__ == "__main__":
    sys.exit(main())
