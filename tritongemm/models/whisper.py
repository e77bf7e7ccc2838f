"""Four layers of Whisper large-v3's encoder: forward of 4 x 30 seconds, 1,500 frames each."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tritongemm.models.layers import EncoderLayer
from tritongemm.models.program import Made, Program, Sizes


class Encoder(nn.Module):
    """spectrograms [batch, mels, 2 * frames] -> [batch, frames, width]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.first = nn.Conv1d(sizes["mels"], width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.positions = nn.Parameter(0.02 * torch.randn(sizes["frames"], width))
        self.layers = nn.Sequential(*(EncoderLayer(width, sizes["heads"], 4 * width)
                                      for _ in range(sizes["layers"])))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.gelu(self.second(functional.gelu(self.first(x))))
        return self.norm(self.layers(x.mT + self.positions))


def make(sizes: Sizes) -> Made:
    """Random spectrograms."""
    return Made(Encoder(sizes),
                (torch.randn(sizes["batch"], sizes["mels"], 2 * sizes["frames"]),))


PROGRAMS = (Program(
    "whisper-encoder", "4 encoder layers of Whisper large-v3, batch 4 x 1500 frames (Radford et "
    "al., 2022)", dict(layers=4, width=1280, heads=20, mels=128, frames=1500, batch=4),
    dict(layers=2, width=16, heads=2, mels=8, frames=7, batch=2), make),)
