"""CPU time of a call on the host alone, by the Python path and by the native dispatcher; no GPU.

    tritongemm native
    python perf/bench_native_host.py OUT.csv

Calls are products of 8 x 8 x 8 of CPU tensors. Their plans launch nothing: ``pthread_equal``, which
returns 0, replaces the driver's functions. A time holds the look-up, the allocation of the result,
the parameters and, under ``override``, torch's dispatcher, but no driver. It is CPU time of the
thread, the least of seven runs of 5,000 calls. Rows of ``torch`` are torch's own calls, which
multiply.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch

import tritongemm as tg
from tritongemm import settings
from tritongemm.ops import calls, native, plans
from tritongemm.ops.plan import PRODUCT, Plan

RUNS, CALLS = 7, 5000
COLUMNS = ("path", "call", "us", "torch", "python")


class EmptyPlan(Plan):
    """Launches nothing, by either path."""

    def __init__(self, problem, geometry) -> None:
        self.problem, self.geometry, self.index, self.operands = problem, geometry, 0, PRODUCT
        self.at = lambda values: None

    def native_launches(self):
        """As :meth:`Plan.native_launches`: one launch of four addresses and two numbers."""
        nothing = ctypes.cast(ctypes.CDLL(None).pthread_equal, ctypes.c_void_p).value
        launch = {"grid": (1, 1, 1), "block": (32, 1, 1), "shared": 0, "kernel": 1,
                  "attributes": b"", "count": 0, "parameters": bytes(40),
                  "offsets": [0, 8, 16, 24, 32, 36], "words": [(8 * i, i, 0) for i in range(4)],
                  "floats": [(32, 4, 0), (36, 5, 0)], "maps": []}
        return nothing, nothing, [launch], 0


def time_us(call: Callable[[], object]) -> float:
    """CPU microseconds of a call."""
    least = float("inf")
    for _ in range(RUNS + 1):  # the first warms up
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        least = min(least, time.thread_time() - start)
    return 1e6 * least / CALLS


def measured(path: str) -> list[tuple[str, float]]:
    """(call, us) of each call; ``path``: torch, python or native."""
    a, b, w, d = torch.randn(8, 8), torch.randn(8, 8), torch.randn(8, 8), torch.randn(8)
    both, out, doubles = torch.randn(16, 8), torch.empty(8, 8), (a.double(), b.double())
    ops = torch.ops.tritongemm
    theirs = {"torch.mm": lambda: torch.mm(a, b),
              "linear with a bias": lambda: torch.nn.functional.linear(a, w, d),
              "torch.mm of float64": lambda: torch.mm(*doubles)}
    if path == "torch":
        return [(name, time_us(call)) for name, call in theirs.items()]
    with settings.override(interpret=True, native="on" if path == "native" else "off"):
        if path == "native" and native.table() is None:
            raise SystemExit("there is no native dispatcher; build it: tritongemm native")
        found = [("tg.mm", time_us(lambda: tg.mm(a, b))),
                 ("tg.mm with out=", time_us(lambda: tg.mm(a, b, out=out))),
                 ("tg.linear with a bias", time_us(lambda: tg.linear(a, w, d))),
                 ("torch.ops.tritongemm.mm, as compiled", time_us(lambda: ops.mm.default(a, b))),
                 ("torch.ops.tritongemm.addmm, as compiled",
                  time_us(lambda: ops.addmm.default(d, a, b, beta=1, alpha=1,
                                                    activation="relu"))),
                 ("torch.ops.tritongemm.gated_linear, as compiled",
                  time_us(lambda: ops.gated_linear.default(a, both, None, "silu", False)))]
        with tg.override(min_flops=0):
            found += [(f"{name}, override", time_us(call)) for name, call in theirs.items()]
        with tg.override(min_flops=1e9):
            found.append(("torch.mm below min_flops, override", time_us(theirs["torch.mm"])))
    return found


def main() -> None:
    """Measures, writes the CSV, prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    plans.make_plan = lambda problem, config, device, geometry, where: EmptyPlan(problem, geometry)
    calls._alone = lambda: True
    rows = [(path, call, f"{us:.2f}", torch.__version__, platform.python_version())
            for path in ("torch", "python", "native") for call, us in measured(path)]
    with open(args.out, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)
    for path, call, us, *_ in rows:
        print(f"{path:8}{call:48}{us:>8} us")


if __name__ == "__main__":
    main()
