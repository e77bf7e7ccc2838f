"""Split-K within a cluster: partial sums are exchanged through distributed shared memory.

Where tiles are too few to fill the device, each program of a cluster multiplies its own range of K
of the same tile. The partial sums are added without a trip through global memory and without a
second launch: each program sends to every other one the columns that that one sums, from shared
memory to shared memory by TMA, which counts the bytes at a barrier of the receiver.
Every program then adds what it received in the order of the ranks, so that results repeat bit for
bit, and stores its columns. Gluon has no instructions for this: it is PTX.

A consumer's accumulator is the tuple of [64, 8] tensors of ``wgmma``. A thread receives exactly the
elements that it holds itself, 16 bytes for eight columns, the lanes of a warp side by side, and
each warp sends its own chunks, so that none waits for another. Chunks are staged in the buffers of
the consumer's rows of A: a program computes one unit, so no load follows. Addresses are bytes from
the start of shared memory, as in ``wgmma``, and mean the same in every program of the cluster.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import shared_address
from tritongemm.kernels.device.wgmma import floats


@gluon.constexpr_function
def _lane_and_warp():
    return ["mov.u32 lane, %tid.x;", "and.b32 lane, lane, 127;", "shr.u32 warp, lane, 5;",
            "and.b32 lane, lane, 31;"]


@gluon.constexpr_function
def _send(n, size, stage, chunks_per_stage, consumer):
    columns = n // size
    chunk = 512 * columns
    staging, receive, barrier, rank = (f"${4 + 4 * n + 4 * i}" for i in range(4))
    sources = [f"from{program}" for program in range(size)]
    lines = ["{", f".reg .b32 lane, warp, at, kept, to, remote, full, {', '.join(sources)};",
             ".reg .pred p, q, own;", *_lane_and_warp(),
             f"mad.lo.u32 to, {rank}, {4 * chunk}, {receive};",
             f"mad.lo.u32 to, warp, {chunk}, to;", "mad.lo.u32 kept, lane, 16, to;"]
    for program, start in enumerate(sources):  # chunk warp * size + program
        lines += [f"mad.lo.u32 at, warp, {size}, {program};",
                  f"shr.u32 {start}, at, {chunks_per_stage.bit_length() - 1};",
                  f"mad.lo.u32 {start}, {start}, {stage}, {staging};",
                  f"and.b32 at, at, {chunks_per_stage - 1};",
                  f"mad.lo.u32 {start}, at, {chunk}, {start};",
                  f"add.u32 {start}, {start}, {8192 * consumer};",
                  f"mad.lo.u32 at, lane, 16, {start};",
                  # The columns that this program sums go straight to where it will read them.
                  f"setp.eq.u32 own, {rank}, {program};", "selp.b32 at, kept, at, own;"]
        for i in range(columns):
            first = 4 + 4 * (program * columns + i)
            values = ", ".join(f"${first + j}" for j in range(4))
            lines.append(f"st.shared.v4.f32 [at + {512 * i}], {{{values}}};")
    lines += ["fence.proxy.async.shared::cta;", "bar.warp.sync -1;", "elect.sync _|p, -1;"]
    for program, start in enumerate(sources):
        lines += [f"setp.ne.and.u32 q, {rank}, {program}, p;",
                  f"mapa.shared::cluster.u32 remote, to, {program};",
                  f"mapa.shared::cluster.u32 full, {barrier}, {program};",
                  "@q cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                  f"[remote], [{start}], {chunk}, [full];"]
    return "\n".join([*lines, "}", "// $0 $1 $2 $3"])


@gluon.constexpr_function
def _sum(columns, size):
    chunk = 512 * columns
    receive = f"${4 * columns + 4}"
    lines = ["{", ".reg .b32 lane, warp, at;", ".reg .f32 x0, x1, x2, x3;", *_lane_and_warp(),
             f"mad.lo.u32 at, lane, 16, {receive};", f"mad.lo.u32 at, warp, {chunk}, at;"]
    for i in range(columns):
        for program in range(size):
            source = f"[at + {4 * chunk * program + 512 * i}]"
            sums = [f"${4 * i + j}" for j in range(4)]
            if not program:
                lines.append(f"ld.shared.v4.f32 {{{', '.join(sums)}}}, {source};")
            else:
                lines.append(f"ld.shared.v4.f32 {{x0, x1, x2, x3}}, {source};")
                lines += [f"add.f32 {s}, {s}, x{j};" for j, s in enumerate(sums)]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def _arrive_all(size):
    return "\n".join([
        "{", ".reg .pred p;", ".reg .b32 lane, remote;", "bar.warp.sync -1;",
        "mov.u32 lane, %tid.x;", "and.b32 lane, lane, 31;", f"setp.lt.u32 p, lane, {size};",
        "@p mapa.shared::cluster.u32 remote, $1, lane;",
        "@p mbarrier.arrive.shared::cluster.b64 _, [remote];", "}", "// $0"])


@gluon.constexpr_function
def _registers(outputs, kind, floats, integers):
    return ",".join([kind] * outputs + ["f"] * floats + ["r"] * integers)


@gluon.jit
def fence_barrier_init():
    """Makes the barriers that this thread initialised visible to the cluster."""
    gl.inline_asm_elementwise("fence.mbarrier_init.release.cluster; // $0", "=r", [],
                              dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def cluster_arrive():
    """This warp arrives at the cluster barrier, as every warp of every program must.

    Relaxed: with ``.release`` each would wait for a fence of the whole device.
    """
    gl.inline_asm_elementwise("barrier.cluster.arrive.relaxed.aligned; // $0", "=r", [],
                              dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def cluster_wait():
    """Waits until every warp of the cluster has arrived."""
    gl.inline_asm_elementwise("barrier.cluster.wait.acquire.aligned; // $0", "=r", [],
                              dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def send_partials(accs, receive, barrier, rank, N8: gl.constexpr, STAGE: gl.constexpr,
                  CHUNKS_PER_STAGE: gl.constexpr, CLUSTER: gl.constexpr, CONSUMER: gl.constexpr):
    """Sends to every other program its columns of ``accs``, into the slot of this program's
    ``rank`` in the receive buffer at byte ``receive``; 2048 N8 / CLUSTER bytes arrive at its
    ``barrier``.

    STAGE: bytes from one stage's operands to the next one's; CHUNKS_PER_STAGE: a power of two,
    chunks (what one warp sends to one program) that fit in a consumer's rows of A in a stage."""
    gl.inline_asm_elementwise(
        _send(N8, CLUSTER, STAGE, CHUNKS_PER_STAGE, CONSUMER), _registers(4, "=r", 4 * N8, 16),
        accs + (shared_address(0), shared_address(receive), shared_address(barrier), rank),
        dtype=gl.int32, is_pure=False, pack=4)


@gluon.jit
def sum_partials(like, receive, N8: gl.constexpr, CLUSTER: gl.constexpr):
    """The sum of the slots of the receive buffer at byte ``receive``, in the order of the ranks:
    the N8 / CLUSTER tensors of this program's columns. ``like``: a tensor of eight columns."""
    return gl.inline_asm_elementwise(
        _sum(N8 // CLUSTER, CLUSTER), _registers(4 * (N8 // CLUSTER), "=f", 4, 4),
        (like, shared_address(receive)), dtype=floats(N8 // CLUSTER), is_pure=False, pack=4)


@gluon.jit
def arrive_at_all(barrier, CLUSTER: gl.constexpr):
    """One arrival of each calling warp at the barrier at byte ``barrier`` of every program."""
    gl.inline_asm_elementwise(_arrive_all(CLUSTER), "=r,r", (shared_address(barrier),),
                              dtype=gl.int32, is_pure=False, pack=1)
