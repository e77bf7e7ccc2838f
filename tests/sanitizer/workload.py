"""What compute-sanitizer watches: every CUDA rung on small odd problems, guard bands checked.

    python tests/sanitizer/workload.py [RUNG ...]
"""

from __future__ import annotations

import sys

import torch

from tritongemm.baselines import CUDA_RUNGS, cuda_gemm

SIZES = ((1, 1, 1), (37, 131, 45), (132, 260, 36), (129, 7, 67), (64, 64, 64), (5, 4, 0))
BAND = 1024


def main(names: list[str]) -> int:
    bad = 0
    for name in names or CUDA_RUNGS:
        for config in CUDA_RUNGS[name].variants:
            for m, n, k in SIZES:
                a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
                band = torch.full((m * n + 2 * BAND,), 7.0, device="cuda")
                out = band[BAND:BAND + m * n].view(m, n)
                cuda_gemm(name, a, b, out=out, config=config)
                want = (a.double() @ b.double()).float()
                intact = bool((band[:BAND] == 7).all() and (band[BAND + m * n:] == 7).all())
                if not intact or not torch.allclose(out, want, atol=1e-3):
                    print(f"{config} {m}x{n}x{k}: {'wrong' if intact else 'wrote outside C'}")
                    bad += 1
    torch.cuda.synchronize()
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
