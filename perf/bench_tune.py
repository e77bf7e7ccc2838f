"""What `tritongemm tune` takes and wins on a program: Llama 3 8B with lengths that no table has.

    python perf/bench_tune.py OUT.csv [--budget 240] [--tiny]

Times the program under ``tritongemm.override`` beside torch, tunes it with an empty folder of a
user's tables, and times it again with what was published there; each in a process of its own. The
row has the seconds that the command took, torch's time over ours before and after, and the step
times. The goals: at most 5 minutes, and a program that is not slower afterwards, by more than 1 %,
by which two processes may differ. ``--tiny`` tries the code with small sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

COLUMNS = ("tune_s", "before", "after", "before_ms", "after_ms", "torch_before_ms",
           "torch_after_ms", "device")
GOAL_S, NOISE = 300.0, 0.01
#: (batch, tokens, tokens in the cache): a long prompt, two of one length, and a decode step.
CASES, TINY_CASES = ((1, 1777, 0), (2, 611, 0), (24, 1, 1024)), ((1, 17, 0), (2, 5, 0))
STEPS, WARM_UP = 60, 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.csv")
    parser.add_argument("--budget", type=float, default=240.0, help="of `tune`, seconds (240)")
    parser.add_argument("--tiny", action="store_true", help="small sizes; times mean nothing")
    parser.add_argument("--step", choices=("program", "time"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.step is not None:
        return inside(args.step, args.tiny)
    with tempfile.TemporaryDirectory() as folder:
        user = {**os.environ, "TRITONGEMM_USER_DIR": folder}
        myself = [str(Path(__file__).resolve()), str(args.out), *["--tiny"] * args.tiny]
        before = timed([sys.executable, *myself, "--step", "time"], user)
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tritongemm", "tune", "--plain", "--budget",
                        str(args.budget), "--dir", f"{folder}/work", *myself, "--step", "program"],
                       env=user, check=True)
        seconds = time.perf_counter() - start
        after = timed([sys.executable, *myself, "--step", "time"], user)
    row = row_of(seconds, before, after)
    new = not args.out.exists()
    with open(args.out, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    print(f"tune took {seconds:.0f} s; torch's time / ours was {row['before']:.3f} and is "
          f"{row['after']:.3f}")
    return 0 if seconds <= GOAL_S and row["after"] >= (1 - NOISE) * row["before"] else 1


def row_of(seconds: float, before: dict, after: dict) -> dict:
    """The row of :data:`COLUMNS`; ``before`` and ``after`` are what :func:`inside` prints."""
    return {"tune_s": round(seconds, 1), "device": after["device"],
            "before": round(before["torch_ms"] / before["ms"], 4),
            "after": round(after["torch_ms"] / after["ms"], 4),
            "before_ms": round(before["ms"], 4), "after_ms": round(after["ms"], 4),
            "torch_before_ms": round(before["torch_ms"], 4),
            "torch_after_ms": round(after["torch_ms"], 4)}


def timed(command: list[str], environment: dict[str, str]) -> dict:
    """What the last line of a process says."""
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def inside(step: str, tiny: bool) -> int:
    """Runs the program a few times, for `tune` to record; or times it and prints JSON."""
    import torch

    import tritongemm as tg
    from tritongemm.models.llama import LLAMA_8B, TINY, layers

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = TINY if tiny else LLAMA_8B
    made = [(layers(dict(sizes, batch=batch, length=length, past=past)).to(device, torch.bfloat16),
             torch.randn(batch, length, sizes["width"], device=device, dtype=torch.bfloat16))
            for batch, length, past in (TINY_CASES if tiny else CASES)]

    def run() -> None:
        for model, x in made:
            model(x)
        if device == "cuda":
            torch.cuda.synchronize()

    def seconds(ours: bool) -> float:
        with tg.override() if ours else contextlib.nullcontext():  # a program enters it once
            start = time.perf_counter()
            run()
            return time.perf_counter() - start

    with torch.no_grad():
        if step == "program":
            for _ in range(3):
                run()
            return 0
        times: dict[bool, list[float]] = {True: [], False: []}
        for number in range(-WARM_UP, 2 if tiny else STEPS):
            for ours in (True, False) if number % 2 else (False, True):
                taken = seconds(ours)
                if number >= 0:
                    times[ours].append(taken)
    ours_s, torch_s = (statistics.median(times[x]) for x in (True, False))
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    print(json.dumps({"ms": 1e3 * ours_s, "torch_ms": 1e3 * torch_s, "device": name}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
