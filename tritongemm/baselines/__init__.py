"""GEMM the classical way: CUDA C++ rungs over cuda-python, and host rungs over Numba.

:func:`compile_cuda` compiles and launches any CUDA kernel, not only the rungs.
"""

from __future__ import annotations

import importlib

_EXPORTS = {
    "compile_cuda": "tritongemm.baselines.cuda.compiler",
    "CudaKernel": "tritongemm.baselines.cuda.launcher",
    "CUDA_RUNGS": "tritongemm.baselines.cuda.rungs",
    "cuda_gemm": "tritongemm.baselines.cuda.gemm",
    "bind_cuda": "tritongemm.baselines.cuda.gemm",
    "HOST_RUNGS": "tritongemm.baselines.host",
    "host_gemm": "tritongemm.baselines.host",
}
__all__ = list(_EXPORTS)


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
