"""Layers that several programs share: attention, encoder layers, Llama layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[batch, length, heads * d] -> [batch, heads, length, d]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merged(x: Tensor) -> Tensor:
    """[batch, heads, length, d] -> [batch, length, heads * d]."""
    return x.transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Multi-head attention, with queries of ``width`` and keys and values of ``context``.

    Args:
        bias: whether all four projections have a bias.
    """

    def __init__(self, width: int, heads: int, *, context: int | None = None, bias: bool = True,
                 causal: bool = False) -> None:
        super().__init__()
        context = width if context is None else context
        self.heads, self.causal = heads, causal
        self.q = nn.Linear(width, width, bias=bias)
        self.k = nn.Linear(context, width, bias=bias)
        self.v = nn.Linear(context, width, bias=bias)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """x: [batch, length, width]; context: [batch, other length, context's width]."""
        context = x if context is None else context
        q, k, v = (heads_of(y, self.heads) for y in (self.q(x), self.k(context), self.v(context)))
        return self.out(merged(functional.scaled_dot_product_attention(
            q, k, v, is_causal=self.causal)))


class EncoderLayer(nn.Module):
    """Attention and a two-layer MLP with gelu. ``norm_first``: as in GPT-2, ViT and Whisper; else
    as in BERT."""

    def __init__(self, width: int, heads: int, hidden: int, *, norm_first: bool = True,
                 causal: bool = False, approximate: str = "none") -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=causal)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.norm_first, self.approximate = norm_first, approximate

    def _mlp(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate=self.approximate))

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, length, width]."""
        if self.norm_first:
            x = x + self.attention(self.norm_1(x))
            return x + self._mlp(self.norm_2(x))
        x = self.norm_1(x + self.attention(x))
        return self.norm_2(x + self._mlp(x))


def rotary(positions: Tensor, size: int, base: float = 500_000.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, size] of rotary embeddings (Su et al., RoFormer, 2021); the
    base is Llama 3's."""
    frequencies = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = positions.double()[:, None] * frequencies
    angles = torch.cat((angles, angles), -1)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [batch, heads, length, size]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class GroupedAttention(nn.Module):
    """Llama's attention: no biases, rotary embeddings, fewer heads of keys than of queries.

    Args:
        past: tokens in the KV cache. Each forward writes one more token to the same position, so
            that every step does the same work.
    """

    def __init__(self, width: int, heads: int, groups: int, size: int, *, length: int,
                 past: int = 0, batch: int = 0) -> None:
        super().__init__()
        self.heads, self.groups, self.past = heads, groups, past
        self.q = nn.Linear(width, heads * size, bias=False)
        self.k = nn.Linear(width, groups * size, bias=False)
        self.v = nn.Linear(width, groups * size, bias=False)
        self.out = nn.Linear(heads * size, width, bias=False)
        cos, sin = rotary(torch.arange(past, past + length), size)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        if past:
            for name in ("keys", "values"):
                self.register_buffer(name, torch.randn(batch, groups, past + length, size))

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, length, width]."""
        q = rotate(heads_of(self.q(x), self.heads), self.cos, self.sin)
        k = rotate(heads_of(self.k(x), self.groups), self.cos, self.sin)
        v = heads_of(self.v(x), self.groups)
        if self.past:
            self.keys[:, :, self.past:] = k
            self.values[:, :, self.past:] = v
            k, v = self.keys, self.values
        attended = functional.scaled_dot_product_attention(
            q, k, v, is_causal=not self.past, enable_gqa=self.heads != self.groups)
        return self.out(merged(attended))


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., width]."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class DecoderLayer(nn.Module):
    """A layer of Llama: attention and ``mlp``, each after an RMS norm and with a residual
    connection."""

    def __init__(self, width: int, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, length, width]."""
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))
