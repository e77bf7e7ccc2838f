"""The accuracy study: its measures, its CSV, its picture and its command."""

from __future__ import annotations

import csv
import math
from dataclasses import asdict, replace

import pytest
import torch

from tritongemm.bench.accuracy import ALGORITHMS, Point, Row, default_points, errors, measure
from tritongemm.bench.accuracy import write_csv as write
from tritongemm.cli import main
from tritongemm.measure.distributions import DISTRIBUTIONS
from tritongemm.report.accuracy import write_picture

ROW = Row("some-gpu", "normal", "nn", 256, 256, 512, 0, "sgemm", "", 0, 1e-6, 2e-7, 0, "ok")


def exact(a, b):
    return a.double() @ b.double(), a.double().abs() @ b.double().abs()


def test_a_rounded_product_has_small_errors_and_a_wrong_element_shows():
    a, b = torch.randn(16, 64), torch.randn(64, 8)
    ref, size = exact(a, b)
    out = ref.float()
    most, norm, stray = errors(out, ref, size)
    assert most < 2**-23 and norm < 2**-23 and stray == 0
    out[3, 4] += size[3, 4].float()
    assert errors(out, ref, size)[0] == pytest.approx(1.0, rel=1e-5)
    out[3, 4] = math.inf
    assert errors(out, ref, size)[2] == 1


def test_an_element_without_terms_must_be_zero():
    a, b = torch.zeros(1, 4), torch.ones(4, 1)
    assert errors(torch.zeros(1, 1), *exact(a, b)) == (0.0, 0.0, 0)
    assert errors(torch.full((1, 1), 1e-30), *exact(a, b))[0] == math.inf


def test_the_study_covers_every_distribution_k_and_size():
    points = default_points()
    assert {p.distribution for p in points} == set(DISTRIBUTIONS) and len(DISTRIBUTIONS) >= 8
    assert min(p.k for p in points) == 32 and max(p.k for p in points) == 65536
    assert min(p.m for p in points) == 64 and max(p.m for p in points) == 4096


def test_the_csv_and_the_pictures_hold_the_rows(tmp_path):
    rows = [replace(ROW, algorithm=name, k=k, distribution=d, max_error=k * 1e-9)
            for name in ALGORITHMS for k in (32, 512) for d in ("normal", "uniform")]
    with open(write(tmp_path / "a.csv", rows), encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows) and read[0]["algorithm"] == "sgemm"
    assert float(read[1]["max_error"]) == pytest.approx(rows[1].max_error)
    for which in ("max_error", "norm_error"):
        picture = write_picture(map(asdict, rows), tmp_path / f"{which}.png", which)
        assert picture.stat().st_size > 5000


@pytest.mark.parametrize("words, said", [
    (["--m", "64"], "--m and --k go together"),
    (["--m", "64", "--k", "0"], "at least 1"),
    (["--distributions", "normal,gaussian"], "distribution 'gaussian' is not known"),
    (["--algorithms", "fp64"], "algorithm 'fp64' is not known"),
])
def test_a_wrong_argument_is_named(words, said, capsys):
    assert main(["accuracy", *words]) == 2
    assert said in capsys.readouterr().err


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["accuracy"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.gpu
def test_every_algorithm_is_within_its_precision_on_a_gpu():
    rows = list(measure([Point("normal", 128, 96, 515), Point("integers", 64, 64, 1024, "nt")]))
    assert {row.algorithm for row in rows} == set(ALGORITHMS)
    for row in rows:
        assert row.status == "ok" and row.stray == 0, row
        assert row.norm_error < (2e-3 if "tf32" in row.algorithm else 1e-6), row
