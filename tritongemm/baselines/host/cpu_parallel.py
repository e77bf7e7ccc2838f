"""cpu_parallel: tiles, vectors and all cores.

Strips of ROWS rows of C are shared out to the cores. Within a strip four rows go over the same
block of B together and take four of its rows at once, so that each vector of B, once loaded, is
multiplied four times and each vector of C is stored once for four products; "contract" lets the
compiler fuse each multiply with its add.
"""

from numba import njit, prange

ROWS, TILE_J, TILE_K = 32, 256, 128


@njit(fastmath={"contract"})
def _four_rows(a, b, c, alpha, i, k0, last_k, j0):
    """Rows i to i + 3 of one block: a register tile of 4 rows by 4 values of k."""
    out0, out1 = c[i, j0:j0 + TILE_J], c[i + 1, j0:j0 + TILE_J]
    out2, out3 = c[i + 2, j0:j0 + TILE_J], c[i + 3, j0:j0 + TILE_J]
    whole = k0 + (last_k - k0) // 4 * 4
    for k in range(k0, whole, 4):
        row0, row1 = b[k, j0:j0 + TILE_J], b[k + 1, j0:j0 + TILE_J]
        row2, row3 = b[k + 2, j0:j0 + TILE_J], b[k + 3, j0:j0 + TILE_J]
        p0, p1, p2, p3 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
        q0, q1, q2, q3 = a[i + 1, k], a[i + 1, k + 1], a[i + 1, k + 2], a[i + 1, k + 3]
        r0, r1, r2, r3 = a[i + 2, k], a[i + 2, k + 1], a[i + 2, k + 2], a[i + 2, k + 3]
        s0, s1, s2, s3 = a[i + 3, k], a[i + 3, k + 1], a[i + 3, k + 2], a[i + 3, k + 3]
        for j in range(out0.shape[0]):
            y0, y1, y2, y3 = row0[j], row1[j], row2[j], row3[j]
            out0[j] += alpha * (p0 * y0 + p1 * y1 + p2 * y2 + p3 * y3)
            out1[j] += alpha * (q0 * y0 + q1 * y1 + q2 * y2 + q3 * y3)
            out2[j] += alpha * (r0 * y0 + r1 * y1 + r2 * y2 + r3 * y3)
            out3[j] += alpha * (s0 * y0 + s1 * y1 + s2 * y2 + s3 * y3)
    for row in range(i, i + 4):
        _one_row(a, b, c, alpha, row, whole, last_k, j0)


@njit(fastmath={"contract"})
def _one_row(a, b, c, alpha, i, k0, last_k, j0):
    out = c[i, j0:j0 + TILE_J]
    for k in range(k0, last_k):
        x, row = alpha * a[i, k], b[k, j0:j0 + TILE_J]
        for j in range(out.shape[0]):
            out[j] += x * row[j]


@njit(parallel=True, fastmath={"contract"})
def gemm(a, b, c, alpha, beta):
    """``c = alpha * a @ b + beta * c``; ``beta == 0`` does not read ``c``."""
    rows, columns, depth = a.shape[0], b.shape[1], a.shape[1]
    for strip in prange((rows + ROWS - 1) // ROWS):
        first, last = strip * ROWS, min(strip * ROWS + ROWS, rows)
        whole = first + (last - first) // 4 * 4
        for i in range(first, last):
            for j in range(columns):
                c[i, j] = beta * 0 if beta == 0 else beta * c[i, j]
        for k0 in range(0, depth, TILE_K):
            last_k = min(k0 + TILE_K, depth)
            for j0 in range(0, columns, TILE_J):
                for i in range(first, whole, 4):
                    _four_rows(a, b, c, alpha, i, k0, last_k, j0)
                for i in range(whole, last):
                    _one_row(a, b, c, alpha, i, k0, last_k, j0)
