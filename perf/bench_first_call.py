"""Seconds of the first ``tg.matmul`` of a process, ``import tritongemm`` included, into a CSV.

Operands are on the GPU before the time begins, and it ends when the result is there. Each time is
of a new process. The goal: at most 0.15 s with shipped kernels, an empty cache folder and no
compiler, without Triton being imported. Cases, which alternate:

- ``pack``: with shipped kernels (--pack FOLDER, else the installed package), an empty cache folder,
  and Triton made unimportable, so that nothing can be compiled;
- ``warm``: without them, the kernel in the cache folder;
- ``neither``: without them, with empty cache folders, this package's and Triton's;
- ``torch``: torch's own first ``matmul``.

    python perf/bench_first_call.py OUT.csv --build FOLDER       (a pack of these shapes alone)
    python perf/bench_first_call.py OUT.csv --pack FOLDER        (of `tritongemm cubins build`)

With no GPU everything but the driver is real: operands are on the CPU, launches do nothing, an H100
is assumed, and the case ``torch`` is left out.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES = ("pack", "warm", "neither", "torch")
SHAPES = ("4096x4096x4096", "16x6144x4096", "1000x1000x1000", "333x777x555")
COLUMNS = ("case", "m", "n", "k", "dtype", "layout", "seconds_p50", "seconds_max", "import_s",
           "call_s", "second_call_s", "processes", "triton_imported", "max_error", "device",
           "torch", "python")

#: Run in a new process; prints one line of JSON.
CHILD = """
import json, sys, time
case, m, n, k = sys.argv[1], *map(int, sys.argv[2:5])
if case == "pack":
    sys.modules["triton"] = None  # importing it raises ImportError
import torch
gpu = torch.cuda.is_available()
device = "cuda" if gpu else "cpu"
generator = torch.Generator().manual_seed(1)
a, b = (torch.randn(size, generator=generator).bfloat16().to(device) for size in ((m, k), (n, k)))
b = b.t()
if gpu:
    torch.cuda.synchronize()
before = set(sys.modules)
start = time.perf_counter()
if case == "torch":
    matmul, imported = torch.matmul, start
else:
    import tritongemm
    matmul, imported = tritongemm.matmul, time.perf_counter()
if not gpu:
    sys.path.insert(0, "perf")
    from bench_first_call import no_driver
    no_driver()
    start += time.perf_counter() - imported
    imported = time.perf_counter()
c = matmul(a, b)
if gpu:
    torch.cuda.synchronize()
end = time.perf_counter()
loaded = sorted(x for x in set(sys.modules) - before if x.split(".")[0] == "triton")
matmul(a, b)
if gpu:
    torch.cuda.synchronize()
second = time.perf_counter() - end
error = 0.0
if gpu:
    wanted = a.double() @ b.double()
    error = ((c.double() - wanted).abs().max() / wanted.abs().max()).item()
print(json.dumps({"seconds": end - start, "import_s": imported - start, "call_s": end - imported,
                  "second_call_s": second, "loaded": loaded, "error": error,
                  "device": torch.cuda.get_device_name() if gpu else "none",
                  "torch": torch.__version__}))
"""
#: Of the largest element: an error beyond this is no rounding of bfloat16.
_WRONG = 0.01


#: Contexts that stay entered.
_open: list = []


def no_driver() -> None:
    """For the rest of this process CPU operands count as an H100's, and the driver's functions do
    nothing. Binaries are found or compiled as for a GPU."""
    import torch
    from bench_host import NoDriver

    from tritongemm import settings
    from tritongemm.device import device_named
    from tritongemm.kernels import driver
    from tritongemm.ops import plan, plans

    device, library = device_named("nvidia-h100-80gb-hbm3"), NoDriver()
    driver._cuda, driver._load = lambda: library, lambda *_: 4242
    plan._scratch = lambda size, _: torch.empty(size, dtype=torch.uint8)
    plans.device_of = lambda _: device
    plans.make_plan = lambda problem, config, device, geometry, _: plan.Plan(
        problem, config, device, geometry, 0)
    torch.cuda.device_count = lambda: 1
    torch._C._cuda_getCurrentRawStream = lambda _: 1000
    _open.append(settings.override(interpret=True))
    _open[-1].__enter__()


def run(case: str, sides: tuple[int, ...], pack: str, cache: Path) -> dict:
    """One process; what it measured. ``cache``: the folder that it compiles into."""
    from tritongemm import settings

    environment = settings.child_environment(
        TRITONGEMM_CUBINS=pack if case == "pack" else "off", TRITONGEMM_STRICT="1",
        TRITONGEMM_CACHE_DIR=str(cache), TRITON_CACHE_DIR=str(cache / "triton"),
        **({"PATH": ""} if case == "pack" else {}),  # nor a C++ compiler, for the dispatcher
        # As an installed package is: a checkout may have no bytecode yet, the first round makes it.
        PYTHONDONTWRITEBYTECODE="")
    done = subprocess.run([sys.executable, "-c", CHILD, case, *map(str, sides)], cwd=ROOT,
                          env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case} {sides}: {done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["error"] > _WRONG:
        raise SystemExit(f"{case} {sides}: off by {found['error']:.3g} of the largest element")
    if case == "pack" and found["loaded"]:
        raise SystemExit(f"{case} {sides}: imported {', '.join(found['loaded'][:5])}")
    return found


def measured(cases: list[str], shapes: list[str], pack: str, rounds: int) -> list[dict]:
    """A row for each case and shape."""
    times: dict[tuple[str, str], list[dict]] = {}
    with tempfile.TemporaryDirectory() as folder:
        warm = Path(folder) / "warm"
        for number in range(rounds + 1):  # the first fills the cache and the disk's buffers
            for shape in shapes:
                for case in cases:
                    cache = warm if case == "warm" else Path(folder) / f"{case}{number}{shape}"
                    found = run(case, tuple(map(int, shape.split("x"))), pack, cache)
                    if number or rounds == 0:
                        times.setdefault((case, shape), []).append(found)
    rows = []
    for (case, shape), found in times.items():
        m, n, k = shape.split("x")
        of = {name: [one[name] for one in found] for name in found[0]}
        middle = {name: f"{statistics.median(of[name]):.4f}"
                  for name in ("import_s", "call_s", "second_call_s")}
        rows.append({
            "case": case, "m": m, "n": n, "k": k, "dtype": "bf16", "layout": "nt",
            "seconds_p50": f"{statistics.median(of['seconds']):.4f}",
            "seconds_max": f"{max(of['seconds']):.4f}", **middle, "processes": len(found),
            "triton_imported": int(any(of["loaded"])), "max_error": f"{max(of['error']):.2e}",
            "device": of["device"][0], "torch": of["torch"][0],
            "python": platform.python_version()})
    return rows


def built(folder: Path, shapes: list[str]) -> str:
    """Builds a pack of what the shapes launch; its folder."""
    from tritongemm.cubins import building, choosing
    from tritongemm.device import current_device, device_named
    from tritongemm.errors import TritonGemmError
    from tritongemm.problem import GemmProblem

    try:
        device = device_named(current_device().slug)
    except TritonGemmError:
        device = device_named("nvidia-h100-80gb-hbm3")
    wanted = [choosing.chosen(GemmProblem.contiguous(*map(int, x.split("x")), layout="nt"), device)
              for x in shapes]
    made = building.build(wanted, wanted, folder, device.arch, max_bytes=10**8, workers=2)
    if made.failed or made.served.share < 1.0:
        raise SystemExit(f"the pack serves {made.served}; failed: {made.failed}")
    return str(made.pack.folder)


def main() -> None:
    """Measures, writes the CSV, prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--build", type=Path, help="build a pack of the shapes into this folder "
                                                   "first, for this GPU; needs Triton")
    parser.add_argument("--pack", default="", help="folder of the pack (default: the installed "
                                                   "package)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--shapes", default=",".join(SHAPES), help="MxNxK, a comma list")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT))  # the package that the processes import
    import torch

    cases = [case for case in args.cases.split(",")
             if case != "torch" or torch.cuda.is_available()]
    shapes = args.shapes.split(",")
    pack = str(Path(args.pack).resolve()) if args.pack else ""
    if args.build is not None:
        pack = built(args.build.resolve(), shapes)
    rows = measured(cases, shapes, pack, args.rounds)
    with open(args.out, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(f"{row['case']:8} {row['m']}x{row['n']}x{row['k']:8} {row['seconds_p50']} s, import "
              f"{row['import_s']}, call {row['call_s']}, second call {row['second_call_s']}")


if __name__ == "__main__":
    main()
