"""The name that a profiler shows for a kernel: what it multiplies and how it is configured."""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.problem import GemmProblem


def symbol_of(problem: GemmProblem, config: KernelConfig) -> str:
    """``tritongemm_bf16_nt_tiled_128x128x64_w8_s3_g8``.

    One binary serves many extents, so they are not in the name: TRITONGEMM_PROFILE=1 adds a
    range with the whole problem around each launch.
    """
    parts = ["tritongemm", problem.dtype_a]
    if problem.dtype_out != problem.dtype_a:
        parts.append(problem.dtype_out)
    if problem.precision != "ieee":
        parts.append(problem.precision)
    return "_".join([*parts, problem.layout, config.config_id])
