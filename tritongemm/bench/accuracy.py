"""Errors of float32 products against exact ones, by algorithm, input distribution and size.

Two measures of C against the float64 product, as in the error analysis of matrix products (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.5, bounds |C - C_ref| by a multiple of
|A| |B| element by element):

* ``max_error``: the largest |C - C_ref| / (|A| @ |B|) over all elements;
* ``norm_error``: the Frobenius norm of C - C_ref over that of C_ref.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tritongemm.bench.accuracy_rows import ALGORITHMS, NO_CONFIG, Algorithm, Row
from tritongemm.config import KernelConfig
from tritongemm.device import DeviceSpec, cuda_device
from tritongemm.errors import ConstraintError, TritonGemmError
from tritongemm.kernels import SPECS
from tritongemm.kernels.split_fp32 import FLAGGED, exponents_in
from tritongemm.measure.distributions import DISTRIBUTIONS, draw
from tritongemm.measure.numerics import reference
from tritongemm.measure.torch_baseline import fp32_precision
from tritongemm.ops.plan import bind_config, geometry_of, kept_scratch
from tritongemm.problem import GemmProblem
from tritongemm.selection import choose


@dataclass(frozen=True)
class Point:
    """One product to measure: operands of ``distribution``, C [m, n] with a K of ``k``, and a
    layout."""

    distribution: str
    m: int
    n: int
    k: int
    layout: str = "nn"


def default_points() -> list[Point]:
    """K from 32 to 65,536 at 256 by 256, M = N from 64 to 4,096 at K = 4,096, all layouts once."""
    points = [Point(name, 256, 256, k) for name in DISTRIBUTIONS
              for k in (32, 128, 512, 2048, 8192, 65536)]
    points += [Point(name, side, side, 4096) for name in DISTRIBUTIONS
               for side in (64, 1024, 4096)]
    return points + [Point("normal", 515, 259, 1031, layout) for layout in ("nn", "nt", "tn", "tt")]


def measure(points: Sequence[Point], algorithms: Sequence[str] = tuple(ALGORITHMS),
            seed: int = 0) -> Iterator[Row]:
    """The rows of every point, one an algorithm, on the current CUDA device."""
    index = torch.cuda.current_device()
    for point in points:
        yield from measure_point(point, algorithms, seed, cuda_device(index),
                                 torch.device("cuda", index))


def measure_point(point: Point, algorithms: Sequence[str], seed: int, spec: DeviceSpec,
                  where: torch.device) -> Iterator[Row]:
    """The rows of one point. ``spec`` describes the device ``where``. Where its memory is too small
    they say so."""
    drawn: list[torch.Tensor] = []
    for name in algorithms:
        config_id, flagged, status = "", 0, "ok"
        most, norm, stray = math.nan, math.nan, 0
        algorithm = ALGORITHMS[name]
        try:
            if not drawn:
                drawn += _operands(point, seed, where)
            a, b, exact, size = drawn
            out = torch.full((point.m, point.n), math.nan, device=where)
            if algorithm.torch:
                with fp32_precision(algorithm.precision):
                    torch.mm(a, b, out=out)
            else:
                problem = GemmProblem.contiguous(point.m, point.n, point.k, dtype="fp32",
                                                 layout=point.layout, precision=algorithm.precision)
                found = config_of(algorithm, problem, spec)
                if isinstance(found, KernelConfig):
                    config_id, flagged = found.config_id, _run(problem, found, spec, a, b, out)
                else:
                    status = f"{NO_CONFIG}: {found}"
            if status == "ok":
                most, norm, stray = errors(out, exact, size)
        except (TritonGemmError, torch.OutOfMemoryError) as error:
            status = f"{type(error).__name__}: {error}".splitlines()[0]
        yield Row(spec.slug, point.distribution, point.layout, point.m, point.n, point.k, seed,
                  name, config_id, flagged, most, norm, stray, status)


def _operands(point: Point, seed: int, where: torch.device) -> tuple[torch.Tensor, ...]:
    """(A [M, K], B [K, N], A @ B, |A| @ |B|), the products in float64."""
    a, b = draw(point.distribution, point.m, point.n, point.k, seed, where)
    if point.layout[0] == "t":
        a = a.t().contiguous().t()
    if point.layout[1] == "t":
        b = b.t().contiguous().t()
    return a, b, reference(a, b), reference(a.abs(), b.abs())


def config_of(algorithm: Algorithm, problem: GemmProblem,
              spec: DeviceSpec) -> KernelConfig | str:
    """The config by which this package computes ``problem``, or why the kernel that is named has
    none.

    Raises:
        UnsupportedError: no kernel was named, and none runs it.
    """
    if not algorithm.kernel:
        return choose(problem, spec).config
    kernel = SPECS[algorithm.kernel]
    broken = kernel.supports(problem, spec)
    if broken is not None:  # a kernel that cannot run the problem may have no default
        return broken.message
    config = kernel.default(problem, spec)
    try:
        kernel.require(problem, config, spec)
    except ConstraintError as error:
        return str(error)
    return config


def errors(out: torch.Tensor, exact: torch.Tensor, size: torch.Tensor) -> tuple[float, float, int]:
    """(largest |C - C_ref| / (|A| @ |B|), norm error, stray elements) of ``out`` [M, N].

    Args:
        exact: A @ B in float64. size: |A| @ |B| in float64; where it is 0, C must be 0.
    """
    value = out.double()
    stray = int((value.isfinite() != exact.isfinite()).sum())
    gap = (value - exact).abs()
    share = torch.where(gap == 0, 0.0, gap / size)
    norm = torch.linalg.vector_norm(exact)
    total = torch.linalg.vector_norm(gap)
    return float(share.max()), float(total / norm) if norm > 0 else float(total), stray


def _run(problem: GemmProblem, config: KernelConfig, spec: DeviceSpec, a: torch.Tensor,
         b: torch.Tensor, out: torch.Tensor) -> int:
    """Writes ``out``. Returns how many rows of A and columns of B the guard computed (see
    ``Row``)."""
    bound = bind_config(problem, config, spec)
    with kept_scratch() as scratch:
        bound(a, b, out)
    flagged = 0
    if SPECS[config.kernel].guarded:
        for exponents in exponents_in(problem, config, geometry_of(a, b, out)):
            flagged += int((scratch[-1][exponents].view(torch.float32) >= FLAGGED).sum())
    return flagged
