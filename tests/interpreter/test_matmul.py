"""Kernels and ``matmul`` on CPU tensors in Triton's interpreter, against float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import tritongemm as tg
from tritongemm.config import KernelConfig
from tritongemm.device import interpreter_device
from tritongemm.kernels import violation
from tritongemm.measure.numerics import check, reference
from tritongemm.measure.operands import draw
from tritongemm.ops.plan import bind_config
from tritongemm.problem import GemmProblem, torch_dtype

pytestmark = pytest.mark.interpreter


@dataclass(frozen=True)
class Case:
    config: KernelConfig
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    layout: str = "nn"
    batch: int = 1

    def __str__(self) -> str:
        return f"{self.config.config_id}-{self.batch}x{self.m}x{self.n}x{self.k}-{self.dtype}-" \
               f"{self.layout}"


TILED = KernelConfig("tiled", 32, 32, 32, num_warps=4, num_stages=2, group_m=2)
TINY = KernelConfig("tiled", 16, 16, 32, num_warps=1, num_stages=2)
SPLIT = KernelConfig("tiled", 16, 32, 32, num_warps=2, num_stages=2, split_k=3)
TMA = KernelConfig("persistent_tma", 64, 64, 32, num_warps=4, num_stages=3, group_m=2)
TMA_SUBTILED = KernelConfig("persistent_tma", 64, 64, 32, num_warps=4, num_stages=2, group_m=2,
                            epilogue_subtile=2)


def gemv(m, n, k, tile=(16, 64), dtype="bf16", layout="nt", batch=1, **more):
    """The bandwidth kernel on a problem with one side of at most 8."""
    side = n if more.get("swap_ab") else m
    return Case(KernelConfig("gemv", 1 << (side - 1).bit_length(), *tile,
                             **{"num_warps": 1, "num_stages": 1, **more}),
                m, n, k, dtype, layout, batch)


#: A tile for weights that are contiguous along N.
ALONG_N = (64, 8)


CASES = (
    *(gemv(m, 50, 200, layout=layout, tile=ALONG_N if layout[1] == "n" else (8, 64))
      for m, layout in zip(range(1, 9), ("nn", "nt", "tn", "tt") * 2, strict=True)),
    gemv(1, 1, 30), gemv(3, 33, 102, dtype="fp16", num_stages=3),
    gemv(5, 17, 129, tile=(16, 32), dtype="fp32", num_warps=2), gemv(2, 40, 256, split_k=4),
    gemv(7, 70, 300, tile=ALONG_N, layout="nn", split_k=2, dtype="fp16"),
    gemv(4, 20, 96, batch=3, num_stages=2), gemv(8, 31, 257, split_k=4, batch=2),
    gemv(70, 1, 130, swap_ab=1), gemv(65, 6, 99, tile=ALONG_N, layout="tn", swap_ab=1),
    gemv(90, 3, 260, layout="nn", swap_ab=1, split_k=4, batch=2, dtype="fp16"),
    Case(TILED, 64, 64, 64), Case(TILED, 33, 65, 47), Case(TINY, 1, 1, 1),
    Case(TILED, 127, 30, 96, "fp16", "nt"), Case(TILED, 64, 40, 33, "fp32", "tn"),
    Case(TILED, 40, 64, 50, "fp32", "tt"), Case(TILED, 33, 17, 40, "bf16", "nt", 3),
    Case(SPLIT, 16, 40, 128), Case(SPLIT, 19, 33, 101, "fp16", "nt"),
    Case(SPLIT, 17, 32, 96, "fp32", "nn", 2),
    Case(TMA, 128, 128, 64), Case(TMA, 96, 72, 40, "bf16", "nt"),
    Case(TMA, 72, 136, 88, "fp16", "tn"), Case(TMA, 64, 64, 64, "bf16", "tt"),
    Case(TMA_SUBTILED, 72, 80, 48, "fp16", "nt"), Case(TMA, 40, 100, 64, "bf16", "nt"),
    Case(TMA, 40, 64, 48, "bf16", "nn", 3), Case(TMA, 64, 48, 40, "fp16", "tt", 2),
)


def is_long(case: Case) -> bool:
    """gemv multiplies element by element, which the interpreter does slowly."""
    return case.config.kernel == "gemv" and case.m * case.n * case.k > 25_000


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=pytest.mark.thorough if is_long(case) else ()) for case in CASES],
    ids=str)
def test_config_matches_float64(case: Case):
    problem = GemmProblem.contiguous(case.m, case.n, case.k, batch=case.batch, dtype=case.dtype,
                                     layout=case.layout)
    device = interpreter_device()
    assert violation(problem, case.config, device) is None
    operands = draw(problem, sets=1, seed=case.m, device=torch.device("cpu"))[0]
    operands.out.fill_(float("nan"))
    bind_config(problem, case.config, device)(operands.a, operands.b, operands.out)
    report = check(operands.out, operands.a, operands.b, reference(operands.a, operands.b))
    assert report.ok, report.message


SHAPES = ((1, 1, 1), (5, 7, 3), (16, 16, 16), (33, 70, 129), (64, 8, 200))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("dtype", ("bf16", "fp16", "fp32"))
@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
def test_matmul_matches_float64(shape, dtype, layout):
    problem = GemmProblem.contiguous(*shape, dtype=dtype, layout=layout)
    operands = draw(problem, sets=1, seed=1, device=torch.device("cpu"))[0]
    result = tg.matmul(operands.a, operands.b, strict=True)
    assert result.dtype == torch_dtype(dtype)
    report = check(result, operands.a, operands.b, reference(operands.a, operands.b))
    assert report.ok, report.message


def right(a: torch.Tensor, b: torch.Tensor) -> None:
    result = tg.matmul(a, b, strict=True)
    expected = torch.matmul(a, b)
    assert result.shape == expected.shape and result.dtype == expected.dtype
    wide = torch.matmul(a.double(), b.double())
    size = a.double().square().mean().sqrt() * b.double().square().mean().sqrt()
    bound = 4 * torch.finfo(a.dtype).eps * a.shape[-1] ** 0.5 * float(size)
    assert (result.double() - wide).abs().max() <= bound


def test_gapped_and_offset_operands_are_read_in_place():
    torch.manual_seed(0)
    store = torch.randn(5000, dtype=torch.float32).to(torch.bfloat16)
    right(store[3:].as_strided((20, 30), (41, 1)), store[1:].as_strided((30, 17), (2, 63)))


def test_operands_with_no_unit_stride_are_read_in_place():
    torch.manual_seed(0)
    a = torch.randn(40, 60).to(torch.float16)[::2, ::3]
    b = torch.randn(40, 36).to(torch.float16)[::2, ::2]
    right(a, b)


def test_expanded_operands_are_read_in_place():
    torch.manual_seed(0)
    right(torch.randn(1, 24).expand(18, 24), torch.randn(24, 1).expand(24, 20))


@pytest.mark.parametrize("shapes", (((3, 8, 16), (16, 5)), ((2, 3, 8, 16), (2, 3, 16, 5)),
                                    ((4, 8, 16), (1, 16, 5)), ((2, 1, 8, 16), (3, 16, 5)),
                                    ((8, 16), (3, 16, 5))), ids=str)
def test_batches_fold_and_broadcast_as_in_torch(shapes):
    torch.manual_seed(0)
    a, b = (torch.randn(*shape) for shape in shapes)
    flattens = not (a.dim() == 4 and a.shape[1] == 1)
    if flattens:
        right(a, b)
    torch.testing.assert_close(tg.matmul(a, b), torch.matmul(a, b), rtol=1e-4, atol=1e-5)


def test_out_is_written_in_place():
    torch.manual_seed(0)
    a, b = torch.randn(20, 30), torch.randn(30, 9)
    out = torch.full((20, 9), float("nan"))
    assert tg.matmul(a, b, out=out, strict=True) is out
    torch.testing.assert_close(out, a @ b, rtol=1e-4, atol=1e-5)


def test_values_changed_between_two_calls_are_seen():
    torch.manual_seed(0)
    a, b = torch.randn(16, 16), torch.randn(16, 16)
    first = tg.matmul(a, b, strict=True)
    b.mul_(-2)
    torch.testing.assert_close(tg.matmul(a, b, strict=True), -2 * first)


def test_results_repeat_bit_for_bit():
    torch.manual_seed(0)
    a, b = torch.randn(16, 4096).half(), torch.randn(4096, 16).half()
    results = {tuple(tg.matmul(a, b, strict=True).flatten().tolist()) for _ in range(3)}
    assert len(results) == 1


def test_nan_and_inf_stay_where_they_belong():
    a, b = torch.ones(20, 40), torch.ones(40, 20)
    a[3, 39], b[0, 7] = float("nan"), float("inf")
    result = tg.matmul(a, b, strict=True)
    assert result[3].isnan().all()
    assert result[:, 7].isinf().sum() == 19
    assert result.isfinite().sum() == 19 * 19
