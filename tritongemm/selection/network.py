"""What the sum of terms misses, learned: small networks, of which the mean is taken.

Each maps what ``inputs.py`` makes of a config at a problem to the logarithm of measured over
predicted time, through layers of z * sigmoid(z). Trained on the sweeps' timings by ``tritongemm
calibrate`` (``calibration/training.py``), they replace averages over measured problems near by: of
440 problems left out they choose configs at 0.983 of the best one's speed, the averages at 0.972
(perf/results/nvidia-h200/exploratory/learned.txt).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tritongemm.records.calibration import Member, NetworkRecord

#: Standard deviations from the mean, beyond which an input says no more.
FARTHEST = 4.0


class Network:
    """The networks of a section, ready to run."""

    def __init__(self, record: NetworkRecord) -> None:
        self._mean = np.array(record.mean, np.float32)
        self._scale = np.array(record.scale, np.float32)
        self._members = [layers_of(member) for member in record.members]

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """[configs, inputs] -> the logarithm of measured over predicted time of each config."""
        at = normed(inputs, self._mean, self._scale)
        return np.mean([_run(layers, at) for layers in self._members], 0)


def normed(inputs: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Inputs about 0, in standard deviations."""
    return np.clip((inputs - mean) / scale, -FARTHEST, FARTHEST)


def layers_of(member: Member) -> list[tuple[np.ndarray, np.ndarray]]:
    """(weights [inputs, outputs], biases) of each layer."""
    return [(np.array(layer.weights, np.float32).reshape(-1, len(layer.biases)),
             np.array(layer.biases, np.float32)) for layer in member]


def _run(layers: Sequence[tuple[np.ndarray, np.ndarray]], at: np.ndarray) -> np.ndarray:
    for weights, biases in layers[:-1]:
        at = at @ weights + biases
        at /= 1.0 + np.exp(-at)
    weights, biases = layers[-1]
    return (at @ weights + biases)[:, 0]
