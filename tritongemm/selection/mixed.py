"""Float32 products of an A that memory holds in 16 bits (``mixed=True``): by a kernel that reads it
as it is, or after a launch that converts it."""

from __future__ import annotations

from dataclasses import replace

from tritongemm.device import DeviceSpec
from tritongemm.errors import UnsupportedError
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import GemmProblem
from tritongemm.selection.decision import torch_wins
from tritongemm.selection.hosttime import HostPath
from tritongemm.selection.policy import Choice

#: A launch that converts an A of few rows, which torch's kernels need: microseconds. On an H200 2.2
#: and more for 69 of 72 inputs of up to 64 rows (perf/results/nvidia-h200/mixed.csv).
_CONVERSION_US = 2.2
#: Bytes that it reads and writes of an element.
_CONVERTED_BYTES = 2 + 4


def why_converted(problem: GemmProblem, choice: Choice, geometry: Geometry, device: DeviceSpec,
                  path: HostPath) -> str | None:
    """Why A, in memory as ``geometry.stored_a``, is converted before the float32 ``problem`` is
    multiplied: the kernel of its ``choice`` does not read it, or torch is faster even so. None: it
    is read as it is."""
    try:
        launches_of(problem, choice.config, device, geometry)
    except UnsupportedError as error:
        return str(error)
    return torch_wins_converting(problem, choice, device, path)


def torch_wins_converting(problem: GemmProblem, choice: Choice, device: DeviceSpec,
                          path: HostPath) -> str | None:
    """:func:`torch_wins` where torch's side converts A first, which counts where the time of the
    choice is known; the reason says so then. Its host time is not counted."""
    if not choice.time_us:
        return torch_wins(problem, choice, device, path)
    longer = conversion_us(problem, device) / choice.time_us
    evidence, of_sibling, mean = (
        x and x + longer for x in (choice.evidence, choice.of_sibling, choice.expected))
    reason = torch_wins(problem, replace(choice, evidence=evidence, of_sibling=of_sibling,
                                         expected=mean), device, path)
    return reason and f"{reason} (torch's time includes a launch that converts A)"


def conversion_us(problem: GemmProblem, device: DeviceSpec) -> float:
    """Microseconds of the launch that converts A from 16 bits: at least those of its bytes."""
    if not device.memory_gbps:
        return _CONVERSION_US
    converted = _CONVERTED_BYTES * problem.batch * problem.m * problem.k
    return max(_CONVERSION_US, converted / (1e3 * device.memory_gbps))
