"""Small MLPs of reinforcement learning, bound by the host: an actor, and SAC's critics."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tritongemm.models.program import Made, Program, Sizes


def _mlp(widths: list[int]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for before, after in zip(widths, widths[1:]):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


def make_actor(sizes: Sizes) -> Made:
    """[batch, width] -> the same through ``layers`` linears."""
    model = _mlp([sizes["width"]] * (sizes["layers"] + 1))
    return Made(model, (torch.randn(sizes["batch"], sizes["width"]),))


class Critics(nn.Module):
    """(states, actions, values) -> the loss of two critics (Haarnoja et al., 2018)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = [sizes["state"] + sizes["action"], sizes["width"], sizes["width"], 1]
        self.critics = nn.ModuleList(_mlp(widths) for _ in range(2))

    def forward(self, states: Tensor, actions: Tensor, values: Tensor) -> Tensor:
        x = torch.cat((states, actions), -1)
        return torch.stack([(critic(x) - values).square().mean()
                            for critic in self.critics]).sum()


def make_critics(sizes: Sizes) -> Made:
    """Random states, actions and values."""
    batch = sizes["batch"]
    return Made(Critics(sizes), (torch.randn(batch, sizes["state"]),
                                 torch.rand(batch, sizes["action"]), torch.randn(batch, 1)))


PROGRAMS = (
    Program("mlp-actor", "eight linears of 256 in bf16, batch 64",
            dict(layers=8, width=256, batch=64), dict(layers=4, width=8, batch=3), make_actor),
    Program("sac-critics", "a step of SAC's two critics in float32, two hidden layers of 256, "
            "Humanoid (376 + 17 inputs), batch 256",
            dict(state=376, action=17, width=256, batch=256),
            dict(state=9, action=2, width=8, batch=4), make_critics, training=True, dtype="fp32"),
)
