"""Measure a product of your own with torch, by the same protocol, and read the CSV.

A provider is a class with ``name``, ``available``, ``build`` and ``prepare``. ``tritongemm bench``
loads it by ``module:Class``, proves its results against float64, and times it in the same rounds
as torch. Here: torch.matmul in two halves of K, which is slower and rounds twice.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from tritongemm.bench.providers import Prepared
from tritongemm.measure.contender import Contender
from tritongemm.records.rows import read_rows


class HalvesOfK:
    """A @ B as the sum of two products over half of K each."""

    name = "halves_of_k"

    def available(self, target):
        return None  # or the reason why it cannot run on this target

    def build(self, problem, target):
        return None  # nothing to compile ahead

    def prepare(self, problem, target):
        half = problem.k // 2

        def bind(operands):
            a, b, out = operands.a, operands.b, operands.out

            def call():
                torch.matmul(a[..., :half], b[..., :half, :], out=out)
                out.add_(a[..., half:] @ b[..., half:, :])
            return call

        return Prepared(Contender(self.name, bind), {"kernel": "two torch.matmul"})


def main() -> None:
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("there is no GPU; TRITON_INTERPRET=1 runs this in Triton's interpreter")
    here = Path(__file__).resolve().parent
    on_gpu = torch.cuda.is_available()
    size = "4096" if on_gpu else "64"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench.csv"
        command = [sys.executable, "-m", "tritongemm", "bench", "--m", size, "--n", size,
                   "--k", size, "--dtype", "bf16" if on_gpu else "fp32", "--budget", "0.2",
                   "--providers", "torch,own_provider:HalvesOfK", "--out", str(out)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
            [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])}
        subprocess.run(command, env=environment, check=True)
        for row in read_rows(out):
            print(f"{row['provider']:<14} {row['status']:<8} "
                  f"{row['time_us_p50'] or float('nan'):8.1f} us, error "
                  f"{row['max_err_ratio'] or float('nan'):.2f} of its limit")


if __name__ == "__main__":
    main()
