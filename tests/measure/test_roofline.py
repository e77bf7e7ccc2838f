"""The roof and what sets it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tritongemm.device import device_named
from tritongemm.measure.roofline import roof_time_us
from tritongemm.problem import GemmProblem

H200 = device_named("nvidia-h200")


@pytest.mark.parametrize(("problem", "time_us", "bound"), [
    pytest.param(GemmProblem.contiguous(8192, 8192, 8192), 2 * 8192**3 / 989e6, "compute",
                 id="square"),
    pytest.param(GemmProblem.contiguous(1, 4096, 4096), (4096 * 4096 + 8192) * 2 / 4.8e6,
                 "memory", id="decode"),
    pytest.param(GemmProblem.contiguous(4096, 4096, 4096, dtype="fp32"), 2 * 4096**3 / 67e6,
                 "compute", id="fp32"),
    pytest.param(GemmProblem.contiguous(4096, 4096, 4096, dtype="fp32", precision="tf32"),
                 2 * 4096**3 / 494e6, "compute", id="tf32"),
])
def test_the_larger_of_two_times(problem, time_us, bound):
    roof = roof_time_us(problem, H200)
    assert roof.time_us == pytest.approx(time_us) and roof.bound == bound


@pytest.mark.parametrize("changes", [{"peak_tflops": {}}, {"memory_gbps": None}])
def test_no_roof_without_peaks(changes):
    assert roof_time_us(GemmProblem.contiguous(8, 8, 8), replace(H200, **changes)) is None
