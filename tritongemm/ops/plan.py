"""A plan: a config bound to a problem and a geometry, ready to launch. This is the hot path.

A plan fixes everything that a launch depends on except the operands' addresses and the stream. It
never synchronises, and allocates only its scratch, from torch's allocator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import DeviceError, LaunchError
from tritongemm.kernels.compile import BuildReport, build_launches, launches_of
from tritongemm.kernels.launch import SCRATCH, Geometry, Launch, View
from tritongemm.problem import GemmProblem, divisor_of, epilogue_of

if TYPE_CHECKING:
    from tritongemm.kernels.driver import Launcher

Values = tuple[int | float, ...]
#: What every call of a product passes, in order: addresses (0 for a missing D) and two numbers.
PRODUCT = ("a", "b", "c", "d", "alpha", "beta")
_C, _D = PRODUCT.index("c"), PRODUCT.index("d")


def _operands(launches: Sequence[Launch]) -> tuple[str, ...]:
    """The names of the values passed to ``launches``, in order: a product's, then further
    operands."""
    return tuple(dict.fromkeys((*PRODUCT, *(x for one in launches for x in one.operands()))))


def scratch_of(launches: Sequence[Launch]) -> int:
    """Bytes of scratch that a call of ``launches`` needs."""
    return max(launch.scratch_bytes for launch in launches)


class Plan:
    """Launches ``config`` for ``problem`` on CUDA device ``index``.

    Attributes:
        operands: the names of the plan's values, in order: :data:`PRODUCT`, then the further
            operands that its launches declare (scales, offsets).
        at: at(values) launches with a tuple of addresses and numbers, in the order of ``operands``.
            The device must be the current one. Raises LaunchError, torch.OutOfMemoryError.

    Raises:
        ConstraintError: the config is illegal. CompileError, LaunchError: it cannot be built.
    """

    operands: tuple[str, ...] = PRODUCT

    def __init__(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
                 geometry: Geometry, index: int) -> None:
        from tritongemm.kernels.driver import Launcher

        self.problem, self.config, self.geometry, self.index = problem, config, geometry, index
        launches = launches_of(problem, config, device, geometry)
        binaries, self.report = build_launches(launches, device.arch)
        self.operands = _operands(launches)
        self._launchers = [Launcher(launch, binary, index, (*self.operands, SCRATCH))
                           for launch, binary in zip(launches, binaries)]
        self._scratch_bytes = scratch_of(launches)
        self.at = _launching(self._launchers, self._scratch_bytes, index)
        if settings.current().profile:
            self.at = _in_a_range(self.at, f"tritongemm {problem} {config}")
        self._reads_d = epilogue_of(problem.epilogue).reads_d

    def native_launches(self) -> tuple[int, int, list[dict[str, object]], int]:
        """The arguments of the native dispatcher's ``plan``: the driver's functions, the launches,
        the bytes of scratch. Raises LaunchError before a first launch."""
        from tritongemm.kernels.driver import addresses

        return (*addresses(), [x.exported() for x in self._launchers], self._scratch_bytes)

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                 d: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0,
                 **others: torch.Tensor) -> None:
        """Launches on torch's current stream of the plan's device. Raises LaunchError.

        ``d``, alpha and beta are read if the problem's epilogue uses them. ``d`` is a bias [N], or
        a matrix already expanded to C's shape, with the strides of the plan's geometry. ``others``
        are further operands, by name.
        """
        if d is None and self._reads_d:
            raise LaunchError(f"{self.problem} adds a D, and this call passes none")
        _check_passed(self.operands, others)
        self.at((a.data_ptr(), b.data_ptr(), c.data_ptr(), 0 if d is None else d.data_ptr(),
                 alpha, beta, *(others[x].data_ptr() for x in self.operands[len(PRODUCT):])))


def _check_passed(operands: Sequence[str], others: Mapping[str, torch.Tensor]) -> None:
    """Raises LaunchError if a call does not pass an operand that the launches read."""
    for name in operands[len(PRODUCT):]:
        if name not in others:
            raise LaunchError(f"the kernel reads {name!r}, and this call passes none")


def _launching(launchers: Sequence[Launcher], scratch_bytes: int,
               index: int) -> Callable[[Values], None]:
    """``Plan.at``: a closure, because every call goes through it. It passes its values to the
    launchers unchanged, followed by the address of the scratch if there is any.

    Scratch is returned to torch's allocator at once. That is safe: the allocator reuses it in
    stream order, so later work on this stream runs after the launches that read it.
    """
    stream_of = torch._C._cuda_getCurrentRawStream
    if len(launchers) == 1 and not scratch_bytes:
        launcher, = launchers

        def at(values: Values) -> None:
            launcher(values, stream_of(index))
        return at

    def with_scratch(values: Values) -> None:
        scratch = _scratch(scratch_bytes, index)
        values = (*values, scratch.data_ptr())
        stream = stream_of(index)
        done = 0
        try:
            for launcher in launchers:
                launcher(values, stream)
                done += 1
        except LaunchError as error:
            if done and values[_C] == values[_D]:  # torch cannot start from D any more
                raise DeviceError(f"the CUDA driver refused launch {done + 1} of {len(launchers)} "
                                  "of a sum in place, whose addend may be overwritten: "
                                  f"{error}") from error
            raise
    return with_scratch


def _scratch(size: int, index: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", index))


@contextlib.contextmanager
def kept_scratch() -> Iterator[list[torch.Tensor]]:
    """A list that collects the scratch of every launch inside the block, so that a test can read
    what the kernels wrote there. Use it from one thread: plans of other threads are collected
    too."""
    global _scratch
    kept: list[torch.Tensor] = []
    allocate = _scratch

    def keeping(size: int, index: int) -> torch.Tensor:
        kept.append(allocate(size, index))
        return kept[-1]

    _scratch = keeping
    try:
        yield kept
    finally:
        _scratch = allocate


def _in_a_range(at: Callable[[Values], None], name: str) -> Callable[[Values], None]:
    def named(values: Values) -> None:
        with torch.profiler.record_function(name):
            at(values)
    return named


class InterpretedPlan:
    """A plan under TRITON_INTERPRET=1: runs the kernel in Triton's interpreter, on CPU tensors."""

    def __init__(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
                 geometry: Geometry) -> None:
        self.problem, self.config, self.geometry = problem, config, geometry
        self._launches = launches_of(problem, config, device, geometry)
        self.operands = _operands(self._launches)
        self.report = BuildReport(0.0, True, None, None, 0)

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                 d: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0,
                 **others: torch.Tensor) -> None:
        """Runs the launches, one program after another. Raises LaunchError."""
        from tritongemm.kernels.interpret import interpret

        size = scratch_of(self._launches)
        scratch = torch.full((max(size // 4, 1),), float("nan"), dtype=torch.float32)
        _check_passed(self.operands, others)
        operands = {"a": a, "b": b, "c": c, SCRATCH: scratch, **others}
        if d is not None:
            operands["d"] = d
        elif epilogue_of(self.problem.epilogue).reads_d:
            raise LaunchError(f"{self.problem} adds a D, and this call passes none")
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
    """``config`` as a callable (a, b, out, d=None, alpha=1.0, beta=1.0, **others) for operands of
    ``problem`` with any strides; ``others`` are further operands, by name.

    Raises:
        ConstraintError, CompileError, LaunchError: raised here, not by the call.
    """
    return BoundConfig(problem, config, device)


class BoundConfig:
    """A config that makes one plan for each set of strides; ``report`` is that of the first
    plan."""

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
                 d: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0,
                 **others: torch.Tensor) -> None:
        """Launches on the current stream."""
        plan = self._plan(geometry_of(a, b, out, d, **others), a.device)
        plan(a, b, out, d, alpha, beta, **others)


def geometry_of(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                d: torch.Tensor | None = None, **others: torch.Tensor) -> Geometry:
    """The strides of A [M, K] or [batch, M, K], of B and C likewise, of D, which may be a bias [N],
    and of further operands."""
    views = tuple((name, View(x.stride(), divisor_of(x.data_ptr())))
                  for name, x in sorted(others.items()))
    g = Geometry(*strides_of(a), *strides_of(b), *strides_of(c),
                 *(() if d is None else strides_of_d(d)))
    if a.is_conj() or b.is_conj():
        g = replace(g, conjugated=(a.is_conj(), b.is_conj()))
    return replace(g, others=views) if views else g


def strides_of(x: torch.Tensor) -> tuple[int, int, int]:
    """(batch, row, column) strides of a batch, or of a matrix, whose batch stride is 0."""
    batch, row, column = x.stride() if x.dim() == 3 else (0, *x.stride())
    return batch, row, column


def strides_of_d(d: torch.Tensor) -> tuple[int, int, int, int]:
    """(batch, row, column) strides of D, 0 along missing axes, and the alignment of its base and
    outer strides in bytes, at most 16."""
    batch, row, column = (0,) * (3 - d.dim()) + d.stride()
    size = d.element_size()
    if column > 1:
        return batch, row, column, size
    return batch, row, column, divisor_of(d.data_ptr() | batch * size | row * size)
