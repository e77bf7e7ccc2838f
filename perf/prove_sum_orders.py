"""Proves on a GPU that configs with equal sum orders give equal bits (``kernels/sum_order.py``).

    python perf/prove_sum_orders.py --out sum-orders.csv [--problems 10000] [--builds 600]
                                    [--seed 0] [--minutes 8]

Draws random problems: N, K, a number format, layout, epilogue, alignment and distribution of
values. Each is computed by a reference config, by other configs of the same order with the first
rows alone (another M), and by a config of another order. Results are compared bit for bit, on the
rows that they share. The first problems draw configs of the shipped spaces until they need
``--builds`` sets of binaries, which are compiled on all cores; later problems have other N, K, M
and values with the same groups of configs.

The CSV has a row for each pair of kernels and orders: comparisons, and how many were equal. A pair
of one order with a difference is an error: it is printed with the problem, and the exit status is
1. Pairs of different orders that never differed are printed too: they may be one order.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, current_device
from tritongemm.errors import ConstraintError, DeviceError
from tritongemm.formats import torch_dtype
from tritongemm.kernels import SPECS, violation
from tritongemm.kernels.constraints import WASTE
from tritongemm.kernels.launch import Geometry
from tritongemm.kernels.sum_order import SumOrder
from tritongemm.ops.plan import Plan
from tritongemm.problem import EPILOGUES, GemmProblem
from tritongemm.selection import shipped
from tritongemm.workers.builder import Builder
from tritongemm.workers.compile_pool import compile_all

#: (weight, words of the problem, whether N and K may be any number). N and K are multiples of 64
#: else, so that problems share their binaries.
FAMILIES = (
    (12, {"dtype": "bf16", "layout": "nt"}, False), (5, {"dtype": "fp16", "layout": "nt"}, False),
    (3, {"dtype": "bf16", "layout": "nn"}, False), (1, {"dtype": "bf16", "layout": "tn"}, False),
    (2, {"dtype": "bf16", "layout": "nt", "epilogue": "bias+gelu"}, False),
    (2, {"dtype": "bf16", "layout": "nt", "epilogue": "add"}, False),
    (2, {"dtype": "bf16", "layout": "nt", "dtype_out": "fp32"}, False),
    (3, {"dtype": "bf16", "layout": "nt"}, True), (1, {"dtype": "fp16", "layout": "nn"}, True),
    (2, {"dtype": "bf16", "layout": "nt", "batch": 3}, False),
    (2, {"dtype": "fp32", "layout": "nt", "precision": "fp16x3"}, False),
    (1, {"dtype": "fp32", "layout": "nn", "precision": "fp16x3"}, False),
    (1, {"dtype": "fp32", "layout": "nt", "precision": "tf32"}, False),
    (1, {"dtype": "fp32", "layout": "nt"}, False))
#: Rows of A in a problem, and at most in another M; elements of N and of K.
ROWS, LEAST_N, MOST_N, MOST_K = 640, 64, 1536, 8192
VALUES = ("normal", "uniform", "wide", "sparse", "cancelling")
#: Configs of a family that are drawn from, and those of the reference's order that a problem runs.
POOL, MEMBERS = 40, 4
#: Share of the problems whose configs have one sum for all of K, as far as there are any.
_WHOLE_K = 0.7
#: Elements of each buffer of values, and problems between two looks at the results.
BUFFER, CHUNK = 2**26, 100
#: What C holds before a launch, by bytes of an element: a NaN that no instruction makes.
POISON = {2: 0x7FA5, 4: 0x7FA5A5A5}


@dataclass(frozen=True)
class Case:
    """A problem: its family, the distribution of its values, and what computes it: the reference
    with all rows first."""

    family: int
    values: str
    runs: list[Run]


@dataclass(frozen=True)
class Run:
    """A config with the first ``rows`` rows of its problem's A."""

    problem: GemmProblem
    config: KernelConfig
    order: SumOrder
    key: str

    @property
    def words(self) -> tuple[str, str]:
        """Kernel and order, for the table: ranges of K by their number alone."""
        order = self.order
        ranges = -(-self.problem.k // order.range_k) if order.range_k else 1
        return self.config.kernel, f"{order.instruction} x{ranges} {order.added}".strip()


class Drawing:
    """Draws problems with the configs that compute them."""

    def __init__(self, device: DeviceSpec, builds: int, seed: int) -> None:
        self._rng, self._device, self._builds = random.Random(seed), device, builds
        self.keys: dict[str, Run] = {}
        self._cases: list[Case] = []
        self._pools = [self._pool(words) for _, words, _ in FAMILIES]

    def _pool(self, words: dict) -> list[KernelConfig]:
        """Configs of a family, as many of each kernel, those with more programs to a sum too."""
        by_kernel: dict[tuple, list[KernelConfig]] = defaultdict(list)
        for config in shipped.configs(GemmProblem.contiguous(64, 64, 64, **words)):
            ranges = min(config.split_k * config.cluster_k, 8)
            warps = config.num_warps % 4 == 0 and config.block_m % 64 == 0
            by_kernel[config.kernel, ranges, warps].append(config)
        groups = [self._rng.sample(found, len(found)) for found in by_kernel.values()]
        pool = [c for group in groups for c in group[:3]]
        rest = [c for group in groups for c in group[3:] if c.split_k * c.cluster_k <= 2]
        return pool + self._rng.sample(rest, min(len(rest), max(0, POOL - len(pool))))

    def first(self, count: int) -> list[Case]:
        """The problems that decide which binaries there are."""
        while len(self._cases) < count:
            family = self._rng.choices(range(len(FAMILIES)), [x[0] for x in FAMILIES])[0]
            pool = self._rng.sample(self._pools[family], len(self._pools[family]))
            if self._rng.random() < _WHOLE_K:
                pool.sort(key=lambda c: c.split_k * c.cluster_k > 1)
            if case := self._case(family, pool):
                self._cases.append(case)
        return self._cases

    def built(self) -> None:
        """From now on nothing is drawn that needs further binaries."""
        self._builds = 0

    def again(self) -> Case:
        """A problem of other sizes with the configs of an earlier one."""
        while True:
            one = self._rng.choice(self._cases)
            if case := self._case(one.family, [run.config for run in one.runs]):
                return case

    def _case(self, family: int, configs: list[KernelConfig]) -> Case | None:
        """A problem of random sizes with those of ``configs`` that compute it; None where no two
        have one order."""
        rng = self._rng
        _, words, any_size = FAMILIES[family]
        unit = 1 if any_size else 64
        n = unit * rng.randint(-(-LEAST_N // unit), MOST_N // unit)
        k = unit * rng.randint(1, rng.choice((512, 2048, MOST_K)) // unit)
        runs: list[Run] = []
        others = 0
        for config in configs:
            rows = ROWS
            if runs:
                rows = 8 * rng.randint(1, ROWS // 8) if words["layout"][0] == "t" else rng.choice((
                    1, rng.randint(1, 16), rng.randint(1, 128), rng.randint(1, ROWS)))
            problem = GemmProblem.contiguous(rows, n, k, **words)
            order = SPECS[config.kernel].sum_order(problem, config, self._device)
            other = bool(runs) and order != runs[0].order
            if order is None or other and others or (
                    run := self._run(problem, config, order)) is None:
                continue
            others += other
            runs.append(run)
            if len(runs) - others > MEMBERS:
                break
        return Case(family, rng.choice(VALUES), runs) if len(runs) - others > 1 else None

    def _run(self, problem: GemmProblem, config: KernelConfig, order: SumOrder) -> Run | None:
        """The run, if it is legal and may be built."""
        broken = violation(problem, config, self._device)
        if broken is not None and broken.rule != WASTE:
            return None
        try:
            key = Builder.key(problem, config, self._device)
        except ConstraintError:
            return None
        run = Run(problem, config, order, key)
        if key not in self.keys:
            if len(self.keys) >= self._builds:
                return None
            self.keys[key] = run
        return run


def build(drawing: Drawing, device: DeviceSpec) -> set[str]:
    """Compiles what the store lacks; the keys that could not be built."""
    missing = {key: run for key, run in drawing.keys.items() if not Builder.stored(key)}
    start = time.monotonic()
    found = compile_all([(key, run.problem, run.config) for key, run in missing.items()],
                        {"device": device}, workers=len(os.sched_getaffinity(0)))
    failed = {key for key, outcome in found.items() if not outcome.ok}
    for key in failed:
        print(f"not built: {missing[key].config}: {found[key].reason[:200]}")
    print(f"{len(drawing.keys)} sets of binaries, {len(missing)} compiled in "
          f"{time.monotonic() - start:.0f} s", flush=True)
    return failed


def buffer_of(values: str, dtype: str) -> torch.Tensor:
    """Random numbers of a distribution."""
    x = torch.randn(BUFFER, device="cuda")
    if values == "uniform":
        x = torch.rand(BUFFER, device="cuda")
    elif values == "wide":  # magnitudes over many binades
        x = x * torch.exp2(torch.randint(-12, 13, (BUFFER,), device="cuda").float())
    elif values == "sparse":
        x = x * (torch.rand(BUFFER, device="cuda") < 0.05)
    elif values == "cancelling":
        x = torch.round(x * 8) * torch.where(torch.rand(BUFFER, device="cuda") < 0.5, 1.0, 1e-3)
    return x.to(torch_dtype(dtype))


class Running:
    """Runs problems on the current device and compares their results."""

    def __init__(self, device: DeviceSpec, seed: int) -> None:
        torch.manual_seed(seed)
        self._device, self._rng = device, random.Random(seed)
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}
        self._plans: dict[tuple, Plan] = {}
        self._open: list[tuple[Run, Run, torch.Tensor]] = []
        self.counts: Counter = Counter()
        self.equal: Counter = Counter()
        self.errors: list[str] = []

    def _slice(self, values: str, dtype: str, *shape: int) -> torch.Tensor:
        key = values, dtype
        if key not in self._buffers:
            self._buffers[key] = buffer_of(values, dtype)
        size = 1
        for extent in shape:
            size *= extent
        start = 64 * self._rng.randrange((BUFFER - size) // 64)
        return self._buffers[key][start:start + size].view(shape)

    def problem(self, values: str, runs: list[Run]) -> None:
        """Queues the runs of one problem and their comparisons."""
        p = runs[0].problem
        a = self._slice(values, p.dtype_a, p.batch, p.m, p.k)
        b = self._slice(values, p.dtype_b, p.batch, p.n, p.k)
        b = b if p.layout[1] == "t" else b.transpose(1, 2).contiguous()
        addend = EPILOGUES[p.epilogue].addend
        d = None if addend not in ("bias", "add") else self._slice("normal", p.dtype_out, *(
            (p.n,) if addend == "bias" else (p.batch, p.m, p.n)))
        results = []
        for run in runs:
            q = run.problem
            x = a[:, :q.m].transpose(1, 2) if q.layout[0] == "t" else a[:, :q.m]
            size = q.c.format.itemsize
            y = torch.full((q.batch, q.m, q.n), POISON[size], device="cuda",
                           dtype=torch.int32 if size == 4 else torch.int16)
            addend_rows = d[:, :q.m].contiguous() if addend == "add" else d
            Plan(q, run.config, self._device, Geometry.contiguous(q), 0)(
                x.contiguous(), b, y, addend_rows, 1.0, 0.5 if d is not None else 1.0)
            results.append(y)
        for run, y in zip(runs[1:], results[1:]):
            unwritten = y == POISON[run.problem.c.format.itemsize]
            wrong = (y != results[0][:, :run.problem.m]) | unwritten
            self._open.append((runs[0], run, wrong.sum()))

    def settle(self, say) -> None:
        """Reads the comparisons queued so far."""
        if not self._open:
            return
        differing = torch.stack([count for _, _, count in self._open]).tolist()
        for (one, other, _), count in zip(self._open, differing):
            pair = tuple(sorted((one.words, other.words)))
            self.counts[pair, one.order == other.order] += 1
            self.equal[pair, one.order == other.order] += count == 0
            if count and one.order == other.order:
                text = (f"{other.problem}: {one.config} with {one.problem.m} rows and "
                        f"{other.config} differ in {count} of "
                        f"{other.problem.batch * other.problem.m * other.problem.n} elements; both "
                        f"state {one.order}")
                self.errors.append(text)
                if len(self.errors) <= 30:
                    say(text)
        self._open.clear()


def write(path: Path, running: Running, device: DeviceSpec) -> None:
    """The table of pairs."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("device", "same_order", "kernel_a", "order_a", "kernel_b", "order_b",
                         "comparisons", "equal"))
        for (pair, same), count in sorted(running.counts.items(), key=lambda x: (not x[0][1], x)):
            writer.writerow((device.slug, int(same), *pair[0], *pair[1], count,
                             running.equal[pair, same]))


def report(running: Running, problems: int) -> None:
    """Prints what the pairs show."""
    same = {pair: count for pair, count in running.counts.items() if pair[1]}
    print(f"{problems} problems, {sum(same.values())} comparisons of one order by "
          f"{len(same)} pairs of kernels and orders, {len(running.errors)} with other bits")
    print("different orders that gave the same bits every time (of 20 comparisons or more):")
    by_orders: dict[tuple[str, str], list[int]] = {}
    for (pair, alike), count in running.counts.items():
        if not alike:
            key = pair[0][1], pair[1][1]
            total = by_orders.setdefault(key, [0, 0])
            total[0] += count
            total[1] += running.equal[pair, alike]
    for (one, other), (count, equal) in sorted(by_orders.items(), key=lambda x: -x[1][0]):
        if count >= 20 and equal == count:
            print(f"  {one} = {other}: {count}")
    print("different orders that gave other bits, and how often (of all elements of C compared):")
    for (one, other), (count, equal) in sorted(by_orders.items(), key=lambda x: -x[1][0])[:40]:
        if equal < count:
            print(f"  {one} and {other}: {count - equal} of {count}")


def main() -> int:
    """Draws, builds, runs, reports."""
    parser = argparse.ArgumentParser(description="Proves that equal sum orders give equal bits.")
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--builds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=8.0, help="ends earlier after this time")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    start = time.monotonic()
    try:
        device = current_device()
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 2
    drawing = Drawing(device, args.builds, args.seed)
    drawn = list(drawing.first(min(args.builds, args.problems)))
    bad = build(drawing, device)
    drawing.built()
    running, done = Running(device, args.seed), 0
    while done < args.problems and time.monotonic() - start < 60 * args.minutes:
        case = drawn[done] if done < len(drawn) else drawing.again()
        runs = [run for run in case.runs if run.key not in bad]
        if len(runs) > 1:
            running.problem(case.values, runs)
        done += 1
        if done % CHUNK == 0:
            running.settle(print)
            if done % (10 * CHUNK) == 0:
                print(f"{done} problems, {time.monotonic() - start:.0f} s", flush=True)
    running.settle(print)
    write(args.out, running, device)
    report(running, done)
    return 1 if running.errors else 0


if __name__ == "__main__":
    sys.exit(main())
