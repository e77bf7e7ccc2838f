"""Which rows of a float32 operand fp16 parts cannot represent: what the split pass
(``kernels/device/split_fp32.py``, which derives the rule) decides on the GPU, by torch, so that
``explain`` can tell without a product."""

from __future__ import annotations

import torch

#: Elements that are looked at together: of a few float32 copies.
_BLOCK = 2**24


def flagged(x: torch.Tensor, parts: int) -> torch.Tensor:
    """Whether the guard computes the rows of ``x`` [..., rows, K]: bool [..., rows].

    Args:
        x: an operand, its rows along K; any real dtype that a split product reads.
        parts: fp16 parts of an element, 2, or 1 under TF32.
    """
    k = x.shape[-1]
    rows = x.detach().reshape(-1, k)
    step = max(1, _BLOCK // max(k, 1))
    found = [_flagged(block.float(), parts) for block in rows.split(step)]
    return torch.cat(found).view(x.shape[:-1]) if found else rows.new_zeros(
        x.shape[:-1], dtype=torch.bool)


def _flagged(x: torch.Tensor, parts: int) -> torch.Tensor:
    size = x.abs()
    largest = size.amax(-1)
    bits = largest.view(torch.int32)
    exponent = torch.where(bits == 0, 0, (141 - (bits >> 23)).clamp(-113, 114))
    scaled = x * ((exponent + 127) << 23).view(torch.float32)[:, None]
    error = scaled - scaled.half().float()
    if parts == 2:
        error = error * 2048.0
        error = error - error.half().float()
    error, scaled = error.abs(), scaled.abs()
    power = (scaled.view(torch.int32) & 0x7F800000).view(torch.float32)
    loss = torch.where(error > scaled * 2.0**-11, error / power, 0.0)
    loss = (loss + 256.0) - 256.0
    loss = torch.where((scaled < 1e-30) & (x != 0), 1e6, loss).sum(-1, dtype=torch.float64)
    large = (scaled >= 4.0).sum(-1)
    allowed = torch.where(64 * large >= x.shape[-1], large * (31 * 2.0**-17), 0.0)
    if parts == 1:
        allowed = allowed.clamp(max=31 * 2.0**-8)
    return ~largest.isfinite() | (loss > allowed) | ((largest != 0) & (largest < 2.0**-100))
