"""Errors of float32 products against exact ones, by algorithm, input distribution and size.

Two measures of C against the float64 product, as in the error analysis of matrix products (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.5, bounds |C - C_ref| by a multiple of
|A| |B| element by element):

* ``max_error``: the largest |C - C_ref| / (|A| @ |B|) over all elements;
* ``norm_error``: the Frobenius norm of C - C_ref over that of C_ref.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from tritongemm.device import DeviceSpec, cuda_device
from tritongemm.errors import TritonGemmError
from tritongemm.kernels import SPECS
from tritongemm.kernels.split_fp32 import FLAGGED, exponents_in
from tritongemm.measure.distributions import DISTRIBUTIONS, draw
from tritongemm.measure.numerics import reference
from tritongemm.measure.torch_baseline import fp32_precision
from tritongemm.ops.plan import bind_config, geometry_of, kept_scratch
from tritongemm.problem import GemmProblem
from tritongemm.records.atomic import write_atomic
from tritongemm.selection import choose

#: Algorithm -> description. The first is the reference for the others.
ALGORITHMS = {
    "sgemm": "torch's float32 product (cuBLAS SGEMM), TF32 off",
    "cublas_tf32": "torch's TF32 product",
    "ieee": "this package's float32 kernels on CUDA cores",
    "fp16x3": "this package's three fp16 products of split operands",
    "tf32": "this package's TF32 kernels",
}
_TORCH = {"sgemm": "ieee", "cublas_tf32": "tf32"}


@dataclass(frozen=True)
class Point:
    """One product to measure: operands of ``distribution``, C [m, n] with a K of ``k``, and a
    layout."""

    distribution: str
    m: int
    n: int
    k: int
    layout: str = "nn"


@dataclass(frozen=True)
class Row:
    """One line of the CSV.

    Attributes:
        flagged: of split products: rows of A and columns of B whose range exceeds that of the fp16
            parts; the guard computes them. 0 for other algorithms.
        max_error, norm_error: see the module; NaN where ``status`` is not ``ok``.
        stray: elements that are NaN or infinite where the reference is not, or the reverse.
        status: ``ok``, or the reason why there is no result.
    """

    device: str
    distribution: str
    layout: str
    m: int
    n: int
    k: int
    seed: int
    algorithm: str
    config_id: str
    flagged: int
    max_error: float
    norm_error: float
    stray: int
    status: str


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
    spec = cuda_device(index)
    where = torch.device("cuda", index)
    for point in points:
        a, b = draw(point.distribution, point.m, point.n, point.k, seed, where)
        if point.layout[0] == "t":
            a = a.t().contiguous().t()
        if point.layout[1] == "t":
            b = b.t().contiguous().t()
        exact, size = reference(a, b), reference(a.abs(), b.abs())
        for algorithm in algorithms:
            config_id, flagged, status = "", 0, "ok"
            most, norm, stray = math.nan, math.nan, 0
            out = torch.full((point.m, point.n), math.nan, device=where)
            try:
                if algorithm in _TORCH:
                    with fp32_precision(_TORCH[algorithm]):
                        torch.mm(a, b, out=out)
                else:
                    config_id, flagged = _ours(point, algorithm, spec, a, b, out)
                most, norm, stray = errors(out, exact, size)
            except (TritonGemmError, torch.OutOfMemoryError) as error:
                status = f"{type(error).__name__}: {error}".splitlines()[0]
            yield Row(spec.slug, point.distribution, point.layout, point.m, point.n, point.k, seed,
                      algorithm, config_id, flagged, most, norm, stray, status)


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


def _ours(point: Point, precision: str, spec: DeviceSpec, a: torch.Tensor, b: torch.Tensor,
          out: torch.Tensor) -> tuple[str, int]:
    """Writes ``out`` by the kernel that selection chooses. Returns its config's id, and how many
    rows of A and columns of B its guard computed (see :class:`Row`)."""
    problem = GemmProblem.contiguous(point.m, point.n, point.k, dtype="fp32", layout=point.layout,
                                     precision=precision)
    config = choose(problem, spec).config
    bound = bind_config(problem, config, spec)
    with kept_scratch() as scratch:
        bound(a, b, out)
    torch.cuda.synchronize()
    flagged = 0
    if SPECS[config.kernel].guarded:
        for exponents in exponents_in(problem, config, geometry_of(a, b, out)):
            flagged += int((scratch[-1][exponents].view(torch.float32) >= FLAGGED).sum())
    return config.config_id, flagged


def write_csv(path: str | Path, rows: Sequence[Row]) -> Path:
    """Writes ``rows``, replacing the file. Raises ``DataFileError`` where it cannot be written."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([f.name for f in fields(Row)])
    for row in rows:
        writer.writerow([f"{x:.4g}" if isinstance(x, float) else x for x in asdict(row).values()])
    write_atomic(path, text.getvalue(), follow_links=True)
    return Path(path)

