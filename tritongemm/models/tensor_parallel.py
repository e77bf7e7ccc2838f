"""Four MLPs of Llama 3 70B, tensor parallel on two GPUs: the gate and up projections split by
columns, the down projection by rows, and a sum over the ranks behind it (Shoeybi et al., 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives

from tritongemm.models.layers import GatedMLP
from tritongemm.models.program import Made, Program, Sizes

RANKS = 2


class ParallelMLP(nn.Module):
    """[rows, width] -> the same; each rank holds its part of the hidden width."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GatedMLP(sizes["width"], sizes["hidden"] // RANKS)
                                    for _ in range(sizes["layers"]))
        self.norms = nn.ModuleList(nn.RMSNorm(sizes["width"], eps=1e-5)
                                   for _ in range(sizes["layers"]))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers):
            part = layer(norm(x))
            x = x + collectives.wait_tensor(collectives.all_reduce(
                part, "sum", torch.distributed.group.WORLD))
        return x


def make(sizes: Sizes) -> Made:
    """This rank's part, and activations that all ranks share."""
    x = torch.randn(sizes["rows"], sizes["width"])
    if torch.distributed.is_initialized():  # weights differ from rank to rank
        torch.manual_seed(torch.initial_seed() + torch.distributed.get_rank())
    return Made(ParallelMLP(sizes), (x,))


PROGRAMS = (Program(
    "tensor-parallel-mlp", "4 MLPs of Llama 3 70B on two GPUs, 2048 tokens",
    dict(layers=4, width=8192, hidden=28_672, rows=2048),
    dict(layers=2, width=16, hidden=24, rows=6), make, modes=("eager", "compiled"), ranks=RANKS),)
