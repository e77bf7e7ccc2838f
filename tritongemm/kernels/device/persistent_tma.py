"""One program an SM walks over tiles; TMA loads and stores them (tensor maps)."""

import triton
import triton.language as tl

from tritongemm.kernels.device.dependent_launch import release, wait
from tritongemm.kernels.device.dot import dot
from tritongemm.kernels.device.epilogue import finish, load_d
from tritongemm.kernels.device.operand_types import require_operands
from tritongemm.kernels.device.order import tile_of
from tritongemm.kernels.device.symbol import symbol


@triton.jit
def store_tile(c_desc, c, acc, batch, row, col, M, N, stride_cb, stride_cm, d, alpha, beta,
               stride_db, stride_dm, stride_dn, SUBTILE: tl.constexpr, TMA_STORE: tl.constexpr,
               BATCHED: tl.constexpr, ADDEND: tl.constexpr, ACTIVATION: tl.constexpr,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Finishes and stores a [BLOCK_M, BLOCK_N] tile in SUBTILE epilogue tiles along N, which need
    less shared memory at a time."""
    if SUBTILE > 1:
        left, right = acc.reshape(BLOCK_M, 2, BLOCK_N // 2).permute(0, 2, 1).split()
        store_tile(c_desc, c, left, batch, row, col, M, N, stride_cb, stride_cm, d, alpha, beta,
                   stride_db, stride_dm, stride_dn, SUBTILE // 2, TMA_STORE, BATCHED, ADDEND,
                   ACTIVATION, BLOCK_M, BLOCK_N // 2)
        store_tile(c_desc, c, right, batch, row, col + BLOCK_N // 2, M, N, stride_cb, stride_cm, d,
                   alpha, beta, stride_db, stride_dm, stride_dn, SUBTILE // 2, TMA_STORE, BATCHED,
                   ADDEND, ACTIVATION, BLOCK_M, BLOCK_N // 2)
    else:
        rows = row + tl.arange(0, BLOCK_M)
        cols = col + tl.arange(0, BLOCK_N)
        addend = load_d(d, tl.cast(batch, tl.int64), rows.to(tl.int64), cols.to(tl.int64), M, N,
                        stride_db, stride_dm, stride_dn, ADDEND)
        value = finish(acc, addend, alpha, beta, ADDEND, ACTIVATION).to(c.dtype.element_ty)
        if TMA_STORE:
            if BATCHED:
                c_desc.store([batch, row, col], value.reshape(1, BLOCK_M, BLOCK_N))
            else:
                c_desc.store([row, col], value)
        else:
            base = c + tl.cast(batch, tl.int64) * stride_cb
            ptrs = base + rows.to(tl.int64)[:, None] * stride_cm + cols[None, :]
            tl.store(ptrs, value, mask=(rows[:, None] < M) & (cols[None, :] < N))


@triton.jit(repr=symbol)
def persistent_tma(a_desc, b_desc, c_desc, c, M, N, K, batches, stride_cb, stride_cm, d, alpha,
                   beta, stride_db, stride_dm, stride_dn, A_T: tl.constexpr, B_T: tl.constexpr,
                   BATCHED: tl.constexpr, TMA_STORE: tl.constexpr, BLOCK_M: tl.constexpr,
                   BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
                   SUBTILE: tl.constexpr, FLATTEN: tl.constexpr, PRECISION: tl.constexpr,
                   INTERPRETED: tl.constexpr, ADDEND: tl.constexpr, ACTIVATION: tl.constexpr,
                   DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """C[batch, M, N] = A @ B and its epilogue. A is stored [M, K] or, with A_T, [K, M]; B [K, N]
    or, with B_T, [N, K]. What lies past an edge is loaded as zero and not stored."""
    require_operands(a_desc.dtype, b_desc.dtype, "bf16, fp16, fp32")
    if DEPENDENT:
        wait()
    num_m = tl.cdiv(M, BLOCK_M)
    num_n = tl.cdiv(N, BLOCK_N)
    tiles = num_m * num_n
    steps = tl.cdiv(K, BLOCK_K)
    for number in tl.range(tl.program_id(0), tiles * batches, tl.num_programs(0),
                           flatten=FLATTEN):
        batch = number // tiles
        tile_m, tile_n = tile_of(number % tiles, num_m, num_n, GROUP_M)
        row = tile_m * BLOCK_M
        col = tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(steps):
            k = step * BLOCK_K
            if BATCHED:
                if A_T:
                    x = a_desc.load([batch, k, row]).reshape(BLOCK_K, BLOCK_M).T
                else:
                    x = a_desc.load([batch, row, k]).reshape(BLOCK_M, BLOCK_K)
                if B_T:
                    y = b_desc.load([batch, col, k]).reshape(BLOCK_N, BLOCK_K).T
                else:
                    y = b_desc.load([batch, k, col]).reshape(BLOCK_K, BLOCK_N)
            else:
                x = a_desc.load([k, row]).T if A_T else a_desc.load([row, k])
                y = b_desc.load([col, k]).T if B_T else b_desc.load([k, col])
            acc = dot(x, y, acc, PRECISION, INTERPRETED)
        store_tile(c_desc, c, acc, batch, row, col, M, N, stride_cb, stride_cm, d, alpha, beta,
                   stride_db, stride_dm, stride_dn, SUBTILE, TMA_STORE, BATCHED, ADDEND,
                   ACTIVATION, BLOCK_M, BLOCK_N)
    if DEPENDENT > 1:
        release()
