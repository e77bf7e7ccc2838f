"""cpu_unrolled: the inner loop unrolled by 4, along k.

One pass over a row of C now adds four rows of B: C is loaded and stored once for four products
instead of once for each, and four independent products keep the multipliers busy.
"""

from numba import njit

TILE_I, TILE_J, TILE_K = 64, 256, 64


@njit
def gemm(a, b, c, alpha, beta):
    """``c = alpha * a @ b + beta * c``; ``beta == 0`` does not read ``c``."""
    rows, columns, depth = a.shape[0], b.shape[1], a.shape[1]
    for i in range(rows):
        for j in range(columns):
            c[i, j] = beta * 0 if beta == 0 else beta * c[i, j]
    for i0 in range(0, rows, TILE_I):
        for k0 in range(0, depth, TILE_K):
            for j0 in range(0, columns, TILE_J):
                last_k = min(k0 + TILE_K, depth)
                whole = k0 + (last_k - k0) // 4 * 4
                for i in range(i0, min(i0 + TILE_I, rows)):
                    out = c[i, j0:j0 + TILE_J]
                    for k in range(k0, whole, 4):
                        x0, x1 = alpha * a[i, k], alpha * a[i, k + 1]
                        x2, x3 = alpha * a[i, k + 2], alpha * a[i, k + 3]
                        row0, row1 = b[k, j0:j0 + TILE_J], b[k + 1, j0:j0 + TILE_J]
                        row2, row3 = b[k + 2, j0:j0 + TILE_J], b[k + 3, j0:j0 + TILE_J]
                        for j in range(out.shape[0]):
                            out[j] += x0 * row0[j] + x1 * row1[j] + x2 * row2[j] + x3 * row3[j]
                    for k in range(whole, last_k):
                        x, row = alpha * a[i, k], b[k, j0:j0 + TILE_J]
                        for j in range(out.shape[0]):
                            out[j] += x * row[j]
