"""Asking the L2 cache, before a kernel waits for the one in front of it, for weights it will load.

The memory has little to do while one kernel ends and the next begins. A request for the L2 takes
no registers and needs nobody to wait for it; and as it only moves lines to where every reader
looks, the kernel in front may still be writing them.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

#: Of each column: a line. With 1,024 bytes the same kernels took up to 4 % longer on an H200
#: (perf/log/2026-11.md).
BYTES = gl.constexpr(128)
#: A column for each thread: its address, if there are so many columns, and its bytes.
_COLUMN_A_THREAD = gl.constexpr("""{
.reg .pred mine; .reg .b32 column; .reg .b64 at;
mov.u32 column, %tid.x;
setp.lt.s32 mine, column, $3;
cvt.u64.u32 at, column;
mad.lo.s64 at, at, $2, $1;
@mine cp.async.bulk.prefetch.L2.global [at], $4;
} // $0""")


@gluon.jit
def prefetch_columns(b, N, K, stride_bb, stride_bn, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr,
                     SPLIT_K: gl.constexpr, PROGRAMS: gl.constexpr):
    """The first BYTES along K of each of a program's columns of B [batch, K, N], stored along K in
    rows of a multiple of 16 bytes, as many columns as it has threads at most; by the first
    PROGRAMS, for whoever comes later shares the memory with loads."""
    SIZE: gl.constexpr = b.dtype.element_ty.primitive_bitwidth // 8
    num_n = gl.cdiv(N, BLOCK_N)
    program, split = gl.program_id(0), gl.program_id(1)
    col = (program % num_n) * BLOCK_N
    k = (split * gl.cdiv(gl.cdiv(K, BLOCK_K), SPLIT_K)).to(gl.int64) * BLOCK_K
    columns = gl.minimum(BLOCK_N, N - col)
    if (program + split * gl.num_programs(0) >= PROGRAMS) | (k >= K):
        columns = 0
    apart = gl.cast(stride_bn, gl.int64)
    at = b + ((program // num_n).to(gl.int64) * stride_bb + col * apart + k)
    gl.inline_asm_elementwise(
        _COLUMN_A_THREAD, "=r,l,l,r,r",
        [at.to(gl.int64, bitcast=True), apart * SIZE, columns,
         (gl.minimum(BYTES // SIZE, K - k) * SIZE).to(gl.int32)],
        dtype=gl.int32, is_pure=False, pack=1)
