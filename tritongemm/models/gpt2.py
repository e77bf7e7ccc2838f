"""GPT-2 (124 million parameters), a training step, with its own and with a padded vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tritongemm.models.layers import EncoderLayer
from tritongemm.models.program import Made, Program, Sizes


class GPT2(nn.Module):
    """tokens [batch, length + 1] -> the loss of predicting each from those before it."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.words = nn.Embedding(sizes["vocabulary"], width)
        self.positions = nn.Embedding(sizes["length"], width)
        self.layers = nn.Sequential(*(
            EncoderLayer(width, sizes["heads"], 4 * width, causal=True, approximate="tanh")
            for _ in range(sizes["layers"])))
        self.norm = nn.LayerNorm(width)
        for table in (self.words, self.positions):
            nn.init.normal_(table.weight, std=0.02)  # as GPT-2: small logits

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens[:, :-1]) + self.positions.weight
        logits = functional.linear(self.norm(self.layers(x)), self.words.weight)
        return functional.cross_entropy(logits.flatten(0, 1).to(self.norm.weight.dtype),
                                        tokens[:, 1:].flatten())


def make(sizes: Sizes) -> Made:
    """Random tokens of 40 words, so that the loss falls."""
    return Made(GPT2(sizes), (torch.randint(40, (sizes["batch"], sizes["length"] + 1)),))


def _program(vocabulary: int, why: str) -> Program:
    return Program(
        f"gpt2-train-{vocabulary}", f"GPT-2 124M training, bf16 autocast, vocabulary {why}",
        dict(layers=12, width=768, heads=12, vocabulary=vocabulary, length=1024, batch=8),
        dict(layers=2, width=16, heads=2, vocabulary=vocabulary % 50_000, length=12, batch=2),
        make, training=True, dtype="fp32", autocast=True)


PROGRAMS = (_program(50_257, "as published (Radford et al., 2019)"),
            _program(50_304, "padded to a multiple of 64, as nanoGPT trains it"))
