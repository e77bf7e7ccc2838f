"""Four layers of SigLIP so400m, a vision transformer: forward of 8 images of 384 x 384."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tritongemm.models.layers import EncoderLayer
from tritongemm.models.program import Made, Program, Sizes


class Vision(nn.Module):
    """images [batch, 3, side, side] -> tokens [batch, (side // patch)^2, width]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, sizes["width"], sizes["patch"], stride=sizes["patch"])
        self.positions = nn.Parameter(
            0.02 * torch.randn((sizes["side"] // sizes["patch"]) ** 2, sizes["width"]))
        self.layers = nn.Sequential(*(
            EncoderLayer(sizes["width"], sizes["heads"], sizes["hidden"], approximate="tanh")
            for _ in range(sizes["layers"])))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(self.patches(images).flatten(2).mT + self.positions)


def make(sizes: Sizes) -> Made:
    """Random images."""
    return Made(Vision(sizes), (torch.randn(sizes["batch"], 3, sizes["side"], sizes["side"]),))


PROGRAMS = (Program(
    "siglip-so400m", "4 layers of SigLIP so400m/14, 8 images of 384 (Zhai et al., 2023)",
    dict(layers=4, width=1152, heads=16, hidden=4304, patch=14, side=384, batch=8),
    dict(layers=2, width=16, heads=2, hidden=24, patch=4, side=13, batch=2), make),)
