"""A blocked product in NumPy on the CPU: what a host rung must beat, and proof of the protocol.

C is walked in tiles that fit a core's cache, each the sum of tile products along K. NumPy's own
``dot`` computes a tile product, so this is a study of blocking, not a rival to the BLAS library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tritongemm.bench.providers import Prepared
from tritongemm.errors import UnsupportedError
from tritongemm.measure.contender import Contender
from tritongemm.problem import dtype_of

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem

#: Three fp32 tiles of this side are 768 KiB: they stay in an L2 of 1 MiB.
BLOCK = 256
_DTYPES = ("fp32", "fp64")


class NumpyBlocked:
    """Host only, fp32 and fp64."""

    name = "numpy_blocked"

    def available(self, target: Target) -> str | None:
        return None if target.kind == "cpu" else "it runs on the host: use --device cpu"

    def build(self, problem: GemmProblem, target: Target) -> None:
        return None

    def prepare(self, problem: GemmProblem, target: Target) -> Prepared:
        if problem.epilogue != "none":
            raise UnsupportedError(f"it multiplies only, without {problem.epilogue}")
        for dtype in (problem.dtype_a, problem.dtype_b, problem.dtype_out):
            if dtype not in _DTYPES:
                raise UnsupportedError(f"NumPy has no {dtype_of(dtype).torch_name} arithmetic "
                                       f"worth timing; use one of {', '.join(_DTYPES)}")

        def bind(operands: OperandSet) -> Callable[[], None]:
            # Views, not copies: NumPy reads and writes torch's memory.
            a, b, out = (x.numpy() for x in (operands.a, operands.b, operands.out))
            if out.ndim == 2:
                return lambda: multiply(a, b, out)
            return lambda: [multiply(*each) for each in zip(a, b, out)]

        return Prepared(Contender(self.name, bind, capturable=False),
                        {"kernel": "numpy_blocked", "config_id": f"{BLOCK}x{BLOCK}x{BLOCK}"})


def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray, block: int = BLOCK) -> None:
    """``out[...] = a @ b`` for [M, K] and [K, N], tile by tile."""
    (m, k), n = a.shape, b.shape[1]
    for i in range(0, m, block):
        for j in range(0, n, block):
            tile = out[i:i + block, j:j + block]
            tile[...] = 0
            for p in range(0, k, block):
                tile += a[i:i + block, p:p + block] @ b[p:p + block, j:j + block]
