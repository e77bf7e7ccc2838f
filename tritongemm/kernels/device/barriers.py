"""The barriers of the one buffer, without the meetings of all warps that Gluon's bring.

Gluon makes one barrier after another, and between two of one allocation Triton 3.6 lets all warps
meet (17 times before the first load of a cluster's program); before each wait, and before an
arrival, the warps of a consumer meet. Here one thread makes all, and each warp waits and arrives
for itself.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from tritongemm.kernels.device.hopper import shared_address


@gluon.constexpr_function
def _make(counts):
    # Behind a branch: ptxas puts a fence before each that has a predicate of its own.
    lines = ["{", ".reg .pred p;", ".reg .b32 thread;", "mov.u32 thread, %tid.x;",
             "setp.ne.u32 p, thread, 0;", "@p bra made;"]
    lines += [f"mbarrier.init.shared::cta.b64 [$1 + {8 * i}], {count};"
              for i, count in enumerate(counts)]
    return "\n".join([*lines, "made:", "}", "// $0"])


@gluon.constexpr_function
def _counts(S):
    """A stage is ready; a stage is empty; a consumer's turn, or, in its place, what the programs
    of a cluster send has come, and each program's four warps know of it."""
    counts = [1] * S.stages + [S.releases] * S.stages
    if S.pingpong:
        counts += [4] * 2
    if S.cluster_k > 1:
        counts += [1] * S.consumers + [4 * S.cluster_k] * S.consumers
    return counts


@gluon.constexpr_function
def _wait():
    return "\n".join(["{", ".reg .pred come;", "again:",
                      "mbarrier.try_wait.parity.shared::cta.b64 come, [$1], $2;",
                      "@!come bra.uni again;", "}", "// $0"])


@gluon.constexpr_function
def _elected(instruction, wanted):
    """One thread of each warp does it, if ``wanted``. The predicate is to be seen as that of
    ``elect.sync`` right behind a meeting of the warp: by any other ptxas takes the whole loop
    around it for divergent, keeps no address in uniform registers, and writes a loop around each
    instruction of the copy engine (with nine copies a step 26 products ran at 0.84 of before)."""
    return "\n".join(["{", ".reg .pred p;", "bar.warp.sync -1;", "elect.sync _|p, -1;",
                      *(["setp.ne.and.u32 p, $2, 0, p;"] if wanted else []),
                      f"@p {instruction}", "}", "// $0"])


@gluon.jit
def wait(place, parity):
    """Waits until the phase of this parity is over at the barrier at byte ``place``."""
    gl.inline_asm_elementwise(_wait(), "=r,r,r", (shared_address(place), parity), dtype=gl.int32,
                              is_pure=False, pack=1)


@gluon.jit
def arrive(place, wanted):
    """One arrival of each calling warp at the barrier at byte ``place``, if ``wanted``."""
    gl.inline_asm_elementwise(
        _elected("mbarrier.arrive.shared::cta.b64 _, [$1];", True), "=r,r,r",
        (shared_address(place), wanted), dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def expect(place, BYTES: gl.constexpr):
    """One arrival of the calling warp at the barrier at byte ``place``, whose phase is not over
    before so many BYTES have come."""
    gl.inline_asm_elementwise(
        _elected("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;", False), "=r,r,n",
        (shared_address(place), BYTES), dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def make(place, S: gl.constexpr):
    """Makes them at byte ``place`` of shared memory."""
    gl.inline_asm_elementwise(_make(_counts(S)), "=r,r", (shared_address(place),), dtype=gl.int32,
                              is_pure=False, pack=1)
