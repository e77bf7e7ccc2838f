"""The problem of two tensors: layout letters and alignments that are true, and as good as true."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import tritongemm as tg  # noqa: E402
from tritongemm import settings  # noqa: E402
from tritongemm.config import KernelConfig  # noqa: E402
from tritongemm.device import device_named  # noqa: E402
from tritongemm.errors import UnsupportedError  # noqa: E402
from tritongemm.kernels import violation  # noqa: E402
from tritongemm.ops.calls import problem_of  # noqa: E402
from tritongemm.problem import GemmProblem  # noqa: E402
from tritongemm.selection import choose  # noqa: E402

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@st.composite
def stored(draw, batch: int | None, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """[rows, cols], or a batch of them, at any offset, with gaps, transposed or strided."""
    transposed = draw(st.booleans())
    outer, inner = (cols, rows) if transposed else (rows, cols)
    step = draw(st.sampled_from((1, 1, 1, 2)))
    lead = inner * step + draw(st.sampled_from((0, 0, 1, 4, 8)))
    whole = outer * lead + draw(st.sampled_from((0, 0, 1, 8)))
    offset = draw(st.sampled_from((0, 0, 1, 2, 4, 8)))
    storage = torch.zeros(offset + whole * (batch or 1) + 1, dtype=dtype)
    strides = (step, lead) if transposed else (lead, step)
    if batch is None:
        return storage.as_strided((rows, cols), strides, offset)
    return storage.as_strided((batch, rows, cols), (whole, *strides), offset)


@st.composite
def pairs(draw) -> tuple[torch.Tensor, torch.Tensor]:
    m, n, k = (draw(st.integers(1, 40)) for _ in range(3))
    batch = draw(st.sampled_from((None, None, 1, 3)))
    dtype = draw(st.sampled_from(list(DTYPES.values())))
    return (draw(stored(batch, m, k, dtype)), draw(stored(batch, k, n, dtype)))


def true_alignment(x: torch.Tensor, letter: str) -> int:
    """The most that holds of every row's first element, up to 16 bytes."""
    x = x if x.dim() == 3 else x[None]
    lines = x if letter == "n" else x.mT
    if lines.shape[-1] > 1 and lines.stride(-1) != 1:
        return x.element_size()
    addresses = {x.data_ptr() + x.element_size() * (i * lines.stride(0) + j * lines.stride(1))
                 for i in range(lines.shape[0]) for j in range(lines.shape[1])}
    return next(a for a in (16, 8, 4, 2, 1) if all(address % a == 0 for address in addresses))


@given(pairs())
def test_letters_and_alignments_are_true_and_no_worse(operands):
    a, b = operands
    with settings.override(interpret=True):
        problem = problem_of(a, b)
    assert (problem.m, problem.n, problem.k) == (a.shape[-2], b.shape[-1], a.shape[-1])
    assert problem.batch == (a.shape[0] if a.dim() == 3 else 1)
    assert {problem.dtype_a, problem.dtype_b, problem.dtype_out} == {
        name for name, dtype in DTYPES.items() if dtype is a.dtype}
    for x, letter, found in ((a, problem.layout[0], problem.align_a),
                             (b, problem.layout[1], problem.align_b)):
        lines = x if letter == "n" else x.mT
        unit = lines.stride(-1) == 1
        assert unit or lines.shape[-1] == 1 or x.stride(-1) != 1 != x.stride(-2)
        best = true_alignment(x, letter)
        assert best % found == 0, "an alignment that is not there"
        # A stride counts as a power of two that divides it; addresses alone cannot tell more.
        assert found == best or not unit, (found, best)


@pytest.mark.parametrize("layout", ("nn", "nt", "tn", "tt"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ((8, 16, 32), (33, 65, 17), (1, 64, 64), (64, 1, 64)), ids=str)
def test_fresh_operands_are_the_contiguous_problem(shape, dtype, layout):
    m, n, k = shape

    def made(rows: int, cols: int, letter: str) -> torch.Tensor:
        if letter == "n":
            return torch.zeros(rows, cols, dtype=DTYPES[dtype])
        return torch.zeros(cols, rows, dtype=DTYPES[dtype]).t()

    with settings.override(interpret=True):
        problem = problem_of(made(m, k, layout[0]), made(k, n, layout[1]))
    expected = GemmProblem.contiguous(m, n, k, dtype=dtype, layout=layout)
    assert (problem.m, problem.n, problem.k, problem.align_c) == (m, n, k, expected.align_c)
    if min(m, n, k) > 1:
        assert problem == expected
    else:  # an axis of one element has no letter of its own, and no lead to be unaligned
        assert problem.align_a >= expected.align_a and problem.align_b >= expected.align_b


def test_out_decides_the_alignment_of_c():
    a, b = torch.zeros(8, 16), torch.zeros(16, 8)
    store = torch.zeros(65)
    with settings.override(interpret=True):
        assert problem_of(a, b, store[:64].view(8, 8)).align_c == 16
        assert problem_of(a, b, store[1:].view(8, 8)).align_c == 4


@pytest.mark.parametrize("epilogue", ("none", "bias"))
def test_persistent_kernels_refuse_c_with_gaps_in_its_rows(epilogue):
    a, b = torch.zeros(64, 64), torch.zeros(64, 64).t()
    with settings.override(interpret=True):
        problem = replace(problem_of(a, b, torch.zeros(64, 64).t()), precision="tf32",
                          epilogue=epilogue)
    config = KernelConfig("persistent_tma", 64, 64, 32)
    h200 = device_named("nvidia-h200")
    assert violation(replace(problem, align_c=4), config, h200) is None
    assert violation(problem, config, h200).rule == "c_stride"
    assert violation(problem, choose(problem, h200).config, h200) is None


def test_a_broadcast_batch_is_no_copy():
    a, b = torch.zeros(3, 8, 16), torch.zeros(16, 8)
    with settings.override(interpret=True):
        assert problem_of(a, b).batch == 1 and problem_of(a, b).m == 24
        assert problem_of(b.t(), a.mT).batch == 3


def test_operands_that_no_kernel_takes_are_said():
    with pytest.raises(UnsupportedError, match="operands are on cpu"):
        problem_of(torch.zeros(2, 2), torch.zeros(2, 2))


def test_explain_is_of_the_call_that_matmul_would_make():
    a, b = torch.zeros(64, 128), torch.zeros(96, 128).t()
    with settings.override(interpret=True):
        found = tg.explain(a, b)
        assert found.problem == problem_of(a, b)
    assert found.config is not None and found.source in ("exact", "nearest", "model", "rule")
    text = str(found)
    assert "64x96x128 fp32 nt" in text and found.config.config_id in text
    assert "kernel     torch: operands are on cpu" in str(tg.explain(a, b))
