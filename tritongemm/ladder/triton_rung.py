"""A Triton rung as ``out = alpha * a @ b + beta * out``, the contract of every rung."""

from __future__ import annotations

from dataclasses import replace

import torch

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.kernels import spec_named
from tritongemm.kernels.compile import BuildReport, build_launches
from tritongemm.kernels.launch import Launch, Pointer, Scalar
from tritongemm.ops.plan import bind_config
from tritongemm.problem import FULL_ALIGNMENT, GemmProblem, divisor_of, dtype_of

_BLOCK = 1024
_OPERANDS = ("product", "c", "scalars")


def scale_launch(problem: GemmProblem, strides: tuple[int, int], read_c: bool) -> Launch:
    """The pass that finishes C [m, n] of ``strides`` from a float32 product: a program a row and
    ``_BLOCK`` columns."""
    m, n = problem.m, problem.n
    size = dtype_of(problem.dtype_out).itemsize
    arguments = (
        Pointer("product", "product", "fp32", FULL_ALIGNMENT),
        Pointer("c", "c", problem.dtype_out, size), Pointer("scalars", "scalars", "fp32", 4),
        Scalar("M", m), Scalar("N", n, divisor_of(n, 4)), Scalar("stride_cm", strides[0]),
        Scalar("stride_cn", strides[1], fold=True))
    reach = max(m * n, (m - 1) * strides[0] + (n - 1) * strides[1])
    constants = (("BLOCK", _BLOCK), ("READ_C", read_c), ("INDEX64", reach >= 2**31))
    return Launch("tritongemm.kernels.device.ladder_scale", "scale", arguments, constants,
                  (m, -(-n // _BLOCK), 1), 4, 1, "tritongemm_ladder_scale")


def in_float32(problem: GemmProblem, config: KernelConfig,
               device: DeviceSpec) -> tuple[GemmProblem, KernelConfig]:
    """The problem with a float32 result, and the config for it: with as many stages as fit beside
    the larger output tile."""
    whole = replace(problem, dtype_out="fp32", align_c=FULL_ALIGNMENT)
    while config.num_stages > 1 and spec_named(config.kernel).violation(whole, config, device):
        config = replace(config, num_stages=config.num_stages - 1)
    return whole, config


class TritonRung:
    """A rung bound to a problem, for any strides.

    Args:
        problem, config, device: as :func:`tritongemm.ops.plan.bind_config` takes them.

    Attributes:
        report: of the rung's own kernel.

    Raises:
        ConstraintError, CompileError, LaunchError: as ``bind_config``.
    """

    def __init__(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> None:
        self._problem, self._config, self._device = problem, config, device
        self._plain = bind_config(problem, config, device)
        self.report: BuildReport = self._plain.report

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, alpha: float = 1.0,
                 beta: float = 0.0) -> None:
        """With alpha = 1 and beta = 0 the rung alone; ``beta == 0`` does not read ``out``.

        Raises:
            ConstraintError: with another alpha or beta, parameters that cannot leave the product
                in float32. And as the binding.
        """
        if alpha == 1 and beta == 0:
            self._plain(a, b, out)
            return
        product = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        bind_config(*in_float32(self._problem, self._config, self._device), self._device)(
            a, b, product)
        scalars = torch.tensor([alpha, beta], dtype=torch.float32, device=out.device)
        launch = scale_launch(self._problem, (out.stride(0), out.stride(1)), beta != 0)
        if settings.current().interpret:
            from tritongemm.kernels.interpret import interpret

            interpret(launch, dict(zip(_OPERANDS, (product, out, scalars))))
            return
        from tritongemm.kernels.driver import Launcher

        (binary,), _ = build_launches((launch,), self._device.arch)
        Launcher(launch, binary, out.device.index, _OPERANDS)(
            [x.data_ptr() for x in (product, out, scalars)],
            torch.cuda.current_stream(out.device).cuda_stream)
