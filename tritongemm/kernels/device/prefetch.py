"""Prefetches weights into the L2 before a kernel waits for its predecessor in the stream.

Memory is idle while one kernel ends and the next begins. A prefetch takes no registers and needs no
wait; it only moves lines into the L2, which every reader goes through, so the predecessor may still
be writing them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

#: Bytes of each column: a line. With 1,024 bytes the same kernels took up to 4 % longer on an H200
#: (perf/log/2026-11.md).
BYTES = gl.constexpr(128)
#: One prefetch a thread: of the column of its number, if there are so many.
_PREFETCH = gl.constexpr("""{
.reg .pred p; .reg .b32 column; .reg .b64 at;
mov.u32 column, %tid.x;
setp.lt.s32 p, column, $3;
cvt.u64.u32 at, column;
mad.lo.s64 at, at, $2, $1;
@p cp.async.bulk.prefetch.L2.global [at], $4;
} // $0""")


@gluon.jit
def prefetch_columns(b, N, K, stride_bb, stride_bn, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                     SPLIT_K: gl.constexpr, PROGRAMS: gl.constexpr):
    """Prefetches the first BYTES along K of each of a program's columns of B [batch, K, N], which
    is stored along K in rows of a multiple of 16 bytes; at most one column a thread. Only the first
    PROGRAMS do: later ones would compete with loads."""
    SIZE: gl.constexpr = b.dtype.element_ty.primitive_bitwidth // 8
    num_n = gl.cdiv(N, BLOCK_N)
    program, split = gl.program_id(0), gl.program_id(1)
    col = (program % num_n) * BLOCK_N
    k = (split * gl.cdiv(gl.cdiv(K, BLOCK_K), SPLIT_K)).to(gl.int64) * BLOCK_K
    columns = gl.minimum(BLOCK_N, N - col)
    if (program + split * gl.num_programs(0) >= PROGRAMS) | (k >= K):
        columns = 0
    column_stride = gl.cast(stride_bn, gl.int64)
    at = b + ((program // num_n).to(gl.int64) * stride_bb + col * column_stride + k)
    gl.inline_asm_elementwise(
        _PREFETCH, "=r,l,l,r,r",
        [at.to(gl.int64, bitcast=True), column_stride * SIZE, columns,
         (gl.minimum(BYTES // SIZE, K - k) * SIZE).to(gl.int32)],
        dtype=gl.int32, is_pure=False, pack=1)
