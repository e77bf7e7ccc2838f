"""The transformer blocks of Stable Diffusion 1.5's UNet: attention and linears at four widths.

Convolutions are left out: they do not call torch.matmul.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tritongemm.models.layers import Attention
from tritongemm.models.program import Made, Program, Sizes


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention to a text, a gated MLP (Rombach et al., 2022)."""

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.own = Attention(width, heads, bias=False)
        self.cross = Attention(width, heads, context=context, bias=False)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """x: [batch, pixels, width]; text: [batch, words, context]."""
        x = x + self.own(self.norms[0](x))
        x = x + self.cross(self.norms[1](x), text)
        y, gate = self.up(self.norms[2](x)).chunk(2, -1)
        return x + self.down(y * functional.gelu(gate))


class Blocks(nn.Module):
    """The blocks of the UNet's down and up path, with the widths and pixels of its latents."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = [sizes["width"] * factor for factor in (1, 2, 4, 4)]
        levels = [0, 0, 1, 1, 2, 2, 3, 2, 2, 2, 1, 1, 1, 0, 0, 0]
        self.levels = levels
        self.blocks = nn.ModuleList(TransformerBlock(widths[i], sizes["heads"], sizes["context"])
                                    for i in levels)

    def forward(self, text: Tensor, *latents: Tensor) -> tuple[Tensor, ...]:
        """latents: [batch, pixels / 4^i, width_i], a level each -> the same."""
        states = list(latents)
        for level, block in zip(self.levels, self.blocks):
            states[level] = block(states[level], text)
        return tuple(states)


def make(sizes: Sizes) -> Made:
    """Random latents of each level and a random text."""
    pixels = sizes["side"] ** 2
    latents = (torch.randn(sizes["batch"], pixels // 4**i, sizes["width"] * factor)
               for i, factor in enumerate((1, 2, 4, 4)))
    return Made(Blocks(sizes), (torch.randn(sizes["batch"], sizes["words"], sizes["context"]),
                                *latents))


PROGRAMS = (Program(
    "sd15-unet", "the 16 transformer blocks of Stable Diffusion 1.5's UNet, 2 latents of 64 x 64",
    dict(width=320, heads=8, context=768, words=77, side=64, batch=2),
    dict(width=8, heads=2, context=12, words=5, side=8, batch=2), make),)
