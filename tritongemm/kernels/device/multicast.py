"""Operands that the programs of a cluster share, loaded once for all of them (TMA multicast).

Programs below each other need the same columns of B, programs beside each other the same rows of
A. Each loads its part of these into the shared memory of all that share it, at the place where it
would have loaded it for itself, and each of them is told by its own barrier. So the L2 is asked
once for what several SMs take in. That counts where rows of an operand are no whole lines, above
all where they begin inside a sector: the copy engine asks two and a half times a row.

Such a part is one box wherever it can be: the copy engine shares small boxes slowly (4088 cubed,
128x256 tiles, halves of B in one box 200 us, in two 209, in four 285). Gluon's types have powers
of two for sides, so the instruction is written out and takes the tensor map from the kernel's
parameters; its box need not be that of the parameter's type (``Descriptor.loaded``).

A stage is free when the consumers of every program that loads into it, or is loaded into by it,
have let go of it: they arrive at each one's barrier.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import shared_address


@gluon.constexpr_function
def _load(symbol, map_, rank, many):
    place = ", ".join(f"${i}" for i in range(4, 4 + rank))
    to_many, mask = (".multicast::cluster", ", sharers") if many else ("", "")
    return "\n".join([
        "{", ".reg .pred p;", ".reg .b64 map;", ".reg .b16 sharers;", "elect.sync _|p, -1;",
        f"mov.b64 map, {symbol}_param_{map_};", "cvta.param.u64 map, map;",
        "cvt.u16.u32 sharers, $3;",
        f"@p cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        f"{to_many} [$1], [map, {{{place}}}], [$2]{mask};", "}", "// $0"])


@gluon.constexpr_function
def _arrive():
    return "\n".join([
        "{", ".reg .pred p;", ".reg .b32 lane, there;", "mov.u32 lane, %tid.x;",
        "and.b32 lane, lane, 31;", "shr.b32 there, $2, lane;", "and.b32 there, there, 1;",
        "bar.warp.sync -1;", "setp.ne.b32 p, there, 0;",
        "@p mapa.shared::cluster.u32 there, $1, lane;",
        "@p mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [there];", "}", "// $0"])


@gluon.jit
def load(offset, barrier, sharers, MANY: gl.constexpr, batch, outer, inner, SYMBOL: gl.constexpr,
         MAP: gl.constexpr, BATCHED: gl.constexpr):
    """Starts the copy of the box at (batch, outer, inner) of the tensor map that is parameter
    MAP of the kernel SYMBOL, to byte ``offset`` of the shared memory of every program of
    ``sharers``, a bit each, or, if these are not MANY, of this one; each one's barrier at byte
    ``barrier`` counts it."""
    if BATCHED:
        gl.inline_asm_elementwise(
            _load(SYMBOL, MAP, 3, MANY), "=r,r,r,r,r,r,r",
            (shared_address(offset), shared_address(barrier), sharers, inner, outer, batch),
            dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise(
            _load(SYMBOL, MAP, 2, MANY), "=r,r,r,r,r,r",
            (shared_address(offset), shared_address(barrier), sharers, inner, outer),
            dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def arrive(barrier, programs):
    """One arrival of each of the calling warps at the barrier of each of ``programs``, a bit each.

    Relaxed: what was read is in registers or in the tensor instruction's past; with ``.release``
    ptxas makes a fence of the whole device of it, in every step."""
    gl.inline_asm_elementwise(_arrive(), "=r,r,r", (shared_address(barrier), programs),
                              dtype=gl.int32, is_pure=False, pack=1)
