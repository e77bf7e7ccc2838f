"""A rough time of a config for a problem, term by term, from datasheet figures alone.

It orders candidates (a sweep's ``--top``, the alternatives of ``explain``); it does not choose
between a tuned row and another. Waves of tiles over SMs: each tile a fill, K steps and a store;
a split adds a pass over its partials.
"""

from __future__ import annotations

from dataclasses import dataclass

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import shared_bytes
from tritongemm.kernels.padding import padded_bytes
from tritongemm.problem import GemmProblem, dtype_of

#: Microseconds from a launch to its first instruction and from its last to the next launch's
#: first: the time of an empty kernel in a CUDA graph on Hopper.
_LAUNCH_US = 1.5
#: Latency of a first load from device memory, microseconds.
_FILL_US = 0.8
#: L2 bandwidth over device-memory bandwidth: about 1.7 on Hopper and Ampere.
_L2_RATIO = 1.7
#: Share of the copy bandwidth that a pass over unaligned rows reaches.
_PAD_SHARE = 0.5
#: Used where a device has no peaks on record, so that the order still means something.
_UNKNOWN_TFLOPS, _UNKNOWN_GBPS = {"fp32": 50.0}, 2000.0


#: Kernels whose next tile's loads run under this one's store.
PERSISTENT = frozenset({"persistent_tma", "warp_specialized"})


@dataclass(frozen=True)
class Estimate:
    """The terms, each in microseconds, and what they are made of."""

    tiles: int
    waves: int
    launch_us: float
    fill_us: float
    k_loop_us: float
    store_us: float
    split_us: float
    pad_us: float

    @property
    def total_us(self) -> float:
        """The sum of the terms."""
        return (self.launch_us + self.fill_us + self.k_loop_us + self.store_us + self.split_us
                + self.pad_us)


def estimate(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> Estimate:
    """The predicted time of ``config`` for ``problem`` on ``device``."""
    size, out = dtype_of(problem.dtype_a).itemsize, dtype_of(problem.dtype_out).itemsize
    bm, bn, bk = config.block_m, config.block_n, config.block_k
    tiles = (-(-problem.m // bm) * -(-problem.n // bn) * problem.batch * config.split_k)
    resident = max(1, min(device.shared_bytes_per_sm // max(shared_bytes(problem, config), 1),
                          2048 // (32 * config.num_warps), 8))
    overlapped = config.kernel in PERSISTENT
    slots = device.num_sms * (min(resident, 2) if overlapped else resident)
    waves = -(-tiles // slots)
    share = min(tiles, slots) / device.num_sms  # programs that share an SM's rates
    share = max(share, 1.0)
    tflops = device.peak_tflops.get(problem.unit, _UNKNOWN_TFLOPS.get(problem.unit, 300.0))
    gbps = device.memory_gbps or _UNKNOWN_GBPS
    flops_us = tflops * 1e6 / device.num_sms * _tile_efficiency(problem, config)
    l2_bytes_us = gbps * 1e3 * _L2_RATIO / device.num_sms
    steps = -((-problem.k // bk) // config.split_k)
    step_flops = 2.0 * bm * bn * bk
    step_bytes = (bm + bn) * bk * size
    step_us = max(step_flops / flops_us, step_bytes / l2_bytes_us) * share
    memory_us = problem.bytes() / (gbps * 1e3) / waves
    k_loop = max(steps * step_us, memory_us)
    stored = bm * bn * (4 if config.split_k > 1 else out)
    store_us = stored / l2_bytes_us * share
    split_us = 0.0
    if config.split_k > 1:
        partials = 4.0 * problem.batch * problem.m * problem.n * (config.split_k + 1)
        split_us = _LAUNCH_US + _FILL_US + partials / (gbps * 1e3 * _L2_RATIO)
    pad_us = 0.0
    if config.pad_operands:
        pad_us = _LAUNCH_US + _FILL_US + 2 * padded_bytes(problem) / (gbps * 1e3 * _PAD_SHARE)
    return Estimate(tiles, waves, _LAUNCH_US, _FILL_US * (1 if overlapped else waves),
                    waves * k_loop, store_us * (1 if overlapped else waves), split_us, pad_us)


def _tile_efficiency(problem: GemmProblem, config: KernelConfig) -> float:
    """The share of the unit's rate that a tile can reach: small tiles feed it too slowly.

    Measured shapes of the curve, not of the device: about 0.8 at 128x256 and 0.35 at 64x64.
    """
    if problem.unit == "fp32":
        return min(0.8, 0.25 + 0.01 * (config.block_m * config.block_n / 32 / config.num_warps))
    edge = (config.block_m * config.block_n) ** 0.5
    if config.kernel not in PERSISTENT:
        # Elements of 2 bytes on odd addresses are loaded one by one, through registers.
        edge *= {1: 0.1, 2: 0.1, 4: 0.4, 8: 0.6}.get(min(problem.align_a, problem.align_b), 0.8)
    return min(0.82, 0.9 * edge / (edge + 30.0)) * min(1.0, 0.7 + 0.1 * config.num_stages)
