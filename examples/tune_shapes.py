"""Find the best config of a few shapes from Python.

On a GPU this sweeps two shapes for about a minute and publishes the winners into the tuned tables
that ``tg.matmul`` reads. Without a GPU it prints what a sweep on an H200 would measure: a sweep
times kernels, so it needs the GPU.
"""

import tempfile
from pathlib import Path

import torch

import tritongemm as tg
from tritongemm.device import device_named
from tritongemm.selection import candidates, estimate

SHAPES = [(4096, 11008, 4096), (16, 11008, 4096)]


def sweep() -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "sweep.jsonl"
        report = tg.tune(SHAPES, layout="nt", top=16, budget_s=60, journal=journal)
        for found in report.winners:
            print(f"{found.problem}: {found.winner.config_id}, {found.time_us:.1f} us, "
                  f"{found.ratio_vs_torch:.2f} of torch's speed")
        print(f"{report.measured} configs measured; every outcome is a line of the journal")
        assert report.winners


def plan() -> None:
    h200 = device_named("nvidia-h200")
    for m, n, k in SHAPES:
        problem = tg.GemmProblem.contiguous(m, n, k, layout="nt")
        configs = candidates(problem, h200)
        print(f"{problem}: {len(configs)} candidates; a sweep with top=4 measures")
        for config in configs[:4]:
            print(f"  {config.config_id:<48} predicted "
                  f"{estimate(problem, config, h200).total_us:.1f} us")
        assert len(configs) > 100


# A sweep starts worker processes, which import this file again.
if __name__ == "__main__":
    if torch.cuda.is_available():
        sweep()
    else:
        plan()
