"""The baseline: right in every layout and dtype, and no switch of torch's leaks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tritongemm.measure import torch_baseline  # noqa: E402
from tritongemm.measure.operands import draw  # noqa: E402
from tritongemm.measure.torch_baseline import (  # noqa: E402
    available_libraries,
    blas_library,
    fp32_precision,
    product,
)
from tritongemm.problem import GemmProblem  # noqa: E402


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("layout", "dtype", "out"), [
    ("nn", "fp32", "fp32"), ("nt", "bf16", "bf16"), ("tn", "fp16", "fp16"), ("tt", "bf16", "fp32"),
])
def test_the_product_is_written_into_out(layout, dtype, out, batch):
    one = draw(GemmProblem.contiguous(5, 6, 7, batch=batch, dtype=dtype, dtype_out=out,
                                      layout=layout))[0]
    product(one)()
    torch.testing.assert_close(one.out.double(), one.a.double() @ one.b.double(), rtol=2e-2,
                               atol=2e-2)


@pytest.mark.parametrize("before", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("inside", ["ieee", "tf32"])
def test_the_precision_is_restored_after_an_error(before, inside):
    matmul = torch.backends.cuda.matmul
    original = matmul.fp32_precision
    matmul.fp32_precision = before
    try:
        with pytest.raises(ValueError, match="stop"), fp32_precision(inside):
            assert matmul.fp32_precision == inside
            raise ValueError("stop")
        assert matmul.fp32_precision == before
    finally:
        matmul.fp32_precision = original


def test_the_library_is_restored_after_an_error(monkeypatch):
    state = ["default"]

    def prefer(name=None):
        if name is not None:
            state[0] = name
        return state[0]

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", prefer)
    with pytest.raises(ValueError, match="stop"), blas_library("cublaslt"):
        assert state == ["cublaslt"]
        raise ValueError("stop")
    assert state == ["default"]
    with blas_library(""):
        assert state == ["default"]


def test_libraries_that_torch_was_built_without_are_left_out(monkeypatch):
    def prefer(name=None):
        if name == "cublaslt":
            raise RuntimeError("not compiled with it")
        return name or "default"

    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", prefer)
    assert available_libraries(torch.device("cuda", 0)) == ("cublas",)
    assert available_libraries(torch.device("cpu")) == ("",)
    assert set(torch_baseline.LIBRARIES) == {"cublas", "cublaslt"}
