"""Trains the networks that correct the selection's model (``selection/network.py``).

AdamW over mini-batches, one cycle of the learning rate (Smith and Topin, Super-Convergence,
arXiv:1708.07120), Huber's loss, timings far behind their problem's best weighing less. The same
timings, torch, processor and number of threads give the same network. Chosen by leaving out a fifth
of 2,281 problems (perf/results/nvidia-h200/exploratory/learned.txt): one network chooses at 0.981
of the best, the mean of three at 0.984 to 0.985; half the rounds, 0.981.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tritongemm.records.calibration import Layer, Member, NetworkRecord
from tritongemm.selection.network import normed

if TYPE_CHECKING:
    import torch

#: Fewer timings than this teach nothing but themselves.
LEAST = 1000
_MEMBERS, _HIDDEN, _ROUNDS, _BATCH = 3, 128, 120, 1024
_RATE, _DECAY = 5e-3, 5e-2
#: A timing e times the best's counts exp(-this).
_BEHIND = 2.0
#: An input that hardly moves teaches nothing of what it does: by this scale it says nothing.
_CONSTANT, _UNSEEN = 1e-3, 1e6
#: Beyond this, as a logarithm, a miss counts by its size and not by its square.
_HUBER = 0.1


def train(names: tuple[str, ...], inputs: np.ndarray, misses: np.ndarray,
          behind: np.ndarray) -> NetworkRecord | None:
    """The networks for ``misses``, the logarithms of measured over predicted time; None for fewer
    than :data:`LEAST`.

    Args:
        names: of the inputs.
        inputs: [timings, inputs], as ``selection.inputs`` makes them.
        behind: logarithm of each time over its problem's best.
    """
    if len(misses) < LEAST:
        return None
    spread = inputs.std(0, dtype=np.float64)
    mean, scale = (np.array([float(f"{x:.5g}") for x in found]) for found in (
        inputs.mean(0, np.float64), np.where(spread < _CONSTANT, _UNSEEN, spread)))
    at = normed(inputs, mean, scale).astype(np.float32)
    weights = np.exp(-_BEHIND * behind).astype(np.float32)
    members = tuple(_member(at, misses.astype(np.float32), weights, seed)
                    for seed in range(_MEMBERS))
    return NetworkRecord(names, tuple(mean.tolist()), tuple(scale.tolist()), members)


def _member(inputs: np.ndarray, misses: np.ndarray, weights: np.ndarray, seed: int) -> Member:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        layers = [nn.Linear(inputs.shape[1], _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN),
                  nn.Linear(_HIDDEN, 1)]
        network = nn.Sequential(layers[0], nn.SiLU(), layers[1], nn.SiLU(), layers[2])
        batches = math.ceil(len(misses) / _BATCH)
        optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=_DECAY)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE,
                                                   total_steps=batches * _ROUNDS)
        x, y, w = map(torch.from_numpy, (inputs, misses, weights))
        for _ in range(_ROUNDS):
            for rows in torch.randperm(len(misses)).split(_BATCH):
                loss = nn.functional.huber_loss(network(x[rows])[:, 0], y[rows], delta=_HUBER,
                                                reduction="none")
                optimizer.zero_grad()
                (loss @ w[rows] / w[rows].sum()).backward()
                optimizer.step()
                rate.step()
    return tuple(Layer(_halves(layer.weight.T), _halves(layer.bias)) for layer in layers)


def _halves(values: torch.Tensor) -> tuple[float, ...]:
    """In the precision that the file keeps."""
    return tuple(values.detach().half().flatten().tolist())
