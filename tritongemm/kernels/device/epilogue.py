"""The epilogue: activation(alpha * product + beta * D), or alpha * product * f(D), in float32, and
the loads of D.

One copy for ``tl`` and Gluon kernels: the Gluon functions are made from the same source. ADDEND is
``none``, ``scale`` (alpha alone), or what D is: ``columns`` or ``rows`` (a vector, the same for
every row or every column) or ``tile``.
"""

import triton
import triton.language as tl
from triton import knobs
from triton.experimental import gluon

#: The interpreter has no inline assembly.
_INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def pointers_to_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn,
                  ADDEND: tl.constexpr):
    """Pointers to D at ``rows`` and ``cols``, and the mask of those inside. ``batch`` is 64-bit;
    rows and cols are where D's offsets need it."""
    if ADDEND == "columns":
        return d + batch * stride_db + cols * stride_dn, cols < N
    elif ADDEND == "rows":
        return d + batch * stride_db + rows * stride_dm, rows < M
    else:
        return (d + batch * stride_db + (rows[:, None] * stride_dm + cols[None, :] * stride_dn),
                (rows[:, None] < M) & (cols[None, :] < N))


@triton.jit
def load_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn, ADDEND: tl.constexpr):
    """D at ``rows`` and ``cols``, with one side of length 1 where D is a vector; 0 where there is
    none."""
    if ADDEND == "none" or ADDEND == "scale":
        return 0.0
    else:
        ptrs, inside = pointers_to_d(d, batch, rows, cols, M, N, stride_db, stride_dm, stride_dn,
                                     ADDEND)
        value = tl.load(ptrs, mask=inside, other=0.0)
        if ADDEND == "columns":
            return value[None, :]
        elif ADDEND == "rows":
            return value[:, None]
        else:
            return value


@triton.jit
def exp2(x):
    """2 ** x, to 2 units in the last place; 0 below 2 ** -126. ``tl.exp2`` scales its argument and
    its result by powers of two for smaller results: three instructions more."""
    if _INTERPRETED:
        return tl.exp2(x)
    else:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=r,r", [x],
                                         dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def reciprocal(x):
    """1 / x, to 1 unit in the last place, for x from 1 on; 0 from 2 ** 126 on. A division tests
    for denominators out of range: six instructions more."""
    if _INTERPRETED:
        return 1.0 / x
    else:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [x],
                                         dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def normal_cdf(x):
    """(1 + erf(x / sqrt(2))) / 2 for float32, to 6e-8, without the library's branches.

    Phi(-|x|) = 2 ** (-1 + |x| Q(|x|)), Q of degree 7: a fit to 0..6.5 that weighs each error by
    its effect on x Phi(x). Beyond, its negative leading coefficient drives the power to 0.
    """
    z = tl.abs(x)
    q = -2.1560315e-06 * z + 3.1458232e-05
    q = q * z - 1.4977886e-04
    q = q * z - 2.2117310e-04
    q = q * z + 7.1672783e-03
    q = q * z - 5.2562345e-02
    q = q * z - 4.5918903e-01
    q = q * z - 1.1511070
    tail = exp2(q * z - 1.0)
    return tl.where(x < 0.0, tail, 1.0 - tail)


@triton.jit
def logistic(x):
    """(s(x), 1 - s(x)) by one exponential and one division, whose rate is a quarter of that of
    other instructions or less. Neither is a difference, which would lose what is left near 0."""
    smaller = exp2(-1.4426950408889634 * tl.abs(x))
    larger = reciprocal(1.0 + smaller)
    smaller *= larger
    return tl.where(x < 0.0, smaller, larger), tl.where(x < 0.0, larger, smaller)


@triton.jit
def finish(acc, value, alpha, beta, ADDEND: tl.constexpr, ACTIVATION: tl.constexpr):
    """activation(alpha * acc + beta * value) for a float32 ``acc`` and a ``value`` of D; where
    ACTIVATION is ``mul`` or a derivative, alpha * acc * f(value)."""
    if ACTIVATION == "mul":
        return alpha * acc * value.to(tl.float32)
    elif (ACTIVATION == "drelu" or ACTIVATION == "dgelu" or ACTIVATION == "dgelu_tanh"
          or ACTIVATION == "dsilu"):
        return alpha * times_derivative(acc, value.to(tl.float32), ACTIVATION)
    else:
        return activate(linear_part(acc, value, alpha, beta, ADDEND), ACTIVATION)


@triton.jit
def times_derivative(acc, x, DERIVATIVE: tl.constexpr):
    """``acc`` times an activation's derivative at ``x``, both float32."""
    if DERIVATIVE == "drelu":  # as torch: NaN passes the gradient, and 0 times infinity is 0
        return tl.where(x <= 0.0, 0.0, acc)
    elif DERIVATIVE == "dgelu":  # Phi(x) + x phi(x)
        return acc * (normal_cdf(x) + 0.3989422804014327 * x * exp2(-0.7213475204444817 * x * x))
    elif DERIVATIVE == "dgelu_tanh":
        # Of x s(u): s (1 + (1 - s) x u'), u as in `activate`.
        # x u' must not overflow where 1 - s has long been 0 or 1.
        u = 1.5957691216057308 * (x + 0.044715 * x * x * x)
        z = tl.minimum(tl.maximum(x, -1e4), 1e4)
        slope = z * (1.5957691216057308 + 0.2140644488178 * z * z)
        s, rest = logistic(u)
        return acc * (s * (1.0 + slope * rest))
    else:  # of x s(x): s (1 + x (1 - s))
        tl.static_assert(DERIVATIVE == "dsilu", "a derivative without a formula")
        s, rest = logistic(x)
        return acc * (s * (1.0 + x * rest))


@triton.jit
def linear_part(acc, value, alpha, beta, ADDEND: tl.constexpr):
    """alpha * acc + beta * value, as far as there is a D."""
    if ADDEND == "scale":
        acc = alpha * acc
    elif ADDEND != "none":
        acc = alpha * acc + beta * value.to(tl.float32)
    return acc


@triton.jit
def activate(acc, ACTIVATION: tl.constexpr):
    """The activation of a float32 ``acc``.

    The logistic function stands for tanh: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)), which loses
    nothing where tanh is near -1. NaN stays NaN.
    """
    if ACTIVATION == "relu":
        acc = tl.maximum(acc, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "gelu":
        acc = acc * normal_cdf(acc)
    elif ACTIVATION == "gelu_tanh":
        # 2 sqrt(2 / pi) (x + 0.044715 x^3), Hendrycks and Gimpel, arXiv 1606.08415.
        acc = acc * reciprocal(1.0 + exp2(-2.302208198 * (acc + 0.044715 * acc * acc * acc)))
    elif ACTIVATION == "silu":
        acc = acc * reciprocal(1.0 + exp2(-1.4426950408889634 * acc))
    else:
        tl.static_assert(ACTIVATION == "none", "an activation without a formula")
    return acc


@triton.jit
def finish_residual(acc, value, bias, alpha, beta, ACTIVATION: tl.constexpr, EXTRA: tl.constexpr):
    """activation(alpha * acc + bias) + beta * value; without a bias where EXTRA is ``none``."""
    acc = alpha * acc
    if EXTRA != "none":
        acc += bias.to(tl.float32)
    return activate(acc, ACTIVATION) + beta * value.to(tl.float32)


@triton.jit
def left_and_right(x):
    """The left and the right half of the columns of a tile."""
    return x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1).split()


gluon_load_d, gluon_finish = gluon.jit(load_d.fn), gluon.jit(finish.fn)
gluon_pointers_to_d = gluon.jit(pointers_to_d.fn)
gluon_linear_part, gluon_activate = gluon.jit(linear_part.fn), gluon.jit(activate.fn)
gluon_finish_residual = gluon.jit(finish_residual.fn)
