"""``wgmma`` in PTX, with both operands in shared memory, for tiles of any width.

Gluon's tensors have powers of two for sides, so a tile of 144 columns would take two instructions
and read A from shared memory twice (128 + 16: 900 clocks a step against 750). The instruction
itself takes any multiple of 8 columns. Register for register, its accumulator is that of N / 8
instructions of 8 columns each (PTX ISA, wgmma, "Register Fragments"): here a tuple of [64, 8]
tensors, which :func:`join_columns` joins into powers of two without moving a register.

Operands are read through matrix descriptors (PTX ISA, wgmma, "Matrix Descriptor Format"). The
caller keeps both in one buffer, the first in shared memory (``hopper.shared_address``). An operand
stored across K lies in swizzle atoms of 64 columns, 128 bytes; of TF32 both are stored along K, the
only way in which the instruction reads it from there (``wgmma_across``: A from registers).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import shared_address


@gluon.constexpr_function
def _mma(n, accumulators, a_across, b_across, element):
    """The instructions of a step of 128 bytes along K, four for each 64 rows and their 4 n
    accumulator registers; ``*_across``: the operand is stored across K."""
    outputs = 4 * n * accumulators
    k, orders = 16, f", {int(a_across)}, {int(b_across)}"
    if element == "tf32":
        assert not (a_across or b_across), "wgmma reads TF32 along K"
        k, orders = 8, ""
    # From one instruction's K to the next, in units of 16 bytes: 32 bytes of a swizzled row, or,
    # with K outermost, 16 rows of 128 bytes.
    advance_a, advance_b = (128 if across else 2 for across in (a_across, b_across))
    lines = ["{", ".reg .b64 da, db;", ".reg .pred p;", "setp.ne.b32 p, 1, 0;",
             f"mov.b64 da, ${2 * outputs};", f"mov.b64 db, ${2 * outputs + 4};",
             "wgmma.fence.sync.aligned;"]
    for which in range(accumulators):
        registers = ", ".join(f"${4 * n * which + i}" for i in range(4 * n))
        if which:  # the next 64 rows of A, 8,192 bytes on, with the same columns of B
            lines += [f"add.s64 da, da, {512 - 3 * advance_a};",
                      f"sub.s64 db, db, {3 * advance_b};"]
        for part in range(4):
            if part:
                lines += [f"add.s64 da, da, {advance_a};", f"add.s64 db, db, {advance_b};"]
            lines.append(f"wgmma.mma_async.sync.aligned.m64n{8 * n}k{k}.f32.{element}.{element} "
                         f"{{{registers}}}, da, db, p, 1, 1{orders};")
    return "\n".join([*lines, "wgmma.commit_group.sync.aligned;",
                      "wgmma.wait_group.sync.aligned 1;", "}"])


@gluon.constexpr_function
def in_out_registers(n, inputs):
    """4 n registers that are outputs and inputs both, then inputs, a letter each."""
    return ",".join(["=f"] * (4 * n) + [str(i) for i in range(4 * n)] + list(inputs))


@gluon.constexpr_function
def floats(n):
    return [gl.float32] * n


@gluon.constexpr_function
def accumulator_layout(columns):
    """The layout of a power of two of columns of a warpgroup's accumulator."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1],
                                     instr_shape=[16, columns, 16])


@gluon.constexpr_function
def _zeros(n):
    return "\n".join(f"mov.b32 ${i}, 0;" for i in range(4 * n)) + f" // ${4 * n}"


@gluon.constexpr_function
def _out_registers(n):
    return ",".join(["=f"] * (4 * n) + ["f"] * 4)


@gluon.jit
def zeros(N8: gl.constexpr):
    """An accumulator of 64 rows and 8 N8 columns, all zero.

    One asm block, so that it is written in one place: LLVM would write the zeros again where a
    program has no step along K, and ptxas would then serialize the products."""
    like = gl.zeros((64, 8), gl.float32, layout=accumulator_layout(8))
    return gl.inline_asm_elementwise(_zeros(N8), _out_registers(N8), (like,), dtype=floats(N8),
                                     is_pure=False, pack=4)


@gluon.jit
def matrix_descriptor(offset, ACROSS: gl.constexpr):
    """The matrix descriptor of a swizzled tile ``offset`` bytes into shared memory: 128-byte
    swizzle, 1,024 bytes from one group of eight rows to the next (one swizzle atom), and, of an
    operand stored ACROSS K, the 64 rows of a step from one column of atoms to the next."""
    LEADING: gl.constexpr = 512 if ACROSS else 1
    return (((shared_address(offset) >> 4) & 0x3FFF).to(gl.int64)
            | ((1 << 62) | (64 << 32) | (LEADING << 16)))


@gluon.jit
def mma(accs, a, b, N8: gl.constexpr, ACCUMULATORS: gl.constexpr, A_T: gl.constexpr,
             B_T: gl.constexpr, ELEMENT: gl.constexpr):
    """accs + A @ B of the tiles with these descriptors, 64 rows of A for each of ACCUMULATORS.

    Asynchronous: returns when every product but this one is complete."""
    return gl.inline_asm_elementwise(
        _mma(N8, ACCUMULATORS, A_T, not B_T, ELEMENT),
        in_out_registers(N8 * ACCUMULATORS, "llllllll"),
        accs + (a, b), dtype=floats(N8 * ACCUMULATORS), is_pure=False, pack=4)


@gluon.jit
def wait_all(accs, N8: gl.constexpr):
    """The accumulator, once every product is complete."""
    return gl.inline_asm_elementwise("wgmma.wait_group.sync.aligned 0;", in_out_registers(N8, ""),
                                     accs, dtype=floats(N8), is_pure=False, pack=4)


@gluon.jit
def _joined(parts, COUNT: gl.constexpr):
    if COUNT == 1:
        return parts[0]
    else:
        left = _joined(parts[:COUNT // 2], COUNT // 2)
        right = _joined(parts[COUNT // 2:], COUNT // 2)
        return gl.join(left, right).permute((0, 2, 1)).reshape((64, 8 * COUNT))


@gluon.jit
def join_columns(parts, COLUMNS: gl.constexpr):
    """[64, 8] tensors of an accumulator -> one tensor of COLUMNS columns, a power of two.

    Takes only the tensors that it joins, so that all fragments share one compiled instance."""
    return gl.convert_layout(_joined(parts, COLUMNS // 8), accumulator_layout(COLUMNS),
                             assert_trivial=True)
