"""The two MLPs of DLRM as MLPerf trains it: batch 65,536, a width of 479 and an output of 1."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tritongemm.models.program import Made, Program, Sizes


def _mlp(widths: list[int]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in zip(widths, widths[1:]):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class Recommender(nn.Module):
    """(features [batch, dense], embeddings [batch, tables, width], clicks [batch]) -> the loss."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, tables = sizes["width"], sizes["tables"]
        self.bottom = _mlp([sizes["dense"], 4 * width, 2 * width, width])
        # Dot products of each pair of vectors, and the dense one: 26 tables of 128 make 479.
        pairs = (tables + 1) * tables // 2
        top = sizes["top"]
        self.top = _mlp([pairs + width, top, top, top // 2, top // 4, 1])
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, features: Tensor, embeddings: Tensor, clicks: Tensor) -> Tensor:
        x = self.bottom(features)
        vectors = torch.cat((x[:, None], embeddings.to(x.dtype)), 1)
        dots = torch.bmm(vectors, vectors.mT)[:, self.pairs[0], self.pairs[1]]
        logits = self.top(torch.cat((x, dots), 1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logits.to(clicks.dtype), clicks)


def make(sizes: Sizes) -> Made:
    """Random features, embeddings and clicks. The embedding look-up is left out: it is not a matrix
    product."""
    batch = sizes["batch"]
    return Made(Recommender(sizes), (
        torch.randn(batch, sizes["dense"]),
        0.1 * torch.randn(batch, sizes["tables"], sizes["width"]),
        torch.randint(2, (batch,)).float()))


PROGRAMS = (Program(
    "dlrm-mlp", "the MLPs of DLRM (MLPerf training), bf16 autocast, batch 65,536",
    dict(dense=13, width=128, tables=26, top=1024, batch=65_536),
    dict(dense=13, width=4, tables=3, top=16, batch=32), make, training=True, dtype="fp32",
    autocast=True),)
