"""The speed-up of a sweep over Dask on all GPUs of this host, over the same sweep on one.

    python perf/bench_cluster.py OUT.csv [--gpus 1,4] [--problems 64] [--journals DIR]
                                 [--cores-per-gpu N]

Each row is a sweep of the same fresh shapes with new, empty caches: a scheduler, one worker for
each GPU, and `tritongemm sweep --scheduler`. All of the host's cores are shared out among the
workers, so that one GPU has as many as all of them; a sweep that waits for its compiler then gains
little from more GPUs. --cores-per-gpu gives each GPU the same number in every row, as hosts that
join a cluster do.
The goals: at least 1.8 times one GPU with two, 3.4 times with four. The speed-up is of the client's
time from the start of the command, after the workers have joined.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tritongemm import settings  # noqa: E402

COLUMNS = ("gpus", "problems", "winners", "seconds", "speed_up", "device", "cores")
GOALS = {2: 1.8, 4: 3.4}
#: Half of them fill a GPU, half of them are aligned at random.
FAMILIES = ("llm_prefill", "aligned_random")
JOIN_TIMEOUT_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", help="numbers of GPUs, comma-separated (1 and all)")
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--seed", type=int, default=64)
    parser.add_argument("--cores-per-gpu", type=int, metavar="N",
                        help="cores of each GPU (default: the host's, shared out)")
    parser.add_argument("--journals", type=Path, help="write the sweeps' journals to this folder")
    args = parser.parse_args()
    if importlib.util.find_spec("distributed") is None:
        raise SystemExit("this needs the extra [cluster]: pip install '.[cluster]'")
    counts = [int(x) for x in args.gpus.split(",")] if args.gpus else [1, gpus_here()]
    every = sorted(os.sched_getaffinity(0))
    most = len(every) // max(counts)
    if args.cores_per_gpu is not None and not 1 <= args.cores_per_gpu <= most:
        parser.error(f"--cores-per-gpu {args.cores_per_gpu} is not 1 to {most}, for {max(counts)} "
                     f"GPUs and {len(every)} cores")
    rows: list[dict[str, Any]] = []
    if args.journals:
        args.journals.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        suite = write_problems(Path(folder), args.problems, args.seed)
        for count in counts:
            journal = (args.journals or Path(folder)) / f"{count}-of-{args.seed}.jsonl"
            cores = every[:count * args.cores_per_gpu] if args.cores_per_gpu else every
            os.sched_setaffinity(0, cores)  # children inherit it
            seconds, winners, device = sweep(Path(folder), suite, count, journal)
            rows.append({"gpus": count, "problems": args.problems, "winners": winners,
                         "cores": len(cores), "seconds": round(seconds, 1), "device": device})
            one = next((row["seconds"] for row in rows if row["gpus"] == 1), None)
            for row in rows:
                row["speed_up"] = round(one / row["seconds"], 3) if one else ""
            with open(args.out, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            print(f"{count} GPUs: {seconds:.1f} s, {winners} of {args.problems} problems have a "
                  f"winner, speed-up {rows[-1]['speed_up']} (goal {GOALS.get(count, '-')})",
                  flush=True)
    return 0


def gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


def write_problems(folder: Path, count: int, seed: int) -> Path:
    """The suite of fresh shapes, in equal parts of :data:`FAMILIES`."""
    from tritongemm.bench.fresh import draw
    from tritongemm.records.suites import write_suite

    shapes = [shape for number, family in enumerate(FAMILIES)
              for shape in draw(family, seed, (count + number) // len(FAMILIES))]
    write_suite(folder / "problems.csv", shapes)
    return folder / "problems.csv"


def sweep(folder: Path, suite: Path, count: int, journal: Path) -> tuple[float, int, str]:
    """Seconds of the client, problems with a winner, and the device, on ``count`` GPUs."""
    from tritongemm.records.journal import read_journal

    caches = folder / f"caches-{count}"
    environment = settings.child_environment(TRITONGEMM_CACHE_DIR=str(caches),
                                             TRITON_CACHE_DIR=str(caches / "triton"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    tool = [sys.executable, "-m", "tritongemm"]
    children = [subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_scheduler", "--host",
                                  address, "--no-dashboard"], env=environment)]
    try:
        children.append(subprocess.Popen(
            [*tool, "worker", address, "--devices", ",".join(map(str, range(count)))],
            env=environment, cwd=ROOT))
        wait_for_workers(address, count)
        start = time.monotonic()
        done = subprocess.run([*tool, "sweep", str(suite), "--layout", "nt", "--scheduler", address,
                               "--journal", str(journal), "--plain"], env=environment, cwd=ROOT)
        seconds = time.monotonic() - start
        if done.returncode:
            raise SystemExit(f"the sweep on {count} GPUs ended with {done.returncode}; its journal "
                             f"is {journal}")
    finally:
        for child in reversed(children):
            child.terminate()
        for child in children:
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
    records = list(read_journal(journal))
    return (seconds, sum(r["kind"] == "winner" for r in records),
            str(next(r["device"] for r in records if r["kind"] == "header")))


def wait_for_workers(address: str, count: int) -> None:
    """Raises TimeoutError if they do not join in time."""
    from distributed import Client

    with Client(address, timeout=JOIN_TIMEOUT_S) as client:
        client.wait_for_workers(count, timeout=JOIN_TIMEOUT_S)


if __name__ == "__main__":
    sys.exit(main())
