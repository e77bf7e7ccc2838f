"""Typical constants of the model, which stand where no calibration provides one: shares of the
datasheet's peaks, and times measured on Hopper.
"""

from __future__ import annotations

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels.footprint import Footprint, accumulators
from tritongemm.selection.work import Static

#: (owner, name) of a constant.
Key = tuple[str, str]
#: Peaks of a device without entries in ``configs/devices``, so that configs can still be ranked.
_UNKNOWN_TFLOPS, _UNKNOWN_GBPS = {"fp32": 50.0}, 2000.0


def peak_tflops(device: DeviceSpec, unit: str) -> float:
    """The device's peak rate of a unit, TFLOP/s, or one that is usual."""
    return device.peak_tflops.get(unit, _UNKNOWN_TFLOPS.get(unit, 300.0))


def usual(key: Key, config: KernelConfig, static: Static, device: DeviceSpec,
          unit: str) -> float:
    """A constant that no calibration provides: a typical share of the datasheet's peak, or a time
    measured on Hopper."""
    name = key[1]
    gbps = device.memory_gbps or _UNKNOWN_GBPS
    if name.removesuffix("_dependent") in _USUAL_US:
        return _USUAL_US[name.removesuffix("_dependent")]
    if name in _USUAL_SHARE:
        return gbps * _USUAL_SHARE[name]
    if name == "sm_gbps":
        return gbps * 2.0 / device.num_sms
    if name == "peak_share":
        return _usual_share(config, static.footprint, device, unit)
    if name == "pace_us":
        return 0.1 if unit != "fp32" else 0.4
    if name.startswith("load_kelement_us_"):
        return _USUAL_LOAD_US[name.rpartition("_")[2]]
    if name.startswith("store_kib_us_"):
        return _USUAL_STORE_US[name.rpartition("_")[2]]
    return _USUAL_PAD_US[name.rpartition("_")[2]]


_USUAL_US = {"fill_us": 0.8, "latency_us": 0.6, "unit_us": 0.5, "split_us": 2.0, "pad_us": 2.0,
             "spill_us": 0.01, "dependent_drag": 0.01}
#: Share of the memory's datasheet bandwidth.
_USUAL_SHARE = {"dram_gbps": 0.85, "l2_gbps": 1.2, "split_gbps": 1.0, "pad_gbps": 0.7}
_USUAL_LOAD_US = {"align16": 0.008, "align8": 0.04, "align4": 0.12, "align2": 0.4}
_USUAL_STORE_US = {"engine": 0.01, "align16": 0.01, "align8": 0.03, "align4": 0.03,
                   "align2": 0.04, "swapped": 0.05, "split": 0.02}
_USUAL_PAD_US = {"align16": 1e-5, "align8": 2e-4, "align4": 2e-4, "align2": 3e-4}


def _usual_share(config: KernelConfig, footprint: Footprint, device: DeviceSpec,
                 unit: str) -> float:
    """The share of the rate of ``unit`` that a tile can reach: small tiles keep tensor cores
    waiting for operands, and CUDA cores run at the fp32 rate."""
    if not footprint.tensor_cores:
        own = 0.5 if footprint.k_over_threads else min(0.8, 0.25 + 0.01 * accumulators(config))
        return own * peak_tflops(device, "fp32") / peak_tflops(device, unit)
    edge = (config.block_m * config.block_n) ** 0.5
    if not footprint.copy_engine:
        edge *= 0.8
    return min(0.82, 0.9 * edge / (edge + 30.0))
