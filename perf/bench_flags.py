"""What rows that fp16 parts cannot represent cost a float32 product. The guard computes such rows
of A and columns of B from bf16 parts, or by TF32, and those with infinities by multiply-adds.

    python perf/bench_flags.py [--rounds 21] [--calls 10] [--precision fp16x3]

For each shape, the time of a product of normal numbers without a flag, and of the same operands
with one tiny or infinite element in each of some rows and columns, which flags them. Layout nt;
microseconds of the device a call, by events around `--calls` calls, medians of `--rounds` rounds
that alternate between all of them and torch. Each result is compared with float64 before it is
timed.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import sys
from collections.abc import Callable

import torch
from bench_two_strides import time_us  # beside this file

import tritongemm as tg
from tritongemm import settings
from tritongemm.device import current_device
from tritongemm.errors import DeviceError

SHAPES = ((1024, 1024, 1024), (512, 4096, 4096), (4096, 4096, 4096), (2048, 14336, 4096))
#: Beside normal numbers the parts hold nothing of them, and no result sees them; the second one is
#: subnormal.
TINY, LEAST = 1e-20, 1e-42
#: Rows of A and columns of B that are flagged (None: all), and by what.
FLAGGED = ((0, 0, TINY), (1, 0, TINY), (0, 1, TINY), (16, 16, TINY), (None, 0, TINY),
           (None, 0, LEAST), (1, 0, math.inf))
#: Of |A| |B|: two parts of each operand, and what TF32 rounds of both.
LIMITS = {"fp16x3": 4e-6, "tf32": 2.0**-9}


def planted(x: torch.Tensor, rows: int | None, value: float) -> torch.Tensor:
    """A copy with ``value`` in each of the first ``rows`` rows, all for None."""
    x = x.clone()
    x[:rows, 3] = value
    return x


def named(rows: int | None, columns: int, value: float) -> str:
    if (rows, columns) == (0, 0):
        return "none"
    return f"rows: {'all' if rows is None else rows}, columns: {columns}, by {value:g}"


def check(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor, limit: float) -> None:
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    finite = exact.isfinite()
    if not torch.equal(found.isfinite(), finite):
        raise SystemExit(f"{tuple(a.shape)} @ {tuple(b.shape)}: other infinities than float64's")
    error = ((found.double() - exact).abs() / size)[finite].max().item()
    if not error <= limit:  # NaN too
        raise SystemExit(f"{tuple(a.shape)} @ {tuple(b.shape)}: an error of {error:.2e} of |A| |B|,"
                         f" above {limit:.2e}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--precision", choices=tuple(LIMITS), default="fp16x3")
    args = parser.parse_args()
    try:
        device = current_device()
    except DeviceError as error:
        raise SystemExit(str(error)) from None
    torch.backends.cuda.matmul.allow_tf32 = args.precision == "tf32"
    print(f"{device.name}, torch {torch.__version__}, {args.precision}")
    print("| M x N x K | torch, us | " + " | ".join(
        named(*case) for case in FLAGGED) + " |")
    print("|---|" + "---:|" * (1 + len(FLAGGED)))
    for m, n, k in SHAPES:
        a, w = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
        out = torch.empty(m, n, device="cuda")
        calls: list[Callable[[], object]] = [functools.partial(torch.mm, a, w.T, out=out)]
        with settings.override(policy="own"):
            for rows, columns, value in FLAGGED:
                left, right = planted(a, rows, value), planted(w, columns, value).T
                check(tg.mm(left, right), left, right, LIMITS[args.precision])
                calls.append(functools.partial(tg.mm, left, right, out=out))
            times: list[list[float]] = [[] for _ in calls]
            for _ in range(args.rounds):
                for place in random.sample(range(len(calls)), len(calls)):
                    times[place].append(time_us(calls[place], args.calls))
        print(f"| {m}x{n}x{k} | " + " | ".join(f"{statistics.median(x):.1f}" for x in times) + " |",
              flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
