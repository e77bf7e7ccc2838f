"""Training of four MLPs of Llama 3 8B under FSDP2 (``fully_shard``) on two or four GPUs: a layer's
weights are gathered before its products, while those of the layer before still run."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from tritongemm.models.layers import GatedMLP
from tritongemm.models.program import Made, Program, Sizes


class ShardedMLP(nn.Module):
    """[rows, width] -> the mean square of the output, as the loss."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layers = nn.ModuleList(GatedMLP(sizes["width"], sizes["hidden"])
                                    for _ in range(sizes["layers"]))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(nn.functional.rms_norm(x, x.shape[-1:]))
        return x.float().square().mean()


def make(sizes: Sizes, ranks: int) -> Made:
    """The sharded model, and activations that all ranks share, so that their losses can be
    compared."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import init_device_mesh

    x = torch.randn(sizes["rows"], sizes["width"])
    model = ShardedMLP(sizes)
    mesh = init_device_mesh(x.device.type, (ranks,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return Made(fully_shard(model, mesh=mesh), (x,))


PROGRAMS = tuple(
    Program("fsdp-mlp" + ("" if ranks == 2 else f"-{ranks}"),
            f"training of 4 MLPs of Llama 3 8B, FSDP2 on {ranks} GPUs, 4096 tokens each",
            dict(layers=4, width=4096, hidden=14_336, rows=4096),
            dict(layers=2, width=16, hidden=24, rows=6), partial(make, ranks=ranks), training=True,
            modes=("eager",), ranks=ranks) for ranks in (2, 4))
