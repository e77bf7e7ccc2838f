"""The product of two tiles, and its sum over the steps of K of a tile of C."""

import triton
import triton.language as tl


@triton.jit
def dot(x, y, acc, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """acc + x @ y in float32. Triton's interpreter holds bf16 as integers and would multiply those:
    there the operands are widened first, which is exact."""
    if INTERPRETED:
        x = x.to(tl.float32)
        y = y.to(tl.float32)
    return tl.dot(x, y, acc, input_precision=PRECISION)


@triton.jit
def rounded(x, PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """float32 ``x``, at ``tf32`` rounded to TF32: the tensor core would ignore the low bits, which
    makes each product smaller by 7e-4 on average. The interpreter multiplies float32 as it is."""
    if PRECISION == "tf32" and not INTERPRETED:
        return tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32,
                                         is_pure=True, pack=1)
    else:
        return x


@triton.jit
def dot_over_k(a_ptrs, b_ptrs, ks, first, last, K, stride_ak, stride_bk, BLOCK_M: tl.constexpr,
               BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
               PRECISION: tl.constexpr, INTERPRETED: tl.constexpr):
    """The sum of A @ B over steps ``first`` to ``last`` of K for one tile: [BLOCK_M, BLOCK_N]
    float32. ``a_ptrs`` [BLOCK_M, BLOCK_K] and ``b_ptrs`` [BLOCK_K, BLOCK_N] point to the first
    step; ``ks`` is 0 to BLOCK_K. Only K is masked, and not with EVEN_K."""
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(first, last):
        if EVEN_K:
            x = tl.load(a_ptrs)
            y = tl.load(b_ptrs)
        else:
            left = K - step * BLOCK_K
            x = tl.load(a_ptrs, mask=ks[None, :] < left, other=0.0)
            y = tl.load(b_ptrs, mask=ks[:, None] < left, other=0.0)
        acc = dot(rounded(x, PRECISION, INTERPRETED), rounded(y, PRECISION, INTERPRETED), acc,
                  PRECISION, INTERPRETED)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    return acc
