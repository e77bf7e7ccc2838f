"""Four layers of Qwen3-30B-A3B: a mixture of 128 experts, of which each token uses 8.

Two ways of running the experts: a loop over them, as transformers does, whose sizes depend on the
data; and padded batches of a fixed capacity (Lepikhin et al., GShard, 2020), which can be captured.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tritongemm.models.layers import DecoderLayer, GroupedAttention
from tritongemm.models.program import MODES, Made, Program, Sizes


class Experts(nn.Module):
    """[batch, length, width] -> the same, through ``chosen`` of ``experts`` gated MLPs.

    Args:
        capacity: most tokens of an expert; 0: no limit, experts run in a loop.
    """

    def __init__(self, width: int, hidden: int, experts: int, chosen: int,
                 capacity: int = 0) -> None:
        super().__init__()
        self.chosen, self.capacity = chosen, capacity
        self.router = nn.Linear(width, experts, bias=False)
        self.gate_up = nn.Parameter(torch.randn(experts, width, 2 * hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def _mlp(self, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        gate, up = (x @ gate_up).chunk(2, -1)
        return (functional.silu(gate) * up) @ down

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        weights, experts = self.router(rows).softmax(-1).topk(self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        run = self._padded if self.capacity else self._looped
        return run(rows, weights, experts).view_as(x)

    def _looped(self, rows: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        result = torch.zeros_like(rows)
        for e in range(len(self.gate_up)):
            token, place = torch.where(experts == e)
            if len(token):
                y = self._mlp(rows[token], self.gate_up[e], self.down[e])
                result.index_add_(0, token, y * weights[token, place, None])
        return result

    def _padded(self, rows: Tensor, weights: Tensor, experts: Tensor) -> Tensor:
        count = len(self.gate_up)
        flat = experts.flatten()
        order = flat.argsort(stable=True)
        ordered = flat[order]
        # Position of each token among those of its expert; tokens beyond the capacity are dropped.
        first = torch.searchsorted(ordered, torch.arange(count, device=rows.device))
        place = torch.arange(len(flat), device=rows.device) - first[ordered]
        fits = place < self.capacity
        slot = torch.where(fits, ordered * self.capacity + place, count * self.capacity)
        token = order // self.chosen
        padded = rows.new_zeros(count * self.capacity + 1, rows.shape[1])
        padded = padded.index_copy(0, slot, rows[token])
        y = self._mlp(padded[:-1].view(count, self.capacity, -1), self.gate_up, self.down)
        y = torch.cat((y.flatten(0, 1), rows.new_zeros(1, rows.shape[1])))[slot]
        back = torch.empty_like(order).index_copy(
            0, order, torch.arange(len(order), device=rows.device))
        return (y[back].unflatten(0, (-1, self.chosen)) * weights[..., None]).sum(1)


def make(sizes: Sizes) -> Made:
    """The layers, and activations of unit variance."""
    model = nn.Sequential(*(DecoderLayer(
        sizes["width"],
        GroupedAttention(sizes["width"], sizes["heads"], sizes["groups"], sizes["size"],
                         length=sizes["length"]),
        Experts(sizes["width"], sizes["hidden"], sizes["experts"], sizes["chosen"],
                sizes["capacity"])) for _ in range(sizes["layers"])))
    return Made(model, (torch.randn(sizes["batch"], sizes["length"], sizes["width"]),))


#: Qwen3-30B-A3B (Yang et al., Qwen3 technical report, 2025, and its configuration file).
_QWEN = dict(layers=4, width=2048, heads=32, groups=4, size=128, hidden=768, experts=128, chosen=8,
             batch=1, length=2048)
_TINY = dict(layers=2, width=16, heads=4, groups=2, size=4, hidden=12, experts=4, chosen=2,
             batch=1, length=8)
_WHAT = "4 layers of Qwen3-30B-A3B, prefill of 2048 tokens, experts "
PROGRAMS = (
    Program("qwen3-moe-loop", _WHAT + "in a loop", dict(_QWEN, capacity=0),
            dict(_TINY, capacity=0), make, modes=("eager",)),
    # 2048 tokens x 8 / 128 experts = 128 on average; capacity factor 1.25.
    Program("qwen3-moe-padded", _WHAT + "padded to 160 tokens", dict(_QWEN, capacity=160),
            dict(_TINY, capacity=5), make, modes=MODES),
)
