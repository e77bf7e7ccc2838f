"""Running a CUDA rung on torch tensors: ``out = alpha * a @ b + beta * out``."""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritongemm.baselines.cuda import source_path
from tritongemm.baselines.cuda.compiler import compile_cuda
from tritongemm.baselines.cuda.rungs import (
    MAX_GRID_Y,
    CudaRung,
    require,
    rung_named,
)
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, cuda_device
from tritongemm.errors import (
    ConstraintError,
    DeviceError,
    ProblemError,
    UsageError,
)
from tritongemm.occupancy import occupancy
from tritongemm.problem import DTYPES, FULL_ALIGNMENT, GemmProblem

if TYPE_CHECKING:
    import torch

    from tritongemm.baselines.cuda.launcher import CudaKernel

#: Threads of the pad kernels: 32 neighbours of 8 rows.
_PAD_MACROS = {"BM": 8, "BN": 32}


@dataclass(frozen=True)
class RungReport:
    """What a rung's GEMM kernel takes.

    Attributes:
        seconds, cached: spent compiling; whether it came from the disk cache.
        registers, spills: a thread; spills in bytes stored and loaded.
        shared_bytes: a block, static and dynamic.
        occupancy: share of an SM's warps that its blocks can fill, 0 to 1; None: the limits are not
            known.
    """

    seconds: float
    cached: bool
    registers: int
    spills: int
    shared_bytes: int
    occupancy: float | None


def build(rung: CudaRung, config: KernelConfig, device: DeviceSpec, *, k: int = 0,
          aligned: bool = True) -> tuple[CudaKernel, RungReport]:
    """Compiles a rung's kernel for ``device`` with no GPU needed.

    Raises:
        CompileError: NVRTC's log.
        ConstraintError: a block of it needs more registers than an SM has.
    """
    config = rung.canonical(config)
    kernel = compile_cuda(rung.source, rung.symbol, rung.macros(config, aligned),
                          arch=device.arch)
    resources, threads = kernel.resources, rung.threads(config)
    shared = resources.shared_bytes + rung.dynamic(config, k)
    filled = occupancy(device, num_warps=-(-threads // 32), registers=resources.registers,
                       shared_bytes=shared)
    if filled == 0:
        raise ConstraintError(
            f"{config} compiles to {resources.registers} registers a thread and {shared} bytes of "
            f"shared memory: {threads} threads of it do not fit an SM of {device.name}. "
            "Use a smaller tile")
    return kernel, RungReport(kernel.seconds, kernel.cached, resources.registers,
                              resources.spill_bytes, shared, filled)


class BoundGemm:
    """A rung made ready for one problem; calling it launches on torch's current stream.

    Attributes:
        problem, config: what it was made for.
        report: :class:`RungReport` of its GEMM kernel.
    """

    def __init__(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> None:
        import numpy

        self._rung = require(problem, config, device)
        self.problem, self.config = problem, self._rung.canonical(config)
        self._device, self._lock = device, threading.Lock()
        self._kernels: dict[bool, CudaKernel] = {}
        self._padded = self._rung.padded(self.config)
        align = {"a": problem.align_a, "b": problem.align_b, "c": problem.align_c}
        self._rows_aligned = all(align[o] == FULL_ALIGNMENT for o in self._rung.vector)
        kernel, self.report = build(self._rung, self.config, device, k=problem.k,
                                    aligned=self._rows_aligned)
        self._kernels[self._rows_aligned] = kernel
        m, n, k = problem.m, problem.n, problem.k
        if self._padded:
            pads = source_path("pad")
            self._pad = compile_cuda(pads, "pad", _PAD_MACROS, arch=device.arch)
            self._unpad = compile_cuda(pads, "unpad", _PAD_MACROS, arch=device.arch)
            m, n, k = (-(-extent // tile) * tile for extent, tile in
                       ((m, self.config.block_m), (n, self.config.block_n),
                        (k, self.config.block_k)))
        self._extents = m, n, k
        self._sizes = tuple(numpy.int32(v) for v in (m, n, k))
        self._grid = (*self._rung.grid(self.config, m, n), 1)
        self._block = (*self._rung.block(self.config), 1)
        self._dynamic = self._rung.dynamic(self.config, k)
        self._float = numpy.float32
        self._int = numpy.int32

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
                 alpha: float = 1.0, beta: float = 0.0) -> None:
        """``out = alpha * a @ b + beta * out``; ``beta == 0`` does not read ``out``.

        Raises:
            UsageError, ProblemError: operands that are not this problem's.
            LaunchError: the driver refused.
        """
        p = self.problem
        for name, tensor, shape in (("a", a, (p.m, p.k)), ("b", b, (p.k, p.n)),
                                    ("out", out, (p.m, p.n))):
            _check_operand(self._rung.name, name, tensor, shape)
        index = _one_device(self._rung.name, a, b, out)
        if p.m == 0 or p.n == 0:
            return
        alpha, beta = self._float(alpha), self._float(beta)
        if self._padded:
            self._run_padded(index, a, b, out, alpha, beta)
        else:
            self._gemm(index, a.data_ptr(), b.data_ptr(), out.data_ptr(), alpha, beta)

    def _gemm(self, device: int, a: int, b: int, c: int, alpha: object, beta: object) -> None:
        address = {"a": a, "b": b, "c": c}
        aligned = self._rows_aligned and all(address[o] % FULL_ALIGNMENT == 0
                                             for o in self._rung.vector)
        kernel = self._kernels.get(aligned)
        if kernel is None:
            with self._lock:
                kernel, _ = build(self._rung, self.config, self._device, k=self.problem.k,
                                  aligned=aligned)
                self._kernels[aligned] = kernel
        kernel.on(device).launch(self._grid, self._block, self._dynamic,
                                 (*self._sizes, alpha, a, b, beta, c))

    def _run_padded(self, device: int, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor,
                    alpha: object, beta: object) -> None:
        """Pads both operands, multiplies, and copies the corner back: four launches."""
        import torch

        m, n, k = self._extents
        pa, pb, pc = (torch.empty(shape, dtype=torch.float32, device=a.device)
                      for shape in ((m, k), (k, n), (m, n)))
        if k:
            for x, padded in ((a, pa), (b, pb)):
                rows, cols = padded.shape
                self._pad.on(device).launch(
                    _pad_grid(rows, cols), (_PAD_MACROS["BN"], _PAD_MACROS["BM"], 1), 0,
                    (self._int(x.shape[0]), self._int(x.shape[1]), x.data_ptr(),
                     self._int(rows), self._int(cols), padded.data_ptr()))
        self._gemm(device, pa.data_ptr(), pb.data_ptr(), pc.data_ptr(), alpha, self._float(0))
        rows, cols = out.shape
        self._unpad.on(device).launch(
            _pad_grid(rows, cols), (_PAD_MACROS["BN"], _PAD_MACROS["BM"], 1), 0,
            (self._int(rows), self._int(cols), self._int(n), pc.data_ptr(), beta,
             out.data_ptr()))


def bind_cuda(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> BoundGemm:
    """Compiles the rung ``config.kernel`` for ``problem``; the result is ``f(a, b, out)``.

    Its signature and its ``report`` are those of ``tritongemm.ops.plan.bind_config``, so that the
    sweep and the measuring take a rung for a kernel.

    Raises:
        ConstraintError: the rung cannot run the problem, or the parameters are illegal.
        CompileError: NVRTC's log.
        UsageError: no such rung.
    """
    return BoundGemm(problem, config, device)


@functools.lru_cache(maxsize=256)
def _bound(problem: GemmProblem, config: KernelConfig, index: int) -> BoundGemm:
    return bind_cuda(problem, config, cuda_device(index))


def cuda_gemm(name: str, a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None,
              alpha: float = 1.0, beta: float = 0.0,
              config: KernelConfig | None = None) -> torch.Tensor:
    """``alpha * a @ b + beta * out`` by the rung ``name``.

    Args:
        name: a key of :data:`~tritongemm.baselines.cuda.rungs.CUDA_RUNGS`.
        a: [M, K]; b: [K, N]; out: [M, N] (a new one if None): fp32, contiguous, one CUDA device.
        config: the rung's parameters; None: its default.

    Returns:
        ``out``.

    Raises:
        UsageError: an unknown rung, operands on two devices or not contiguous, beta without out.
        ProblemError: shapes or dtypes that do not make a product.
        DeviceError: the operands are not on a CUDA device.
        ConstraintError, CompileError, LaunchError: as :func:`bind_cuda`.
    """
    rung = rung_named(name)
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise ProblemError(f"a {tuple(a.shape)} and b {tuple(b.shape)} make no product; give "
                           "[M, K] and [K, N]")
    (m, k), n = a.shape, b.shape[1]
    for label, tensor, shape in (("a", a, (m, k)), ("b", b, (k, n)), ("out", out, (m, n))):
        if tensor is not None:
            _check_operand(name, label, tensor, shape)
    if out is None and beta != 0:
        raise UsageError(f"beta={beta} needs out, whose values it scales")
    index = _one_device(name, a, b, *(() if out is None else (out,)))
    if out is None:
        out = a.new_empty((m, n))
    bound = _bound(GemmProblem.contiguous(m, n, k, dtype="fp32"), config or rung.variants[0],
                   index)
    bound(a, b, out, alpha, beta)
    return out


_NAMES = {d.torch_name: d.name for d in DTYPES.values()}


def _check_operand(rung: str, name: str, tensor: torch.Tensor, shape: tuple[int, int]) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype != "float32":
        raise ProblemError(f"{rung} computes in fp32 only; {name} is {_NAMES.get(dtype, dtype)}. "
                           "Convert it, or use a Triton kernel")
    if tuple(tensor.shape) != shape:
        raise ProblemError(f"{rung}: {name} is {tuple(tensor.shape)}, expected {shape}")
    if not tensor.is_contiguous():
        raise UsageError(f"{rung} takes gapless row-major operands; {name} has strides "
                         f"{tuple(tensor.stride())}. Call .contiguous() on it")


def _one_device(rung: str, *tensors: torch.Tensor) -> int:
    devices = {tensor.device: None for tensor in tensors}
    if len(devices) > 1:
        raise UsageError(f"{rung}: the operands are on {' and '.join(map(str, devices))}; "
                         "put them on one CUDA device")
    device = next(iter(devices))
    if device.type != "cuda":
        raise DeviceError(f"{rung} runs on a CUDA device; the operands are on {device}. "
                          "The host rungs (cpu_*) need none")
    return device.index


def _pad_grid(rows: int, cols: int) -> tuple[int, int, int]:
    return (-(-cols // _PAD_MACROS["BN"]), min(-(-rows // _PAD_MACROS["BM"]), MAX_GRID_Y), 1)
