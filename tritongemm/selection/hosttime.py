"""Host time of a call, by the path that makes it, and how often a new shape is seen first.

In a steady state a chain of calls takes the larger of host and GPU time a call: the host issues the
next call while the device works. :class:`Side` is that model; ``torch_wins`` compares the
two sides. A replay of a CUDA graph has no host time (:data:`GRAPH`).

The constants are those of the fastest host that was measured, the H200's
(perf/results/nvidia-h200/host-time.txt), because a slow host only makes torch's calls longer and
thereby favours the kernels of this package. Costs that were measured on the H100's host alone
(perf/results/nvidia-h100-80gb-hbm3/host-time.csv) are scaled by torch's time on both, 12.0 and 20
us for ``torch.mm`` of 64 x 64 x 64.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from tritongemm import settings

#: ``torch.mm`` on the H200's host: 11.6 to 12.7 us.
_TORCH_US = 12.0


class HostPath(NamedTuple):
    """Host microseconds of one product under an override.

    Attributes:
        hit_us: by a known plan of one launch.
        launch_us: of each further launch of that plan.
        torch_us: of a call that is passed on to torch, torch's own time included.
    """

    name: str
    hit_us: float
    launch_us: float
    torch_us: float

    def ours_us(self, launches: int) -> float:
        """Of a plan of so many launches."""
        return self.hit_us + (launches - 1) * self.launch_us


#: The native dispatcher. A hit is 0.41 of torch's time, a plan of two launches 0.51 to 0.56 where
#: one of one launch is 0.38, and a declined call 1.05 (H100's host).
NATIVE = HostPath("native", 0.41 * _TORCH_US, 0.16 * _TORCH_US, 1.05 * _TORCH_US)
#: The Python path: a hit 10.8 us and a declined call 4.0 us more than torch's (H200's host); two
#: launches 1.24 to 1.29 of torch's time where one is 0.87 (H100's host).
PYTHON = HostPath("Python", 10.8, 0.39 * _TORCH_US, _TORCH_US + 4.0)
#: The replay of a CUDA graph.
GRAPH = HostPath("CUDA graph", 0.0, 0.0, 0.0)


def usual_path() -> HostPath:
    """The path of repeated calls on a machine with one GPU and a C++ compiler, unless the setting
    ``native`` is off. Does not look for the native dispatcher, which needs torch."""
    return PYTHON if settings.current().native == "off" else NATIVE


class Side(NamedTuple):
    """Microseconds of a call by one side."""

    host_us: float
    gpu_us: float

    @property
    def time_us(self) -> float:
        """Of one call in a chain of them."""
        return max(self.host_us, self.gpu_us)

    def __str__(self) -> str:
        return f"{self.time_us:.1f} us (host {self.host_us:.1f}, GPU {self.gpu_us:.1f})"


# -- how often a shape is seen before it is judged -------------------------------------------------

#: CPU time of selection for a shape without a tuned row, microseconds: 12 to 17 ms on a slow core
#: (perf/results/nvidia-h200/exploratory/choice.txt).
SELECTION_US = 15_000.0
#: The same for float32 and complex64, whose kernels have fewer configs: 4.6 to 6.7 ms.
FLOAT32_SELECTION_US = 6_000.0
#: Products that take at least this long on an H100 are judged when they are first seen. Where such
#: products follow each other the device is the limit, and selection runs while it works.
_FIRST_SIGHT_US = _TORCH_US
#: An H100's dense bf16 peak and its bandwidth (configs/devices), by which no product is shorter.
_PEAK_TFLOPS, _PEAK_GBPS = 989.0, 3350.0
#: Multiply-adds, and bytes of A and B, from which a product takes :data:`_FIRST_SIGHT_US`.
LARGE_PRODUCTS = _FIRST_SIGHT_US * _PEAK_TFLOPS * 1e6 / 2
LARGE_BYTES = _FIRST_SIGHT_US * _PEAK_GBPS * 1e3
#: Of smaller products the first :data:`EARLY_SHAPES` kinds of a process are judged when they are
#: seen this often: ``torch.cuda.make_graphed_callables`` runs a program three times before it
#: captures it, and a captured product is replayed more often than can be counted. Together they
#: cost a second.
EARLY_SIGHTS, EARLY_SHAPES = 3, 64


#: Large products without a tuned row that a process judges when they are first seen. Together they
#: cost eight seconds; a later one is torch's for :func:`calls_first` calls.
FIRST_SELECTIONS = 512
#: Of the time that a product takes at the bf16 peak: how much longer torch's kernel takes (for
#: float32 15 times as long on an H100's CUDA cores), times the share of it that ours save in the
#: mean of llm_prefill on an H200 (perf/README.md: 1.03 in bf16, 2.7 in float32, 1.18 under TF32).
#: Float32 at precision ieee counts as bf16: without a row it is torch's anyway.
_SAVED = {"ieee": 0.03, "tf32": 2 * 0.15, "fp16x3": 15 * 0.63}
#: The same of smaller float32 products: squares from 256 to 1,792 are at 1.95 to 2.3.
_SAVED_SMALL = 15 * 0.5
#: Multiply-adds of small float32 products whose GPU time pays for the selection of one.
FLOAT32_PRODUCTS = FLOAT32_SELECTION_US / (_SAVED_SMALL * _FIRST_SIGHT_US) * LARGE_PRODUCTS


def sights(path: HostPath) -> int:
    """How often a kind of small product is seen before it is judged, in a program that has shown
    :data:`EARLY_SHAPES` others: the least k with k * gain >= cost.

    The gain of a call is the host time saved where the host is the limit, and the cost is that of
    selection. Such a program therefore loses no more by waiting than it would have lost by judging
    shapes that do not return. Compiling is not in the cost: it happens once for each disk, and a
    few binaries serve all sizes.
    """
    return math.ceil(SELECTION_US / (path.torch_us - path.hit_us))


def calls_first(precision: str, products: float, bytes: float) -> int:
    """How many calls of a large product torch makes before it is judged, in a program that has
    shown :data:`FIRST_SELECTIONS` others: the least k with k * gain >= cost, as in :func:`sights`.
    Here the device is the limit, and the gain is GPU time. A program whose sizes do not return,
    such as one that pads each batch to its own length, would pay the cost for each of them."""
    cost_us = SELECTION_US if precision == "ieee" else FLOAT32_SELECTION_US
    torch_us = _FIRST_SIGHT_US * max(products / LARGE_PRODUCTS, bytes / LARGE_BYTES)
    return math.ceil(cost_us / (_SAVED[precision] * torch_us))
