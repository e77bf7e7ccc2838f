"""Asking the L2 cache, before a kernel waits for the one in front of it, for weights it will load.

What streams weights is as fast as bytes are under way. A request for the L2 takes no registers and
needs nobody to wait for it; and as it only moves lines to where every reader looks, the kernel in
front may still be writing them.
"""

import triton
import triton.language as tl

#: A row for each thread: its address, if there are so many rows, and its bytes.
_ROW_A_THREAD = tl.constexpr("""{
.reg .pred mine; .reg .b32 row; .reg .b64 at;
mov.u32 row, %tid.x;
setp.lt.s32 mine, row, $3;
cvt.u64.u32 at, row;
mad.lo.s64 at, at, $2, $1;
@mine cp.async.bulk.prefetch.L2.global [at], $4;
} // $0""")


@triton.jit
def prefetch_columns(b, N, K, stride_bb, stride_bn, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                     SPLIT_K: tl.constexpr, BYTES: tl.constexpr, PROGRAMS: tl.constexpr):
    """The first BYTES along K of each of a program's columns of B [batch, K, N], stored along K in
    rows of a multiple of 16 bytes; by the first PROGRAMS, for whoever comes later shares the memory
    with loads. For Triton and Gluon, of as many columns as the program has threads."""
    SIZE: tl.constexpr = b.dtype.element_ty.primitive_bitwidth // 8
    num_n = tl.cdiv(N, BLOCK_N)
    program, split = tl.program_id(0), tl.program_id(1)
    col = (program % num_n) * BLOCK_N
    k = (split * tl.cdiv(tl.cdiv(K, BLOCK_K), SPLIT_K)).to(tl.int64) * BLOCK_K
    columns = tl.minimum(BLOCK_N, N - col)
    if (program + split * tl.num_programs(0) >= PROGRAMS) | (k >= K):
        columns = 0
    apart = tl.cast(stride_bn, tl.int64)
    at = b + ((program // num_n).to(tl.int64) * stride_bb + col * apart + k)
    tl.inline_asm_elementwise(
        _ROW_A_THREAD, "=r,l,l,r,r",
        [at.to(tl.int64, bitcast=True), apart * SIZE, columns,
         (tl.minimum(BYTES // SIZE, K - k) * SIZE).to(tl.int32)],
        dtype=tl.int32, is_pure=False, pack=1)
