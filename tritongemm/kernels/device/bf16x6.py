"""float32 products on tensor cores without a pass over the operands, which are split or rounded in
registers: six products of three bf16 parts, or for TF32's accuracy one of numbers rounded to TF32.

A float32 number x is hi + mid + lo + r, each part what is left rounded to bf16. Rounding to nearest
leaves |x - hi| <= 2^-9 |x|, |x - hi - mid| <= 2^-18 |x| and |r| <= 2^-27 |x|. Of the nine products
of the parts of two numbers, hi mid and mid hi are at most 2^-9 |x y|, hi lo, lo hi and mid mid at
most 2^-18 |x y|. Three are left out, mid lo, lo mid and lo lo: with what the parts lack they are
below 2^-24 |x y| (Henry, Tang and Heinecke, Leveraging the bfloat16 Artificial Intelligence
Datatype For Higher-Precision Computations, arXiv 1904.06376). The sums over a step of K begin at 0,
the small products first, and are added to the float32 sum in registers: a tensor core truncates,
and a chain along all of K would lose more than the parts do.

bf16 and TF32 have float32's range of exponents, so no scale is needed. What they cannot represent:

- Numbers that are not 0 and below 2^-110: bf16 has no number below 2^-133, so r may be 2^-134
  whatever x is. (TF32 has smaller ones, but is not used for them either.)
- Infinities, NaN, and numbers that round to infinity (above 3.389e38): the rest is infinite or NaN,
  and so are the results.

Such rows, columns and results are computed again by float32 multiply-adds
(:func:`multiply_adds_over_k`). Where that would be frequent, the caller gives powers of two that
rows and columns are multiplied by first.
"""

import triton
import triton.language as tl

from tritongemm.kernels.device.dot import dot, rounded

#: 2^-110: below, r may exceed 2^-24 |x|.
_SMALLEST = tl.constexpr(7.703719777548943e-34)
_LARGEST_FINITE = tl.constexpr(3.4028234663852886e38)
#: Products that the exact sum adds one after the other: a chain along all of K has a larger error
#: than cuBLAS's SGEMM, which splits K.
CHAIN = tl.constexpr(256)
#: Elements of K whose loads the exact sum has in flight at a time.
UNROLL = tl.constexpr(8)


@triton.jit
def smaller(least, x):
    """The smaller of ``least`` and the magnitude of ``x``, where that is not 0, elementwise, as
    unsigned integers: twice the bits of the magnitude, less 1. ``x`` must not be a product: ptxas
    12.9 takes twice the bits of x s for x times the float s 2.8e-45, whose bits are 2."""
    return tl.minimum(least, x.to(tl.uint32, bitcast=True) * 2 - 1)


@triton.jit
def too_small(least, scales):
    """Whether the numbers of which :func:`smaller` found the ``least`` are too small for parts,
    multiplied by ``scales``, if any. Where all are 0, half of ``least`` is NaN."""
    magnitude = (least >> 1).to(tl.float32, bitcast=True)
    if scales is not None:
        magnitude *= scales
    return magnitude < _SMALLEST


@triton.jit
def inverse_power(x):
    """1 / ``x`` for powers of two from 2^-126 to 2^126."""
    return ((254 << 23) - x.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def rounded_to_bf16(x, INTERPRETED: tl.constexpr):
    """``x`` rounded to bf16, as bf16 and as float32."""
    if INTERPRETED:
        part = x.to(tl.bfloat16)
        return part, part.to(tl.float32)
    else:
        # Two numbers an instruction; of what is needed as float32 too, Triton converts one.
        return tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $4, $3;\nshl.b32 $1, $0, 16;\nand.b32 $2, $0, 0xffff0000;",
            "=&r,=r,=r,f,f", [x], dtype=(tl.bfloat16, tl.float32), is_pure=True, pack=2)


@triton.jit
def parts_of(x, INTERPRETED: tl.constexpr):
    """(hi, mid, lo) of float32 ``x`` as bf16."""
    hi, value = rounded_to_bf16(x, INTERPRETED)
    rest = x - value
    mid, value = rounded_to_bf16(rest, INTERPRETED)
    return hi, mid, (rest - value).to(tl.bfloat16)


@triton.jit
def product_of_parts(x, y, TF32: tl.constexpr, INTERPRETED: tl.constexpr):
    """x @ y of float32 tiles by six products of their parts, the small ones first; or rounded."""
    sums = tl.zeros((x.shape[0], y.shape[1]), dtype=tl.float32)
    if TF32:
        return dot(rounded(x, "tf32", INTERPRETED), rounded(y, "tf32", INTERPRETED), sums, "tf32",
                   INTERPRETED)
    x_hi, x_mid, x_lo = parts_of(x, INTERPRETED)
    y_hi, y_mid, y_lo = parts_of(y, INTERPRETED)
    sums = dot(x_mid, y_mid, sums, "ieee", INTERPRETED)
    sums = dot(x_lo, y_hi, sums, "ieee", INTERPRETED)
    sums = dot(x_hi, y_lo, sums, "ieee", INTERPRETED)
    sums = dot(x_mid, y_hi, sums, "ieee", INTERPRETED)
    sums = dot(x_hi, y_mid, sums, "ieee", INTERPRETED)
    return dot(x_hi, y_hi, sums, "ieee", INTERPRETED)


@triton.jit
def tiles_at(a_ptrs, b_ptrs, ks, left, EVEN_K: tl.constexpr):
    """The tiles of A and B at a step of K in float32; 0 from ``left`` elements along K on."""
    if EVEN_K:
        x, y = tl.load(a_ptrs), tl.load(b_ptrs)
    else:
        x = tl.load(a_ptrs, mask=ks[None, :] < left, other=0.0)
        y = tl.load(b_ptrs, mask=ks[:, None] < left, other=0.0)
    return x.to(tl.float32), y


@triton.jit
def parts_over_k(a_rows, b_columns, a_scales, b_scales, first, last, K, stride_ak, stride_bk,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
                 EVEN_K: tl.constexpr, TF32: tl.constexpr, INTERPRETED: tl.constexpr):
    """The sum of A @ B over steps ``first`` to ``last`` of K for one tile, [BLOCK_M, BLOCK_N]
    float32, by products of parts, corrected where these cannot represent the operands. ``a_rows``
    [BLOCK_M], ``b_columns`` [BLOCK_N]: pointers to the first step; A may have 16 bits.
    ``a_scales`` [BLOCK_M], ``b_scales`` [BLOCK_N]: powers of two from 1 to 2^126 that rows and
    columns are multiplied by before they are split, and their sums divided by; or None, both. Only
    K is masked, and not with EVEN_K."""
    ks = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    least_a = tl.full((BLOCK_M, BLOCK_K), 0xFFFFFFFF, dtype=tl.uint32)
    least_b = tl.full((BLOCK_K, BLOCK_N), 0xFFFFFFFF, dtype=tl.uint32)
    x_ptrs = a_rows[:, None] + ks[None, :] * stride_ak
    y_ptrs = b_columns[None, :] + ks[:, None] * stride_bk
    for step in range(first, last):
        x, y = tiles_at(x_ptrs, y_ptrs, ks, K - step * BLOCK_K, EVEN_K)
        least_a, least_b = smaller(least_a, x), smaller(least_b, y)
        if a_scales is not None:
            x *= a_scales[:, None]
            y *= b_scales[None, :]
        acc += product_of_parts(x, y, TF32, INTERPRETED)
        x_ptrs += BLOCK_K * stride_ak
        y_ptrs += BLOCK_K * stride_bk
    small_a = too_small(tl.min(least_a, axis=1), a_scales)
    small_b = too_small(tl.min(least_b, axis=0), b_scales)
    inexact = small_a[:, None] | small_b[None, :] | ~(tl.abs(acc) <= _LARGEST_FINITE)
    if a_scales is not None:
        acc *= inverse_power(a_scales)[:, None]
        acc *= inverse_power(b_scales)[None, :]
    if tl.max(tl.max(inexact.to(tl.int32), axis=1), axis=0) > 0:
        exact = multiply_adds_over_k(a_rows, b_columns, first * BLOCK_K, min(last * BLOCK_K, K),
                                     stride_ak, stride_bk, BLOCK_M, BLOCK_N)
        acc = tl.where(inexact, exact, acc)
    return acc


@triton.jit
def multiply_adds(sums, a_rows, b_columns, k, end, stride_ak, stride_bk):
    """``sums`` plus the products of UNROLL elements from element ``k`` on, as far as they lie
    before ``end``. ``a_rows``, ``b_columns``: pointers to element ``k``.

    A function of its own, because Triton visits the body of a loop twice, first to find the values
    that the loop carries."""
    for i in tl.static_range(UNROLL):
        x = tl.load(a_rows + i * stride_ak, mask=k + i < end, other=0.0)
        y = tl.load(b_columns + i * stride_bk, mask=k + i < end, other=0.0)
        sums += x[:, None] * y[None, :]
    return sums


@triton.jit
def multiply_adds_over_k(a_rows, b_columns, begin, end, stride_ak, stride_bk, BLOCK_M: tl.constexpr,
                         BLOCK_N: tl.constexpr):
    """The sum over elements ``begin`` to ``end`` of K by float32 multiply-adds, in chains of CHAIN
    whose sums are added. ``a_rows`` [BLOCK_M], ``b_columns`` [BLOCK_N]: pointers to element
    ``begin``. Rarely needed, so it takes no shared memory and few registers rather than little
    time."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for chain in tl.range(begin, end, CHAIN, num_stages=1):
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in tl.range(chain, min(chain + CHAIN, end), UNROLL, num_stages=1):
            sums = multiply_adds(sums, a_rows, b_columns, k, end, stride_ak, stride_bk)
            a_rows += UNROLL * stride_ak
            b_columns += UNROLL * stride_bk
        acc += sums
    return acc
