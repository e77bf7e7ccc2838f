"""The tile order: which tile of C has which number. One copy, for ``tl`` and Gluon kernels."""

import triton
import triton.language as tl
from triton.experimental import gluon


@triton.jit
def tile_of(tile, num_m, num_n, GROUP_M: tl.constexpr):
    """Tile number -> (row, column) of tiles, walking GROUP_M rows of tiles together.

    Programs that run at the same time then share rows of A and columns of B in the L2.
    """
    width = GROUP_M * num_n
    group = tile // width
    first_m = group * GROUP_M
    size_m = min(num_m - first_m, GROUP_M)
    return first_m + (tile % width) % size_m, (tile % width) // size_m


gluon_tile_of = gluon.jit(tile_of.fn)
