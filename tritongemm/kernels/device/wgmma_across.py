"""``wgmma`` of TF32 with A stored across K.

The instruction reads TF32 from shared memory along K only; but it takes A from registers, where
every thread loads its elements one by one from whatever order they lie in. So A may be stored
across K, or B where the transposed product is computed (``kernels.swap``). That costs a load of
four bytes for each element of A, and no copy.

The loads of a step run between the products of the step before and the wait for them. So at the
loop's branch no product is under way: with one, ptxas counts the registers that it reads as used in
the producer too, which has 40, and serialises all products (its message C7512).

A stage holds A in swizzle atoms of 32 columns (rows of A), 32 rows (K) of 128 bytes each. Of eight
rows of an atom, the 16-byte units of row k are exchanged by ``unit ^ k``, so at one k the eight
rows of A of a fragment lie in two units. A load in which threads read k = 0 to 3 would therefore
meet two banks twice. Here odd threads read k + 4 where even ones read k, and each element goes to
its register when it is used: every load reads 32 banks.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import shared_address
from tritongemm.kernels.device.wgmma import floats, in_out_registers


@gluon.constexpr_function
def _address(base):
    """A thread's four addresses a0 to a3 within a tile of 64 rows, and whether it is odd."""
    return [
        "mov.u32 thread, %tid.x;",
        "and.b32 at, thread, 1;", "setp.ne.b32 odd, at, 0;",
        "shl.b32 at, at, 2;", "and.b32 k, thread, 3;", "or.b32 k, k, at;",
        "bfe.u32 row, thread, 2, 3;", "bfe.u32 warp, thread, 5, 2;",
        # The unit: rows 16 to 31 of an atom are those of every other warp.
        "and.b32 at, warp, 1;", "shl.b32 at, at, 2;", "shr.u32 unit, row, 2;",
        "or.b32 unit, unit, at;", "xor.b32 unit, unit, k;",
        "shl.b32 k, k, 7;", "add.u32 a0, k, " + base + ";",
        "shl.b32 unit, unit, 4;", "add.u32 a0, a0, unit;",
        "and.b32 row, row, 3;", "shl.b32 row, row, 2;", "add.u32 a0, a0, row;",
        # 32 rows are an atom of 4,096 bytes, of two warps.
        "shr.u32 warp, warp, 1;", "shl.b32 warp, warp, 12;", "add.u32 a0, a0, warp;",
        # The other four of eight k (four rows of 128 bytes, and units with the third bit inverted),
        # rows 8 to 15 (two units on), and both.
        "xor.b32 a1, a0, 576;", "xor.b32 a2, a0, 32;", "xor.b32 a3, a0, 608;"]


@gluon.constexpr_function
def _load(outputs, accumulators, first):
    """Loads 16 elements of A for each 64 rows, waits for the products that read those before them,
    and puts each into its register (PTX ISA, wgmma, A fragment of .tf32): row and k, row + 8,
    k + 4, both. Outputs from ``first`` on; the offset is input ``outputs``."""
    loaded = 16 * accumulators
    lines = ["{", ".reg .pred odd;",
             ".reg .b32 thread, k, row, warp, unit, at, a0, a1, a2, a3;",
             f".reg .b32 x<{loaded}>;", *_address(f"${outputs}")]
    for i in range(loaded):  # 8,192 bytes to the next 64 rows, 1,024 to the next eight k
        lines.append(f"ld.shared.b32 x{i}, [a{i % 4} + {8192 * (i // 16) + 1024 * (i // 4 % 4)}];")
    lines += ["wgmma.wait_group.sync.aligned 0;"]
    for i in range(0, loaded, 4):
        lines += [f"selp.b32 ${first + i}, x{i + 1}, x{i}, odd;",
                  f"selp.b32 ${first + i + 1}, x{i + 3}, x{i + 2}, odd;",
                  f"selp.b32 ${first + i + 2}, x{i}, x{i + 1}, odd;",
                  f"selp.b32 ${first + i + 3}, x{i + 2}, x{i + 3}, odd;"]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def _load_registers(sums, accumulators):
    """``sums`` registers that are outputs and inputs both, the elements, and the offset."""
    return ",".join(["=&f"] * sums + ["=&r"] * (16 * accumulators) + [str(i) for i in range(sums)]
                    + ["r"] * 4)


@gluon.constexpr_function
def _types(sums, accumulators):
    return [gl.float32] * sums + [gl.int32] * (4 * accumulators)


@gluon.constexpr_function
def _multiply(n, accumulators):
    """The products of a step of 32 along K, four for each 64 rows."""
    outputs = 4 * n * accumulators
    loaded = 16 * accumulators
    lines = ["{", ".reg .b64 db;", ".reg .pred p;", "setp.ne.b32 p, 1, 0;",
             f"mov.b64 db, ${2 * outputs + loaded};", "wgmma.fence.sync.aligned;"]
    for which in range(accumulators):
        registers = ", ".join(f"${4 * n * which + i}" for i in range(4 * n))
        if which:
            lines.append("sub.s64 db, db, 6;")
        for part in range(4):
            if part:
                lines.append("add.s64 db, db, 2;")
            fragment = ", ".join(f"${2 * outputs + 16 * which + 4 * part + i}" for i in range(4))
            lines.append(f"wgmma.mma_async.sync.aligned.m64n{8 * n}k8.f32.tf32.tf32 "
                         f"{{{registers}}}, {{{fragment}}}, db, p, 1, 1;")
    return "\n".join([*lines, "wgmma.commit_group.sync.aligned;", "}"])


@gluon.jit
def load(accs, offset, N8: gl.constexpr, ACCUMULATORS: gl.constexpr):
    """(accs, once the products that are under way are complete; a consumer's rows of A of a step,
    stored across K ``offset`` bytes into shared memory). The loads run before the wait."""
    SUMS: gl.constexpr = N8 * ACCUMULATORS
    loaded = gl.inline_asm_elementwise(
        _load(8 * SUMS + 16 * ACCUMULATORS, ACCUMULATORS, 4 * SUMS),
        _load_registers(4 * SUMS, ACCUMULATORS), accs + (shared_address(offset),),
        dtype=_types(SUMS, ACCUMULATORS), is_pure=False, pack=4)
    return loaded[:SUMS], loaded[SUMS:]


@gluon.jit
def multiply(accs, a, b, N8: gl.constexpr, ACCUMULATORS: gl.constexpr):
    """accs + A @ B in TF32 of what :func:`load` loaded of A and B's matrix descriptor.
    Asynchronous: complete when the next ``load`` returns."""
    return gl.inline_asm_elementwise(
        _multiply(N8, ACCUMULATORS),
        in_out_registers(N8 * ACCUMULATORS, "rrrr" * (4 * ACCUMULATORS) + "llll"),
        accs + a + (b,), dtype=floats(N8 * ACCUMULATORS), is_pure=False, pack=4)
