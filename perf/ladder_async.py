"""Variants of the last CUDA rung side by side: right against float64, then timed beside torch.

    python perf/ladder_async.py [--dissect] [--sizes 1024,2048,4096] [--last 8176,8192] [--top 8]

The variants are parameters of ``perf/ladder_async.cu``: tile shapes, the order of the multiply-adds
of a step (ORDER) and how addresses are made (WIDE). ``--dissect`` also times the best variant with
a part of its loop left out (copies, barriers, fragment reads): what each part costs; such results
are wrong and are only timed. The first line is the rung as it ships.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import statistics
import sys
import time
from pathlib import Path

import numpy
import torch

from tritongemm.baselines.cuda.compiler import compile_cuda
from tritongemm.baselines.cuda.gemm import bind_cuda
from tritongemm.bench.ladder import rung
from tritongemm.bench.rung_provider import config_for
from tritongemm.device import cuda_device
from tritongemm.errors import TritonGemmError
from tritongemm.measure import numerics
from tritongemm.problem import GemmProblem

SOURCE = Path(__file__).with_suffix(".cu")
AXES = ("BM", "BN", "BK", "TM", "TN", "WM", "WN", "STAGES", "BLOCKS")
SHAPES = [
    (128, 128, 16, 16, 8, 64, 64, 4, 2), (128, 128, 16, 16, 8, 128, 32, 4, 2),
    (128, 128, 16, 16, 8, 64, 64, 3, 2), (128, 128, 16, 8, 16, 64, 64, 4, 2),
    (128, 128, 16, 8, 16, 32, 128, 3, 2), (128, 256, 16, 16, 8, 64, 64, 4, 1),
    (256, 128, 16, 8, 16, 64, 64, 4, 1), (64, 64, 16, 8, 8, 64, 32, 3, 6),
    (64, 64, 16, 8, 8, 32, 64, 3, 6), (64, 64, 16, 8, 8, 64, 32, 4, 6),
    (128, 64, 16, 8, 8, 64, 32, 3, 3), (64, 128, 16, 8, 8, 32, 64, 3, 3),
    (64, 128, 16, 16, 8, 64, 64, 4, 4), (128, 64, 16, 8, 16, 64, 64, 4, 4),
    (128, 128, 8, 16, 8, 64, 64, 5, 2), (256, 128, 8, 16, 8, 64, 64, 5, 1),
]
#: Parts of the loop that DROP leaves out.
PARTS = {"no copies": 1, "no barriers": 2, "no copies, no barriers": 3, "no fragment reads": 4,
         "multiply-adds alone": 7}


class Variant:
    """One set of macros of the source, compiled, and launched as ``f(a, b, out)``."""

    def __init__(self, shape: tuple[int, ...], **more: int) -> None:
        self.macros = {**dict(zip(AXES, shape)), "GROUP_M": 8, **more}
        bm, bn, bk, _, _, wm, wn, stages, _ = shape
        self.tile, self.threads = (bm, bn), 32 * (bm // wm) * (bn // wn)
        self.shared = 4 * stages * bk * (bm + 4 + bn)
        extra = " ".join(f"{k}={v}" for k, v in more.items())
        self.name = (f"{bm}x{bn}x{bk} {shape[3]}x{shape[4]} w{wm}x{wn} s{stages} "
                     f"b{shape[8]} {extra}")
        self.text = ""
        self._kernel = None

    def build(self, device) -> bool:
        """Compiles; False, with the reason as its text, where that fails."""
        try:
            self._kernel = compile_cuda(SOURCE, "warp_tiled_async", self.macros, arch=device.arch)
        except TritonGemmError as error:
            self.text = str(error).splitlines()[0]
            return False
        r = self._kernel.resources
        self.text = f"{r.registers:4} {r.spill_bytes:5}"
        return True

    def __call__(self, a, b, out, alpha=1.0, beta=0.0) -> None:
        (m, k), n = a.shape, b.shape[1]
        grid = -(-m // self.tile[0]) * -(-n // self.tile[1])
        self._kernel.on(0).launch((grid, 1, 1), (self.threads, 1, 1), self.shared, (
            *(numpy.int32(v) for v in (m, n, k)), numpy.float32(alpha), a.data_ptr(), b.data_ptr(),
            numpy.float32(beta), out.data_ptr()))


def error_of(call) -> float:
    """The largest error over its limit: right up to 1."""
    worst = 0.0
    for m, n, k, alpha, beta in ((1, 4, 1, 1, 0), (300, 388, 77, 1, 0), (257, 260, 1000, -1.5, 0.5),
                                 (512, 512, 512, 1, 0), (129, 4, 16, 1, 0)):
        a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
        start = torch.randn(m, n, device="cuda") if beta else torch.full(
            (m, n), float("nan"), device="cuda")
        out = start.clone()
        call(a, b, out, float(alpha), float(beta))
        addend = beta * start.double() if beta else None
        want = alpha * numerics.reference(a, b)
        theirs = torch.addmm(start, a, b, beta=beta, alpha=alpha)
        report = numerics.check(out, a, b, want if addend is None else want + addend, theirs,
                                alpha=alpha, addend=addend)
        worst = max(worst, report.max_err_ratio if report.ok else max(2.0, report.max_err_ratio))
    return worst


def timed(call, ms: float, guess: float) -> float:
    """Mean microseconds of a call, over as many as ``guess`` of them fit into ``ms``."""
    count = max(1, int(1e3 * ms / guess))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / count


def compare(calls: dict[str, object], size: int, rounds: int) -> dict[str, tuple[float, float]]:
    """name -> (median us, median of torch's time over it), torch timed before each call."""
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    guess = max(20.0, 2e-6 * size**3 / 45)
    ms = max(4.0, 1.5e-3 * guess)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for call in calls.values():
        call(a, b, out)
    for _ in range(rounds):
        for name, call in calls.items():
            theirs = timed(lambda: torch.mm(a, b, out=out), ms, guess)
            ours = timed(lambda call=call: call(a, b, out), ms, guess)
            found[name].append((ours, theirs / ours))
    return {name: tuple(statistics.median(x) for x in zip(*rows)) for name, rows in found.items()}


def shipped(device):
    """The rung as it ships, with the parameters it takes for each size."""
    def call(a, b, out, alpha=1.0, beta=0.0):
        key = (a.shape[0], b.shape[1], a.shape[1])
        if key not in bound:
            problem = GemmProblem.contiguous(*key, dtype="fp32")
            bound[key] = bind_cuda(problem, config_for(rung("warp_tiled_async"), problem,
                                                       device)[0], device)
        bound[key](a, b, out, alpha, beta)
    bound: dict = {}
    return call


def show(names: list[str], texts: dict[str, str], results: dict[int, dict], sizes: list[int]
         ) -> None:
    print(f"{'variant':56} regs spill" + "".join(f" | {s:>5}: us  TFLOPS  ratio" for s in sizes))
    for name in names:
        cells = ""
        for s in sizes:
            us, ratio = results[s].get(name, (0.0, 0.0))
            cells += f" | {us:9.1f} {2e-6 * s**3 / us:6.2f} {ratio:6.3f}" if us else f" | {'':23}"
        print(f"{name:56} {texts.get(name, ''):10}{cells}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1024,2048,4096", help="at which all variants are timed")
    parser.add_argument("--last", default="8176,8192", help="at which the best ones are")
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dissect", action="store_true")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    begun = time.perf_counter()
    device = cuda_device(0)
    variants = [Variant(shape, ORDER=order) for shape in SHAPES
                for order in ((0, 2, 3) if shape[3] == shape[4] else (0, 3))]
    variants += [Variant(shape, ORDER=0, WIDE=1) for shape in (SHAPES[0], SHAPES[5], SHAPES[7])]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        built = list(pool.map(lambda v: v.build(device), variants))
    for v in (v for v, ok in zip(variants, built) if not ok):
        print(f"{v.name}: {v.text}")
    good = []
    for v in (v for v, ok in zip(variants, built) if ok):
        worst = error_of(v)
        if worst > 1:
            print(f"WRONG {v.name}: error / limit {worst:.3g}")
        else:
            good.append(v)
    torch.cuda.synchronize()
    print(f"{device.name}, torch {torch.__version__}: {len(good)} of {len(variants)} variants "
          f"right after {time.perf_counter() - begun:.0f} s", flush=True)
    calls = {"the rung as it ships": shipped(device), **{v.name: v for v in good}}
    texts = {v.name: v.text for v in good}
    sizes = [int(s) for s in args.sizes.split(",")]
    results = {s: compare(calls, s, args.rounds) for s in sizes}
    names = sorted(calls, key=lambda name: -results[sizes[-1]][name][1])
    show(names, texts, results, sizes)
    last = [int(s) for s in args.last.split(",") if s]
    best = [n for n in names if n != "the rung as it ships"][:args.top]
    if last:
        chosen = {n: calls[n] for n in ("the rung as it ships", *best)}
        results.update({s: compare(chosen, s, 3) for s in last})
        print()
        show(list(chosen), texts, results, last)
    if args.dissect:
        one = next(v for v in good if v.name == best[0])
        small = next(v for name in names for v in good if v.name == name and v.tile == (64, 64))
        parts = {}
        for v in (one, small):
            shape = tuple(v.macros[x] for x in AXES)
            more = {k: x for k, x in v.macros.items() if k not in (*AXES, "GROUP_M")}
            parts[v.name] = v
            for label, drop in PARTS.items():
                cut = Variant(shape, **more, DROP=drop)
                if cut.build(device):
                    parts[f"  {label} ({shape[0]}x{shape[1]})"] = cut
                    texts[f"  {label} ({shape[0]}x{shape[1]})"] = cut.text
        print()
        show(list(parts), texts, {4096: compare(parts, 4096, 3)}, [4096])
    print(f"{time.perf_counter() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
