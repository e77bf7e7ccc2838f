"""The epilogue of ``split_product``: undoes the scales of rows and columns, finishes the tile, and
stores it without the rows and columns that the split pass flagged."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import wgmma
from tritongemm.kernels.device.epilogue import gluon_finish, gluon_load_d
from tritongemm.kernels.device.split_fp32 import FLAGGED, gluon_power_of_two
from tritongemm.kernels.device.tile_store import store_pairs

#: Undoes the scale of the lo parts.
_LO = gl.constexpr(2.0**-11)


@gluon.jit
def scales_of(exponents):
    """(x, y, mask): 2^-e = x y, and which rows are not flagged. Two factors, because 2^-e of a row
    times that of a column may leave the range of float32; x x' and y y' do not."""
    valid = exponents != FLAGGED
    e = gl.where(valid, exponents, 0.0).to(gl.int32)
    half = e >> 1
    return gluon_power_of_two(-half), gluon_power_of_two(half - e), valid


@gluon.jit
def store(accs, c, strides, exponents, epilogue, split, batch, row, col, M, N, S: gl.constexpr):
    """Scales, finishes and stores a consumer's 64 rows of the tile, fragment by fragment."""
    stride_cb, stride_cm, stride_cn, stride_cs = strides
    a_exponents, b_exponents = exponents
    d, alpha, beta, stride_db, stride_dm, stride_dn = epilogue
    layout: gl.constexpr = wgmma.accumulator_layout(S.fragment_n)
    PARTS: gl.constexpr = S.fragment_n // 8  # tensors of eight columns
    FIRST_SMALL: gl.constexpr = S.block_n // 8  # of the small products' sums
    batch = batch.to(gl.int64)
    base = c + batch * stride_cb + split.to(gl.int64) * stride_cs
    batch_a, batch_b = batch, batch
    if not S.batched_a:
        batch_a = batch * 0
    if not S.batched_b:
        batch_b = batch * 0
    rows = row + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    inside_m = rows < M
    e = gl.load(a_exponents + batch_a * M + rows, mask=inside_m, other=0.0)
    a_first, a_second, valid_m = scales_of(e)
    inside_m &= valid_m
    rows = rows.to(gl.int64)
    row_offsets = gl.expand_dims(rows * stride_cm, 1)
    for fragment in gl.static_range(S.block_n // S.fragment_n):
        # Bounds of slices are written out: one in a variable would be a value, not a constant.
        acc = wgmma.join_columns(accs[PARTS * fragment:PARTS * (fragment + 1)], S.fragment_n)
        if S.separate:
            small = accs[FIRST_SMALL + PARTS * fragment:FIRST_SMALL + PARTS * (fragment + 1)]
            acc += wgmma.join_columns(small, S.fragment_n) * _LO
        cols = (col + S.fragment_n * fragment
                + gl.arange(0, S.fragment_n, layout=gl.SliceLayout(0, layout)))
        inside_n = cols < N
        e = gl.load(b_exponents + batch_b * N + cols, mask=inside_n, other=0.0)
        b_first, b_second, valid_n = scales_of(e)
        acc = acc * (gl.expand_dims(a_first, 1) * gl.expand_dims(b_first, 0))
        acc = acc * (gl.expand_dims(a_second, 1) * gl.expand_dims(b_second, 0))
        cols = cols.to(gl.int64)
        value = gluon_load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, S.addend)
        acc = gluon_finish(acc, value, alpha, beta, S.addend, S.activation)
        ptrs = base + (row_offsets + gl.expand_dims(cols * stride_cn, 0))
        mask = gl.expand_dims(inside_m, 1) & gl.expand_dims(inside_n & valid_n, 0)
        if S.pairs:
            store_pairs(ptrs, acc, mask)
        else:
            gl.store(ptrs, acc.to(c.dtype.element_ty), mask=mask)
