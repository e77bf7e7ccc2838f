"""Eight input distributions, drawn with a seed, that show differences between float32 algorithms.

Each entry of :data:`DISTRIBUTIONS` maps (m, n, k, generator) to float32 tensors A [M, K] and
B [K, N] on the generator's device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Draw = Callable[[int, int, int, torch.Generator], "tuple[torch.Tensor, torch.Tensor]"]

#: Standard deviation of the logarithm of log-normal operands.
LOG_SIGMA = 3.0
#: Rows of A and columns of B are scaled by powers of two between 2^-SCALE and 2^SCALE.
SCALE = 30
#: Of sparse operands: the share of elements that are not zero, and of these the share that are
#: outliers, which are OUTLIER times as large.
DENSITY, OUTLIERS, OUTLIER = 0.1, 0.01, 4096.0
#: Integers are drawn so that K * max^2 is at most this: every partial sum is exact in float32.
EXACT = 2**24


def _normal(m: int, n: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.randn(m, k, generator=g, device=g.device),
            torch.randn(k, n, generator=g, device=g.device))


def _uniform(m: int, n: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return (torch.rand(m, k, generator=g, device=g.device),
            torch.rand(k, n, generator=g, device=g.device))


def _log_normal(m: int, n: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = _normal(m, n, k, g)
    return (LOG_SIGMA * a).exp(), (LOG_SIGMA * b).exp()


def _scaled(m: int, n: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = _normal(m, n, k, g)
    rows = torch.randint(-SCALE, SCALE + 1, (m, 1), generator=g, device=g.device)
    columns = torch.randint(-SCALE, SCALE + 1, (1, n), generator=g, device=g.device)
    return torch.ldexp(a, rows), torch.ldexp(b, columns)


def _cancelling(m: int, n: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Positive values with alternating signs along K in A, so that the sum is far smaller than its
    terms."""
    a, b = _uniform(m, n, k, g)
    signs = 1.0 - 2.0 * (torch.arange(k, device=g.device) % 2)
    return (1.0 + 0.01 * a) * signs, 1.0 + 0.01 * b


def _sparse(m: int, n: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    def one(rows: int, cols: int) -> torch.Tensor:
        x = torch.randn(rows, cols, generator=g, device=g.device)
        u = torch.rand(rows, cols, generator=g, device=g.device)
        return torch.where(u < DENSITY * OUTLIERS, OUTLIER * x, torch.where(u < DENSITY, x, 0.0))
    return one(m, k), one(k, n)


def _integers(m: int, n: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    most = max(1, int((EXACT / max(k, 1)) ** 0.5))
    return (torch.randint(-most, most + 1, (m, k), generator=g, device=g.device).float(),
            torch.randint(-most, most + 1, (k, n), generator=g, device=g.device).float())


def _hilbert(m: int, n: int, k: int, g: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """1 / (i + j + 1), with the signs of random draws in B so that the sum is not all of one
    sign."""
    def one(rows: int, cols: int) -> torch.Tensor:
        i = torch.arange(rows, device=g.device)[:, None]
        return 1.0 / (i + torch.arange(cols, device=g.device)[None, :] + 1.0)
    signs = torch.randint(0, 2, (k, n), generator=g, device=g.device) * 2.0 - 1.0
    return one(m, k), one(k, n) * signs


DISTRIBUTIONS: dict[str, Draw] = {
    "normal": _normal,
    "uniform": _uniform,
    "log_normal": _log_normal,
    "scaled_rows_columns": _scaled,
    "cancelling": _cancelling,
    "sparse_outliers": _sparse,
    "integers": _integers,
    "hilbert": _hilbert,
}


def draw(name: str, m: int, n: int, k: int, seed: int,
         device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """A [M, K] and B [K, N], float32, of the distribution ``name``. Raises ``KeyError`` for an
    unknown one."""
    return DISTRIBUTIONS[name](m, n, k, torch.Generator(device).manual_seed(seed))
