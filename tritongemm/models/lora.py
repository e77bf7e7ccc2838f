"""A LoRA fine-tuning step of four layers of Llama 3 8B: frozen weights, adapters of rank 16."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tritongemm.models.llama import LLAMA_8B, TINY, layers
from tritongemm.models.program import Made, Program, Sizes


class Adapted(nn.Module):
    """A frozen linear layer plus a trained low-rank one (Hu et al., 2021)."""

    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.a = nn.Linear(frozen.in_features, rank, bias=False)
        self.b = nn.Linear(rank, frozen.out_features, bias=False)
        nn.init.normal_(self.b.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.b(self.a(x))


class FineTuned(nn.Module):
    """(states, targets) [batch, length, width] -> the mean square of the difference."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = layers(sizes).requires_grad_(False)
        for layer in self.layers:
            for name in ("q", "k", "v", "out"):
                linear = getattr(layer.attention, name)
                setattr(layer.attention, name, Adapted(linear, sizes["rank"]))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return (self.layers(x) - target).square().mean()


def make(sizes: Sizes) -> Made:
    """Random activations and targets."""
    shape = sizes["batch"], sizes["length"], sizes["width"]
    return Made(FineTuned(sizes), (torch.randn(shape), torch.randn(shape)))


PROGRAMS = (Program(
    "lora-llama-8b", "LoRA step of 4 layers of Llama 3 8B, rank 16 on q, k, v and o, 2048 tokens",
    dict(LLAMA_8B, batch=1, length=2048, past=0, rank=16),
    dict(TINY, batch=1, length=5, past=0, rank=3), make, training=True),)
