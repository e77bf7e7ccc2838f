"""TMA loads in PTX, multicast to the programs of a cluster that share an operand.

In a cluster of CLUSTER_M by CLUSTER_N programs, programs along M need the same columns of B, and
programs along N the same rows of A. Each loads its share of these into the shared memory of all of
them, at the offset where it would have loaded it for itself, and the barrier of each receiver
counts the bytes. So the L2 is read once for several SMs. That counts where rows of an operand are
not whole lines, above all where they begin inside a sector: TMA then reads a row two
and a half times.

A share is one box wherever it can be: small boxes are multicast slowly (4088 cubed, 128x256 tiles,
halves of B in one box 200 us, in two 209, in four 285; measured when ptxas wrote a loop around each
copy, see ``barriers``, and not since). Boxes of Gluon's own loads have powers of two for sides, so
the instruction is PTX and reads the tensor map from the kernel's parameters; its box need not be
that of the parameter's type (``Descriptor.loaded``).

A stage is empty when the consumers of every program that loads into it, or is loaded into by it,
have released it: they arrive at the barriers of all of these.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import shared_address


@gluon.constexpr_function
def _copy(rank, multicast):
    coordinates = ", ".join(f"${i}" for i in range(5, 5 + rank))
    modifier, mask = (".multicast::cluster", ", peers") if multicast else ("", "")
    return "\n".join([
        "{", ".reg .pred p;", ".reg .b16 peers;", "cvt.u16.u32 peers, $3;", "bar.warp.sync -1;",
        "elect.sync _|p, -1;",
        f"@p cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        f"{modifier} [$1], [$4, {{{coordinates}}}], [$2]{mask};", "}", "// $0"])


@gluon.constexpr_function
def _map(symbol, number):
    return f"mov.b64 $0, {symbol}_param_{number}; cvta.param.u64 $0, $0;"


@gluon.jit
def tensor_map_address(SYMBOL: gl.constexpr, NUMBER: gl.constexpr):
    """The address of the tensor map that is parameter NUMBER of the kernel SYMBOL."""
    return gl.inline_asm_elementwise(_map(SYMBOL, NUMBER), "=l", [], dtype=gl.int64, is_pure=True,
                                     pack=1)


@gluon.constexpr_function
def _arrive_remote():
    return "\n".join([
        "{", ".reg .pred p;", ".reg .b32 remote;", "setp.ne.b32 p, $3, 0;",
        "@p mapa.shared::cluster.u32 remote, $1, $2;",
        "@p mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];", "}", "// $0"])


@gluon.jit
def copy_box(map_, offset, barrier, peers, MULTICAST: gl.constexpr, batch, outer, inner,
             BATCH_AXES: gl.constexpr):
    """Starts the copy of the box at (batch, outer, inner) of a tensor map to byte ``offset`` of the
    shared memory of this program, or with MULTICAST of every program of ``peers``, a bit each. The
    barrier at byte ``barrier`` of each receiver counts its bytes. BATCH_AXES: how many axes of the
    map are the batch; with two, ``batch`` is a pair."""
    if BATCH_AXES == 2:
        gl.inline_asm_elementwise(
            _copy(4, MULTICAST), "=r,r,r,r,l,r,r,r,r",
            (shared_address(offset), shared_address(barrier), peers, map_, inner, outer, batch[1],
             batch[0]), dtype=gl.int32, is_pure=False, pack=1)
    elif BATCH_AXES == 1:
        gl.inline_asm_elementwise(
            _copy(3, MULTICAST), "=r,r,r,r,l,r,r,r",
            (shared_address(offset), shared_address(barrier), peers, map_, inner, outer, batch),
            dtype=gl.int32, is_pure=False, pack=1)
    else:
        gl.inline_asm_elementwise(
            _copy(2, MULTICAST), "=r,r,r,r,l,r,r",
            (shared_address(offset), shared_address(barrier), peers, map_, inner, outer),
            dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def lane_id():
    """The thread's number in its warp. Read outside of loops: it takes a while."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 thread; mov.u32 thread, %tid.x; and.b32 $0, thread, 31; }", "=r", [],
        dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def arrive_remote(barrier, lane, pred):
    """Of each thread whose ``pred`` is not 0, one arrival at the barrier at byte ``barrier`` of the
    program whose rank is the thread's ``lane``.

    Relaxed: the reads that it orders are complete. For ``.release`` ptxas writes a fence of the
    whole device, in every step."""
    gl.inline_asm_elementwise(_arrive_remote(), "=r,r,r,r", (shared_address(barrier), lane, pred),
                              dtype=gl.int32, is_pure=False, pack=1)
