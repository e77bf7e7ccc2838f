"""Operands of the one buffer, loaded by written-out copies; what the programs of a cluster share is
loaded once for all of them (TMA multicast).

Programs below each other need the same columns of B, programs beside each other the same rows of
A. Each loads its part of these into the shared memory of all that share it, at the place where it
would have loaded it for itself, and each of them is told by its own barrier. So the L2 is asked
once for what several SMs take in. That counts where rows of an operand are no whole lines, above
all where they begin inside a sector: the copy engine asks two and a half times a row.

Such a part is one box wherever it can be: the copy engine shares small boxes slowly (4088 cubed,
128x256 tiles, halves of B in one box 200 us, in two 209, in four 285; that was when ptxas wrote a
loop around each copy, see ``barriers``, and has not been measured without). Gluon's types have
powers of two for sides, so the instruction is written out and takes the tensor map from the
kernel's parameters; its box need not be that of the parameter's type (``Descriptor.loaded``).

A stage is free when the consumers of every program that loads into it, or is loaded into by it,
have let go of it: they arrive at each one's barrier.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import shared_address


@gluon.constexpr_function
def _load(rank, many):
    place = ", ".join(f"${i}" for i in range(5, 5 + rank))
    to_many, mask = (".multicast::cluster", ", sharers") if many else ("", "")
    return "\n".join([
        "{", ".reg .pred p;", ".reg .b16 sharers;", "cvt.u16.u32 sharers, $3;", "bar.warp.sync -1;",
        "elect.sync _|p, -1;",
        f"@p cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        f"{to_many} [$1], [$4, {{{place}}}], [$2]{mask};", "}", "// $0"])


@gluon.constexpr_function
def _map(symbol, number):
    return f"mov.b64 $0, {symbol}_param_{number}; cvta.param.u64 $0, $0;"


@gluon.jit
def tensor_map(SYMBOL: gl.constexpr, NUMBER: gl.constexpr):
    """The address of the tensor map that is parameter NUMBER of the kernel SYMBOL."""
    return gl.inline_asm_elementwise(_map(SYMBOL, NUMBER), "=l", [], dtype=gl.int64, is_pure=True,
                                     pack=1)


@gluon.constexpr_function
def _arrive():
    return "\n".join([
        "{", ".reg .pred p;", ".reg .b32 there;", "setp.ne.b32 p, $3, 0;",
        "@p mapa.shared::cluster.u32 there, $1, $2;",
        "@p mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there];", "}", "// $0"])


@gluon.jit
def load(map_, offset, barrier, sharers, MANY: gl.constexpr, batch, outer, inner,
         BATCHED: gl.constexpr):
    """Starts the copy of the box at (batch, outer, inner) of a tensor map to byte ``offset`` of the
    shared memory of every program of ``sharers``, a bit each, or, if these are not MANY, of this
    one; each one's barrier at byte ``barrier`` counts it."""
    if BATCHED:
        gl.inline_asm_elementwise(
            _load(3, MANY), "=r,r,r,r,l,r,r,r",
            (shared_address(offset), shared_address(barrier), sharers, map_, inner, outer, batch),
            dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise(
            _load(2, MANY), "=r,r,r,r,l,r,r",
            (shared_address(offset), shared_address(barrier), sharers, map_, inner, outer),
            dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def lane():
    """The thread's place in its warp. Asked for outside of a loop: it takes a while."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 thread; mov.u32 thread, %tid.x; and.b32 $0, thread, 31; }", "=r", [],
        dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def arrive(barrier, lane, wanted):
    """Arrivals of those threads that have it ``wanted``, each at the barrier of the program that
    its ``lane`` names.

    Relaxed: what was read is in registers or in the tensor instruction's past; with ``.release``
    ptxas makes a fence of the whole device of it, in every step."""
    gl.inline_asm_elementwise(_arrive(), "=r,r,r,r", (shared_address(barrier), lane, wanted),
                              dtype=gl.int32, is_pure=False, pack=1)
