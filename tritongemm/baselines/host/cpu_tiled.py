"""cpu_tiled: cache blocking of i, k and j.

A block of B of TILE_K rows and TILE_J columns (64 x 256 floats, 64 KiB) stays in the L2 while
TILE_I rows of A pass over it; without blocks all of B is fetched again for every row of A.
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
                for i in range(i0, min(i0 + TILE_I, rows)):
                    # A slice, because only a loop from 0 is known to have no negative index,
                    # which would mean "from the end", and only then becomes vectors.
                    out = c[i, j0:j0 + TILE_J]
                    for k in range(k0, min(k0 + TILE_K, depth)):
                        x, row = alpha * a[i, k], b[k, j0:j0 + TILE_J]
                        for j in range(out.shape[0]):
                            out[j] += x * row[j]
