"""``tritongemm.explain``: what a call would run, the source of the choice, and the roofline
time."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

from tritongemm.config import KernelConfig
from tritongemm.device import INTERPRETER, DeviceSpec, current_device, device_named
from tritongemm.errors import UnsupportedError, UsageError
from tritongemm.formats import format_named
from tritongemm.kernels import SPECS, shared_bytes
from tritongemm.kernels.complex_product import arranging_us, float32_problem
from tritongemm.kernels.split_fp32 import parts_of
from tritongemm.measure.roofline import roof_time_us
from tritongemm.notebook import table
from tritongemm.ops.float32 import Float32Path, default_precision, float32_path
from tritongemm.problem import NOTHING_TO_MULTIPLY, GemmProblem
from tritongemm.records.tables import TunedRow
from tritongemm.selection import Choice, Estimate, candidates, choose, estimate, torch_wins
from tritongemm.selection.decision import TORCH_WINS, sides
from tritongemm.selection.hosttime import HostPath, usual_path
from tritongemm.selection.model import not_calibrated

if TYPE_CHECKING:
    import torch

_ALTERNATIVES = 5


@dataclass(frozen=True)
class Explanation:
    """The explanation of a choice. ``str()`` gives what ``tritongemm explain`` prints.

    Attributes:
        problem, device: None for tensors that no kernel takes; ``operands`` describes them.
        source: as in :class:`~tritongemm.selection.policy.Choice`, or ``torch`` if no kernel runs
            the problem.
        estimate: the model's prediction, term by term; not a measurement.
        roof_time_us: the least time that the device's peaks allow; None if no peaks are known.
        measured_us: the time of the tuned row, if the choice is exact.
        foreign: the Triton version that made the row, if it is not the installed one.
        not_calibrated: why no measurement supports the estimate; empty if one does.
        float32: how the product of float32 operands is computed; None for other dtypes.
        torch_reason: why the policy ``auto`` gives the call to torch; empty if the kernel runs.
        alternatives_us: the model's prediction for each of ``alternatives``, in microseconds.
        decision: the expected times of a call by torch and by this package, and whose runs; empty
            for batches with two strides and for complex64, which are decided by other times, and
            for float32 of which nothing was measured, which is torch's.
        flagged: of tensors, how many rows and columns the guard of split products computes; empty
            where that does not apply.
        operands: of tensors that no kernel takes, their dtypes, shapes and devices; else empty.
    """

    problem: GemmProblem | None
    device: DeviceSpec | None
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
    float32: Float32Path | None = None
    torch_reason: str = ""
    alternatives_us: tuple[float, ...] = ()
    decision: str = ""
    flagged: str = ""
    operands: str = ""

    @property
    def tiles(self) -> int | None:
        """Tiles of C, each part of a split K or cluster K counted."""
        return self.estimate.tiles if self.estimate else None

    @property
    def waves(self) -> int | None:
        """Waves of tiles over the SMs."""
        return self.estimate.waves if self.estimate else None

    def fields(self) -> list[tuple[str, str]]:
        """(name, text) of each line of the explanation."""
        p = self.problem
        if p is None or self.device is None:
            return [("operands", self.operands), ("kernel", f"torch: {self.note}")]
        found = [("problem", str(p)),
                 ("alignment", f"A {p.align_a}, B {p.align_b}, C {p.align_c} bytes"),
                 ("device", f"{self.device.name} ({self.device.sm}, {self.device.num_sms} SMs)")]
        if self.config is None or self.estimate is None:
            return [*found, ("kernel", f"torch: {self.note}"), *self._float32()]
        e = self.estimate
        if self.torch_reason:
            found.append(("call", f"torch, because {self.torch_reason}; with strict=True or "
                          "TRITONGEMM_POLICY=own, the kernel below"))
        found += [("kernel", self.config.kernel), ("config", self.config.config_id),
                  ("source", f"{self.source}: {self.note}"), *self._float32(),
                  ("tiles", f"{e.tiles} in {e.waves} wave{'s' if e.waves != 1 else ''}"),
                  ("shared", f"{self.shared_bytes} of {self.device.shared_bytes_per_block} bytes")]
        if self.roof_time_us is not None:
            found.append(("roof", f"{self.roof_time_us:.2f} us, bound by {self.roof_bound}"))
        found.append((
            "estimate", f"{e.total_us:.2f} us: launch {e.launch_us:.2f} + fill {e.fill_us:.2f} + "
            f"K loop {e.k_loop_us:.2f} + units {e.unit_us:.2f} + store {e.store_us:.2f} + "
            f"split {e.split_us:.2f} + padding {e.pad_us:.2f} + correction "
            f"{e.correction_us:.2f}"))
        if self.decision:
            found.append(("call takes", self.decision))
        if self.flagged:
            found.append(("flagged", self.flagged))
        if self.not_calibrated and self.not_calibrated not in self.note:
            found.append(("", f"not calibrated: {self.not_calibrated}"))
        if self.measured_us is not None:
            text = f"{self.measured_us:.2f} us"
            if self.roof_time_us:
                text += f", {100 * self.roof_time_us / self.measured_us:.0f} % of the roof"
            found.append(("measured", text))
        if self.foreign:
            found.append(("row made by", self.foreign))
        return found

    def _float32(self) -> list[tuple[str, str]]:
        return self.float32.fields() if self.float32 is not None else []

    def _others(self) -> list[tuple[str, str]]:
        return [(config.config_id, f"{time_us:.2f} us") for config, time_us in zip(
            self.alternatives, self.alternatives_us, strict=True)]

    def __str__(self) -> str:
        lines = [f"{name:<10} {text}" for name, text in self.fields()]
        if self.alternatives:
            measured = "; the chosen one is by measurement" if self.source == "exact" else ""
            lines.append(f"other legal configs, by estimate{measured}:")
            lines += [f"           {config}  {time}" for config, time in self._others()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        others = table(("also legal", "estimate"), self._others()) if self.alternatives else ""
        return table((), self.fields()) + others


@overload
def explain(a: torch.Tensor, b: torch.Tensor, /) -> Explanation: ...


@overload
def explain(m: int, n: int, k: int, /, *, batch: int = 1, dtype: str | torch.dtype = "bf16",
            layout: str = "nn", precision: str | None = None, epilogue: str = "none",
            device: str | None = None) -> Explanation: ...


@overload
def explain(problem: GemmProblem, /, *, device: str | None = None) -> Explanation: ...


def explain(*what: object, device: str | None = None, **options: object) -> Explanation:
    """What ``tritongemm.matmul`` would run.

    Of float32 tensors for which the choice is a kernel that splits or scales operands, it also
    counts the rows and columns that fp16 parts cannot represent, and waits for them.

    Args:
        what: two tensors A and B; or the sizes M, N and K of contiguous operands, with the
            ``options`` ``batch, dtype, layout, precision`` and ``epilogue``; or a problem.
            ``precision=None`` is the precision of a call while torch's own setting is ``ieee``; for
            float32 ``TRITONGEMM_FP32`` decides. ``dtype`` may be torch's.
        device: a device of ``configs/devices`` such as ``nvidia-h200``, or a part of its name;
            None: the device of the tensors, or the current one.

    Raises:
        UsageError: other arguments. ProblemError: a problem that cannot exist.
        UnsupportedError: tensors that torch refuses too. DeviceError: no such device.
    """
    if len(what) == 3 and all(isinstance(size, int) for size in what):
        if "dtype" in options:
            options["dtype"] = format_named(options["dtype"]).name
        if options.get("precision") is None:
            options["precision"] = default_precision(str(options.get("dtype", "bf16")))
        problem = GemmProblem.contiguous(*what, **options)  # type: ignore[arg-type]
    elif options:
        raise UsageError(f"explain() takes {', '.join(options)} with the sizes M, N and K only")
    elif len(what) == 1 and isinstance(what[0], GemmProblem):
        problem = what[0]
    elif len(what) == 2 and all(hasattr(x, "dtype") for x in what):
        if device is not None:
            raise UsageError(f"explain() takes device={device!r} with sizes or a GemmProblem; "
                             "tensors have a device. Give the sizes M, N and K and their dtype")
        from tritongemm.ops.calls import problem_of
        from tritongemm.ops.plans import device_of

        a, b = what
        try:
            problem = problem_of(a, b)
        except UnsupportedError as error:
            return _explain_torchs(a, b, str(error))
        found = explain_problem(problem, device_of(a.device))  # type: ignore[attr-defined]
        return replace(found, flagged=_flagged(found, a, b))
    else:
        raise UsageError("explain() takes two tensors, or three sizes M, N and K, or a GemmProblem")
    return explain_problem(problem, device_named(device) if device else current_device())


def _explain_torchs(a: torch.Tensor, b: torch.Tensor, reason: str) -> Explanation:
    """What a call of tensors that no kernel takes, for ``reason``, would run: torch's product.

    Raises:
        UnsupportedError: torch refuses them too.
    """
    import torch

    refusal = f"dtypes are {a.dtype} and {b.dtype}" if a.dtype != b.dtype else (
        f"devices are {a.device} and {b.device}" if a.device != b.device else "")
    try:  # tensors without elements have torch's rules of rank and shape
        torch.matmul(*(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in (a, b)))
    except RuntimeError as error:
        refusal = refusal or str(error)
    if refusal:
        raise UnsupportedError(f"torch.matmul refuses these operands too: {refusal}")
    operands = " and ".join(f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)} on {x.device}"
                            for x in (a, b))
    return Explanation(None, None, None, "torch", reason, None, None, None, None, None, "", (),
                       operands=operands)


def explain_problem(problem: GemmProblem, device: DeviceSpec) -> Explanation:
    """What a call of ``problem`` on ``device`` would run; needs no GPU and no torch."""
    roof = roof_time_us(problem, device)  # None if the device's peaks are unknown
    roof_us, bound = (roof.time_us, roof.bound) if roof else (None, None)
    if problem.a.format.real:
        return _explain_complex(problem, device, roof_us, bound)
    try:
        if 0 in (problem.batch, problem.m, problem.n, problem.k):
            raise UnsupportedError(NOTHING_TO_MULTIPLY)
        choice = choose(problem, device)
    except UnsupportedError as error:
        return Explanation(problem, device, None, "torch", str(error), None, None, roof_us, bound,
                           None, "", (), float32=float32_path(problem, None, device))
    others = tuple(c for c in candidates(problem, device, _ALTERNATIVES + 1)
                   if c != choice.config)[:_ALTERNATIVES]
    row = choice.row if choice.source == "exact" else None
    if row is not None and row.epilogue != problem.epilogue:
        row = None  # the row was timed without the epilogue: not a time of this problem
    note = choice.note
    path = _path()
    faster = torch_wins(problem, choice, device, path)
    if not faster and choice.vs_torch is not None and choice.vs_torch < TORCH_WINS:
        note += f"; torch's kernel takes {choice.vs_torch:.2f} of the time of ours"
    return Explanation(
        problem, device, choice.config, choice.source, note,
        estimate(problem, choice.config, device), shared_bytes(problem, choice.config), roof_us,
        bound, row.time_us if row else None, _foreign(choice.row), others,
        not_calibrated(problem, choice.config, device) or "",
        float32_path(problem, choice.config, device, faster is not None), faster or "",
        tuple(estimate(problem, config, device).total_us for config in others),
        _decision(problem, choice, device, path, faster))


def _flagged(found: Explanation, a: torch.Tensor, b: torch.Tensor) -> str:
    """How many rows of A and columns of B the guard of a split product computes."""
    if (found.problem is None or found.config is None or found.torch_reason
            or not SPECS[found.config.kernel].guarded or a.is_complex()
            or min(a.dim(), b.dim()) < 2):
        return ""
    from tritongemm.ops.flags import flagged

    parts = parts_of(found.problem)
    rows, columns = (int(flagged(x, parts).sum()) for x in (a, b.mT))
    return f"rows of A: {rows}, columns of B: {columns}, which a slower kernel computes"


def _path() -> HostPath:
    """The path of calls in this process, or the usual one before its first use of a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return usual_path()
    from tritongemm.ops.plans import host_path

    return host_path()


def _decision(problem: GemmProblem, choice: Choice, device: DeviceSpec, path: HostPath,
              faster: str | None) -> str:
    if problem.two_strides != "none" or device.slug == INTERPRETER:
        return ""  # decided by other times
    if problem.dtype_a == "fp32" and choice.evidence is None and choice.of_sibling is None:
        return ""  # torch's, whatever it takes
    if faster and choice.source == "rule":
        return ""  # of 16 bits, on a GPU of which nothing was measured
    torchs, ours = sides(problem, choice, device, path)
    return f"torch's {torchs}, ours {ours}: " + ("torch's" if faster else "ours")


def _explain_complex(problem: GemmProblem, device: DeviceSpec, roof_us: float | None,
                     bound: str | None) -> Explanation:
    """What a call of a complex problem would run: its float32 product, of arranged operands."""
    real = None
    try:
        if 0 in (problem.batch, problem.m, problem.n, problem.k):
            raise UnsupportedError(NOTHING_TO_MULTIPLY)
        real = float32_problem(problem)
        choice = choose(problem, device)
    except UnsupportedError as error:
        return Explanation(problem, device, None, "torch", str(error), None, None, roof_us, bound,
                           None, "", (), float32=float32_path(real, None, device) if real else None)
    product = explain_problem(real, device)
    faster = torch_wins(problem, choice, device, _path())
    note = f"{choice.note}; plus {arranging_us(problem, device):.1f} us to arrange operands"
    return replace(product, problem=problem, decision="", source=choice.source, note=note,
                   roof_time_us=roof_us, roof_bound=bound, measured_us=None,
                   torch_reason=faster or "",
                   float32=float32_path(real, choice.config, device, faster is not None, True))


def _foreign(row: TunedRow | None) -> str:
    """The Triton version that made ``row``, if it is not the installed one."""
    from tritongemm.kernels.triton_version import triton_version

    if row is None:
        return ""
    return f"triton {row.triton}; installed is {triton_version() or 'none'}" if (
        row.triton and row.triton != triton_version()) else ""
