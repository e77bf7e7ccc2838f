"""What a result may be off from float64: the limits of ``measure/numerics.py``, and where those of
normal numbers do not hold, the bound of each element's own terms and the errors of float32 sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from tritongemm.compute import Compute, compute_of, precision_for
from tritongemm.formats import FORMATS, format_of_dtype
from tritongemm.measure.numerics import RMS_FROM, floor, rms
from tritongemm.ops.calls import NAMES
from tritongemm.ops.formulas import multiplied

from .case import Case, View
from .functions import FUNCTIONS, gate_of, keywords
from .memory import World, dtype_of

#: Terms of a sum, and times its limit that the error of a longer one may be, up to which each
#: element is judged by its own terms.
_SHORT_SUM, _MOST_EXCESS = 64, 4.0
#: Compute modes that are held to the error of float32 sums, and the terms that their tensor cores
#: add before a sum goes to registers.
_AS_FLOAT32, _TRUNCATED = ("ieee", "fp16x3"), 64
#: Times the standard error of a chain of additions that an element may be off, and all by RMS; and
#: times the error that a chain has.
_MOST_ERRORS, _RMS_ERRORS, _ALLOWANCE = 8.0, 1.8, 2.5


class Wrong(Exception):
    """The case failed; the message says how."""


def truth_of(case: Case, world: World) -> tuple[tuple[torch.Tensor, ...], list, list[int]]:
    """The result and the gradients in float64, the limits on their errors
    (``measure/numerics.py``), and how many terms an element of each sums."""
    function = FUNCTIONS[case.function]
    # Where no gradient is wanted, a real bias of complex operands becomes complex: torch may not
    # add it as it is.
    all_complex = any(x.is_complex() for x in world.operands) and not any(case.gradients)
    wide = [x.to(torch.complex128 if all_complex or x.is_complex() else torch.float64)
            for x in world.operands]
    if any(case.gradients):
        wide = [x.requires_grad_() if wanted else x for x, wanted in zip(wide, case.gradients)]
    result = function.plain(*wide, **keywords(case))
    found = (result, *gradients_of(wide, case, result))
    a, b = (_size(x) for x in wide[-2:])
    parts = 2 if result.is_complex() else 1
    k = parts * wide[-2].shape[-1]
    alpha = _finite(case.alpha) if function.adds else 1.0
    beta = _finite(case.beta) if function.adds else 1.0
    added = sum(abs(beta) * _size(x) for x in wide[:-2])
    if case.function == "mulmm":
        alpha, added = _largest_factor(case, wide[0].detach()), 0.0
    if case.function == "gated":
        alpha = _gate_factor(case, wide)
        added = added * alpha + _size(result)
    compute, written = compute_and_dtype(case, world)

    def allowed(terms: int, size: float, addend: float = 0.0, dtype: torch.dtype = written):
        return floor(dtype, max(terms, 1), math.sqrt(max(terms, 1)) * size, compute,
                     addend)

    limits, of_terms = [allowed(k, abs(alpha) * a * b, added)], [k]
    if any(case.gradients):
        grad = _size(cotangent(case, result).double())
        work = wide[-2].shape[-1] * result.numel() * parts * (1 + (case.function == "gated"))
        sizes = {len(wide) - 2: (work, abs(alpha) * grad * b), len(wide) - 1: (
            work, abs(alpha) * grad * a)}
        along = alpha if case.function == "gated" else beta
        sizes.update((i, (result.numel() * parts, abs(along) * grad))
                     for i in range(len(wide) - 2))
        # The gradient of an activation depends on its argument, whose error is that of a result
        # before it is rounded, in units of the gradient's rounding; an element's gradient sums so
        # many of them.
        bent = 0.0
        if case.activation not in ("none", "relu"):
            argument = abs(alpha) * math.sqrt(max(k, 1)) * a * b
            chain = 2.0**-23 * math.sqrt(max(k, 1)) / torch.finfo(written).eps
            bent = argument * (1.0 + chain) + added
        for i, x in enumerate(wide):
            if x.requires_grad:
                total, size = sizes[i]
                terms = total // max(x.numel(), 1)
                of_terms.append(terms)
                limits.append(allowed(terms, size, size * bent * math.sqrt(max(terms, 1)),
                                      dtype=world.operands[i].dtype))
    return found, limits, of_terms


def compute_and_dtype(case: Case, world: World) -> tuple[Compute, torch.dtype]:
    """How the operands are multiplied, and the dtype of the result."""
    read = written = world.operands[-1].dtype
    if case.out is not None and case.out.dtype:
        written = dtype_of(case.out.dtype)
    if read not in NAMES:
        raise Wrong(f"no kernel takes {read}, and the result has other bits than torch's")
    operand = FORMATS[NAMES[read]]
    return compute_of(precision_for(case.precision, operand), operand), written


def gradients_of(leaves, case: Case, result: torch.Tensor) -> tuple[torch.Tensor, ...]:
    wanted = [x for x in leaves if x.requires_grad]
    if not wanted:
        return ()
    return torch.autograd.grad(result, wanted, cotangent(case, result), allow_unused=True)


def cotangent(case: Case, result: torch.Tensor) -> torch.Tensor:
    """What is propagated back: equal for every dtype that has it rounded."""
    generator = torch.Generator().manual_seed(case.values + 7)
    dtype = dtype_of(case.dtype)
    drawn = torch.randn(result.shape, generator=generator,
                        dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    return drawn.to(result.device, result.dtype)


def _largest_factor(case: Case, d: torch.Tensor) -> float:
    """The most that ``mulmm`` multiplies by. A derivative, a sum of terms of about 1, has an
    absolute error where it is nearly 0."""
    factor = multiplied(torch.ones_like(d), d, case.activation).abs().nan_to_num(0.0, 0.0)
    least = 0.0 if case.activation == "none" else 0.5
    return max(float(factor.amax()), least) if factor.numel() else 1.0


def _gate_factor(case: Case, wide: list[torch.Tensor]) -> float:
    """The most that an error of the product becomes larger by the gate, whose slope is below 1.2.
    """
    x, weight = (t.detach() for t in wide[-2:])
    bias = wide[0].detach() if len(wide) == 3 else None
    total = torch.nn.functional.linear(x, weight, bias).nan_to_num(0.0, 0.0, 0.0)
    gate, up = gate_of(total, case.interleaved)
    return float(1.2 * up.abs().amax() + gate.abs().amax()) if total.numel() else 1.0


def _size(x: torch.Tensor) -> float:
    """Root mean square of what is finite."""
    return rms(x.detach().nan_to_num(0.0, 0.0, 0.0))


def _finite(factor: float) -> float:
    return float(factor) if math.isfinite(factor) else 1.0


def within_bound(case: Case, world: World, i: int, found: torch.Tensor, truth: torch.Tensor,
                 terms: int, excess: float) -> bool:
    """Whether each element of result ``i``, whose largest or RMS error is ``excess`` times its
    limit, is within the rounding of its own terms: the bound of a compute mode on |C - exact|, and
    the rounding of C, both times |A| |B|.

    The limits assume outputs with a normal distribution and independent errors. The outputs of a
    short sum have larger extremes. Under TF32 equal values of a factor are rounded alike, and their
    errors add up.
    """
    function, (compute, written) = FUNCTIONS[case.function], compute_and_dtype(case, world)
    leaf = [n for n, wanted in enumerate(case.gradients) if wanted][i - 1] if i else None
    factors = [n for n in (len(case.operands) - 2, len(case.operands) - 1) if n != leaf]
    # relu has a slope of 0 or 1, of one sign each; other slopes depend on what has an error.
    bent = case.activation != "none" and (case.function, case.activation) != ("linear", "relu")
    if leaf is not None and (len(factors) == 2 or bent):
        return False
    repeated = _repeated([case.operands[n] for n in factors])
    alike = compute.eps and excess <= _MOST_EXCESS and repeated
    if case.function == "mulmm" and case.activation != "none":
        return False  # its limit has the largest derivative, and so allows for its extremes
    # The bound of a long gated sum would let nearly anything pass.
    if (case.distribution == "normal" and terms > _SHORT_SUM
            and (not alike or case.function == "gated")):
        return False
    wide = [x.detach().to(truth.dtype).abs() for x in world.operands]
    # Of positive arguments relu is none, which a gate must have.
    words = keywords(replace(case, alpha=abs(_finite(case.alpha)), beta=abs(_finite(case.beta)),
                             activation="relu" if case.function == "gated" else "none"))
    if leaf is None:
        size = function.plain(*wide, **words)
    else:
        written = world.operands[leaf].dtype
        result = function.plain(*(x.requires_grad_(n == leaf) for n, x in enumerate(wide)), **words)
        back = cotangent(case, result.to(truth.dtype)).abs()
        if case.activation == "relu":
            back *= function.plain(*(x.detach().to(truth.dtype) for x in world.operands),
                                   **keywords(case)) > 0
        size, = torch.autograd.grad(result, wide[leaf], back)
    bound = compute.bound(terms)
    if case.function == "gated":  # a product of two
        bound *= 2.0 + bound
    # What is subnormal has an absolute error.
    allowed = (bound + format_of_dtype(written).eps) * size + (terms + 1) * 2.0**-149
    if case.activation not in ("none", "relu"):
        allowed = allowed * 1.2  # the steepest slope
    if truth.is_complex():
        allowed = allowed * math.sqrt(2.0)  # of both parts together
    gap = (found.detach().to(truth.dtype) - truth.detach()).abs()
    # Where one is not finite, error_of has compared them.
    finite = truth.isfinite() & found.isfinite()
    if not bool(((gap <= allowed) | ~finite).all()):
        return False
    if case.distribution == "normal" or compute.name not in _AS_FLOAT32 or repeated:
        return True
    share = torch.where(finite, (gap - (terms + 1) * 2.0**-149).clamp_min(0.0) / size, 0.0)
    step = compute.bound(_TRUNCATED) + format_of_dtype(written).eps
    return _as_float32_sums(share.nan_to_num(0.0), terms, step, world.operands[-2:],
                            case.function == "linear")


def _repeated(views: Sequence[View]) -> bool:
    """Whether values occur several times, so that errors are alike."""
    return any(v.shares >= 0 or any(n > 1 and s == 0 for n, s in zip(v.shape, v.stride))
               for v in views)


def _as_float32_sums(share: torch.Tensor, terms: int, step: float,
                     factors: Sequence[torch.Tensor], transposed: bool) -> bool:
    """Whether errors of a product's elements, as shares of |A| |B|, are those of float32 sums: by
    maximum, and by RMS where there are enough. ``step``: the bound of what a tensor core adds up
    before it rounds. ``transposed``: the second factor is [N, K].

    An addition is off by at most 2^-24 of its result, which is at most |A| |B|. Were these errors
    independent, a chain of K additions would have a standard error of 2^-24 sqrt(K / 3) of |A| |B|
    at most (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci.
    Comput. 41(5), 2019). The chain's own RMS error is 0.74 of that and less, so 1.8 of it is the
    allowance of 2.5 times SGEMM's error; 8 of it no element exceeds. Tensor cores, which truncate,
    add ``step``, or a quarter of it by RMS.

    Errors are not independent where terms of one sign differ widely or change slowly (log-normal
    and Hilbert-like numbers): small ones are lost, all alike. So 2.5 times the error of one chain
    in the order of K, computed here, is allowed too. Kernels add in that order, in one or more
    chains.

    SGEMM's measured error is no such limit: of few elements it may be 0 by chance, its chains are
    shorter than those of configs that a case may draw, and where terms cancel it is far below any
    other order's (docs/accuracy.md).
    """
    error = 2.0**-24 * math.sqrt(terms / 3.0)
    most, typical = float(share.max()) if share.numel() else 0.0, rms(share)

    def within(chain_most: float, chain_rms: float) -> bool:
        if most > step + max(_MOST_ERRORS * error, _ALLOWANCE * chain_most):
            return False
        return share.numel() < RMS_FROM or typical <= step / 4.0 + max(
            _RMS_ERRORS * error, _ALLOWANCE * chain_rms)

    return within(0.0, 0.0) or within(*chain_error(*factors, transposed))


def chain_error(a: torch.Tensor, b: torch.Tensor, transposed: bool) -> tuple[float, float]:
    """(largest, RMS) error over |A| |B| of float32 sums in the order of K. ``transposed``: B is
    [..., N, K]."""
    a, b = (x.detach().float().nan_to_num(0.0, 0.0, 0.0) for x in (a, b))
    a = a[None] if a.dim() == 1 else a
    b = b[:, None] if b.dim() == 1 else b.mT if transposed else b
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    sums = torch.zeros_like(exact, dtype=torch.float32)
    for k in range(a.shape[-1]):
        sums.addcmul_(a[..., k:k + 1], b[..., k:k + 1, :])
    share = ((sums - exact).abs() / size).nan_to_num(0.0, posinf=0.0)
    return float(share.max()), rms(share)
