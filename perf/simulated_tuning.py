"""A measurer and a builder that sleep and draw times, for trying `bench_tuning.py` without a GPU.

Times of configs are the model's predictions with random errors, of the size and structure that the
search assumes. Delays are those of an H100 and 16 cores, as far as they are known: builds as in the
journals of November 2026, while all cores compile; starting such that a warm sweep of 60 configs
takes the 3.3 s that `bench_sweep.py` measured.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, device_named
from tritongemm.problem import GemmProblem
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import model_for
from tritongemm.selection.work import class_of
from tritongemm.tuning.search import PARTS
from tritongemm.workers.builder import Builder as RealBuilder
from tritongemm.workers.messages import Outcome

DEVICE = "nvidia-h100-80gb-hbm3"
#: Seconds until a worker with a CUDA context is ready, and a compiler that imported Triton.
START_S, COMPILER_S = 2.0, 1.5
#: Mean seconds of a build by kernel, and the standard deviation of their logarithms.
BUILD_S = {"gemv": 0.47, "persistent_tma": 0.74, "skinny": 1.13, "split_product": 1.66,
           "tiled": 0.81, "warp_specialized": 2.1}
BUILD_SPREAD = 0.4
#: Operands and references of a problem; one coarse timing, in seconds and in calls of the config.
OPEN_S, COARSE_S, COARSE_CALLS = 0.5, 0.02, 40
#: The finalists, and those of a problem so large that power counts, from _LARGE_US on.
FINAL_S, FINAL_LARGE_S, _LARGE_US = 1.0, 8.0, 700.0
#: Factor on every delay; and the processes that stand for 16 cores here, see :func:`processes`.
SPEED = "simulated_speed"
CORES, PROCESSES = 16, 4


def parts(folder: Path, speed: float) -> dict[str, object]:
    """Options of ``sweep`` that replace what needs a GPU. ``folder``: where the store would be."""
    (folder / SPEED).write_text(f"{speed:g}")
    return {"measurer": "simulated_tuning:Measurer", "builder": "simulated_tuning:Builder",
            "expect": expect}


def expect(index: int | None) -> DeviceSpec:
    """What the driver would say."""
    return device_named(DEVICE)


def _wait(seconds: float) -> None:
    time.sleep(seconds * float((settings.cache_root() / SPEED).read_text()))


def true_us(problem: GemmProblem, configs: Sequence[KernelConfig]) -> list[float]:
    """The times of this simulation, microseconds."""
    predicted = model_for(problem, device_named(DEVICE)).times(problem, Columns(configs))

    def error(key: object, sd: float) -> float:
        return random.Random(f"{problem} {key}").gauss(0.0, sd)

    found = []
    for config, time_us in zip(configs, predicted, strict=True):
        tile = (config.kernel, config.block_m, config.block_n)
        family = (class_of(config), config.split_k)
        keys = ("problem", config.kernel, tile, family, (*family, config.num_stages), config)
        found.append(float(time_us) * math.exp(sum(map(error, keys, PARTS))))
    return found


class Measurer:
    """Sleeps as long as measuring would take."""

    def __init__(self, index: int | None, seed: int, **_: object) -> None:
        self._noise = random.Random(seed)
        _wait(START_S)

    def info(self) -> Mapping[str, object]:
        """An H100's."""
        return {"device": device_named(DEVICE), "device_count": 1, "environment":
                {"torch": "simulated", "triton": "simulated", "driver": "simulated"},
                "fingerprint": "simulated"}

    def open(self, problem: GemmProblem) -> Mapping[str, object]:
        """Torch's time is not known."""
        _wait(OPEN_S)
        return {"torch_us": None}

    def one(self, problem: GemmProblem, config: KernelConfig) -> Outcome:
        """A coarse time, off by 0.3 %."""
        time_us = true_us(problem, [config])[0]
        _wait(COARSE_S + COARSE_CALLS * time_us * 1e-6)
        return Outcome("ok", values={"time_us": time_us * self._noise.gauss(1.0, 0.003)})

    def together(self, problem: GemmProblem, configs: Sequence[KernelConfig]) -> list[Outcome]:
        """Times of the finalists, off by 0.05 %, and the ratio to a torch of 100 us."""
        times = true_us(problem, configs)
        _wait(FINAL_LARGE_S if min(times) > _LARGE_US else FINAL_S)
        times = [time_us * self._noise.gauss(1.0, 0.0005) for time_us in times]
        return [Outcome("ok", values={"time_us": t, "ratio_vs_torch": 100 / t,
                                      "ratio_low": 99.9 / t, "ratio_high": 100.1 / t})
                for t in times]


class Builder:
    """Sleeps as long as compiling would take; a file in the cache folder stands for a binary.

    ``PROCESSES`` of them stand for ``CORES`` cores, so a build takes that much less.
    """

    key = staticmethod(RealBuilder.key)

    def __init__(self, device: DeviceSpec) -> None:
        _wait(COMPILER_S)

    def info(self) -> Mapping[str, object]:
        """Nothing."""
        return {}

    @staticmethod
    def _path(key: str) -> Path:
        return settings.cache_root() / hashlib.sha256(key.encode()).hexdigest()

    @classmethod
    def stored(cls, key: str) -> bool:
        """Whether :meth:`one` has made it."""
        return cls._path(key).exists()

    def one(self, problem: GemmProblem, config: KernelConfig) -> Outcome:
        """Makes one."""
        key = self.key(problem, config, device_named(DEVICE))
        seconds = BUILD_S[config.kernel] * random.Random(key).lognormvariate(0.0, BUILD_SPREAD)
        _wait(seconds * PROCESSES / CORES)
        self._path(key).write_text(json.dumps(config.config_id))
        return Outcome("ok", values={"compile_s": round(seconds, 3)})
