"""Four MLPs of Llama 3 70B, tensor parallel on two or four GPUs: the gate and up projections split
by columns, the down projection by rows, and a sum over the ranks behind it (Shoeybi et al., 2019).
By local tensors and a collective, and by DTensor's ``parallelize_module``."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from tritongemm.models.layers import GatedMLP
from tritongemm.models.program import Made, Program, Sizes


class ParallelMLP(nn.Module):
    """[rows, width] -> the same; each rank holds its part of the hidden width."""

    def __init__(self, sizes: Sizes, ranks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GatedMLP(sizes["width"], sizes["hidden"] // ranks)
                                    for _ in range(sizes["layers"]))
        self.norms = nn.ModuleList(nn.RMSNorm(sizes["width"], eps=1e-5)
                                   for _ in range(sizes["layers"]))

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers):
            x = x + self._summed(layer(norm(x)))
        return x

    def _summed(self, part: Tensor) -> Tensor:
        from torch.distributed import _functional_collectives as collectives

        return collectives.wait_tensor(collectives.all_reduce(
            part, "sum", torch.distributed.group.WORLD))


class DTensorMLP(ParallelMLP):
    """The same with whole weights, which ``parallelize_module`` splits; RowwiseParallel sums."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes, 1)

    def _summed(self, part: Tensor) -> Tensor:
        return part


def make(sizes: Sizes, ranks: int) -> Made:
    """This rank's part, and activations that all ranks share."""
    x = torch.randn(sizes["rows"], sizes["width"])
    if torch.distributed.is_initialized():  # weights differ from rank to rank
        torch.manual_seed(torch.initial_seed() + torch.distributed.get_rank())
    return Made(ParallelMLP(sizes, ranks), (x,))


def make_dtensor(sizes: Sizes, ranks: int) -> Made:
    """Weights that are DTensors, and activations that all ranks share."""
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    x = torch.randn(sizes["rows"], sizes["width"])
    model = DTensorMLP(sizes)
    mesh = init_device_mesh(x.device.type, (ranks,))
    for layer in model.layers:
        parallelize_module(layer, mesh, {"gate": ColwiseParallel(), "up": ColwiseParallel(),
                                         "down": RowwiseParallel()})
    return Made(model, (x,))


_SIZES = dict(layers=4, width=8192, hidden=28_672, rows=2048)
_TINY = dict(layers=2, width=16, hidden=24, rows=6)

PROGRAMS = tuple(
    Program(f"tensor-parallel-{name}" + ("" if ranks == 2 else f"-{ranks}"),
            f"4 MLPs of Llama 3 70B on {ranks} GPUs, 2048 tokens, {how}", _SIZES, _TINY,
            partial(function, ranks=ranks), modes=("eager", "compiled"), ranks=ranks)
    for ranks in (2, 4)
    for name, how, function in (("mlp", "local tensors", make),
                                ("dtensor", "DTensors", make_dtensor)))
