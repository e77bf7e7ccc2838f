"""What the rest of the package knows of a kernel: :class:`KernelSpec`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import ConstraintError
from tritongemm.kernels.constraints import WASTE, Constraint, Violation
from tritongemm.kernels.footprint import Footprint
from tritongemm.kernels.launch import Geometry, Launch
from tritongemm.kernels.sum_order import SumOrder, not_described
from tritongemm.kernels.takes import Takes
from tritongemm.problem import GemmProblem

Launches = Callable[[GemmProblem, KernelConfig, DeviceSpec, Geometry], "tuple[Launch, ...]"]


@dataclass(frozen=True)
class KernelSpec:
    """A kernel: its rules, its resources, how it is launched, and its default.

    Attributes:
        name: as in configs, tables and CSV rows.
        idea: one line.
        archs: architectures that the tests compile it for.
        constraints: rules in the order in which they are asked.
        shared_bytes: estimate of the shared memory a program, bytes; never below the compiler's.
        launches: what a call launches, in order.
        default: the rule default for a problem, before any table; may be illegal for it.
        footprint: what a config occupies on a device and which units it uses; selection predicts
            times from it.
        takes: formats, compute modes, scales and groups; asked before the constraints.
        widens_a: whether it converts an A that is in memory in another format
            (``Geometry.stored_a``).
        guarded: whether rows and columns that its copies of the operands cannot represent are
            computed by the ``guard``; their exponents in scratch say which
            (``split_fp32.exponents_in``).
        device_code: modules of ``device`` that hold its launches' code; empty: the one of its name.
        by_rule: whether selection may take that default where nothing was measured. False: only a
            measurement can say that the kernel pays.
        sum_order: the order in which a config adds the products of an element of C. Configs of
            equal orders, of this kernel and others, give equal bits; None: not described, so that
            batch invariance takes one config of the kernel, or none.
    """

    name: str
    idea: str
    archs: tuple[int, ...]
    constraints: tuple[Constraint, ...]
    shared_bytes: Callable[[GemmProblem, KernelConfig], int]
    launches: Launches
    default: Callable[[GemmProblem, DeviceSpec], KernelConfig]
    footprint: Callable[[GemmProblem, KernelConfig, DeviceSpec], Footprint]
    by_rule: bool = True
    widens_a: bool = False
    guarded: bool = False
    device_code: tuple[str, ...] = ()
    takes: Takes = field(kw_only=True)
    sum_order: Callable[[GemmProblem, KernelConfig, DeviceSpec],
                        SumOrder | None] = field(default=not_described, kw_only=True)

    def supports(self, problem: GemmProblem, device: DeviceSpec) -> Violation | None:
        """The first rule that no config of this kernel can meet for ``problem``, or None."""
        refused = self.takes.violation(problem)
        if refused is not None:
            return refused  # there is no default for it
        return self._first(problem, self.default(problem, device), device, of_problem=True)

    def violation(self, problem: GemmProblem, config: KernelConfig,
                  device: DeviceSpec) -> Violation | None:
        """The first rule that ``config`` breaks, or None where it is legal."""
        return self._first(problem, config, device, of_problem=False)

    def _first(self, problem, config, device, *, of_problem: bool,
               waste: bool = False) -> Violation | None:
        refused = self.takes.violation(problem)
        if refused is not None:
            return refused
        for constraint in self.constraints:
            if of_problem and not constraint.of_problem or waste and constraint.rule == WASTE:
                continue
            message = constraint.check(problem, config, device)
            if message is not None:
                return Violation(constraint.rule, message)
        return None

    def runs(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
        """Whether ``config`` is legal, or merely wasteful."""
        return self._first(problem, config, device, of_problem=False, waste=True) is None

    def require(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> None:
        """Raises :class:`ConstraintError` for a ``config`` that cannot run; one that is merely
        wasteful can."""
        broken = self._first(problem, config, device, of_problem=False, waste=True)
        if broken is not None:
            raise ConstraintError(f"{config.config_id} for {problem} breaks the rule "
                                  f"'{broken.rule}': {broken.message}")
