"""The host rungs: the order of three loops on a CPU, compiled by Numba.

Each module here holds one rung as ``gemm(a, b, c, alpha, beta)`` on NumPy arrays.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tritongemm.errors import ProblemError, UsageError, missing

if TYPE_CHECKING:
    import torch

#: Every host rung, in the ladder's order.
HOST_RUNGS = ("cpu_naive", "cpu_reordered", "cpu_tiled", "cpu_unrolled", "cpu_parallel")


def load_host(name: str) -> Callable[[Any, Any, Any, Any, Any], None]:
    """The compiled rung ``name``: ``f(a, b, c, alpha, beta)`` on row-major NumPy arrays.

    alpha and beta are scalars of the arrays' dtype. It compiles at its first call.

    Raises:
        UsageError: no such rung.
        MissingDependencyError: Numba is not installed.
    """
    if name not in HOST_RUNGS:
        raise UsageError(f"no host rung is named {name!r}; the rungs are {', '.join(HOST_RUNGS)}")
    try:
        module = importlib.import_module(f"tritongemm.baselines.host.{name}")
    except ImportError as error:
        if (error.name or "").split(".")[0] not in ("numba", "llvmlite"):
            raise
        raise missing("numba", "cpu", f"host rung {name}") from error
    return module.gemm


def host_gemm(name: str, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None,
              alpha: float = 1.0, beta: float = 0.0) -> torch.Tensor:
    """``alpha * a @ b + beta * out`` by the host rung ``name``; ``beta == 0`` does not read out.

    Args:
        a: [M, K]; b: [K, N]; out: [M, N] (a new one if None): CPU tensors, row-major without
            gaps, fp32 or fp64, all of one dtype.

    Returns:
        ``out``.

    Raises:
        UsageError: an unknown rung, operands off the CPU or not contiguous, beta without out.
        ProblemError: shapes or dtypes that do not make a product.
        MissingDependencyError: Numba is not installed.
    """
    gemm = load_host(name)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ProblemError(f"a {tuple(a.shape)} and b {tuple(b.shape)} make no product; give "
                           "[M, K] and [K, N]")
    shape = (a.shape[0], b.shape[1])
    if out is None:
        if beta != 0:
            raise UsageError(f"beta={beta} needs out, whose values it scales")
        out = a.new_empty(shape)
    if tuple(out.shape) != shape:
        raise ProblemError(f"{name}: out is {tuple(out.shape)}, expected {shape}")
    for label, tensor in (("a", a), ("b", b), ("out", out)):
        if tensor.device.type != "cpu":
            raise UsageError(f"{name} runs on the CPU; {label} is on {tensor.device}")
        if str(tensor.dtype) not in ("torch.float32", "torch.float64") or tensor.dtype != a.dtype:
            raise ProblemError(f"{name} takes fp32 or fp64 operands of one dtype; a is {a.dtype}, "
                               f"{label} is {tensor.dtype}")
        if not tensor.is_contiguous():
            raise UsageError(f"{name} takes gapless row-major operands; {label} has strides "
                             f"{tuple(tensor.stride())}. Call .contiguous() on it")
    arrays = [tensor.detach().numpy() for tensor in (a, b, out)]
    scalar = arrays[0].dtype.type
    gemm(*arrays, scalar(alpha), scalar(beta))
    return out
