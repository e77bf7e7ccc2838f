"""Checks results: the float64 reference, the error limit, and the comparison.

A complex result is checked as the real numbers that it consists of, each a sum of 2 K products.

The limit on the error, by maximum and (from 1,000 outputs on) by root mean square, is the
larger of

* twice torch's own error on the same operands in the same dtypes, and
* ``c * (eps + 2**-23 * sqrt(K)) * sqrt(K) * rms|a| * rms|b|``.

``sqrt(K) * rms|a| * rms|b|`` is the size of one output. ``eps`` is the spacing of the output's
dtype at 1: rounding an output once costs 0.2 eps of its size by RMS, and 0.5 eps of the largest
one, 5.5 times that size among 10**8 normal draws, by maximum: 2.8 eps. The second term is the
float32 accumulator: a chain of K additions drifts by 0.2 * 2**-23 * sqrt(K) of an output by
RMS, whatever the order of a correct kernel. With c = 0.5 by RMS and 4 by maximum a correct
kernel stays at 0.2 to 0.7 of the limit, while one product left out of K (1 / sqrt(K) by RMS)
exceeds the RMS limit of bf16 up to K = 60,000. A compute mode that multiplies coarser operands has
an ``eps`` of its own (``compute.py``): under ``tf32`` others may truncate both to 10 bits.

The first term is capped at 16 times the second, so that no result passes because torch or the
reference is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from tritongemm.compute import Compute, compute_of
from tritongemm.errors import NumericsError
from tritongemm.formats import format_of_dtype

#: Least number of outputs for which the RMS is checked in addition to the maximum.
RMS_FROM = 1000
_TRUST_IN_TORCH = 16.0
#: Elements converted to float64 in one step; bounds the scratch memory (512 MiB).
_CHUNK = 2**26


@dataclass(frozen=True)
class Limit:
    """The largest error allowed, absolute, by maximum and by RMS."""

    maximum: float
    rms: float


@dataclass(frozen=True)
class Error:
    """The error of a result against the reference.

    ``stray`` counts outputs that are NaN or infinite where the reference is not, or the reverse.
    """

    maximum: float
    rms: float
    outputs: int
    stray: int


@dataclass(frozen=True)
class ErrorReport:
    """Errors over their limits. ``ok``: the result passes; ``message``: the reason if it does not.
    """

    max_err_ratio: float
    rms_err_ratio: float
    ok: bool
    message: str = ""


def reference(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor | None = None) -> torch.Tensor:
    """``a[..., rows, :] @ b`` in float64 on the operands' device, with bounded scratch memory.

    Args:
        a: [M, K] or [batch, M, K].
        b: [K, N] or [batch, K, N].
        rows: indices of the rows of ``a`` to compute; all by default.

    Returns:
        float64 [R, N] or [batch, R, N]; of complex operands complex128.
    """
    wide = torch.complex128 if a.is_complex() else torch.float64
    if a.dim() == 3:
        out = a.new_empty((len(a), a.shape[1] if rows is None else len(rows), b.shape[2]),
                          dtype=wide)
        # Small matrices in one batch, large ones one by one.
        step = max(1, _CHUNK // max(1, a[0].numel() + b[0].numel()))
        for i in range(0, len(a), step):
            part = a[i:i + step] if rows is None else a[i:i + step, rows]
            if step > 1:
                torch.bmm(part.to(wide), b[i:i + step].to(wide), out=out[i:i + step])
            else:
                out[i] = reference(part[0], b[i])
        return out
    if rows is not None:
        a = a[rows]
    m, k = a.shape
    n = b.shape[1]
    out = a.new_empty((m, n), dtype=wide)
    step_n = max(1, _CHUNK // max(k, 1))
    step_m = max(1, _CHUNK // max(k, 1))
    for j in range(0, n, step_n):
        right = b[:, j:j + step_n].to(wide)
        for i in range(0, m, step_m):
            out[i:i + step_m, j:j + step_n] = a[i:i + step_m].to(wide) @ right
    return out


def poison(out: torch.Tensor) -> None:
    """Fills ``out`` with NaN, which fails every check."""
    out.fill_(math.nan)


def _parts(x: torch.Tensor) -> torch.Tensor:
    """``x`` as real numbers: a complex [..., N] as its parts, [..., 2 N]."""
    return torch.view_as_real(x.resolve_conj()).flatten(-2) if x.is_complex() else x


def output_size(a: torch.Tensor, b: torch.Tensor) -> float:
    """``sqrt(K) * rms|a| * rms|b|``: the size of one output of random operands, or of one part of
    it, where K counts the parts too."""
    k = a.shape[-1] * (2 if a.is_complex() else 1)
    if a.numel() == 0 or b.numel() == 0:
        return 0.0
    a, b = _parts(a), _parts(b)
    norms = torch.stack((torch.linalg.vector_norm(a, dtype=torch.float32),
                         torch.linalg.vector_norm(b, dtype=torch.float32))).tolist()
    return math.sqrt(k) * norms[0] / math.sqrt(a.numel()) * norms[1] / math.sqrt(b.numel())


def floor(dtype_out: torch.dtype, k: int, size: float, compute: Compute,
          addend: float = 0.0) -> Limit:
    """The error limit that does not depend on torch's result.

    Args:
        compute: how the operands are multiplied and summed.
        size: :func:`output_size`, times ``|alpha|`` where the product is scaled.
        addend: root mean square of what is added to the product (``beta * C``); it is rounded
            with the output but never accumulated.
    """
    eps = compute.eps or format_of_dtype(dtype_out).eps
    unit = compute.error_unit(eps, k) * size + eps * addend
    return Limit(compute.max_factor * unit, compute.rms_factor * unit)


def limit(lowest: Limit, torch_error: Error | None = None) -> Limit:
    """The larger of ``lowest`` and twice torch's own error (the latter up to 16 times)."""
    if torch_error is None:
        return lowest

    def larger(low: float, own: float) -> float:
        return max(low, min(2.0 * own, _TRUST_IN_TORCH * low))

    return Limit(larger(lowest.maximum, torch_error.maximum), larger(lowest.rms, torch_error.rms))


def rms(x: torch.Tensor) -> float:
    """Root mean square of the elements, 0 where there are none."""
    if not x.numel():
        return 0.0
    x = _parts(torch.atleast_1d(x))
    return torch.linalg.vector_norm(x, dtype=torch.float64).item() / math.sqrt(x.numel())


def error_of(out: torch.Tensor, ref: torch.Tensor, sign: float = 1.0,
             activation: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Error:
    """The error of ``out`` against ``sign * ref`` (same shape, float64), after the activation if
    there is one, which may make fewer columns of more. Synchronizes."""
    if out.shape[:-1] != ref.shape[:-1] or activation is None and out.shape != ref.shape:
        raise NumericsError(f"the result is {list(out.shape)}, the reference {list(ref.shape)}")
    if out.numel() == 0:
        return Error(0.0, 0.0, 0, 0)
    out, ref = _parts(out), _parts(ref)
    rows, refs = out.flatten(0, -2) if out.dim() > 2 else out, ref.reshape(-1, ref.shape[-1])
    step = max(1, _CHUNK // max(1, rows.shape[-1]))
    parts = []
    for i in range(0, len(rows), step):
        expected = refs[i:i + step] * sign
        parts.append(_compare(rows[i:i + step],
                              expected if activation is None else activation(expected)))
    table = torch.stack(parts).tolist()
    worst = max(row[0] for row in table)
    total = math.fsum(row[1] for row in table)
    return Error(worst, math.sqrt(total / out.numel()), out.numel(),
                 int(sum(row[2] for row in table)))


def _compare(out: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    """Largest error, sum of squares and stray count of one piece, as one float64 tensor [3]."""
    value = out.double()
    # A reference outside the output's range rounds to infinity; that is no error.
    rounded = ref.to(out.dtype).double()
    both = value.isfinite() & ref.isfinite()
    same = both | (value == rounded) | (value.isnan() & rounded.isnan())
    gap = torch.where(both, value - ref, 0.0).abs()
    return torch.stack((gap.max(), gap.square().sum(), (~same).sum().double()))


def judge(error: Error, allowed: Limit, what: str = "the result") -> ErrorReport:
    """Compares an error with its limit."""
    if error.outputs == 0:
        return ErrorReport(0.0, 0.0, True)
    if error.stray:
        return ErrorReport(math.inf, math.inf, False,
                           f"{what}: {error.stray} of {error.outputs} outputs are NaN or infinite "
                           "where the float64 reference is not (or the reverse)")
    by_max = _ratio(error.maximum, allowed.maximum)
    by_rms = _ratio(error.rms, allowed.rms)
    judged = [("largest", error.maximum, allowed.maximum, by_max)]
    if error.outputs >= RMS_FROM:
        judged.append(("RMS", error.rms, allowed.rms, by_rms))
    faults = [f"{name} error {value:.3g} exceeds {most:.3g}"
              for name, value, most, ratio in judged if not ratio <= 1.0]
    return ErrorReport(by_max, by_rms, not faults, f"{what}: {', '.join(faults)}" if faults else "")


def _ratio(error: float, allowed: float) -> float:
    if error == 0.0:
        return 0.0
    return error / allowed if allowed > 0.0 else math.inf


def check(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, ref: torch.Tensor,
          torch_out: torch.Tensor | None = None, *, precision: str = "ieee", alpha: float = 1.0,
          addend: torch.Tensor | None = None) -> ErrorReport:
    """Whether ``out`` is ``alpha * a @ b + addend`` to within the module's limit.

    Args:
        out: the result, [..., M, N].
        a, b: the operands it was made from.
        ref: what it should be, float64: :func:`reference` of them, scaled and added to.
        torch_out: torch's own result in the same dtypes, where there is one.
        precision: as of a problem.
        alpha: the product's factor.
        addend: what was added to the product, ``beta * C``.
    """
    added = 0.0 if addend is None else rms(addend)
    compute = compute_of(precision, format_of_dtype(a.dtype))
    lowest = floor(out.dtype, a.shape[-1], abs(alpha) * output_size(a, b), compute, added)
    own = None if torch_out is None else error_of(torch_out, ref)
    return judge(error_of(out, ref), limit(lowest, own))
