"""The limit on the errors of float32 products at the setting split, and what is committed of
them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tritongemm.bench.accuracy_limit import MEASURES, chain_length, misses
from tritongemm.bench.accuracy_rows import Row, read_csv

RESULTS = Path(__file__).resolve().parents[2] / "perf" / "results"
SGEMM = Row("some-gpu", "normal", "nn", 256, 256, 4096, 0, "sgemm", "", 0, 4e-7, 1.15e-6, 0, "ok")
SHORT = replace(SGEMM, norm_error=5.7e-7)  # chains of a quarter of K

#: The committed results above the limit: (device, algorithm) -> (distribution, M = N, K) -> times
#: SGEMM's error, (by the largest element, in the norm); None where that is within the limit.
#: docs/accuracy.md lists them.
KNOWN: dict = {
    ("nvidia-h200", "split"): {
        # split_product. SGEMM adds in the order of K, which keeps partial sums small; a tensor core
        # adds 16 products.
        ("cancelling", 1024, 4096): (5.668, 5.739),
        ("cancelling", 4096, 4096): (5.056, 5.774),
        # simt, with chains of 256; SGEMM's are of about 128.
        ("log_normal", 64, 4096): (None, 2.665),
        # split_product; not examined.
        ("sparse_outliers", 4096, 4096): (1.034, 1.318),
    },
    # From here on default configs, which selection mostly does not take at these points.
    ("nvidia-h200", "split_product"): {
        # As above.
        ("cancelling", 256, 32): (5.709, 5.183),
        ("cancelling", 256, 128): (5.515, 5.564),
        ("cancelling", 256, 512): (5.156, 5.343),
        ("cancelling", 256, 2048): (4.894, 5.252),
        ("cancelling", 256, 8192): (5.418, 5.483),
        ("cancelling", 256, 65536): (5.552, 5.884),
        ("cancelling", 64, 4096): (4.590, 5.127),
        ("cancelling", 1024, 4096): (5.649, 5.737),
        ("cancelling", 4096, 4096): (5.056, 5.774),
        # 1.9e-7, as at each K from 128 on; SGEMM has 6e-8, because cuBLAS divides this K.
        ("uniform", 256, 512): (None, 3.134),
        # 1.1e-7, as for other numbers at this K; SGEMM has 1.9e-8, one rounding.
        ("log_normal", 256, 32): (None, 5.924),
        # The guard, which adds along all of K, computes 239 of the 512 rows and columns.
        ("log_normal", 256, 65536): (None, 47.25),
        # Sums of about one product other than 0, which SGEMM rounds as seldom.
        ("sparse_outliers", 256, 32): (5.176, None),
        ("sparse_outliers", 256, 128): (3.028, 4.415),
        # Not examined.
        ("sparse_outliers", 4096, 4096): (1.034, 1.318),
    },
    ("nvidia-h200", "tiled_bf16x6"): {
        # K in 2 parts. The config that selection takes divides it into 32: 0.63 and 0.71.
        ("uniform", 256, 65536): (None, 2.516),
        ("log_normal", 256, 65536): (None, 12.88),
        # Not examined.
        ("sparse_outliers", 4096, 4096): (None, 1.103),
    },
}


def split(times: float, like: Row = SGEMM, **changes) -> Row:
    """A row of the setting split with so many times the errors of SGEMM's row ``like``."""
    return replace(like, **{"algorithm": "split", "max_error": times * like.max_error,
                            "norm_error": times * like.norm_error, **changes})


@pytest.mark.parametrize("times, of, like, above", [
    (1.0, {}, SGEMM, False), (1.01, {}, SGEMM, True),
    (2.4, {"k": 512}, SGEMM, False), (2.6, {"k": 512}, SGEMM, True), (2.4, {"k": 513}, SGEMM, True),
    (2.4, {"distribution": "uniform"}, SGEMM, False),
    (2.6, {"distribution": "uniform"}, SGEMM, True),
    (2.4, {"distribution": "hilbert"}, SGEMM, True),
    (2.4, {"distribution": "hilbert"}, SHORT, False),
    (2.6, {"distribution": "hilbert"}, SHORT, True)])
def test_the_limit_is_sgemms_error_or_two_and_a_half_times_that_of_short_chains(
        times, of, like, above):
    normal, reference = like, replace(like, **of)
    found = misses([normal, reference, split(times, reference)])
    assert [miss.measure for miss in found] == (["max_error", "norm_error"] if above else [])
    assert all(miss.ratio == pytest.approx(times) for miss in found)


def test_each_algorithm_of_the_limit_is_held_to_it_and_no_other():
    rows = [split(3.0, algorithm=name) for name in ("split_product", "ieee", "simt", "tf32",
                                                    "tiled_bf16x6")]
    assert {miss.row.algorithm for miss in misses([SGEMM, *rows])} == {"split_product",
                                                                       "tiled_bf16x6"}


def test_an_error_where_sgemm_has_none_is_above_the_limit_and_nan_too():
    exact = replace(SGEMM, distribution="integers", max_error=0.0, norm_error=0.0)
    assert not misses([exact, split(1.0, exact)])
    assert "inf times" in str(misses([exact, split(1.0, exact, max_error=1e-9)])[0])
    assert misses([SGEMM, split(float("nan"))])


def test_a_result_without_sgemms_beside_it_is_not_judged():
    for other in (replace(SGEMM, k=2048), replace(SGEMM, layout="nt"),
                  replace(SGEMM, status="OutOfMemoryError: none left")):
        assert not misses([other, split(3.0)])
    assert not misses([SGEMM, split(3.0, status="no legal config: none")])


@pytest.mark.parametrize("k, parts", [(512, 1), (2048, 1), (2048, 4)])
def test_the_length_of_a_chain_is_seen_in_its_error(k, parts):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(40, k, generator=generator).double() for _ in range(2))
    sums = torch.zeros(parts, 40, 40)
    for i, (x, y) in enumerate(zip(a.T, b.T)):  # one rounding each, as a fused multiply-add
        part = i * parts // k
        sums[part] = (sums[part].double() + x[:, None] * y).float()
    total = sums[0]
    for part in sums[1:]:
        total = total + part
    exact = a @ b.T
    norm = torch.linalg.vector_norm(total.double() - exact) / torch.linalg.vector_norm(exact)
    assert chain_length(float(norm)) == pytest.approx(k / parts, rel=0.2)


@pytest.mark.skipif(not RESULTS.exists(), reason="perf/ is not beside the tests")
def test_what_is_committed_is_within_the_limit_but_for_the_known_misses():
    found: dict = {}
    files = sorted(RESULTS.glob("*/accuracy/*.csv"))
    assert files
    for file in files:
        rows = read_csv(file)
        # Of one chain of multiply-adds and of known sizes.
        for row in rows:
            if (row.algorithm, row.distribution) == ("sgemm", "normal") and (
                    row.k <= 128 or row.m * row.n == 2**24):
                assert chain_length(row.norm_error) == pytest.approx(row.k, rel=0.05)
        for miss in misses(rows):
            row = miss.row
            assert row.layout == "nn" and row.m == row.n
            points = found.setdefault((row.device, row.algorithm), {})
            points.setdefault((row.distribution, row.m, row.k), {})[miss.measure] = miss.ratio
    assert found == {who: {point: {measure: pytest.approx(times, rel=0.02)
                                   for measure, times in zip(MEASURES, ratios)
                                   if times is not None}
                           for point, ratios in points.items()}
                     for who, points in KNOWN.items()}
