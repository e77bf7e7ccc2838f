"""Splits float32 operands into two fp16 parts for products on the tensor cores.

Row i of A (column j of B) is scaled by a power of two, 2^e, so that its largest magnitude lies in
[2^14, 2^15). With x' = 2^e x, which is exact, an element becomes

    hi = fp16(x'),  lo = fp16(2048 (x' - hi)),  x' = hi + lo / 2048 + r.

Both roundings are to nearest: |x' - hi| is at most half a spacing of fp16, 2^-11 of the binade of
x', and lo has 11 bits of that, so |r| <= 2^-23 |x'|, as long as half the spacing of fp16's smallest
numbers, 2^-36 after the scale of 2048, does not exceed it. Elements below about 2^-28 of their
row's largest keep fewer bits.

The exponent e of each row goes to an array of float32. ``FLAG`` is added to that of a row whose
parts would not represent it: an element is infinite or NaN; 2^e or 2^-e is not representable
(largest magnitude below 2^-100 and not 0); or elements with |r| > 2^-22 |x'| lose too much:

    sum of |r_k| / |x'_k| over them > 31/32 2^-23 n if n >= K / 64, else 0,

with n elements of at least about 2^-12 of the largest. An element of the sum moves one of C by
|r_k| / |x'_k| of its share in (|A| |B|)_ij. Where many elements are large, no share of so small an
element matters, unless the other operand has next to nothing where they are; whatever it has, C
moves by at most K 2^-23 of (|A| |B|)_ij, twice the bound of K float32 multiply-adds (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.1). Where few are large (a
sparse row with outliers), such an element may be all that there is of a product, and no loss is let
pass. The product leaves flagged rows out, and the ``guard`` computes them.

Each term of the sum is rounded to a multiple of 2^-26, by 1/32 of it at most. Float32 adds these
exactly up to 2^-2, more than n below 2^21 allows. So whether a row is flagged depends on its
elements alone, not on the block that it is part of.

A may be stored in 16 bits; it is converted as it is loaded, which is exact.

With PARTS 1 only ``hi`` is stored, for TF32's accuracy: r = x' - hi, and all limits are 2^11 times
as large, but no sum may exceed 1/8. n 2^-12 would let any number be lost beside 4096 large ones.
Lower limits flag more rows of ordinary data: the probability is inverse to the limit.
"""

import triton
import triton.language as tl

from tritongemm.kernels.device.dependent_launch import release, wait_after
from tritongemm.kernels.device.operand_types import require_type
from tritongemm.kernels.device.symbol import symbol

#: Added to the exponent of a flagged row.
FLAG = tl.constexpr(65536.0)
#: Exponents from here on are those of flagged rows.
FLAGGED = tl.constexpr(32768.0)
#: Losses that a large element allows: 2^-12, less what losses are rounded by.
_ALLOWED = tl.constexpr(31.0 * 2.0**-17)
#: The most that is allowed with one part, 1/8, less the same.
_MOST_OF_ONE_PART = tl.constexpr(31.0 * 2.0**-8)
_LARGEST_FINITE = tl.constexpr(0x7F7FFFFF)
#: The bits of 2^-100.
_SMALLEST_SCALED = tl.constexpr(27 << 23)


@triton.jit
def magnitude_bits(x):
    """Magnitudes as bits, which are in their order; those of infinities and NaN are above those of
    all finite numbers."""
    return x.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def exponent_of(bits):
    """e for a largest magnitude, 0 for one of 0; what is flagged has any."""
    e = 141 - (bits >> 23)
    return tl.where(bits == 0, 0, tl.minimum(tl.maximum(e, -113), 114))


@triton.jit
def power_of_two(e):
    """2^e as float32 for a 32-bit e from -126 to 127."""
    return ((e + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def parts_of(x, scale, PARTS: tl.constexpr):
    """(hi, lo, loss, large) of ``x``: what an element adds to the losses of its row, up to a factor
    of 2 too large, a multiple of 2^-15 and, where there are two parts, times 2^11; 1 if it is
    large."""
    scaled = x * scale
    size = tl.abs(scaled)
    hi = scaled.to(tl.float16)
    rest = scaled - hi.to(tl.float32)
    if PARTS == 1:
        lo = hi
        error = tl.abs(rest)
    else:
        rest = rest * 2048.0
        lo = rest.to(tl.float16)
        error = tl.abs(rest - lo.to(tl.float32))
    # 2^-n for a size from 2^n on: cheaper than a division.
    inverse = ((254 << 23) - (size.to(tl.int32, bitcast=True) & 0x7F800000)).to(tl.float32,
                                                                               bitcast=True)
    loss = tl.where(error > size * 0.00048828125, error * inverse, 0.0)
    # In float32, numbers from 256 to 512 are multiples of 2^-15, and larger ones of more.
    loss = (loss + 256.0) - 256.0
    # Below float32's range the error itself is lost.
    loss = tl.where((size < 1e-30) & (x != 0.0), 1e6, loss)
    return hi, lo, loss, tl.where(size >= 4.0, 1.0, 0.0)


@triton.jit
def add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def split_block(x, parts, exponents, rows, K, stride_batch, stride_row, stride_k, lead, matrix,
                batches, block, ALONG: tl.constexpr, WHOLE: tl.constexpr, BLOCK_ROWS: tl.constexpr,
                BLOCK_K: tl.constexpr, PARTS: tl.constexpr, DEPENDENT: tl.constexpr):
    """Splits a block of BLOCK_ROWS rows of one matrix of [batches, rows, K]. ALONG: the parts lie
    with K inside, [rows, lead], else [K, lead]; ``matrix``: elements from one matrix to the next;
    the lo parts follow all hi parts. WHOLE: BLOCK_K holds all of K, so that it is read once."""
    blocks = tl.cdiv(rows, BLOCK_ROWS)
    batch, first = block // blocks, block % blocks * BLOCK_ROWS
    if DEPENDENT:
        wait_after(batch | first)
    if DEPENDENT > 1:
        release()
    row = first + tl.arange(0, BLOCK_ROWS)
    inside = (row < rows)[:, None]
    k = tl.arange(0, BLOCK_K)
    source = x + batch.to(tl.int64) * stride_batch
    target = parts + batch.to(tl.int64) * matrix
    lo_parts = matrix * batches
    if ALONG:
        source = (source + row.to(tl.int64) * stride_row)[:, None]
        target = (target + row.to(tl.int64) * lead)[:, None]
        step = 1
    else:
        source = (source + row * stride_row)[:, None]
        target = (target + row)[:, None]
        step = lead
    if WHOLE:
        mask = inside & (k < K)[None, :]
        value = tl.load(source + (k * stride_k)[None, :], mask=mask, other=0.0,
                        eviction_policy="evict_first").to(tl.float32)
        bits = tl.max(magnitude_bits(value), axis=1)
        e = exponent_of(bits)
        hi, lo, loss, large = parts_of(value, power_of_two(e)[:, None], PARTS)
        to = target + (k * step)[None, :]
        tl.store(to, hi, mask=mask)
        if PARTS == 2:
            tl.store(to + lo_parts, lo, mask=mask)
        loss, large = tl.reduce((loss, large), 1, add_pairs)
    else:
        largest = tl.zeros((BLOCK_ROWS, BLOCK_K), tl.int32)
        for start in range(0, K, BLOCK_K):
            mask = inside & (start + k < K)[None, :]
            at = source + tl.cast(start, tl.int64) * stride_k
            value = tl.load(at + (k * stride_k)[None, :], mask=mask, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, magnitude_bits(value))
        bits = tl.max(largest, axis=1)
        e = exponent_of(bits)
        scale = power_of_two(e)[:, None]
        losses = tl.zeros((BLOCK_ROWS, BLOCK_K), tl.float32)
        larges = tl.zeros((BLOCK_ROWS, BLOCK_K), tl.float32)
        # Backwards: what was read last is still in the L2.
        last = (tl.cdiv(K, BLOCK_K) - 1) * BLOCK_K
        for back in range(0, K, BLOCK_K):
            start = last - back
            mask = inside & (start + k < K)[None, :]
            at = source + tl.cast(start, tl.int64) * stride_k
            value = tl.load(at + (k * stride_k)[None, :], mask=mask, other=0.0,
                            eviction_policy="evict_first").to(tl.float32)
            hi, lo, loss, large = parts_of(value, scale, PARTS)
            to = target + tl.cast(start, tl.int64) * step + (k * step)[None, :]
            tl.store(to, hi, mask=mask)
            if PARTS == 2:
                tl.store(to + lo_parts, lo, mask=mask)
            losses += loss
            larges += large
        loss, large = tl.reduce((losses, larges), 1, add_pairs)
    allowed = tl.where(large * 64.0 >= K.to(tl.float32), large * _ALLOWED, 0.0)
    if PARTS == 1:
        allowed = tl.minimum(allowed, _MOST_OF_ONE_PART)
    flagged = ((bits > _LARGEST_FINITE) | (loss > allowed)
               | ((bits != 0) & (bits < _SMALLEST_SCALED)))
    tl.store(exponents + batch.to(tl.int64) * rows + row,
             e.to(tl.float32) + tl.where(flagged, FLAG, 0.0), mask=row < rows)


@triton.jit(repr=symbol)
def split_fp32(a, a_parts, a_exponents, rows_a, batch_a, row_a, k_a, lead_a, matrix_a, batches_a,
               b, b_parts, b_exponents, rows_b, batch_b, row_b, k_b, lead_b, matrix_b, batches_b,
               K, blocks_a, ALONG_A: tl.constexpr, WHOLE_A: tl.constexpr,
               BLOCK_ROWS_A: tl.constexpr, BLOCK_K_A: tl.constexpr, ALONG_B: tl.constexpr,
               WHOLE_B: tl.constexpr, BLOCK_ROWS_B: tl.constexpr, BLOCK_K_B: tl.constexpr,
               PARTS: tl.constexpr, B_FIRST: tl.constexpr, DEPENDENT: tl.constexpr,
               SYMBOL: tl.constexpr):
    """One launch for both operands: blocks up to ``blocks_a`` split A [batches_a, rows_a, K], the
    others B, whose columns are its ``rows_b`` rows here. B_FIRST: these come first."""
    require_type("a", a.dtype.element_ty, "fp32, bf16, fp16")
    require_type("b", b.dtype.element_ty, "fp32")
    block = tl.program_id(0)
    if B_FIRST:
        block = (block + blocks_a) % tl.num_programs(0)
    if block < blocks_a:
        split_block(a, a_parts, a_exponents, rows_a, K, batch_a, row_a, k_a, lead_a, matrix_a,
                    batches_a, block, ALONG_A, WHOLE_A, BLOCK_ROWS_A, BLOCK_K_A, PARTS, DEPENDENT)
    else:
        split_block(b, b_parts, b_exponents, rows_b, K, batch_b, row_b, k_b, lead_b, matrix_b,
                    batches_b, block - blocks_a, ALONG_B, WHOLE_B, BLOCK_ROWS_B, BLOCK_K_B, PARTS,
                    DEPENDENT)
