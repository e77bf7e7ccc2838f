"""cpu_naive: the loops in the order of the formula, i, j, k.

The inner loop walks B down a column: each step lands in another cache line, and of the 64 bytes
fetched 4 are used before the line is gone.
"""

from numba import njit


@njit
def gemm(a, b, c, alpha, beta):
    """``c = alpha * a @ b + beta * c``; ``beta == 0`` does not read ``c``."""
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = a.dtype.type(0)
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = alpha * total if beta == 0 else alpha * total + beta * c[i, j]
