"""Batches that no single stride walks: `tritongemm.matmul` reads them in place, torch copies.

Broadcasts of both operands, (B1, 1, M, K) @ (1, B2, K, N), and attention's q @ k^T of views of
[batch, rows, heads, width]. bf16; microseconds of the device a call, by events around `--calls`
calls, medians of `--rounds` rounds that alternate between both; then the peak memory that a call
adds, MiB, the result included.

    python perf/bench_two_strides.py [--rounds 21] [--calls 20]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable

import torch

import tritongemm as tg
from tritongemm.device import current_device
from tritongemm.errors import DeviceError
from tritongemm.ops.calls import problem_of
from tritongemm.selection import choose

#: (B1, B2, M, N, K)
BROADCASTS = ((24, 24, 256, 256, 64), (24, 24, 256, 256, 512), (16, 9, 1024, 1024, 1024),
              (12, 12, 128, 128, 128), (9, 32, 500, 300, 200), (9, 16, 1000, 1001, 999))
#: (batch, rows of q, rows of k, heads, width)
ATTENTION = ((2, 2048, 2048, 32, 128), (4, 1024, 1024, 16, 64), (16, 512, 512, 12, 64),
             (32, 128, 128, 12, 64), (32, 1, 2048, 32, 128), (16, 8, 4096, 32, 128),
             (16, 197, 197, 12, 64))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def cases() -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(name, A, B)."""
    found = [(f"({b1},1,{m},{k}) @ (1,{b2},{k},{n})", drawn(b1, 1, m, k), drawn(1, b2, k, n))
             for b1, b2, m, n, k in BROADCASTS]
    for batch, rows, keys, heads, width in ATTENTION:
        q, k = drawn(batch, rows, heads, width), drawn(batch, keys, heads, width)
        found.append((f"q k^T of [{batch},{rows}|{keys},{heads},{width}]", q.transpose(1, 2),
                      k.transpose(1, 2).mT))
    return found


def time_us(call: Callable[[], object], calls: int) -> float:
    """Of one of ``calls`` calls in a row."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(2_000_000)  # the queue is full before the first one starts
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return 1000.0 * start.elapsed_time(end) / calls


def peak_mib(call: Callable[[], object]) -> float:
    """What a call adds to the memory allocated, at most."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=20)
    args = parser.parse_args()
    try:
        device = current_device()
    except DeviceError as error:
        sys.exit(f"bench_two_strides.py: {error}")
    print(f"us and MiB a call, bf16, {torch.cuda.get_device_name()}\n{'':44}{'torch':>9}"
          f"{'ours':>9}{'speed':>7}{'torch':>9}{'ours':>9}  config")
    for name, a, b in cases():
        problem = problem_of(a, b)
        runs = {"torch": lambda a=a, b=b: torch.matmul(a, b),
                "ours": lambda a=a, b=b: tg.matmul(a, b)}
        for run in runs.values():
            for _ in range(3):
                run()
        torch.testing.assert_close(runs["ours"]().float(), runs["torch"]().float(), rtol=2e-2,
                                   atol=2e-2 * problem.k**0.5)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for index in range(args.rounds):
            for one in (list(runs) if index % 2 else list(runs)[::-1]):
                times[one].append(time_us(runs[one], args.calls))
        theirs, ours = (statistics.median(times[one]) for one in ("torch", "ours"))
        print(f"{name:44}{theirs:9.1f}{ours:9.1f}{theirs / ours:7.2f}"
              f"{peak_mib(runs['torch']):9.1f}{peak_mib(runs['ours']):9.1f}  "
              f"{problem.two_strides} {choose(problem, device).config}", flush=True)


if __name__ == "__main__":
    main()
