"""Checks every CUDA rung against float64 on this GPU and times it beside torch.mm: a first look.

Not a result: one event pair around a run of calls, nothing interleaved. `ladder` measures.

    python perf/ladder_quick.py [--rungs A,B] [--sizes 1024,2048,4096] [--no-check] [--all-variants]
    python perf/ladder_quick.py --sweep 4096 [--rungs warp_tiled_async] [--top 15]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import random
import sys

import torch

from tritongemm.baselines.cuda import rungs as cuda_rungs
from tritongemm.baselines.cuda.gemm import bind_cuda, build
from tritongemm.baselines.cuda.rungs import CUDA_RUNGS, config_violation
from tritongemm.device import cuda_device
from tritongemm.errors import TritonGemmError
from tritongemm.measure import numerics
from tritongemm.problem import GemmProblem


def check(bound, a, b, alpha: float = 1.0, beta: float = 0.0) -> float:
    """Largest error over its limit (tritongemm.measure.numerics): right up to 1."""
    m, n = a.shape[0], b.shape[1]
    start = torch.full((m, n), float("nan"), device="cuda") if beta == 0 else torch.randn(
        m, n, device="cuda")
    out = start.clone()
    bound(a, b, out, alpha, beta)
    addend = beta * start.double() if beta else None
    want = alpha * numerics.reference(a, b)
    theirs = torch.addmm(start, a, b, beta=beta, alpha=alpha)
    report = numerics.check(out, a, b, want if addend is None else want + addend, theirs,
                            alpha=alpha, addend=addend)
    return max(report.max_err_ratio, 0.0 if report.ok else report.rms_err_ratio)


def time_us(call, floor_ms: float = 60.0) -> float:
    """Mean device time of a call, over enough calls to fill ``floor_ms`` after a warm-up."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    torch.cuda.synchronize()
    count = 3
    while True:
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        total = start.elapsed_time(end)
        if total >= floor_ms or count >= 2000:
            return 1e3 * total / count
        count = min(2000, max(count * 2, int(count * floor_ms / max(total, 1e-3)) + 1))


def problem(m: int, n: int, k: int) -> GemmProblem:
    return GemmProblem.contiguous(m, n, k, dtype="fp32")


def prove(names: list[str], device, every: bool, rounds: int = 12) -> None:
    draw = random.Random(0)
    sizes = [tuple(draw.randint(1, 300) for _ in range(3)) for _ in range(rounds)]
    sizes += [(0, 5, 7), (5, 0, 7), (5, 7, 0), (1, 1, 1), (512,) * 3, (1000,) * 3, (1022,) * 3,
              (257, 512, 1040)]
    scales = [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (-1.37, 0.61), (0.0, 1.0)]
    for name in names:
        rung, worst, refused = CUDA_RUNGS[name], 0.0, 0
        for config in rung.variants if every else rung.variants[:1]:
            for i, (m, n, k) in enumerate(sizes):
                if cuda_rungs.violation(problem(m, n, k), config, device):
                    refused += 1
                    continue
                a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
                alpha, beta = scales[i % len(scales)]
                ratio = check(bind_cuda(problem(m, n, k), config, device), a, b, alpha, beta)
                worst = max(worst, ratio)
                if ratio > 1:
                    print(f"WRONG {config} {m}x{n}x{k} alpha={alpha} beta={beta}: {ratio:.3g}")
        print(f"{name:22} worst error / limit {worst:8.3f}"
              + (f"  ({refused} sizes refused)" if refused else ""), flush=True)


def table(names: list[str], sizes: list[int], device, every: bool) -> None:
    header = f"{'rung':58} {'regs':>4} {'spill':>5} {'occ':>5}"
    print(header + "".join(f" | {s:>6}: us     TF  %torch" for s in sizes))
    base, data = {}, {}
    for s in sizes:
        data[s] = (*(torch.randn(s, s, device="cuda") for _ in range(2)),
                   torch.empty(s, s, device="cuda"))
        a, b, c = data[s]
        base[s] = time_us(lambda a=a, b=b, c=c: torch.mm(a, b, out=c))
    print(f"{'torch.mm':75}" + "".join(
        f" | {base[s]:10.1f} {2e-6 * s**3 / base[s]:6.2f}  100.0" for s in sizes), flush=True)
    for name in names:
        rung = CUDA_RUNGS[name]
        for config in rung.variants if every or rung.number == 19 else rung.variants[:1]:
            cells, report = [], None
            for s in sizes:
                a, b, c = data[s]
                try:
                    bound = bind_cuda(problem(s, s, s), config, device)
                except TritonGemmError as error:
                    cells.append(f" | {type(error).__name__:>25}")
                    continue
                report = bound.report
                us = time_us(lambda f=bound, a=a, b=b, c=c: f(a, b, c))
                again = time_us(lambda a=a, b=b, c=c: torch.mm(a, b, out=c), 20.0)
                cells.append(f" | {us:10.1f} {2e-6 * s**3 / us:6.2f} {100 * again / us:6.1f}")
            shown = f"{report.registers:4} {report.spills:5} {report.occupancy:5.2f}" if report \
                else " " * 16
            print(f"{config.config_id:58} {shown}" + "".join(cells), flush=True)


def axes_of(name: str) -> dict[str, tuple[int, ...]]:
    """A small space around what the rung can be."""
    axes = {"block_m": (64, 128, 256), "block_n": (64, 128, 256), "block_k": (8, 16),
            "thread_m": (4, 8, 16), "thread_n": (4, 8, 16), "warp_m": (16, 32, 64, 128),
            "warp_n": (16, 32, 64, 128), "num_stages": (2, 3, 4), "group_m": (8,)}
    return {axis: axes[axis] for axis in CUDA_RUNGS[name].axes}


def sweep(name: str, size: int, device, top: int) -> None:
    rung, axes = CUDA_RUNGS[name], axes_of(name)
    tried = [rung.config(**dict(zip(axes, values)))
             for values in itertools.product(*axes.values())]
    configs = [c for c in tried if config_violation(c, device) is None
               and c.thread_m * c.thread_n >= 32]
    print(f"{name} at {size}: {len(configs)} of {len(tried)} configs are legal", flush=True)
    good = []
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for config, found in zip(configs, pool.map(lambda c: _built(rung, c, device), configs)):
            if found is not None and not found.spills:
                good.append(config)
    print(f"{len(good)} compile without spills", flush=True)
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    c = torch.empty_like(a)
    times = []
    for config in good:
        bound = bind_cuda(problem(size, size, size), config, device)
        times.append((time_us(lambda f=bound: f(a, b, c), 8.0), config, bound))
    times.sort(key=lambda t: t[0])
    for _, config, bound in times[:top]:
        us = time_us(lambda f=bound: f(a, b, c))
        theirs = time_us(lambda: torch.mm(a, b, out=c))
        print(f"{config.config_id:62} regs {bound.report.registers:3} {us:9.1f} us "
              f"{2e-6 * size**3 / us:6.2f} TF  {100 * theirs / us:6.1f} % of torch", flush=True)


def _built(rung, config, device):
    try:
        return build(rung, config, device)[1]
    except TritonGemmError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rungs", default=",".join(CUDA_RUNGS))
    parser.add_argument("--sizes", default="1024,2048,4096")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--all-variants", action="store_true")
    parser.add_argument("--sweep", default="", help="sizes at which to sweep the rungs' parameters")
    parser.add_argument("--top", type=int, default=15)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    device = cuda_device(torch.cuda.current_device())
    names = [cuda_rungs.rung_named(name).name for name in args.rungs.split(",")]
    print(f"{device.name}, torch {torch.__version__}")
    if args.sweep:
        for name, size in itertools.product(names, map(int, args.sweep.split(","))):
            sweep(name, size, device, args.top)
        return 0
    if not args.no_check:
        prove(names, device, args.all_variants)
    table(names, [int(s) for s in args.sizes.split(",")], device, args.all_variants)
    return 0


if __name__ == "__main__":
    sys.exit(main())
