"""Float32 products of an A that memory holds in 16 bits (``mixed=True``): by a kernel that reads it
as it is, or after a launch that converts it."""

from __future__ import annotations

from dataclasses import replace

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UnsupportedError
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import GemmProblem
from tritongemm.selection.decision import torch_wins
from tritongemm.selection.hosttime import HostPath
from tritongemm.selection.model import estimate
from tritongemm.selection.policy import Choice, candidates

#: A launch that converts an A of up to 64 rows, which torch's kernels need: microseconds. On an
#: H200 2.2 to 3.6 (perf/results/nvidia-h200/mixed.csv).
CONVERSION_US = 2.2


def reading(problem: GemmProblem, choice: Choice, geometry: Geometry,
            device: DeviceSpec) -> Choice | None:
    """The ``choice`` for a float32 ``problem`` whose A is in memory as ``geometry.stored_a``. If
    its kernel does not read that, the fastest config that does, unless it is expected to take
    longer than converting A and the choice do; then None."""
    if _reads(problem, choice.config, device, geometry):
        return choice
    expected = estimate(problem, choice.config, device).total_us
    for config in candidates(problem, device):
        time_us = estimate(problem, config, device).total_us
        if time_us > expected + CONVERSION_US:
            return None
        if _reads(problem, config, device, geometry):
            slower = expected / time_us
            evidence, of_sibling, mean = (
                x and x * slower for x in (choice.evidence, choice.of_sibling, choice.expected))
            return Choice(config, "model", predicted_us=time_us, evidence=evidence,
                          of_sibling=of_sibling, expected=mean,
                          note=f"reads A as {geometry.stored_a}; {choice.config} does not")
    return None


def torch_wins_converting(problem: GemmProblem, choice: Choice, device: DeviceSpec,
                          path: HostPath) -> str | None:
    """:func:`torch_wins` where torch's side converts A first."""
    if choice.time_us:
        longer = CONVERSION_US / choice.time_us
        evidence, of_sibling, mean = (
            x and x + longer for x in (choice.evidence, choice.of_sibling, choice.expected))
        choice = replace(choice, evidence=evidence, of_sibling=of_sibling, expected=mean)
    return torch_wins(problem, choice, device, path)


def _reads(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
           geometry: Geometry) -> bool:
    try:
        launches_of(problem, config, device, geometry)
    except UnsupportedError:
        return False
    return True
