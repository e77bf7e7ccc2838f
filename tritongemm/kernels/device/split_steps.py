"""One step of 64 along K of ``split_product``: the three products of hi and lo parts, in PTX.

The lo parts are stored times 2^11, so the small products are accumulated times 2^11 too.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device import wgmma


@gluon.constexpr_function
def _products(registers, pairs, fresh, advance_a, advance_b, across):
    """The wgmma instructions of a step of 64 along K for each pair of descriptors (of A, of B);
    ``fresh``: the first one overwrites the accumulator."""
    n = len(registers) // 4
    lines, first = [], fresh
    for a, b in pairs:
        for k in range(4):
            lines += [f"add.s64 da, {a}, {k * advance_a};", f"add.s64 db, {b}, {k * advance_b};",
                      f"wgmma.mma_async.sync.aligned.m64n{8 * n}k16.f32.f16.f16 "
                      f"{{{', '.join(registers)}}}, da, db, {'fresh' if first else 'more'}, 1, 1, "
                      f"{across};"]
            first = False
    return [*lines, "wgmma.commit_group.sync.aligned;"]


@gluon.constexpr_function
def _step(n, separate, a_across, b_across, lo_a, lo_b):
    """The instructions of a step: 4 n registers hold the sum, with ``separate`` 4 n more the small
    products; ``lo_*``: offset of the lo part's tile from the hi part's, in units of 16 bytes."""
    count = 4 * n
    total = [f"${i}" for i in range(count)]
    small = [f"${count + i}" for i in range(count)]
    main = [f"t{i}" for i in range(count)]
    outputs = count * (2 if separate else 1)
    advance_a, advance_b = (128 if across else 2 for across in (a_across, b_across))
    across = f"{int(a_across)}, {int(b_across)}"

    def products(registers, pairs, fresh):
        return _products(registers, pairs, fresh, advance_a, advance_b, across)

    fence, wait = "wgmma.fence.sync.aligned;", "wgmma.wait_group.sync.aligned {};"
    crossed, straight = (("ah", "bl"), ("al", "bh")), (("ah", "bh"),)
    adds = [f"add.rn.f32 {s}, {s}, {t};" for s, t in zip(total, main)]
    lines = ["{", ".reg .b64 da, db, ah, al, bh, bl;", ".reg .pred more, fresh;",
             f".reg .f32 t<{count}>;", "setp.ne.b32 more, 1, 0;", "setp.ne.b32 fresh, 0, 0;",
             f"mov.b64 ah, ${2 * outputs};", f"mov.b64 bh, ${2 * outputs + 4};",
             f"add.s64 al, ah, {lo_a};", f"add.s64 bl, bh, {lo_b};", fence]
    if separate:
        lines += [*products(main, straight, True), *products(small, crossed, False),
                  wait.format(1), *adds, wait.format(0)]
    else:  # 0f3A000000 is 2^-11
        lines += [*products(main, crossed, True), wait.format(0),
                  *(f"fma.rn.f32 {s}, {t}, 0f3A000000, {s};" for s, t in zip(total, main)),
                  fence, *products(main, straight, True), wait.format(0), *adds]
    return "\n".join([*lines, "}"])


@gluon.jit
def multiply(sums, a, b, S: gl.constexpr):
    """``sums`` plus the products of a step, whose hi parts have these matrix descriptors. Returns
    when all of its products are complete."""
    N8: gl.constexpr = S.block_n // 8 * (2 if S.separate else 1)
    return gl.inline_asm_elementwise(
        _step(S.block_n // 8, S.separate, S.a_t, not S.b_t, 8 * S.block_m, 8 * S.b_rows),
        wgmma.in_out_registers(N8, "llllllll"), sums + (a, b), dtype=wgmma.floats(N8),
        is_pure=False, pack=4)
