"""How a tile of the Hopper kernel goes from its accumulator through its epilogue to memory.

By TMA through shared memory (from the one buffer: ``store_buffer``); along the rows of
C where these are not aligned; or in the accumulator's layout, where C is transposed or float32.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.epilogue import gluon_finish, gluon_load_d, gluon_pointers_to_d
from tritongemm.kernels.device.hopper import (
    fence_async_shared,
    matrix_of,
    tma_store,
    tma_store_wait,
)
from tritongemm.kernels.device.operand_types import gluon_require_type


@gluon.jit
def store_subtile(c_desc, buffer, value, batch, row, col, BATCHED: gl.constexpr):
    """Stores an epilogue tile through shared memory by TMA."""
    tma_store_wait(0)  # the epilogue tile before this one has left the buffer
    if BATCHED:
        matrix_of(buffer, value.shape[0], value.shape[1]).store(value.to(c_desc.dtype))
        fence_async_shared()
        tma_store(c_desc, [batch, row, col], buffer)
    else:
        buffer.store(value.to(c_desc.dtype))
        fence_async_shared()
        tma_store(c_desc, [row, col], buffer)


@gluon.constexpr_function
def _store_pair():
    return "\n".join([
        "{", ".reg .pred p, q, both;", "setp.ne.b32 p, $5, 0;", "setp.ne.b32 q, $6, 0;",
        "and.pred both, p, q;", "@both st.global.v2.f32 [$1], {$3, $4};",
        "xor.pred p, p, both;", "xor.pred q, q, both;", "@p st.global.f32 [$1], $3;",
        "@q st.global.f32 [$2], $4;", "}", "// $0"])


@gluon.jit
def store_pairs(ptrs, value, mask):
    """Stores float32 values, two of a row at once where both are inside. In partitions other than
    the first, Triton 3.6 does not see that it may, and would write each sector twice, half of it
    at a time."""
    gl.inline_asm_elementwise(_store_pair(), "=r,l,l,f,f,r,r",
                              (ptrs.to(gl.int64), value, mask.to(gl.int32)), dtype=gl.int16,
                              is_pure=False, pack=2)


@gluon.constexpr_function
def _elements_per_thread(linear):
    """Elements that a thread holds of a linear layout."""
    return 1 << len(linear.reg_bases)


@gluon.constexpr_function
def _arange(linear):
    """Each element's index, from the bits of the thread's number and of its register's."""
    count = _elements_per_thread(linear)
    lines = ["{", ".reg .b32 thread, bit, first;", "mov.u32 thread, %tid.x;", "mov.b32 first, 0;"]
    for i, step in enumerate([*linear.lane_bases, *linear.warp_bases]):
        if step[0]:
            lines += [f"bfe.u32 bit, thread, {i}, 1;", f"mad.lo.u32 first, bit, {step[0]}, first;"]
    for register in range(count):
        offset = sum(step[0] for i, step in enumerate(linear.reg_bases) if register >> i & 1)
        lines.append(f"add.u32 ${register}, first, {offset};")
    return "\n".join([*lines, "}", f"// ${count}"])


@gluon.constexpr_function
def _arange_registers(linear):
    count = _elements_per_thread(linear)
    return ",".join(["=r"] * count + ["r"] * count)


@gluon.jit
def arange(COUNT: gl.constexpr, layout: gl.constexpr):
    """``gl.arange(0, COUNT)``, from a thread number that is read here.

    Where LLVM uses the thread number that was read at the kernel's start, ptxas no longer sees that
    partitions are whole warps, and writes a loop around each instruction of TMA. One
    use of ``gl.arange`` in a partition is enough for that."""
    like = gl.full([COUNT], 0, gl.int32, layout=layout)
    return gl.inline_asm_elementwise(
        _arange(gl.to_linear_layout(layout, [COUNT])),
        _arange_registers(gl.to_linear_layout(layout, [COUNT])), (like,), dtype=gl.int32,
        is_pure=True, pack=_elements_per_thread(gl.to_linear_layout(layout, [COUNT])))


@gluon.jit
def load_pairs(ptrs, inside):
    """16-bit values at ``ptrs``, two of a row at once; 0 outside. In partitions other than the
    first, Triton 3.6 does not see that it may vectorise, and loads them one by one."""
    gluon_require_type("d", ptrs.dtype.element_ty, "bf16, fp16")
    return gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.b32 p, $3, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1]; }",
        "=r,l,l,r,r", (ptrs, inside.to(gl.int32)), dtype=ptrs.dtype.element_ty,
        is_pure=False, pack=2)


@gluon.jit
def load_addend(acc, epilogue, batch, row, col, M, N, PTX_STORE: gl.constexpr, S: gl.constexpr):
    """D at the elements of ``acc``, in its shape and layout (copies of a vector's elements take no
    registers); 0 where there is none. PTX_STORE: C is stored by PTX (``arange``)."""
    d, alpha, beta, stride_db, stride_dm, stride_dn = epilogue
    return load_operand(acc, d, (stride_db, stride_dm, stride_dn), batch, row, col, M, N, PTX_STORE,
                        S.paired_d, S.addend)


@gluon.jit
def load_operand(acc, d, strides, batch, row, col, M, N, PTX_STORE: gl.constexpr,
                 PAIRED: gl.constexpr, ADDEND: gl.constexpr):
    """The same of any operand with D's strides, which ADDEND describes as it does D."""
    stride_db, stride_dm, stride_dn = strides
    layout: gl.constexpr = acc.type.layout
    if PTX_STORE:
        rows = row + arange(acc.shape[0], gl.SliceLayout(1, layout))
        cols = col + arange(acc.shape[1], gl.SliceLayout(0, layout))
    else:
        rows = row + gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, layout))
        cols = col + gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, layout))
    batch, rows, cols = batch.to(gl.int64), rows.to(gl.int64), cols.to(gl.int64)
    if PAIRED:
        value = load_pairs(*gluon_pointers_to_d(d, batch, rows, cols, M, N, stride_db, stride_dm,
                                                stride_dn, ADDEND))
        if ADDEND == "columns":
            value = value[None, :]
    else:
        value = gluon_load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND)
    if ADDEND == "none" or ADDEND == "scale":
        return value
    else:
        return gl.broadcast(value, acc)[0]


@gluon.jit
def halves(x):
    """The left and the right half of a tile's columns."""
    return x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1).split()


@gluon.constexpr_function
def row_layout(columns, vector):
    """A warpgroup's layout with neighbouring threads along rows, ``vector`` elements each."""
    lanes = 32
    across = min(lanes, columns // vector)
    return gl.BlockedLayout([1, vector], [lanes // across, across], [4, 1], [1, 0])


@gluon.jit
def store_rows(base, stride, value, rows, cols, VECTOR: gl.constexpr):
    """Stores a subtile, of which ``rows`` by ``cols`` lie inside C, so that warps write along its
    rows: VECTOR elements of 16 bits at once, 1 or 2.

    Two are packed here, because Triton 3.6 does not see in a partition what divides an address and
    would store them one by one."""
    gluon_require_type("c", value.dtype, "bf16, fp16")
    value = gl.convert_layout(value, row_layout(value.shape[1], VECTOR))
    if VECTOR == 2:
        words = value.to(gl.uint16, bitcast=True).reshape(value.shape[0], value.shape[1] // 2, 2)
        left, right = words.split()
        value = left.to(gl.uint32) | (right.to(gl.uint32) << 16)
        base = base.to(gl.pointer_type(gl.uint32), bitcast=True)
        stride, cols = stride // 2, cols // 2
    layout: gl.constexpr = value.type.layout
    row = gl.arange(0, value.shape[0], layout=gl.SliceLayout(1, layout))
    col = gl.arange(0, value.shape[1], layout=gl.SliceLayout(0, layout))
    # The mask keeps rows inside. The minimum makes offsets, of which a thread has up to 32, depend
    # on the tile, or they would be kept in registers from tile to tile.
    offsets = gl.minimum(row, rows - 1) * stride.to(gl.int32)
    inside = gl.expand_dims(row < rows, 1) & gl.expand_dims(col < cols, 0)
    gl.store(base + gl.expand_dims(offsets, 1) + gl.expand_dims(col, 0), value, mask=inside)


@gluon.jit
def store_tile(c_desc, c, buffer, acc, value, epilogue, batch, split, row, col, M, N, strides,
               SUBTILE: gl.constexpr, S: gl.constexpr):
    """Finishes and stores a consumer's rows of the tile: by TMA in SUBTILE epilogue
    tiles; along rows, at most ROW_COLUMNS columns at a time, where rows of C are not aligned; or in
    the accumulator's layout, where C is transposed or float32."""
    if SUBTILE > 1 or (S.vector > 0 and acc.shape[1] > S.row_columns):
        left, right = halves(acc)
        left_d, right_d = value, value
        if S.addend != "none" and S.addend != "scale":
            left_d, right_d = halves(value)
        store_tile(c_desc, c, buffer, left, left_d, epilogue, batch, split, row, col, M, N,
                   strides, SUBTILE // 2, S)
        store_tile(c_desc, c, buffer, right, right_d, epilogue, batch, split, row,
                   col + acc.shape[1] // 2, M, N, strides, SUBTILE // 2, S)
    else:
        d, alpha, beta, stride_db, stride_dm, stride_dn = epilogue
        acc = gluon_finish(acc, value, alpha, beta, S.addend, S.activation)
        store_finished(c_desc, c, buffer, acc, batch, split, row, col, M, N, strides, S)


@gluon.jit
def store_finished(c_desc, c, buffer, acc, batch, split, row, col, M, N, strides,
                   S: gl.constexpr):
    """Stores finished rows of the tile as :func:`store_tile` does."""
    if S.vector > 0 and acc.shape[1] > S.row_columns:
        left, right = halves(acc)
        store_finished(c_desc, c, buffer, left, batch, split, row, col, M, N, strides, S)
        store_finished(c_desc, c, buffer, right, batch, split, row, col + acc.shape[1] // 2, M, N,
                       strides, S)
    else:
        if S.tma_store:
            store_subtile(c_desc, buffer, acc, batch, row, col, S.batched)
        else:
            value = acc.to(c.dtype.element_ty)
            stride_cb, stride_cm, stride_cn, stride_cs = strides
            base = c + batch.to(gl.int64) * stride_cb + split.to(gl.int64) * stride_cs
            if S.vector > 0:
                base += row.to(gl.int64) * stride_cm + col
                store_rows(base, stride_cm, value, M - row, N - col, S.vector)
            else:
                layout: gl.constexpr = value.type.layout
                rows = row + gl.arange(0, value.shape[0], layout=gl.SliceLayout(1, layout))
                cols = col + gl.arange(0, value.shape[1], layout=gl.SliceLayout(0, layout))
                offsets = (gl.expand_dims(rows.to(gl.int64) * stride_cm, 1)
                           + gl.expand_dims(cols.to(gl.int64) * stride_cn, 0))
                inside = gl.expand_dims(rows < M, 1) & gl.expand_dims(cols < N, 0)
                if S.paired_c:
                    store_pairs(base + offsets, value, inside)
                else:
                    gl.store(base + offsets, value, mask=inside)
