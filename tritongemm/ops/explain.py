"""``tritongemm.explain``: what a call would run, where the choice came from, and its roof."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UnsupportedError
from tritongemm.kernels import shared_bytes
from tritongemm.measure.roofline import roof_time_us
from tritongemm.problem import GemmProblem
from tritongemm.records.tables import TunedRow
from tritongemm.selection import Estimate, candidates, choose, estimate, torch_wins
from tritongemm.selection.model import not_calibrated
from tritongemm.selection.policy import TORCH_WINS

if TYPE_CHECKING:
    import torch

_ALTERNATIVES = 5


@dataclass(frozen=True)
class Explanation:
    """A choice laid open. ``str()`` is what ``tritongemm explain`` prints.

    Attributes:
        source: as :class:`~tritongemm.selection.Choice`, or ``torch`` where no kernel runs the
            problem.
        estimate: the model's prediction, term by term; no measurement.
        roof_time_us: the least time that the device's peaks allow; None: no peaks on record.
        measured_us: of the tuned row, where the choice is exact.
        foreign: what the row was made with where that is another Triton than this one's.
        not_calibrated: why no measurement supports the estimate; empty where one does.
    """

    problem: GemmProblem
    device: DeviceSpec
    config: KernelConfig | None
    source: str
    note: str
    estimate: Estimate | None
    shared_bytes: int | None
    roof_time_us: float | None
    roof_bound: str | None
    measured_us: float | None
    foreign: str
    alternatives: tuple[KernelConfig, ...]
    not_calibrated: str = ""

    @property
    def tiles(self) -> int | None:
        """Tiles of C, the parts of a split K or of a cluster's counted each."""
        return self.estimate.tiles if self.estimate else None

    @property
    def waves(self) -> int | None:
        """Rounds in which the SMs take the tiles."""
        return self.estimate.waves if self.estimate else None

    def __str__(self) -> str:
        lines = [f"problem    {self.problem}",
                 f"alignment  A {self.problem.align_a}, B {self.problem.align_b}, "
                 f"C {self.problem.align_c} bytes",
                 f"device     {self.device.name} ({self.device.sm}, {self.device.num_sms} SMs)"]
        if self.config is None or self.estimate is None:
            return "\n".join([*lines, f"kernel     torch: {self.note}"])
        e = self.estimate
        lines += [f"kernel     {self.config.kernel}", f"config     {self.config.config_id}",
                  f"source     {self.source}: {self.note}",
                  f"tiles      {e.tiles} in {e.waves} wave{'s' if e.waves != 1 else ''}",
                  f"shared     {self.shared_bytes} of {self.device.shared_bytes_per_block} bytes"]
        if self.roof_time_us is not None:
            lines.append(f"roof       {self.roof_time_us:.2f} us, bound by {self.roof_bound}")
        lines.append(
            f"estimate   {e.total_us:.2f} us: launch {e.launch_us:.2f} + fill {e.fill_us:.2f} + "
            f"K loop {e.k_loop_us:.2f} + units {e.unit_us:.2f} + store {e.store_us:.2f} + "
            f"split {e.split_us:.2f} + padding {e.pad_us:.2f} + correction "
            f"{e.correction_us:.2f}")
        if self.not_calibrated:
            lines.append(f"           not calibrated: {self.not_calibrated}")
        if self.measured_us is not None:
            line = f"measured   {self.measured_us:.2f} us"
            if self.roof_time_us:
                line += f", {100 * self.roof_time_us / self.measured_us:.0f} % of the roof"
            lines.append(line)
        if self.foreign:
            lines.append(f"row made by {self.foreign}")
        if self.alternatives:
            lines.append("also legal, most promising by estimate first:")
            lines += [f"           {c.config_id}  "
                      f"{estimate(self.problem, c, self.device).total_us:.2f} us"
                      for c in self.alternatives]
        return "\n".join(lines)


def explain(a: torch.Tensor, b: torch.Tensor) -> Explanation:
    """What ``tritongemm.matmul(a, b)`` would run.

    Raises:
        UnsupportedError: operands that always go to torch. DeviceError: no device.
    """
    from tritongemm.ops.calls import problem_of
    from tritongemm.ops.plans import device_of

    return explain_problem(problem_of(a, b), device_of(a.device))


def explain_problem(problem: GemmProblem, device: DeviceSpec) -> Explanation:
    """What a call of ``problem`` on ``device`` would run; needs no GPU and no torch."""
    roof = roof_time_us(problem, device)  # None for a device without peaks on record
    roof_us, bound = (roof.time_us, roof.bound) if roof else (None, None)
    try:
        choice = choose(problem, device)
    except UnsupportedError as error:
        return Explanation(problem, device, None, "torch", str(error), None, None, roof_us, bound,
                           None, "", ())
    others = tuple(c for c in candidates(problem, device, _ALTERNATIVES + 1)
                   if c != choice.config)[:_ALTERNATIVES]
    row = choice.row if choice.source == "exact" else None
    if row is not None and row.epilogue != problem.epilogue:
        row = None  # it was timed without the epilogue: that is no time of this problem
    note = choice.note
    if faster := torch_wins(choice):
        note += f"; {faster}, so a call that is not strict is torch's"
    elif choice.vs_torch is not None and choice.vs_torch < TORCH_WINS:
        note += f"; torch's kernel takes {choice.vs_torch:.2f} of the time of ours"
    return Explanation(
        problem, device, choice.config, choice.source, note,
        estimate(problem, choice.config, device), shared_bytes(problem, choice.config), roof_us,
        bound, row.time_us if row else None, _foreign(choice.row), others,
        not_calibrated(problem, choice.config, device) or "")


def _foreign(row: TunedRow | None) -> str:
    """What made ``row``, where that is another Triton than the one installed."""
    from tritongemm.kernels.compile import triton_version

    if row is None:
        return ""
    return f"triton {row.triton}; installed is {triton_version() or 'none'}" if (
        row.triton and row.triton != triton_version()) else ""
