"""The second pass of split-K: adds partial sums in a fixed order, so results repeat bit for bit."""

import triton
import triton.language as tl

from tritongemm.kernels.device.dependent_launch import release, wait
from tritongemm.kernels.device.epilogue import finish
from tritongemm.kernels.device.operand_types import require_type
from tritongemm.kernels.device.symbol import symbol


@triton.jit(repr=symbol)
def reduce_splits(partials, c, M, N, total, stride_cb, stride_cm, stride_cn, d, alpha, beta,
                  stride_db, stride_dm, stride_dn, SPLIT_K: tl.constexpr, PARTS: tl.constexpr,
                  BLOCK: tl.constexpr, INDEX64: tl.constexpr, ADDEND: tl.constexpr,
                  ACTIVATION: tl.constexpr, DEPENDENT: tl.constexpr, SYMBOL: tl.constexpr):
    """C[batch, M, N] = sum over the first axis of partials[SPLIT_K, batch, M, N] (float32), and
    the epilogue."""
    require_type("partials", partials.dtype.element_ty, "fp32")
    if DEPENDENT:
        wait()
    if DEPENDENT > 1:
        release()
    start = tl.program_id(0)
    if INDEX64:
        start = start.to(tl.int64)
        total = total.to(tl.int64)
    index = start * BLOCK + tl.arange(0, BLOCK)
    inside = index < total
    # All splits at once, so that many loads are in flight together; tl.sum's order is fixed.
    parts = tl.arange(0, PARTS)
    if INDEX64:
        parts = parts.to(tl.int64)
    loaded = tl.load(partials + (parts * total)[:, None] + index[None, :],
                     mask=inside[None, :] & (parts < SPLIT_K)[:, None], other=0.0)
    acc = tl.sum(loaded, axis=0)
    col = index % N
    row = (index // N) % M
    batch = (index // N) // M
    value = 0.0
    if ADDEND != "none" and ADDEND != "scale":
        value = tl.load(d + batch * stride_db + row * stride_dm + col * stride_dn, mask=inside,
                        other=0.0)
    acc = finish(acc, value, alpha, beta, ADDEND, ACTIVATION)
    tl.store(c + batch * stride_cb + row * stride_cm + col * stride_cn,
             acc.to(c.dtype.element_ty), mask=inside)
