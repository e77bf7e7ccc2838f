"""BERT-base in float32: forward at full precision and in TF32, and a step of fine-tuning."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tritongemm.models.layers import EncoderLayer
from tritongemm.models.program import Made, Program, Sizes


class BERT(nn.Module):
    """tokens [batch, length] -> hidden states [batch, length, width]."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes["width"]
        self.words = nn.Embedding(sizes["vocabulary"], width)
        self.positions = nn.Embedding(sizes["length"], width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(
            EncoderLayer(width, sizes["heads"], 4 * width, norm_first=False)
            for _ in range(sizes["layers"])))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.norm(self.words(tokens) + self.positions.weight))


class SpanLoss(nn.Module):
    """tokens [batch, length], spans [batch, 2] -> the loss of finding where each span begins and
    ends, as in fine-tuning on SQuAD."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.bert, self.ends = BERT(sizes), nn.Linear(sizes["width"], 2)

    def forward(self, tokens: Tensor, spans: Tensor) -> Tensor:
        return functional.cross_entropy(self.ends(self.bert(tokens)), spans)


def make(sizes: Sizes) -> Made:
    """Random tokens."""
    return Made(BERT(sizes), (_tokens(sizes),))


def make_training(sizes: Sizes) -> Made:
    """Random tokens and random spans."""
    return Made(SpanLoss(sizes), (_tokens(sizes),
                                  torch.randint(sizes["length"], (sizes["batch"], 2))))


def _tokens(sizes: Sizes) -> Tensor:
    return torch.randint(sizes["vocabulary"], (sizes["batch"], sizes["length"]))


#: Devlin et al., 2018. 384 is the length of its fine-tuning on SQuAD.
_BERT = dict(layers=12, width=768, heads=12, vocabulary=30_522)
_SHORT = dict(_BERT, batch=32, length=128)
_LONG = dict(_BERT, batch=16, length=384)
_TINY = dict(layers=2, width=16, heads=2, vocabulary=50, batch=2, length=6)
_PRECISIONS = {"fp32": ("ieee", "float32"), "tf32": ("tf32", "TF32")}
PROGRAMS = tuple(
    Program(f"bert-base-{part}{name}",
            f"BERT-base {what}, batch {sizes['batch']} x {sizes['length']} tokens, {text}",
            sizes, _TINY, make_training if training else make, training=training, dtype="fp32",
            precision=precision)
    for part, what, sizes, training in (("", "forward", _SHORT, False),
                                        ("384-", "forward", _LONG, False),
                                        ("train-", "fine-tuning", _LONG, True))
    for name, (precision, text) in _PRECISIONS.items())
