"""tritongemm's own kernels, as selection chooses them; never torch's in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tritongemm import selection
from tritongemm.bench.providers import Prepared
from tritongemm.kernels.compile import launches_of
from tritongemm.measure.contender import Contender
from tritongemm.occupancy import occupancy
from tritongemm.ops.plan import bind_config

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.config import KernelConfig
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem


class Selected:
    """The config that ``selection.choose`` gives, launched through its plan.

    A problem that no kernel takes is a row with status ``constraint``: a fall-back to torch would
    measure torch against itself.
    """

    name = "tritongemm"

    def available(self, target: Target) -> str | None:
        if target.kind == "cpu":
            return ("kernels run on CUDA, or in the interpreter: set TRITON_INTERPRET=1 to prove "
                    "them on the CPU, without times")
        return None

    def build(self, problem: GemmProblem, target: Target) -> KernelConfig | None:
        return selection.choose(problem, target.spec).config if target.kind == "cuda" else None

    def prepare(self, problem: GemmProblem, target: Target) -> Prepared:
        choice = selection.choose(problem, target.spec)
        launch = bind_config(problem, choice.config, target.spec)

        def bind(operands: OperandSet) -> Callable[[], None]:
            arguments, others = operands.arguments, operands.others
            return lambda: launch(*arguments, **others)

        report = launch.report
        # What was compiled beforehand comes from the store here; its time is known elsewhere.
        compiled = {} if report.cached else {"compile_s": report.seconds}
        return Prepared(Contender(self.name, bind), {
            "kernel": choice.config.kernel, "config_id": choice.config.config_id,
            "selection_source": choice.source,
            **compiled, "registers": report.registers, "spills": report.spills,
            "shared_bytes": report.shared_bytes or None,
            "occupancy": occupancy(
                target.spec, registers=report.registers, shared_bytes=report.shared_bytes,
                num_warps=launches_of(problem, choice.config, target.spec)[0].num_warps)})
