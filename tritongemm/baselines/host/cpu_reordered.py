"""cpu_reordered: the loops in the order i, k, j.

Now the inner loop walks a row of B and a row of C: every fetched line is used whole, the
prefetcher sees a stream, and there is no sum to wait for, so the compiler makes vectors of it.
"""

from numba import njit


@njit
def gemm(a, b, c, alpha, beta):
    """``c = alpha * a @ b + beta * c``; ``beta == 0`` does not read ``c``."""
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            c[i, j] = beta * 0 if beta == 0 else beta * c[i, j]
        for k in range(a.shape[1]):
            x = alpha * a[i, k]
            for j in range(b.shape[1]):
                c[i, j] += x * b[k, j]
