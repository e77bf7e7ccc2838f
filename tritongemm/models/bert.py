"""BERT-base in float32, forward: at full precision and in TF32."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tritongemm.models.layers import EncoderLayer
from tritongemm.models.program import Made, Program, Sizes


class BERT(nn.Module):
    """tokens [batch, length] -> hidden states [batch, length, width]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.words = nn.Embedding(sizes["vocabulary"], width)
        self.positions = nn.Embedding(sizes["length"], width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(
            EncoderLayer(width, sizes["heads"], 4 * width, norm_first=False)
            for _ in range(sizes["layers"])))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.norm(self.words(tokens) + self.positions.weight))


def make(sizes: Sizes) -> Made:
    """Random tokens."""
    return Made(BERT(sizes), (torch.randint(sizes["vocabulary"],
                                            (sizes["batch"], sizes["length"])),))


#: Devlin et al., 2018.
_BERT = dict(layers=12, width=768, heads=12, vocabulary=30_522, batch=32, length=128)
_TINY = dict(layers=2, width=16, heads=2, vocabulary=50, batch=2, length=6)
PROGRAMS = tuple(
    Program(f"bert-base-{name}", f"BERT-base forward, batch 32 x 128 tokens, {text}", _BERT, _TINY,
            make, dtype="fp32", precision=precision)
    for name, precision, text in (("fp32", "ieee", "float32"), ("tf32", "tf32", "TF32")))
