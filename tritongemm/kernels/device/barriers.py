"""Memory barriers (``mbarrier``) in PTX, at byte offsets of shared memory.

Gluon synchronises all warps between two ``mbarrier.init`` of one allocation (Triton 3.6: 17 times
before the first load of a cluster's program), and the warps of a consumer before each wait and each
arrival. Here one thread initialises all barriers, and each warp waits and arrives by itself.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import shared_address


@gluon.constexpr_function
def _init(counts):
    # Behind a branch: ptxas puts a fence before each init that has a predicate of its own.
    lines = ["{", ".reg .pred p;", ".reg .b32 thread;", "mov.u32 thread, %tid.x;",
             "setp.ne.u32 p, thread, 0;", "@p bra done;"]
    lines += [f"mbarrier.init.shared::cta.b64 [$1 + {8 * i}], {count};"
              for i, count in enumerate(counts)]
    return "\n".join([*lines, "done:", "}", "// $0"])


@gluon.constexpr_function
def _counts(S):
    """Arrivals of each barrier: full stages; empty stages; then the ping-pong turn of each
    consumer, or, of a cluster that shares K, each consumer's partial sums received, and each
    program's four warps done with them."""
    counts = [1] * S.stages + [S.empty_arrivals] * S.stages
    if S.pingpong:
        counts += [4] * 2
    if S.cluster_k > 1:
        counts += [1] * S.consumers + [4 * S.cluster_k] * S.consumers
    return counts


@gluon.constexpr_function
def _wait():
    return "\n".join(["{", ".reg .pred complete;", "again:",
                      "mbarrier.try_wait.parity.shared::cta.b64 complete, [$1], $2;",
                      "@!complete bra.uni again;", "}", "// $0"])


@gluon.constexpr_function
def _elected(instruction, predicated):
    """One thread of each warp executes it, with ``predicated`` if $2 is not 0.

    ptxas must see the predicate as that of an ``elect.sync`` right behind a barrier of the warp.
    By any other predicate it takes the whole loop around the instruction for divergent, keeps no
    address in uniform registers, and writes a loop around each instruction of TMA (with
    nine copies a step 26 products ran at 0.84 of their speed)."""
    return "\n".join(["{", ".reg .pred p;", "bar.warp.sync -1;", "elect.sync _|p, -1;",
                      *(["setp.ne.and.u32 p, $2, 0, p;"] if predicated else []),
                      f"@p {instruction}", "}", "// $0"])


@gluon.jit
def init(offset, S: gl.constexpr):
    """Initialises all barriers of the kernel, from byte ``offset`` of shared memory on."""
    gl.inline_asm_elementwise(_init(_counts(S)), "=r,r", (shared_address(offset),), dtype=gl.int32,
                              is_pure=False, pack=1)


@gluon.jit
def wait(offset, parity):
    """Waits until the phase of this parity is complete at the barrier at byte ``offset``."""
    gl.inline_asm_elementwise(_wait(), "=r,r,r", (shared_address(offset), parity), dtype=gl.int32,
                              is_pure=False, pack=1)


@gluon.jit
def arrive(offset, pred):
    """One arrival of each calling warp at the barrier at byte ``offset``, if ``pred`` is not 0."""
    gl.inline_asm_elementwise(
        _elected("mbarrier.arrive.shared::cta.b64 _, [$1];", True), "=r,r,r",
        (shared_address(offset), pred), dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def expect(offset, BYTES: gl.constexpr):
    """One arrival of the calling warp at the barrier at byte ``offset``, which adds BYTES to what
    must arrive before its phase is complete."""
    gl.inline_asm_elementwise(
        _elected("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;", False), "=r,r,n",
        (shared_address(offset), BYTES), dtype=gl.int32, is_pure=False, pack=1)
