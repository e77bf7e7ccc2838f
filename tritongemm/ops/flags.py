"""Which rows and columns of a float32 product its guard computes, because fp16 parts cannot
represent them (``kernels/device/split_fp32.py``)."""

from __future__ import annotations

import torch

from tritongemm.config import KernelConfig
from tritongemm.device import cuda_device
from tritongemm.kernels import SPECS
from tritongemm.kernels.split_fp32 import FLAGGED, exponents_in
from tritongemm.ops.plan import bind_config, geometry_of, kept_scratch
from tritongemm.problem import GemmProblem


def flagged(problem: GemmProblem, config: KernelConfig, a: torch.Tensor, b: torch.Tensor,
            out: torch.Tensor) -> tuple[int, int]:
    """Multiplies ``a`` and ``b`` into ``out`` by ``config`` and waits for the GPU. Returns how many
    rows of A and columns of B the guard computed, of all batches together; (0, 0) of a kernel that
    has none.

    Args:
        a, b, out: [M, K], [K, N] and [M, N], or batches of these, on one GPU.

    Raises:
        ConstraintError, CompileError, LaunchError: the config cannot run the problem.
    """
    bound = bind_config(problem, config, cuda_device(a.device.index))
    with kept_scratch() as scratch:
        bound(a, b, out)
    torch.cuda.synchronize(a.device)
    if not SPECS[config.kernel].guarded:
        return 0, 0
    of_a, of_b = (int((scratch[-1][exponents].view(torch.float32) >= FLAGGED).sum())
                  for exponents in exponents_in(problem, config, geometry_of(a, b, out)))
    return of_a, of_b
