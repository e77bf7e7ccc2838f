"""What the CUDA rungs say to operands they cannot take; no GPU is touched."""

import pytest

from tritongemm.baselines import cuda_gemm
from tritongemm.errors import DeviceError, ProblemError, UsageError

torch = pytest.importorskip("torch")

A, B = torch.ones(2, 3), torch.ones(3, 4)


@pytest.mark.parametrize("name, a, b, more, error, said", [
    ("fast", A, B, {}, UsageError, "'fast'.*thread_tile_2d"),
    ("naive", A, torch.ones(4, 4), {}, ProblemError, "make no product"),
    ("naive", A[0], B, {}, ProblemError, "make no product"),
    ("naive", A.half(), B.half(), {}, ProblemError, "fp32 only; a is fp16"),
    ("naive", A, B.bfloat16(), {}, ProblemError, "fp32 only; b is bf16"),
    ("naive", A, B.int(), {}, ProblemError, "b is int32"),
    ("naive", torch.ones(3, 2).t(), B, {}, UsageError, "a has strides"),
    ("naive", A, B, {"out": torch.ones(4, 2)}, ProblemError, r"out is \(4, 2\)"),
    ("naive", A, B, {"beta": 0.5}, UsageError, "needs out"),
    ("naive", A, B.to("meta"), {}, UsageError, "on cpu and meta"),
    ("naive", A, B, {}, DeviceError, "the operands are on cpu.*host rungs"),
])
def test_bad_operands_are_refused(name, a, b, more, error, said):
    with pytest.raises(error, match=said):
        cuda_gemm(name, a, b, **more)
