"""The error limit: no correct kernel fails it, and nothing wrong passes it."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from tritongemm.measure import numerics  # noqa: E402
from tritongemm.measure.numerics import Error, Limit, check, reference  # noqa: E402

DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SHAPES = [(64, 64, 64), (17, 33, 1), (100, 100, 3), (4, 4, 8), (128, 128, 1024), (16, 16, 8192)]
IDS = ["x".join(map(str, s)) for s in SHAPES]


def operands(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    m, n, k = shape
    return (torch.randn(m, k, generator=generator).to(dtype),
            torch.randn(k, n, generator=generator).to(dtype))


def accumulated(a, b, step):
    """fp32 accumulation, one chain of ``step``-wide products: the worst order of a kernel."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], step):
        total += (a[:, k:k + step].double() @ b[k:k + step].double()).float()
    return total.to(a.dtype)


def split(a, b, parts):
    """fp32 partial sums of ``parts`` pieces of K, added afterwards."""
    step = -(-a.shape[1] // parts)
    return sum(a[:, k:k + step].float() @ b[k:k + step].float()
               for k in range(0, a.shape[1], step)).to(a.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
def test_any_order_of_fp32_accumulation_passes_with_room(shape, dtype):
    a, b = operands(shape, dtype)
    ref = reference(a, b)
    for out in (accumulated(a, b, 1), accumulated(a, b, 16), split(a, b, 8), a @ b):
        # Also without torch's own error: a lucky baseline may not make the bar too low.
        for own in (a @ b, None):
            report = check(out, a, b, ref, own)
            assert report.ok and max(report.max_err_ratio, report.rms_err_ratio) < 0.8, report


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s[2] > 1], ids=lambda s: f"{s}")
def test_a_dropped_tail_of_k_fails(shape, dtype):
    a, b = operands(shape, dtype)
    tail = max(1, shape[2] // 256)
    out = split(a[:, :-tail], b[:-tail], 4)
    report = check(out, a, b, reference(a, b), a @ b)
    assert not report.ok and "exceeds" in report.message


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_one_wrong_element_fails(dtype):
    a, b = operands((256, 256, 512), dtype)
    out = a @ b
    out[131, 7] = out[131, 8]
    assert not check(out, a, b, reference(a, b), a @ b).ok


def test_swapped_rows_fail():
    a, b = operands((64, 64, 64), torch.bfloat16)
    out = a @ b
    out[[3, 4]] = out[[4, 3]]
    assert not check(out, a, b, reference(a, b), a @ b).ok


def test_fp16_accumulation_fails():
    a, b = operands((64, 64, 4096), torch.float16)
    out = torch.zeros(64, 64, dtype=torch.float16)
    for k in range(0, 4096, 4):
        out += a[:, k:k + 4] @ b[k:k + 4]
    assert not check(out, a, b, reference(a, b), a @ b).ok


def truncated_to_tf32(x):
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def test_tf32_passes_where_it_was_asked_for_and_fails_as_ieee():
    a, b = operands((128, 128, 512), torch.float32)
    out, ref = truncated_to_tf32(a) @ truncated_to_tf32(b), reference(a, b)
    assert check(out, a, b, ref, None, precision="tf32").ok
    assert not check(out, a, b, ref, a @ b, precision="ieee").ok
    dropped = truncated_to_tf32(a)[:, :-1] @ truncated_to_tf32(b)[:-1]
    assert not check(dropped, a, b, ref, out, precision="tf32").ok


def test_split_products_are_held_to_the_limit_of_ieee():
    a, b = operands((128, 128, 512), torch.float32)
    ref = reference(a, b)
    assert check(a @ b, a, b, ref, a @ b, precision="fp16x3").ok
    assert not check(truncated_to_tf32(a) @ truncated_to_tf32(b), a, b, ref, a @ b,
                     precision="fp16x3").ok


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_never_pass(value):
    a, b = operands((8, 8, 8), torch.bfloat16)
    out = a @ b
    out[3, 3] = value
    report = check(out, a, b, reference(a, b), a @ b)
    assert not report.ok and report.max_err_ratio == math.inf and "1 of 64" in report.message


def test_nan_from_the_baseline_does_not_widen_the_limit():
    a, b = operands((64, 64, 64), torch.bfloat16)
    broken = torch.full((64, 64), 1e30).to(torch.bfloat16)
    assert not check(torch.zeros(64, 64, dtype=torch.bfloat16), a, b, reference(a, b), broken).ok


def test_infinity_passes_where_the_true_value_overflows_or_is_infinite():
    a = torch.full((2, 4), 300.0, dtype=torch.float16)
    b = torch.full((4, 2), 300.0, dtype=torch.float16)
    assert check(torch.full((2, 2), math.inf, dtype=torch.float16), a, b, reference(a, b)).ok
    assert not check(torch.full((2, 2), -math.inf, dtype=torch.float16), a, b, reference(a, b)).ok
    a[0, 0] = math.inf
    out = torch.full((2, 2), math.inf, dtype=torch.float16)
    assert check(out, a, b, reference(a, b)).ok
    out[0, 0] = 3.0
    assert not check(out, a, b, reference(a, b)).ok


@pytest.mark.parametrize("chunk", [1, 50, 2**20])
@pytest.mark.parametrize("batch", [None, 3])
def test_the_reference_is_the_same_in_pieces(monkeypatch, chunk, batch):
    monkeypatch.setattr(numerics, "_CHUNK", chunk)
    lead = () if batch is None else (batch,)
    a, b = torch.randn(*lead, 13, 7), torch.randn(*lead, 7, 11)
    rows = torch.tensor([0, 5, 12])
    torch.testing.assert_close(reference(a, b), a.double() @ b.double(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(reference(a, b, rows), a[..., rows, :].double() @ b.double(),
                               rtol=1e-14, atol=1e-14)
    out = (a @ b).flip(-1)
    whole = (out.double() - a.double() @ b.double()).abs()
    error = numerics.error_of(out, reference(a, b))
    assert error.maximum == pytest.approx(float(whole.max()))
    assert error.rms == pytest.approx(float(whole.square().mean().sqrt()))


def test_twice_torchs_error_counts_up_to_sixteen_floors():
    low = Limit(1.0, 0.1)
    assert numerics.limit(low, Error(3.0, 0.01, 10, 0)) == Limit(6.0, 0.1)
    assert numerics.limit(low, Error(1e9, 1e9, 10, 0)) == Limit(16.0, pytest.approx(1.6))


def test_the_rms_of_a_complex_number_is_that_of_its_parts():
    x = torch.tensor(3 + 4j)
    assert numerics.rms(x) == numerics.rms(x[None]) == pytest.approx(12.5**0.5)


def test_the_rms_is_judged_from_a_thousand_outputs_on():
    allowed = Limit(1.0, 0.1)
    assert numerics.judge(Error(0.9, 0.2, 999, 0), allowed).ok
    assert "RMS" in numerics.judge(Error(0.9, 0.2, 1000, 0), allowed).message


def test_an_empty_k_must_give_zeros():
    a, b = torch.zeros(3, 0), torch.zeros(0, 3)
    assert check(torch.zeros(3, 3), a, b, reference(a, b)).ok
    assert not check(torch.full((3, 3), 1e-3), a, b, reference(a, b)).ok


def test_a_result_of_another_shape_is_refused():
    with pytest.raises(numerics.NumericsError, match=r"\[2, 3\]"):
        numerics.error_of(torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.float64))


def test_poison_is_nan():
    out = torch.zeros(3)
    numerics.poison(out)
    assert out.isnan().all()


def test_scaled_product_with_an_addend_is_judged_by_both_their_sizes():
    generator = torch.Generator().manual_seed(3)
    a, b, c = (torch.randn(*shape, generator=generator) for shape in ((70, 40), (40, 60), (70, 60)))
    alpha, addend = -1.37, 1e4 * c.double()
    ref = alpha * numerics.reference(a, b) + addend
    out = (alpha * (a @ b) + addend.float()).clone()
    assert numerics.check(out, a, b, ref, alpha=alpha, addend=addend).ok
    assert not numerics.check(out, a, b, ref, alpha=alpha).ok  # the addend's rounding counts
    assert not numerics.check(out + 0.1, a, b, ref, alpha=alpha, addend=addend).ok


def test_product_scaled_by_zero_must_be_exact():
    a, b = torch.ones(4, 5), torch.ones(5, 6)
    ref = torch.zeros(4, 6, dtype=torch.float64)
    assert numerics.check(torch.zeros(4, 6), a, b, ref, alpha=0.0).ok
    assert not numerics.check(torch.full((4, 6), 1e-30), a, b, ref, alpha=0.0).ok
