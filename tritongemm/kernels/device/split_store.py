"""The epilogue of products of scaled operands: undoes the scales of rows and columns, finishes the
tile, and stores it from registers without the rows and columns that the split pass flagged."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import wgmma
from tritongemm.kernels.device.epilogue import gluon_finish, gluon_load_d
from tritongemm.kernels.device.split_fp32 import FLAGGED

#: Undoes the scale of the lo parts.
_LO = gl.constexpr(2.0**-11)


@gluon.jit
def power_of_minus(exponents):
    """2^-e for whole numbers from -113 to 114 in float32: 127 - e, which a sum of this size has in
    its low bits, becomes the exponent. Of a flagged one anything."""
    return ((12583039.0 - exponents).to(gl.int32, bitcast=True) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def scaled_back(acc, row_exponents, column_exponents):
    """``acc`` times 2^-(e + f) for the exponents e of its rows and f of its columns.

    That may leave the range of float32 where the result does not, so 2^-e is divided in two. A sum
    of scaled products is a multiple of 2^-59 and below 2^61, so the first product is exact for an
    e from -64 to 64. Where there is more of it, the second one may leave the range only if the
    result does, which is then on the same side of it."""
    first = gl.minimum(gl.maximum(row_exponents, -64.0), 64.0)
    acc = acc * gl.expand_dims(power_of_minus(first), 1)
    acc = acc * gl.expand_dims(power_of_minus(column_exponents), 0)
    return acc * gl.expand_dims(power_of_minus(row_exponents - first), 1)


@gluon.constexpr_function
def _store_valid(linear):
    """Stores a fragment's elements, two of a row at once: all that a thread has if none is flagged,
    else those that are not."""
    bases = linear.reg_bases
    assert list(bases[0]) == [0, 1]
    count = 1 << len(bases)
    places = [tuple(sum(base[axis] for bit, base in enumerate(bases) if i >> bit & 1)
                    for axis in (0, 1)) for i in range(count)]
    outputs = count // 4
    ptr, value, row, col = ([f"${outputs + count * which + i}" for i in range(count)]
                            for which in range(4))
    power = int(FLAGGED.value).bit_length() - 1
    flagged = f"0f{127 + power << 23:08x}"
    exponents = [row[i] for i in range(count) if places[i][1] == 0]
    exponents += [col[i] for i in range(count) if places[i][0] == 0]
    lines = ["{", ".reg .pred all, p, q, both;", f"setp.lt.f32 all, {exponents[0]}, {flagged};"]
    lines += [f"setp.lt.and.f32 all, {x}, {flagged}, all;" for x in exponents[1:]]
    lines += ["@!all bra SOME;"]
    pairs = range(0, count, 2)
    lines += [f"st.global.v2.f32 [{ptr[i]}], {{{value[i]}, {value[i + 1]}}};" for i in pairs]
    lines += ["bra DONE;", "SOME:"]
    for i in pairs:
        lines += [f"setp.lt.f32 both, {row[i]}, {flagged};",
                  f"setp.lt.and.f32 p, {col[i]}, {flagged}, both;",
                  f"setp.lt.and.f32 q, {col[i + 1]}, {flagged}, both;", "and.pred both, p, q;",
                  f"@both st.global.v2.f32 [{ptr[i]}], {{{value[i]}, {value[i + 1]}}};",
                  "xor.pred p, p, both;", "xor.pred q, q, both;",
                  f"@p st.global.f32 [{ptr[i]}], {value[i]};",
                  f"@q st.global.f32 [{ptr[i + 1]}], {value[i + 1]};"]
    return "\n".join([*lines, "DONE:", "}", f"// ${outputs - 1}"])


@gluon.constexpr_function
def _valid_registers(linear):
    count = 1 << len(linear.reg_bases)
    return ",".join(["=r"] * (count // 4) + ["l"] * count + ["f"] * (3 * count))


@gluon.constexpr_function
def _count(linear):
    return 1 << len(linear.reg_bases)


@gluon.jit
def store_valid(ptrs, value, row_exponents, column_exponents):
    """Stores the elements of a fragment whose row and column are not flagged."""
    linear: gl.constexpr = gl.to_linear_layout(value.type.layout, value.shape)
    gl.inline_asm_elementwise(
        _store_valid(linear), _valid_registers(linear),
        (ptrs.to(gl.int64), value, gl.expand_dims(row_exponents, 1),
         gl.expand_dims(column_exponents, 0)),
        dtype=gl.int8, is_pure=False, pack=_count(linear))


@gluon.jit
def load_exponents(exponents, batch, first, extent, COUNT: gl.constexpr, layout: gl.constexpr,
                   BATCHED: gl.constexpr):
    """The exponents of COUNT of an operand's ``extent`` rows from ``first`` on. Those outside count
    as flagged."""
    at = first + gl.arange(0, COUNT, layout=layout)
    if BATCHED:
        exponents += batch.to(gl.int64) * extent
    return gl.load(exponents + at, mask=at < extent, other=FLAGGED)


@gluon.jit
def load_columns(b_exponents, batch, col, N, S: gl.constexpr):
    """The exponents of a fragment's columns."""
    layout: gl.constexpr = gl.SliceLayout(0, wgmma.accumulator_layout(S.fragment_n))
    return load_exponents(b_exponents, batch, col, N, S.fragment_n, layout, S.batched_b)


@gluon.jit
def load_early(exponents, batch, row, col, M, N, S: gl.constexpr):
    """What :func:`store` is given, loaded before the product is complete where registers allow: the
    exponents of each accumulator's rows, and of EARLY_FRAGMENTS fragments' columns."""
    a_exponents, b_exponents = exponents
    layout: gl.constexpr = gl.SliceLayout(1, wgmma.accumulator_layout(S.fragment_n))
    early = ()
    for which in gl.static_range(S.accumulators):
        early += (load_exponents(a_exponents, batch, row + 64 * which, M, 64, layout,
                                 S.batched_a),)
    for fragment in gl.static_range(S.early_fragments):
        early += (load_columns(b_exponents, batch, col + S.fragment_n * fragment, N, S),)
    return early


@gluon.jit
def store(accs, c, strides, exponents, early, epilogue, split, batch, row, col, M, N,
          S: gl.constexpr):
    """Scales, finishes and stores a consumer's rows of the tile, 64 for each accumulator, fragment
    by fragment of their columns."""
    a_exponents, b_exponents = exponents
    PARTS: gl.constexpr = S.fragment_n // 8  # tensors of eight columns
    ALL: gl.constexpr = S.block_n // 8
    FRAGMENTS: gl.constexpr = S.block_n // S.fragment_n
    for fragment in gl.static_range(FRAGMENTS):
        if fragment + S.early_fragments < FRAGMENTS:
            early += (load_columns(b_exponents, batch,
                                   col + S.fragment_n * (fragment + S.early_fragments), N, S),)
        for which in gl.static_range(S.accumulators):
            # Bounds of slices are written out: one in a variable would be a value, not a constant.
            acc = wgmma.join_columns(
                accs[ALL * which + PARTS * fragment:ALL * which + PARTS * (fragment + 1)],
                S.fragment_n)
            if S.separate:
                small = accs[ALL + PARTS * fragment:ALL + PARTS * (fragment + 1)]
                acc += wgmma.join_columns(small, S.fragment_n) * _LO
            store_fragment(acc, c, strides, early[which], early[S.accumulators + fragment],
                           epilogue, split, batch, row + 64 * which,
                           col + S.fragment_n * fragment, M, N, S)


@gluon.jit
def store_fragment(acc, c, strides, row_exponents, column_exponents, epilogue, split, batch, row,
                   col, M, N, S: gl.constexpr):
    """Scales, finishes and stores the fragment at (row, col)."""
    stride_cb, stride_cm, stride_cn, stride_cs = strides
    d, alpha, beta, stride_db, stride_dm, stride_dn = epilogue
    layout: gl.constexpr = acc.type.layout
    acc = scaled_back(acc, row_exponents, column_exponents)
    batch = batch.to(gl.int64)
    rows = (row + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))).to(gl.int64)
    cols = (col + gl.arange(0, S.fragment_n, layout=gl.SliceLayout(0, layout))).to(gl.int64)
    value = gluon_load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, S.addend)
    acc = gluon_finish(acc, value, alpha, beta, S.addend, S.activation)
    base = c + batch * stride_cb + split.to(gl.int64) * stride_cs
    ptrs = base + (gl.expand_dims(rows * stride_cm, 1) + gl.expand_dims(cols * stride_cn, 0))
    if S.paired_c:
        store_valid(ptrs, acc, row_exponents, column_exponents)
    else:
        valid = (gl.expand_dims(row_exponents < FLAGGED, 1)
                 & gl.expand_dims(column_exponents < FLAGGED, 0))
        gl.store(ptrs, acc.to(c.dtype.element_ty), mask=valid)
