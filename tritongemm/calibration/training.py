"""Trains the networks that correct the selection's model (``selection/network.py``).

AdamW over mini-batches, one cycle of the learning rate (Smith and Topin, Super-Convergence,
arXiv:1708.07120), Huber loss, less weight for timings far behind their problem's best. The same
timings, torch and processor give the same network. Training uses one thread: several would
synchronise in every step, which is slow on busy cores. The number of networks and rounds was chosen
by holding out a fifth of 2,281 problems (perf/results/nvidia-h200/exploratory/learned.txt): one
network's choices reach 0.981 of the best speed, the mean of three 0.984 to 0.985; with half the
rounds 0.981.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tritongemm.records.calibration import Layer, Member, NetworkRecord
from tritongemm.selection.network import normed

if TYPE_CHECKING:
    import torch

#: Least number of timings for a network; fewer only lead to overfitting.
LEAST = 1000
_MEMBERS, _BATCH, _RATE = 3, 1024, 5e-3
#: A timing of e times the best has the weight exp(-_BEHIND).
_BEHIND = 2.0
#: An input with a standard deviation below _CONSTANT is divided by _UNSEEN, so that it has no
#: effect.
_CONSTANT, _UNSEEN = 1e-3, 1e6
#: Threshold of the Huber loss: larger errors, as logarithms, count linearly.
_HUBER = 0.1


class Size(NamedTuple):
    """Size of a network and its training: units of each hidden layer, epochs, and weight decay."""

    hidden: int
    rounds: int
    decay: float


#: Size of the networks that correct the model.
CORRECTION = Size(hidden=128, rounds=120, decay=5e-2)


def train(names: tuple[str, ...], inputs: np.ndarray, misses: np.ndarray, behind: np.ndarray,
          size: Size = CORRECTION, alike: np.ndarray | None = None) -> NetworkRecord | None:
    """Trains networks on ``misses``, which are log(measured / predicted time); None for fewer than
    :data:`LEAST` timings.

    Args:
        names: names of the inputs.
        inputs: [timings, inputs], as ``selection.inputs`` computes them.
        behind: log(time / best time of its problem) of each timing.
        alike: the group number of each timing, if ``misses`` are known only up to a constant of
            their group; differences within a group are then learned. None: ``misses`` are learned
            as they are.
    """
    if len(misses) < LEAST:
        return None
    spread = inputs.std(0, dtype=np.float64)
    mean, scale = (np.array([float(f"{x:.5g}") for x in found]) for found in (
        inputs.mean(0, np.float64), np.where(spread < _CONSTANT, _UNSEEN, spread)))
    at = normed(inputs, mean, scale).astype(np.float32)
    weights = np.exp(-_BEHIND * behind).astype(np.float32)
    members = tuple(_member(at, misses.astype(np.float32), weights, seed, size, alike)
                    for seed in range(_MEMBERS))
    return NetworkRecord(names, tuple(mean.tolist()), tuple(scale.tolist()), members)


def _member(inputs: np.ndarray, misses: np.ndarray, weights: np.ndarray, seed: int, size: Size,
            alike: np.ndarray | None) -> Member:
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=()), _one_thread():
        torch.manual_seed(seed)
        layers = [nn.Linear(inputs.shape[1], size.hidden), nn.Linear(size.hidden, size.hidden),
                  nn.Linear(size.hidden, 1)]
        network = nn.Sequential(layers[0], nn.SiLU(), layers[1], nn.SiLU(), layers[2])
        batches = _Batches(len(misses), alike)
        optimizer = torch.optim.AdamW(network.parameters(), lr=_RATE, weight_decay=size.decay)
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE,
                                                   total_steps=len(batches) * size.rounds)
        x, y, w = map(torch.from_numpy, (inputs, misses, weights))
        for _ in range(size.rounds):
            for rows in batches:
                miss = batches.about_their_mean(network(x[rows])[:, 0] - y[rows], rows)
                loss = nn.functional.huber_loss(miss, torch.zeros_like(miss), delta=_HUBER,
                                                reduction="none")
                optimizer.zero_grad()
                (loss @ w[rows] / w[rows].sum()).backward()
                optimizer.step()
                rate.step()
    return tuple(Layer(_halves(layer.weight.T), _halves(layer.bias)) for layer in layers)


@contextmanager
def _one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class _Batches:
    """Mini-batches of rows in a new random order each time; rows of one group stay together."""

    def __init__(self, count: int, alike: np.ndarray | None) -> None:
        import torch

        self._of = None if alike is None else torch.from_numpy(alike)
        self._parts = None
        self._units, self._size = count, _BATCH
        if self._of is not None:
            self._seen = torch.bincount(self._of)
            self._parts = torch.argsort(self._of, stable=True).split(self._seen.tolist())
            self._units = len(self._parts)
            self._size = max(1, _BATCH * self._units // count)

    def __len__(self) -> int:
        return math.ceil(self._units / self._size)

    def __iter__(self) -> Iterator[torch.Tensor]:
        import torch

        for some in torch.randperm(self._units).split(self._size):
            yield (some if self._parts is None
                   else torch.cat([self._parts[one] for one in some.tolist()]))

    def about_their_mean(self, misses: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``misses`` of ``rows`` minus the mean of their group."""
        import torch

        if self._of is None:
            return misses
        of = self._of[rows]
        sums = torch.zeros(len(self._seen)).index_add(0, of, misses)
        return misses - (sums / self._seen)[of]


def _halves(values: torch.Tensor) -> tuple[float, ...]:
    """The values in the precision of the calibration file."""
    return tuple(values.detach().half().flatten().tolist())
