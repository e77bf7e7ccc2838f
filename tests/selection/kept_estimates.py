"""What the model predicts from a calibration made by hand, as ``kept_estimates.json`` holds it.

``PYTHONPATH=. python tests/selection/kept_estimates.py`` writes the file anew: after a change that
is meant to alter predictions, review its diff. Calibrations fitted before need a fit then.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from selection_made import calibrate

from tritongemm import selection, settings
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.kernels import SPECS
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    Calibration,
    Layer,
    NetworkRecord,
    calibration_path,
    write_calibration,
)
from tritongemm.selection import estimate
from tritongemm.selection.inputs import NAMES

FILE = Path(__file__).with_name("kept_estimates.json")
PROBLEMS = [
    ((4096, 4096, 4096), {"layout": "nt"}),
    ((1000, 760, 200), {"layout": "nn", "epilogue": "bias"}),
    ((300, 200, 100), {"layout": "tn", "batch": 3}),
    ((8192, 8192, 512), {"layout": "tt", "dtype_out": "fp32"}),
    ((5, 4096, 4096), {"layout": "nt"}),
    ((4096, 1, 1032), {"layout": "nt"}),
    ((33, 77, 129), {"layout": "nn"}),
]
WG, TMA = "warp_specialized", "persistent_tma"
#: Of the first of each kernel the class is calibrated.
CONFIGS = [
    KernelConfig("tiled", 64, 64, 32, num_stages=3), KernelConfig("tiled", 128, 64, 64, 8, 4),
    KernelConfig("tiled", 64, 64, 32, num_stages=3, split_k=4, dependent_launch=2),
    KernelConfig(TMA, 128, 128, 64, num_warps=8, num_stages=4),
    KernelConfig(TMA, 64, 128, 64, num_stages=3, epilogue_subtile=2, dependent_launch=0),
    KernelConfig(WG, 128, 128, 64, num_warps=8, num_stages=4),
    KernelConfig(WG, 128, 160, 64, num_warps=8, num_stages=4),  # between classes in its width
    KernelConfig(WG, 128, 256, 64, num_warps=8, num_stages=4, pingpong=0, cluster_m=2),
    KernelConfig(WG, 64, 192, 64, num_stages=4, split_k=2, pad_operands=2),
    KernelConfig(WG, 128, 160, 64, num_warps=8, num_stages=3, pingpong=1, swap_ab=2),
    KernelConfig("gemv", 1, 64, 256), KernelConfig("gemv", 4, 32, 512, split_k=2),
    KernelConfig("skinny", 16, 32, 256, num_stages=3),
    KernelConfig("skinny", 16, 16, 128, num_stages=3, split_k=2, swap_ab=1),
]


def prepare(folder: Path) -> None:
    """A calibration in ``folder`` that knows the first config of each kernel, a class a
    little wider, and a network of random weights that reads every input."""
    device = device_named("nvidia-h200")
    first = {config.kernel: config for config in reversed(CONFIGS)}
    section = calibrate(device, *first.values(), replace(CONFIGS[5], block_n=192),
                        favourite=CONFIGS[2])
    draw = random.Random(46)
    constants = {name: {each: value * draw.uniform(0.5, 1.0) for each, value in found.items()}
                 for name, found in section.constants.items()}
    weights = tuple(draw.uniform(-0.02, 0.02) for _ in NAMES)
    network = NetworkRecord(NAMES, (0.5,) * len(NAMES), (2.0,) * len(NAMES),
                            ((Layer(weights, (0.1,)),),))
    write_calibration(calibration_path(device.slug), Calibration(device.slug, device.arch, (
        replace(section, constants=constants, network=network),)))
    selection.reload()


def of_problem(problem: GemmProblem) -> dict[str, list[float]]:
    """The terms by config, in microseconds, of every kernel that takes the problem."""
    device = device_named("nvidia-h200")
    return {config.config_id: [float(f"{x:.6g}") for x in estimate(problem, config, device)]
            for config in CONFIGS if SPECS[config.kernel].takes.violation(problem) is None}


def problems() -> list[GemmProblem]:
    """The problems of the file."""
    return [GemmProblem.contiguous(*sizes, **more) for sizes, more in PROBLEMS]


def main() -> None:
    """Writes the file."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("spaces", "devices"):
            shutil.copytree(settings.config_root() / name, Path(folder) / name)
        with settings.override(config_dir=Path(folder), config_only=True):
            prepare(Path(folder))
            rows = [f" {json.dumps(str(p))}: {json.dumps(of_problem(p))}" for p in problems()]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
