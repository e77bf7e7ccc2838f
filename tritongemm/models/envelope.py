"""Limits on the difference from torch: of outputs by a float64 reference, of losses by torch's two
libraries.

As in ``perf/train_gpt2.py``, the limits are multiples of torch's own errors. An output's error may
be twice that of torch's less accurate library (cuBLAS or cuBLASLt). A loss may differ by twice the
largest difference between the two libraries so far. A floor applies if the two happen to agree, or
if there is only one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LIMIT = 2.0
#: Floors, relative to the loss. bf16: perf/train_gpt2.py allows 0.005 at a loss of 10.8. float32:
#: AdamW normalises gradients, so that rounding changes weights by up to the learning rate.
LOSS_FLOOR = {"bf16": 5e-4, "fp32": 2e-5}


@dataclass(frozen=True)
class Verdict:
    """Errors divided by their limits; a ratio of at most 1 passes. ``alike``: the ranks of a
    program on several GPUs found the same bits, or torch's did not either."""

    largest: float
    rms: float | None = None
    reason: str = ""
    alike: bool = True

    @property
    def ok(self) -> bool:
        """Whether all ratios pass; NaN does not pass."""
        return self.alike and self.largest <= 1 and (self.rms is None or self.rms <= 1)


def rounding(dtype: str, precision: str) -> float:
    """The unit roundoff of a result: that of bf16, TF32 (10 bits) or float32."""
    if dtype == "bf16":
        return torch.finfo(torch.bfloat16).eps
    return 2.0**-10 if precision == "tf32" else torch.finfo(torch.float32).eps


def of_outputs(ours: Sequence[Tensor], theirs: Sequence[Sequence[Tensor]],
               reference: Sequence[Tensor], eps: float) -> Verdict:
    """Judges output tensors by their largest and their RMS error, both relative to the reference's
    RMS. The floors are ``eps`` times the reference's largest and RMS value."""
    size = _rms(reference)
    peak = max(float(x.abs().max()) for x in reference) / size
    found = _errors(ours, reference, size)
    allowed = [_errors(one, reference, size) for one in theirs]
    largest = _share(found[0], LIMIT * max(eps * peak, *(x for x, _ in allowed)))
    rms = _share(found[1], LIMIT * max(eps, *(x for _, x in allowed)))
    verdict = Verdict(largest, rms)
    if verdict.ok:
        return verdict
    return Verdict(largest, rms, f"the largest error is {largest:.3g} of its limit, the RMS "
                                 f"{rms:.3g} (errors {found[0]:.3g} and {found[1]:.3g} of the "
                                 "reference's RMS)")


def of_losses(ours: Sequence[float], theirs: Sequence[Sequence[float]],
              floor: float) -> Verdict:
    """Judges the losses of the steps against those of ``theirs[0]``."""
    first = theirs[0]
    apart = [max((abs(other[i] - first[i]) for other in theirs[1:]), default=0.0)
             for i in range(len(first))]
    bounds = [LIMIT * max(so_far, floor * abs(loss))
              for so_far, loss in zip(itertools.accumulate(apart, max), first)]
    shares = [_share(abs(a - b), bound) for a, b, bound in zip(ours, first, bounds)]
    worst = max(range(len(shares)), key=shares.__getitem__)
    if shares[worst] <= 1:
        return Verdict(shares[worst])
    return Verdict(shares[worst], None, f"step {worst}: the loss {ours[worst]:.6g} is not within "
                                        f"{bounds[worst]:.3g} of torch's {first[worst]:.6g}")


def _share(found: float, allowed: float) -> float:
    """found / allowed; infinite if either is NaN."""
    if not (math.isfinite(found) and math.isfinite(allowed)):
        return math.inf
    return found / allowed if allowed > 0 else (0.0 if found == 0 else math.inf)


def _rms(tensors: Sequence[Tensor]) -> float:
    total = sum(float(x.double().square().sum()) for x in tensors)
    return math.sqrt(total / sum(x.numel() for x in tensors))


def _errors(found: Sequence[Tensor], reference: Sequence[Tensor],
            size: float) -> tuple[float, float]:
    """(largest, RMS) of the difference, divided by ``size``; NaN is kept."""
    apart = [x.double() - y for x, y in zip(found, reference)]
    largest = [float(x.abs().max()) for x in apart]
    if any(map(math.isnan, largest)):
        return math.nan, math.nan
    return max(largest) / size, _rms(apart) / size
