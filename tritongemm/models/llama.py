"""Four layers of Llama 3 8B: prefill of one or several prompts, and decode with a cache."""

from __future__ import annotations

import torch
from torch import nn

from tritongemm.models.layers import DecoderLayer, GatedMLP, GroupedAttention
from tritongemm.models.program import Made, Program, Sizes


def layers(sizes: Sizes) -> nn.Sequential:
    """[batch, length, width] -> the same."""
    return nn.Sequential(*(DecoderLayer(
        sizes["width"],
        GroupedAttention(sizes["width"], sizes["heads"], sizes["groups"], sizes["size"],
                         length=sizes["length"], past=sizes["past"], batch=sizes["batch"]),
        GatedMLP(sizes["width"], sizes["hidden"])) for _ in range(sizes["layers"])))


def make(sizes: Sizes) -> Made:
    """The layers, and activations of unit variance."""
    return Made(layers(sizes), (torch.randn(sizes["batch"], sizes["length"], sizes["width"]),))


#: Llama 3 8B (Grattafiori et al., 2024).
LLAMA_8B = dict(layers=4, width=4096, heads=32, groups=8, size=128, hidden=14_336)
TINY = dict(layers=2, width=16, heads=4, groups=2, size=4, hidden=24)
#: Tokens in the cache of a decode step.
PAST = 1024


def _prefill(batch: int, length: int) -> Program:
    what = f"{batch} x {length}" if batch > 1 else f"{length}"
    return Program(
        f"llama-8b-prefill-{what.replace(' ', '')}", f"4 layers of Llama 3 8B, prefill of {what} "
        "tokens", dict(LLAMA_8B, batch=batch, length=length, past=0),
        dict(TINY, batch=min(batch, 2), length=5, past=0), make)


def _decode(batch: int) -> Program:
    return Program(
        f"llama-8b-decode-{batch}", f"4 layers of Llama 3 8B, decode of {batch} sequences, "
        f"{PAST} tokens in the cache", dict(LLAMA_8B, batch=batch, length=1, past=PAST),
        dict(TINY, batch=min(batch, 3), length=1, past=3), make)


PROGRAMS = (_prefill(1, 2048), _prefill(1, 333), _prefill(4, 1000),
            _decode(1), _decode(16), _decode(64))
