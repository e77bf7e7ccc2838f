"""Memory bandwidth of products with few rows or columns, compared with a device copy.

Configs of the kernel `gemv`, the shipped choice of `tg.matmul`, torch, and a device-to-device copy
that moves as many bytes (half read, half written) are timed in the same rounds of one run
(tritongemm.measure). Each product is verified before timing, and the outputs of its last timed
replay after it. `of copy` is the copy's time over the product's, with its 95 % interval: 1 is the
bandwidth of a copy.

    python perf/bench_gemv.py [--shapes 1x4096x14336] [--configs 16x256_w4_s1,16x256_w4_s3_k2_d0]

A config is BLOCK_N x BLOCK_K and codes (w warps, s stages, k split, d dependent launch). Default:
every shipped one that is legal.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator

import torch

from tritongemm import selection
from tritongemm.config import KernelConfig
from tritongemm.device import current_device
from tritongemm.errors import DeviceError
from tritongemm.kernels import violation
from tritongemm.kernels.gemv import GEMV
from tritongemm.measure.contender import TORCH, Contender
from tritongemm.measure.entry import Entry
from tritongemm.measure.problem_bench import ProblemBench
from tritongemm.measure.rounds import Rounds, Timer, compare
from tritongemm.ops.plan import bind_config
from tritongemm.problem import LAYOUTS, GemmProblem
from tritongemm.records.spaces import load_space

#: Weights of 64 MB and more, with one to eight rows.
WEIGHTS = ((4096, 14336), (8192, 8192), (28672, 4096), (7168, 16384))
SHAPES = ",".join(f"{m}x{n}x{k}" for n, k in WEIGHTS for m in (1, 2, 4, 8))
_CODES = {"w": "num_warps", "s": "num_stages", "k": "split_k", "d": "dependent_launch"}


def parsed(text: str, problem: GemmProblem) -> KernelConfig:
    match = re.fullmatch(r"(\d+)x(\d+)((?:_[wskd]\d+)*)", text)
    if match is None:
        sys.exit(f"--configs: {text!r} is not like 16x256_w4_s2_k2_d0")
    found = {_CODES[code]: int(value) for code, value in
             re.findall(r"([a-z]+)(\d+)", match[3])}
    own = GEMV.default(problem, current_device())
    return KernelConfig("gemv", own.block_m, int(match[1]), int(match[2]), swap_ab=own.swap_ab,
                        **found)


def configs_of(problem: GemmProblem, given: str) -> Iterator[KernelConfig]:
    shipped = load_space("gemv").configs(problem.dtype_a)
    for config in (parsed(text, problem) for text in given.split(",")) if given else shipped:
        broken = violation(problem, config, current_device())
        if broken is None:
            yield config
        elif given:
            print(f"  {config}: {broken.message}")


def contender(name: str, problem: GemmProblem, config: KernelConfig) -> Contender:
    launch = bind_config(problem, config, current_device())
    return Contender(name, lambda one: lambda: launch(*one.arguments))


def copies(problem: GemmProblem, sets: int) -> list:
    half = problem.bytes() // 2
    pairs = [torch.empty(2, half, dtype=torch.uint8, device="cuda").random_() for _ in range(sets)]
    return [lambda x=x: x[1].copy_(x[0]) for x in pairs]


def judged(bench: ProblemBench, one: Contender, timer: Timer) -> Entry:
    entry = Entry(one)
    try:
        entry.judge(bench.prove(one))
        if entry.alive:
            entry.timed = timer.load(one.name, bench.bind(one), context=one.context)
    except Exception as error:
        entry.result = bench.failure(one, error)
    return entry


def report(problem: GemmProblem, given: str) -> None:
    chosen = selection.choose(problem, current_device()).config
    with ProblemBench(problem) as bench, bench.settings():
        timer = bench.timer("graph")
        entries = [judged(bench, one, timer) for one in (
            bench.torch_contender(), contender(f"tg.matmul: {chosen}", problem, chosen),
            *(contender(str(c), problem, c) for c in configs_of(problem, given)))]
        copied = timer.load("copy", copies(problem, bench.rotation.sets))
        found = compare([copied, *(e.timed for e in entries if e.timed)], timer, baseline="copy",
                        rounds=Rounds(budget_s=10.0))
        for entry in entries:
            if entry.alive:
                bench.check_closing(entry, timer)
        print(f"\n{problem}, {problem.bytes() / 1e6:.0f} MB, {found.n_rounds} rounds, torch by "
              f"{bench.torch_backend}, L2 {'cold' if bench.rotation.cold else 'warm'}")
        for entry in entries:
            if entry.result is not None:
                print(f"  {entry.name}: {entry.result.status}: {entry.result.error}")
        right = ["copy", *(e.name for e in entries if e.alive)]
        for name in sorted(right, key=lambda x: (x not in ("copy", TORCH), found.time_us(x).p50)):
            time_us, ratio = found.time_us(name).p50, found.ratio(name)
            print(f"  {name:<48}{time_us:>9.2f} us{problem.bytes() / time_us / 1e3:>8.0f} GB/s"
                  f"{ratio.value:>8.3f} of copy [{ratio.low:.3f}, {ratio.high:.3f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=SHAPES, help="MxNxK, separated by commas")
    parser.add_argument("--layout", default="nt", choices=LAYOUTS)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--configs", default="")
    args = parser.parse_args()
    try:
        current_device()
    except DeviceError as error:
        sys.exit(f"bench_gemv.py: {error}")
    for shape in args.shapes.split(","):
        m, n, k = map(int, shape.split("x"))
        report(GemmProblem.contiguous(m, n, k, layout=args.layout, dtype=args.dtype), args.configs)


if __name__ == "__main__":
    main()
