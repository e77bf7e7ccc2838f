"""A tile's K shared by the programs of a cluster, its sum made through distributed shared memory.

Where tiles are too few to fill the device, the programs of a cluster take a part of K each. Their
accumulators meet without a trip through memory and without a second launch: each program sends to
each of the others the columns that this one is to sum, from shared memory into shared memory by the
copy engine, which counts the bytes at a barrier there. Every program then adds what came in the
order of the parts, and stores its columns. Triton's Gluon has no such thing: it is PTX.

A consumer's accumulator is the tuple of [64, 8] tensors of ``any_width``, so that a thread gets
from the others what it would hold itself: element by element in its own place, 16 bytes for eight
columns, the lanes of a warp side by side. Each warp sends its own chunks, so that none waits for
another. They are put together where the consumer's rows of A were: a program does one unit, so
that no load follows. Addresses are bytes from the first of shared memory, as in ``any_width``; they
mean the same in every program of the cluster.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.any_width import floats
from tritongemm.kernels.device.hopper import shared_address


@gluon.constexpr_function
def _lane_and_warp():
    return ["mov.u32 lane, %tid.x;", "and.b32 lane, lane, 127;", "shr.u32 warp, lane, 5;",
            "and.b32 lane, lane, 31;"]


@gluon.constexpr_function
def _give(n, size, stage, room, consumer):
    columns = n // size
    chunk = 512 * columns
    first_byte, place, barrier, rank = (f"${4 + 4 * n + 4 * i}" for i in range(4))
    froms = [f"from{program}" for program in range(size)]
    lines = ["{", f".reg .b32 lane, warp, mine, kept, to, there, full, {', '.join(froms)};",
             ".reg .pred p, q, own;", *_lane_and_warp(),
             f"mad.lo.u32 to, {rank}, {4 * chunk}, {place};",
             f"mad.lo.u32 to, warp, {chunk}, to;", "mad.lo.u32 kept, lane, 16, to;"]
    for program, start in enumerate(froms):  # chunk warp * size + program, so many a stage
        lines += [f"mad.lo.u32 mine, warp, {size}, {program};",
                  f"shr.u32 {start}, mine, {room.bit_length() - 1};",
                  f"mad.lo.u32 {start}, {start}, {stage}, {first_byte};",
                  f"and.b32 mine, mine, {room - 1};",
                  f"mad.lo.u32 {start}, mine, {chunk}, {start};",
                  f"add.u32 {start}, {start}, {8192 * consumer};",
                  f"mad.lo.u32 mine, lane, 16, {start};",
                  # What is its own a thread leaves where it will look for it.
                  f"setp.eq.u32 own, {rank}, {program};", "selp.b32 mine, kept, mine, own;"]
        for i in range(columns):
            first = 4 + 4 * (program * columns + i)
            values = ", ".join(f"${first + j}" for j in range(4))
            lines.append(f"st.shared.v4.f32 [mine + {512 * i}], {{{values}}};")
    lines += ["fence.proxy.async.shared::cta;", "bar.warp.sync -1;", "elect.sync _|p, -1;"]
    for program, start in enumerate(froms):
        lines += [f"setp.ne.and.u32 q, {rank}, {program}, p;",
                  f"mapa.shared::cluster.u32 there, to, {program};",
                  f"mapa.shared::cluster.u32 full, {barrier}, {program};",
                  "@q cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                  f"[there], [{start}], {chunk}, [full];"]
    return "\n".join([*lines, "}", "// $0 $1 $2 $3"])


@gluon.constexpr_function
def _take(columns, size):
    chunk = 512 * columns
    place = f"${4 * columns + 4}"
    lines = ["{", ".reg .b32 lane, warp, mine;", ".reg .f32 x0, x1, x2, x3;", *_lane_and_warp(),
             f"mad.lo.u32 mine, lane, 16, {place};", f"mad.lo.u32 mine, warp, {chunk}, mine;"]
    for i in range(columns):
        for program in range(size):
            at = f"[mine + {4 * chunk * program + 512 * i}]"
            sums = [f"${4 * i + j}" for j in range(4)]
            if not program:
                lines.append(f"ld.shared.v4.f32 {{{', '.join(sums)}}}, {at};")
            else:
                lines.append(f"ld.shared.v4.f32 {{x0, x1, x2, x3}}, {at};")
                lines += [f"add.f32 {s}, {s}, x{j};" for j, s in enumerate(sums)]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def _arrive(size):
    return "\n".join([
        "{", ".reg .pred p;", ".reg .b32 lane, there;", "bar.warp.sync -1;",
        "mov.u32 lane, %tid.x;", "and.b32 lane, lane, 31;", f"setp.lt.u32 p, lane, {size};",
        "@p mapa.shared::cluster.u32 there, $1, lane;",
        "@p mbarrier.arrive.shared::cluster.b64 _, [there];", "}", "// $0"])


@gluon.constexpr_function
def _registers(outputs, kind, floats, integers):
    return ",".join([kind] * outputs + ["f"] * floats + ["r"] * integers)


@gluon.jit
def announce():
    """The barriers that this thread made may be reached from the cluster once it has come."""
    gl.inline_asm_elementwise("fence.mbarrier_init.release.cluster; // $0", "=r", [],
                              dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def come():
    """This warp is here; all warps of all programs must come.

    Relaxed: with ``.release`` each would wait for a fence of the whole device.
    """
    gl.inline_asm_elementwise("barrier.cluster.arrive.relaxed.aligned; // $0", "=r", [],
                              dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def meet():
    """Waits until every warp of the cluster has come."""
    gl.inline_asm_elementwise("barrier.cluster.wait.acquire.aligned; // $0", "=r", [],
                              dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def give(accs, place, barrier, rank, N8: gl.constexpr, STAGE: gl.constexpr, ROOM: gl.constexpr,
         CLUSTER: gl.constexpr, WHICH: gl.constexpr):
    """Sends every other program its columns of ``accs``, into the part of its ``place`` that is
    kept for this program's ``rank``; 2048 N8 / CLUSTER bytes arrive at its ``barrier``.

    STAGE: bytes from one stage's operands to the next one's; ROOM: chunks, of what one warp sends
    to one program, that a consumer's rows of A in a stage have room for, a power of two; WHICH:
    the consumer."""
    gl.inline_asm_elementwise(
        _give(N8, CLUSTER, STAGE, ROOM, WHICH), _registers(4, "=r", 4 * N8, 16),
        accs + (shared_address(0), shared_address(place), shared_address(barrier), rank),
        dtype=gl.int32, is_pure=False, pack=4)


@gluon.jit
def take(like, place, N8: gl.constexpr, CLUSTER: gl.constexpr):
    """The sum of what came to ``place``, in the order of the parts: the N8 / CLUSTER tensors of
    this program's columns. ``like``: a tensor of eight columns."""
    return gl.inline_asm_elementwise(
        _take(N8 // CLUSTER, CLUSTER), _registers(4 * (N8 // CLUSTER), "=f", 4, 4),
        (like, shared_address(place)), dtype=floats(N8 // CLUSTER), is_pure=False, pack=4)


@gluon.jit
def arrive_at_all(barrier, CLUSTER: gl.constexpr):
    """One arrival of each of the calling warps at the barrier of every program."""
    gl.inline_asm_elementwise(_arrive(CLUSTER), "=r,r", (shared_address(barrier),),
                              dtype=gl.int32, is_pure=False, pack=1)
