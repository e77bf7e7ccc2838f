"""Autocast as torch applies it to these functions: the same lists, dtype and eligibility.

torch casts in its dispatcher, which a kernel launched here bypasses. torch caches the casts of leaf
tensors; this module does not, because nothing derived from operands may outlive a call.
"""

from __future__ import annotations

import torch

#: Functions that run in autocast's dtype, by device (torch's lower_precision_fp lists). `dot` is
#: only promoted, which products of one dtype do not need; calls with ``out=`` are never cast.
_LOWERED = {
    "cuda": frozenset(("matmul", "mm", "bmm", "mv", "addmm", "baddbmm", "linear")),
    "cpu": frozenset(("matmul", "mm", "bmm", "addmm", "baddbmm", "linear")),
}


def cast(name: str, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """``tensors`` as torch's autocast passes them to function ``name``; differentiable."""
    kind = tensors[0].device.type
    if name not in _LOWERED.get(kind, ()) or not torch.is_autocast_enabled(kind):
        return tensors
    return tuple(x.to(_lowered(x)) if x.device.type == kind else x for x in tensors)


def dtype_within(name: str, x: torch.Tensor) -> torch.dtype:
    """The dtype in which function ``name`` gets ``x`` as its first tensor."""
    kind = x.device.type
    lowers = name in _LOWERED.get(kind, ()) and torch.is_autocast_enabled(kind)
    return _lowered(x) if lowers else x.dtype


def _lowered(x: torch.Tensor) -> torch.dtype:
    """Autocast's dtype where it casts tensors such as ``x``, else its own."""
    eligible = x.is_floating_point() and x.dtype is not torch.float64
    return torch.get_autocast_dtype(x.device.type) if eligible else x.dtype
