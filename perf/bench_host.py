"""Host time of one call, torch's functions beside this package's, and where each microsecond goes.

Problems are too small to fill the device's queue, blocks of calls alternate, garbage collection is
off and the thread is pinned (tritongemm.measure.host). The goals, with the native dispatcher:
a hit through ``tg.*`` at most 0.7 of torch's time, under ``tritongemm.override`` 0.85, two
launches with scratch 1.0, and a call left to torch under ``override`` at most 1.5 us more.

With no GPU everything but the driver is real: operands are on the CPU, and launches go to a
function of the C library that does nothing. torch's times are then not comparable; the breakdown
of the Python part is what this is for.

    python perf/bench_host.py [--blocks 20] [--calls 1000] [--size 64] [--out FILE.csv]
    TRITONGEMM_NATIVE=0 python perf/bench_host.py      # the Python path, and its breakdown
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch

import tritongemm as tg
from tritongemm import settings
from tritongemm.device import current_device, representative
from tritongemm.kernels import SPECS, driver
from tritongemm.kernels.compile import Binary, BuildReport
from tritongemm.kernels.launch import Descriptor
from tritongemm.measure.host import host_time_us, rotating
from tritongemm.ops import execute, functions, native, plan, plans
from tritongemm.selection import Choice

KERNELS = ("tiled", "persistent_tma", "warp_specialized")
#: Operand sets that a rotating call goes through.
SETS = 8
#: Products whose plans have two launches and scratch: unaligned rows, and a long sum.
TWO_LAUNCHES = ((333, 777, 555), (256, 256, 16384))
#: The goals: ours over torch's, and microseconds more than torch where a call is torch's.
HIT, OVERRIDE, TWO, DECLINED_US = 0.7, 0.85, 1.0, 1.5

Call = Callable[[], object]


class NoDriver:
    """libcuda with functions that return 0 (success) and do nothing else: pthread_equal of two
    addresses that differ."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self.cuLaunchKernelEx = library["pthread_equal"]
        self.cuTensorMapEncodeTiled = library["pthread_equal"]
        self.cuTensorMapReplaceAddress = library["pthread_equal"]
        self.cuTensorMapReplaceAddress.argtypes = (ctypes.c_void_p, ctypes.c_void_p)


def _binaries(launches, arch):
    """Binaries that take what the launches give; nothing is compiled."""
    made = []
    for launch in launches:
        sizes = tuple((size, align) for size, align, _ in driver._fields(launch))
        maps = tuple({"swizzle": 3, "elem_type": 10, "elem_size": 2, "block_size": list(x.box)}
                     for x in launch.arguments if isinstance(x, Descriptor))
        made.append(Binary(launch.symbol, b"", 4, 1, 1000, 32, 0, maps,
                           (*sizes, (8, 8), (8, 8))))
    return tuple(made), BuildReport(0.0, True, 1, 0, 1)


@contextlib.contextmanager
def no_gpu() -> Iterator[None]:
    """CPU operands count as CUDA's, and the driver is :class:`NoDriver`."""
    device = representative(90)
    library = NoDriver()
    changes = (
        mock.patch.object(driver, "_cuda", lambda: library),
        mock.patch.object(driver, "_load", lambda *_: 4242),
        mock.patch.object(plan, "build_launches", _binaries),
        mock.patch.object(plan, "_scratch", lambda size, _: torch.empty(size, dtype=torch.uint8)),
        mock.patch.object(plans, "device_of", lambda _: device),
        mock.patch.object(plans, "make_plan", lambda problem, config, device, geometry, _:
                          plan.Plan(problem, config, device, geometry, 0)),
        mock.patch.object(torch.cuda, "device_count", lambda: 1),
        mock.patch.object(torch._C, "_cuda_getCurrentRawStream", lambda _: 1000, create=True),
        settings.override(interpret=True))
    with contextlib.ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


@contextlib.contextmanager
def only(kernel: str | None) -> Iterator[None]:
    """Every problem runs the default config of ``kernel``; None: what selection chooses."""
    if kernel is None:
        yield
        return

    def choose(problem, device):
        return Choice(SPECS[kernel].default(problem, device), "rule", None, "perf/bench_host.py")

    execute.clear_plans()
    with mock.patch.object(plans, "choose", choose):
        yield
    execute.clear_plans()


def pairs(size: int, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [tuple(torch.randn(size, size, device=device).bfloat16() for _ in range(2))
            for _ in range(SETS)]


def calls_of(size: int, device: str) -> dict[str, tuple[Call, Call]]:
    """Row -> torch's call and this package's."""
    sets = pairs(size, device)
    a, b = sets[0]
    bias, whole = b[0].clone(), torch.empty_like(a)
    wide = torch.randn(size, size, device=device, dtype=torch.float64)
    leaf, none = a.clone().requires_grad_(), a[:0]

    def rows(name: str, both: Callable[[object], Call]) -> dict[str, tuple[Call, Call]]:
        return {name: (both(torch), both(tg))}

    def linear(home, *operands):
        return (torch.nn.functional if home is torch else home).linear(*operands)

    found: dict[str, tuple[Call, Call]] = {}
    for kernel in KERNELS:
        found |= rows(f"matmul, {kernel}", lambda x: lambda: x.matmul(a, b))
        found |= rows(f"matmul, {kernel}, rotating", lambda x: rotating(
            [lambda p=p: x.matmul(*p) for p in sets]))
    if device == "cuda":
        for m, n, k in TWO_LAUNCHES:
            x, y = (torch.randn(*shape, device=device).bfloat16() for shape in ((m, k), (k, n)))
            found |= rows(f"matmul, {m}x{n}x{k}", lambda z, x=x, y=y: lambda: z.matmul(x, y))
    found |= rows("mm", lambda x: lambda: x.mm(a, b))
    found |= rows("mm, out=", lambda x: lambda: x.mm(a, b, out=whole))
    found |= rows("linear", lambda x: lambda: linear(x, a, b))
    found |= rows("linear, bias", lambda x: lambda: linear(x, a, b, bias))
    found |= rows("addmm, bias", lambda x: lambda: x.addmm(bias, a, b))
    found |= rows("addmm, rotating", lambda x: rotating(
        [lambda p=p: x.addmm(bias, *p, alpha=0.5) for p in sets]))
    found |= rows("matmul, with grad", lambda x: lambda: x.matmul(leaf, b))
    found |= rows("linear, bias, with grad", lambda x: lambda: linear(x, leaf, b, bias))
    found |= rows("matmul, declined", lambda x: lambda: x.matmul(wide, wide))
    # Under an override ours is torch's own function.
    for name, call in {
            "mm": lambda: torch.mm(a, b), "linear, bias": lambda: linear(torch, a, b, bias),
            "linear, bias, with grad": lambda: linear(torch, leaf, b, bias),
            "mm, declined": lambda: torch.mm(wide, wide),
            "mm, declined by its shape": lambda: torch.mm(none, b)}.items():
        found[f"override: {name}"] = (call, call)

    def entering() -> None:
        with tg.override():
            pass
    found["entering and leaving an override"] = (lambda: None, entering)
    return found


def within(name: str, torch_us: float, ours_us: float) -> bool:
    """Whether a row reaches its goal."""
    if "declined" in name:
        return ours_us - torch_us <= DECLINED_US
    if name.startswith("entering"):
        return True  # once for a program
    most = TWO if any(f"{m}x{n}x{k}" in name for m, n, k in TWO_LAUNCHES) else (
        OVERRIDE if "override" in name else HIT)
    return ours_us <= most * torch_us


def breakdown(size: int, device: str) -> dict[str, Call]:
    """The steps of a hit, each alone, in the order of the call."""
    a, b = pairs(size, device)[0]
    tg.matmul(a, b)
    key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device,
           a.data_ptr() & 15, b.data_ptr() & 15, True)
    call = execute.MATMUL.hits[key]
    cells = dict(zip(call.__code__.co_freevars, (c.cell_contents for c in call.__closure__)))
    at = cells["at"]
    inner = dict(zip(at.__code__.co_freevars, (c.cell_contents for c in at.__closure__)))
    launcher = inner["launcher"]
    pa, pb, pc = a.data_ptr(), b.data_ptr(), torch.empty_like(a).data_ptr()
    shape, strides, dtype, where = tuple(a.shape), a.stride(), a.dtype, a.device

    def known() -> object:
        x, y = a.data_ptr(), b.data_ptr()
        return execute.MATMUL.hits.get((
            a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device,
            x & 15, y & 15, True))

    start, arguments = launcher._start, launcher._arguments
    return {
        "the whole call": lambda: tg.matmul(a, b),
        "of it: nothing but kernels has a say": lambda: functions.fast_path(a, b),
        "of it: the key, and its look-up": known,
        "of it: torch.empty_strided, the result": lambda: torch.empty_strided(
            shape, strides, dtype=dtype, device=where),
        "of it: addresses, lock, launch": lambda: at((pa, pb, pc, 0, 1.0, 1.0)),
        "of that: the driver, through ctypes": lambda: start(*arguments),
        "an empty call, to subtract from each": lambda: None,
    }


def report(size: int, device: str, blocks: int, calls: int) -> list[tuple[str, float, float]]:
    """Prints and returns (row, torch's microseconds, ours)."""
    drain = torch.cuda.synchronize if device == "cuda" else None
    where = torch.cuda.get_device_name() if device == "cuda" else "no GPU: launches do nothing"
    path = "Python path" if native.table() is None else "native dispatcher"
    print(f"{size}x{size}x{size} bf16, {where}, {path}; median us of {blocks} blocks of {calls} "
          f"calls\n\n{'':<34}{'torch':>8}{'tg':>8}{'diff':>8}{'ratio':>8}")
    found = []
    for name, (theirs, ours) in calls_of(size, device).items():
        kernel = None if "x" in name.split()[-1] else (
            next((k for k in KERNELS if k in name), "tiled"))
        contexts = {"tg": lambda: tg.override(min_flops=0)} if "override" in name else None
        with only(kernel):
            times = host_time_us({"torch": theirs, "tg": ours}, blocks=blocks, calls=calls,
                                 drain=drain, contexts=contexts)
        one, other = times["torch"].p50, times["tg"].p50
        found.append((name, one, other))
        mark = "" if device == "cpu" or within(name, one, other) else "  OVER"
        print(f"{name:<34}{one:>8.2f}{other:>8.2f}{other - one:>+8.2f}{other / one:>8.2f}{mark}")
    for kernel in KERNELS if native.table() is None else ():
        with only(kernel):
            steps = host_time_us(breakdown(size, device), blocks=blocks, calls=calls, drain=drain)
        print(f"\na hit of tg.matmul, {kernel}, same pointers")
        for name, quantiles in steps.items():
            print(f"  {name:<40}{quantiles.p50:>8.2f}")
    return found


def write(path: Path, rows: list[tuple[str, float, float]]) -> None:
    """Appends rows to a CSV."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(("call", "path", "torch_us", "tritongemm_us", "ratio", "torch"))
        way = "python" if native.table() is None else "native"
        writer.writerows((name, way, f"{one:.2f}", f"{other:.2f}", f"{other / one:.3f}",
                          torch.__version__) for name, one, other in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--size", type=int, default=64 if torch.cuda.is_available() else 16,
                        help="extents M = N = K")
    parser.add_argument("--out", type=Path, help="append the rows to this CSV; needs a GPU")
    args = parser.parse_args()
    if torch.cuda.is_available():
        current_device()
        rows = report(args.size, "cuda", args.blocks, args.calls)
        if args.out:
            write(args.out, rows)
    else:
        with no_gpu():
            report(args.size, "cpu", args.blocks, args.calls)


if __name__ == "__main__":
    main()
