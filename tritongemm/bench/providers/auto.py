"""``tritongemm.matmul`` as a user calls it: what torch is known to do faster, or what there is no
kernel for, goes to torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import tritongemm
from tritongemm import selection
from tritongemm.bench.providers import Prepared
from tritongemm.errors import TritonGemmError, UnsupportedError
from tritongemm.kernels.launch import Geometry
from tritongemm.measure.contender import Contender
from tritongemm.selection.hosttime import GRAPH
from tritongemm.selection.mixed import why_converted

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.config import KernelConfig
    from tritongemm.device import DeviceSpec
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem


class Auto:
    """The public call, fall-back and all; the row names the kernel that it takes, torch's too."""

    name = "tritongemm-auto"

    def available(self, target: Target) -> str | None:
        return None

    def build(self, problem: GemmProblem, target: Target) -> KernelConfig | None:
        if target.kind != "cuda" or problem.dtype_a != problem.dtype_b:
            return None
        return selection.choose(problem, target.spec).config

    def prepare(self, problem: GemmProblem, target: Target) -> Prepared:
        if problem.epilogue != "none":
            raise UnsupportedError(f"matmul multiplies only, without {problem.epilogue}; the "
                                   "provider tritongemm measures the kernels' epilogues")
        columns: dict[str, object] = {"selection_source": "torch"}
        if target.kind != "cpu":
            try:
                choice, faster = _decided(problem, target.spec)
            except TritonGemmError as error:  # the call itself goes to torch then
                columns["kernel"] = f"torch ({type(error).__name__})"
            else:
                if faster:
                    columns["kernel"] = "torch (faster)"
                else:
                    columns = {"kernel": choice.config.kernel,
                               "config_id": choice.config.config_id,
                               "selection_source": choice.source}

        def bind(operands: OperandSet) -> Callable[[], None]:
            a, b, out = operands.a, operands.b, operands.out
            if a.dtype != b.dtype:
                return lambda: tritongemm.matmul(a, b, out=out, mixed=True)
            return lambda: tritongemm.matmul(a, b, out=out)

        return Prepared(Contender(self.name, bind), columns)


def _decided(problem: GemmProblem, device: DeviceSpec) -> tuple[selection.Choice, str | None]:
    """(the choice, why torch runs the problem instead)."""
    chosen = _float32_of(problem)
    choice = selection.choose(chosen, device)
    if chosen is not problem:
        geometry = replace(Geometry.contiguous(chosen), stored_a=problem.dtype_a)
        if why_converted(chosen, choice, geometry, device, GRAPH) is None:
            return choice, None
    return choice, selection.torch_wins(chosen, choice, device, GRAPH)  # as it is timed


def _float32_of(problem: GemmProblem) -> GemmProblem:
    """The float32 problem that ``mixed=True`` makes of a 16-bit A and a float32 B, whose alignment
    covers as many elements; any other problem as it is."""
    if problem.dtype_a == problem.dtype_b or problem.dtype_b != "fp32":
        return problem
    return replace(problem, dtype_a="fp32", align_a=min(2 * problem.align_a, 16),
                   precision="fp16x3")
