"""The real measurer, which waits before larger problems. The fakes have no torch; it has."""

from __future__ import annotations

from fakes import wait_for_file

from tritongemm.problem import GemmProblem
from tritongemm.tuning.measurer import Measurer


class GatedMeasurer(Measurer):
    """FAKE_GATE: a file that problems with K above 48 wait for."""

    def open(self, problem: GemmProblem) -> dict[str, object]:
        if problem.k > 48:
            wait_for_file("FAKE_GATE")
        return super().open(problem)
