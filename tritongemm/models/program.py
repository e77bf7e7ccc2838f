"""Definition of a program: its sizes, fixed before any measurement, and a function that builds
it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Sizes = Mapping[str, int]
#: How a program runs: as written; its forward through ``torch.compile``; the same with the graph
#: pass of :mod:`tritongemm.inductor`; its whole step captured into a CUDA graph.
MODES = ("eager", "compiled", "fused", "graph")


@dataclass(frozen=True)
class Made:
    """A program built from its sizes, on torch's default device in float32.

    Attributes:
        model: its forward takes ``inputs`` and returns the output, or the loss of a training.
        inputs: one set of inputs, the same for every provider; floating-point ones are cast to the
            program's dtype.
    """

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Program:
    """A program of published widths and sequence lengths.

    Attributes:
        name: name of the program in CSV rows.
        what: the model, and where its sizes are published.
        sizes: widths, layers, sequence length and batch.
        tiny: the same keys with small values, for the CPU.
        make: sizes -> the module with random weights, and its inputs. The caller seeds torch's
            generator.
        training: a step is forward, backward and AdamW; else forward without gradients.
        dtype: dtype of weights and inputs: ``bf16`` or ``fp32``.
        autocast: forward runs in bf16 autocast over float32 weights.
        precision: precision of float32 products: ``ieee`` or ``tf32``.
        modes: the modes of :data:`MODES` that it supports.
        ranks: number of GPUs, with one process each.
    """

    name: str
    what: str
    sizes: Sizes
    tiny: Sizes
    make: Callable[[Sizes], Made]
    training: bool = False
    dtype: str = "bf16"
    autocast: bool = False
    precision: str = "ieee"
    modes: tuple[str, ...] = MODES
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.sizes.keys() != self.tiny.keys():
            raise ValueError(f"{self.name}: sizes and tiny sizes name different things: "
                             f"{sorted(self.sizes.keys() ^ self.tiny.keys())}")
