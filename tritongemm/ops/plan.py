"""A plan: a config bound to a problem and a geometry, ready to launch. The one hot path.

Everything a launch depends on is fixed in the plan but the operands' addresses and the stream;
a plan never synchronises and allocates nothing but its scratch, from torch's allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import LaunchError
from tritongemm.kernels.compile import BuildReport, build_launches, launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.problem import GemmProblem, divisor_of, epilogue_of

if TYPE_CHECKING:
    from tritongemm.kernels.driver import Launcher

#: What a launcher is given, in order: addresses, and the two numbers.
_OPERANDS = ("a", "b", "c", "d", "alpha", "beta", "scratch")


class Plan:
    """Launches ``config`` for ``problem`` on CUDA device ``index``.

    Attributes:
        at: launches on addresses: at(a, b, c, d=0, alpha=1.0, beta=1.0). The device must be the
            current one. Raises LaunchError, torch.OutOfMemoryError.

    Raises:
        ConstraintError: the config is illegal. CompileError, LaunchError: it cannot be built.
    """

    def __init__(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
                 geometry: Geometry, index: int) -> None:
        from tritongemm.kernels.driver import Launcher

        self.problem, self.config, self.geometry, self.index = problem, config, geometry, index
        launches = launches_of(problem, config, device, geometry)
        binaries, self.report = build_launches(launches, device.arch)
        launchers = [Launcher(launch, binary, index, _OPERANDS)
                     for launch, binary in zip(launches, binaries)]
        self.at = _launching(launchers, max(launch.scratch_bytes for launch in launches), index)
        if settings.current().profile:
            self.at = _in_a_range(self.at, f"tritongemm {problem} {config}")
        self._reads_d = epilogue_of(problem.epilogue).reads_d

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                 d: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0) -> None:
        """Launches on torch's current stream of the plan's device. Raises LaunchError.

        ``d``, alpha and beta are read where the problem's epilogue takes them: a bias [N], or a
        matrix already expanded to C's shape, with the strides of the plan's geometry.
        """
        if d is None and self._reads_d:
            raise LaunchError(f"{self.problem} adds a D, and this call brings none")
        self.at(a.data_ptr(), b.data_ptr(), c.data_ptr(), 0 if d is None else d.data_ptr(),
                alpha, beta)


def _launching(launchers: Sequence[Launcher], scratch_bytes: int,
               index: int) -> Callable[..., None]:
    """``Plan.at``: a closure, for it is what every call goes through.

    Scratch is given back to torch's allocator at once: it is reused in the order of this stream
    only, so later work on this stream cannot overtake the launches that read it.
    """
    stream_of = torch._C._cuda_getCurrentRawStream
    if len(launchers) == 1 and not scratch_bytes:
        launcher, = launchers

        def at(a: int, b: int, c: int, d: int = 0, alpha: float = 1.0, beta: float = 1.0) -> None:
            launcher((a, b, c, d, alpha, beta), stream_of(index))
        return at

    def with_scratch(a: int, b: int, c: int, d: int = 0, alpha: float = 1.0,
                     beta: float = 1.0) -> None:
        scratch = _scratch(scratch_bytes, index)
        operands = (a, b, c, d, alpha, beta, scratch.data_ptr())
        stream = stream_of(index)
        for launcher in launchers:
            launcher(operands, stream)
    return with_scratch


def _scratch(size: int, index: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", index))


def _in_a_range(at: Callable[..., None], name: str) -> Callable[..., None]:
    def named(*operands: float) -> None:
        with torch.profiler.record_function(name):
            at(*operands)
    return named


class InterpretedPlan:
    """The same under TRITON_INTERPRET=1, on CPU tensors."""

    def __init__(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
                 geometry: Geometry) -> None:
        self.problem, self.config, self.geometry = problem, config, geometry
        self._launches = launches_of(problem, config, device, geometry)
        self.report = BuildReport(0.0, True, None, None, 0)

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                 d: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0) -> None:
        """Runs the launches, one program after another. Raises LaunchError."""
        from tritongemm.kernels.interpret import interpret

        size = max(launch.scratch_bytes for launch in self._launches)
        scratch = torch.full((max(size // 4, 1),), float("nan"), dtype=torch.float32)
        operands = {"a": a, "b": b, "c": c, "scratch": scratch}
        if d is not None:
            operands["d"] = d
        elif epilogue_of(self.problem.epilogue).reads_d:
            raise LaunchError(f"{self.problem} adds a D, and this call brings none")
        for launch in self._launches:
            interpret(launch, operands, {"alpha": alpha, "beta": beta})


def make_plan(problem: GemmProblem, config: KernelConfig, device: DeviceSpec, geometry: Geometry,
              tensor_device: torch.device) -> Plan | InterpretedPlan:
    """The plan for operands on ``tensor_device``. Raises as :class:`Plan` does."""
    if tensor_device.type == "cuda":
        index = tensor_device.index
        return Plan(problem, config, device, geometry,
                    torch.cuda.current_device() if index is None else index)
    if settings.current().interpret:
        return InterpretedPlan(problem, config, device, geometry)
    raise LaunchError(f"operands are on {tensor_device}; kernels run on CUDA, or on the CPU under "
                      "TRITON_INTERPRET=1")


def bind_config(problem: GemmProblem, config: KernelConfig,
                device: DeviceSpec) -> BoundConfig:
    """``config`` as a callable (a, b, out, d=None, alpha=1.0, beta=1.0) for any operands of
    ``problem``, however strided.

    Raises:
        ConstraintError, CompileError, LaunchError: when it is bound, not when it is called.
    """
    return BoundConfig(problem, config, device)


class BoundConfig:
    """A config that makes its plans as it meets strides; ``report`` is that of the first."""

    def __init__(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> None:
        self._problem, self._config, self._device = problem, config, device
        self._plans: dict[tuple, Plan | InterpretedPlan] = {}
        where = torch.device("cpu") if settings.current().interpret else torch.device(
            "cuda", torch.cuda.current_device())
        self.report = self._plan(Geometry.contiguous(problem), where).report

    def _plan(self, geometry: Geometry, where: torch.device) -> Plan | InterpretedPlan:
        key = (geometry, where)
        if key not in self._plans:
            self._plans[key] = make_plan(self._problem, self._config, self._device, geometry,
                                         where)
        return self._plans[key]

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
                 d: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0) -> None:
        """Launches on the current stream."""
        self._plan(geometry_of(a, b, out, d), a.device)(a, b, out, d, alpha, beta)


def geometry_of(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                d: torch.Tensor | None = None) -> Geometry:
    """The strides of A [M, K] or [batch, M, K], B and C alike, and of D, which may be a bias
    [N]."""
    return Geometry(*strides_of(a), *strides_of(b), *strides_of(c),
                    *(() if d is None else strides_of_d(d)))


def strides_of(x: torch.Tensor) -> tuple[int, int, int]:
    """(batch, row, column) strides of a matrix, whose batch stride is 0, or of a batch."""
    batch, row, column = x.stride() if x.dim() == 3 else (0, *x.stride())
    return batch, row, column


def strides_of_d(d: torch.Tensor) -> tuple[int, int, int, int]:
    """(batch, row, column) strides of D, 0 along the axes that it has not, and the bytes up to 16
    that its base and outer strides are aligned to."""
    batch, row, column = (0,) * (3 - d.dim()) + d.stride()
    size = d.element_size()
    if column > 1:
        return batch, row, column, size
    return batch, row, column, divisor_of(d.data_ptr() | batch * size | row * size)
