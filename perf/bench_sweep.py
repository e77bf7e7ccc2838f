"""Time of a sweep: one problem with a cold and a warm compile cache, and the GPU's idle share.

The goals, on 16 cores and one H200: one problem with 60 legal configs in at most 90 s with a cold
compile cache and at most 15 s with a warm one; in a sweep of a suite, under 30 % of the GPU's
measuring time lost to compiling. New folders serve as caches, so that they are cold. Without a GPU
only compiling is timed, for sm_90.

    python perf/bench_sweep.py [--configs 60] [--problems 8] [--dtype bf16] [--layout nt]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tritongemm import settings  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402

#: A problem of medium size: its configs are neither all fast nor all slow to measure.
PROBLEM = (2048, 2048, 2048)
COLD_GOAL_S, WARM_GOAL_S, IDLE_GOAL = 90.0, 15.0, 0.30
#: Set in the process with the new caches.
INSIDE = "--inside"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", type=int, default=60, help="of the one problem (60)")
    parser.add_argument("--problems", type=int, default=8, help="of the suite's first shapes (8)")
    parser.add_argument("--suite", default="square")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--layout", default="nt")
    parser.add_argument(INSIDE, metavar="FOLDER", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        return measure(args, Path(args.inside))
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TRITONGEMM_CACHE_DIR": f"{folder}/binaries",
                  "TRITON_CACHE_DIR": f"{folder}/triton"}
        return subprocess.run([sys.executable, __file__, *sys.argv[1:], INSIDE, folder],
                              env=settings.child_environment(**caches), check=False).returncode


def measure(args: argparse.Namespace, folder: Path) -> int:
    """Prints the figures with their goals."""
    import torch

    problem = GemmProblem.contiguous(*PROBLEM, dtype=args.dtype, layout=args.layout)
    print(f"{len(os.sched_getaffinity(0))} cores; {problem}, {args.configs} configs")
    if not torch.cuda.is_available():
        return compile_alone(problem, args.configs)
    from tritongemm.records.suites import read_suite, suite_path
    from tritongemm.tuning.sweep import sweep

    for name, goal in (("cold", COLD_GOAL_S), ("warm", WARM_GOAL_S)):
        report = sweep([problem], folder / f"{name}.jsonl", top=args.configs)
        print(f"{name}: {report.wall_s:.1f} s for {report.measured} configs (goal {goal:.0f} s); "
              f"compiling {report.compile_s:.1f} s of the cores, GPU waited "
              f"{report.gpu_waited_s:.1f} s")
    shapes = read_suite(suite_path(args.suite))[:args.problems]
    report = sweep([s.problem(args.dtype, args.layout) for s in shapes], folder / "suite.jsonl",
                   top=args.configs)
    print(f"suite: {len(report.problems)} problems of {args.suite} in {report.wall_s:.1f} s, "
          f"{report.measured} configs; {100 * report.gpu_waited_share:.0f} % of the measuring time "
          f"waited for compiling (goal {100 * IDLE_GOAL:.0f} %)")
    return 0


def compile_alone(problem: GemmProblem, count: int) -> int:
    """Times compiling the model's best configs on all cores, cold and then cached."""
    from tritongemm.device import representative
    from tritongemm.selection import candidates

    device = representative(90)
    configs = candidates(problem, device, top=count)
    cores = len(os.sched_getaffinity(0))
    print(f"no GPU here: compiling alone, for {device.sm}")
    for name in ("cold", "warm"):
        start = time.perf_counter()
        with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
            reports = list(pool.map(build, [(problem, config, device) for config in configs]))
        seconds = time.perf_counter() - start
        stored = sum(report.cached for report in reports)
        print(f"{name}: {seconds:.1f} s for {len(reports)} configs, {stored} of them stored "
              f"already; {sum(r.seconds for r in reports):.1f} s of the cores")
    return 0


def build(job: tuple):
    """Compiles one config, in a process of the pool."""
    from tritongemm.kernels.compile import build as build_config

    return build_config(*job)


if __name__ == "__main__":
    sys.exit(main())
