"""The correction of the sum of terms: the mean of a few small neural networks.

Each maps the inputs of a config and problem (``inputs.py``) through SiLU layers to the logarithm of
measured / predicted time. ``tritongemm calibrate`` trains them on the sweeps' timings
(``calibration/training.py``). On 440 problems held out of the training, the chosen configs reach
0.983 of the best config's speed; averages over neighbouring measured problems reach 0.972
(perf/results/nvidia-h200/exploratory/learned.txt).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tritongemm.records.calibration import Member, NetworkRecord

#: Inputs are clipped at this many standard deviations from their mean.
FARTHEST = 4.0
#: Configs that are asked about at a time. What a layer of so many makes stays in the cache, and the
#: allocator keeps it; thousands at once take twice as long. From 64 on OpenBLAS multiplies by
#: several threads, which wait for each other where the cores are busy: on two cores under load a
#: choice then took 96 to 173 ms instead of 24 to 33 (perf/log).
_BLOCK = 32


class Network:
    """The networks of a section, ready to run."""

    def __init__(self, record: NetworkRecord) -> None:
        self._mean = np.array(record.mean, np.float32)
        self._scale = np.array(record.scale, np.float32)
        self._members = [layers_of(member) for member in record.members]

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """[configs, inputs] -> log(measured / predicted time) of each config."""
        found: np.ndarray = np.empty(len(inputs), np.float32)
        for first in range(0, len(inputs), _BLOCK):
            at = normed(inputs[first:first + _BLOCK], self._mean, self._scale)
            found[first:first + _BLOCK] = np.mean([_run(layers, at) for layers in self._members], 0)
        return found


def normed(inputs: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Inputs as standard deviations from their mean, clipped."""
    return np.clip((inputs - mean) / scale, -FARTHEST, FARTHEST)


def layers_of(member: Member) -> list[tuple[np.ndarray, np.ndarray]]:
    """(weights [inputs, outputs], biases) of each layer."""
    return [(np.array(layer.weights, np.float32).reshape(-1, len(layer.biases)),
             np.array(layer.biases, np.float32)) for layer in member]


def _run(layers: Sequence[tuple[np.ndarray, np.ndarray]], at: np.ndarray) -> np.ndarray:
    for weights, biases in layers[:-1]:
        at = at @ weights
        at += biases
        gate = np.negative(at)
        np.exp(gate, gate)
        gate += 1.0
        at /= gate
    weights, biases = layers[-1]
    return (at @ weights + biases)[:, 0]
