"""The accuracy study: its measures, its CSV, its picture and its command."""

from __future__ import annotations

import contextlib
import csv
import math
from dataclasses import asdict, replace

import pytest
import torch

from tritongemm.bench import accuracy
from tritongemm.bench.accuracy import (
    Point,
    config_of,
    default_points,
    errors,
    measure,
    measure_point,
)
from tritongemm.bench.accuracy_rows import ALGORITHMS, NO_CONFIG, Row, read_csv
from tritongemm.bench.accuracy_rows import write_csv as write
from tritongemm.cli import main
from tritongemm.device import representative
from tritongemm.errors import DataFileError
from tritongemm.kernels import SPECS
from tritongemm.measure.distributions import DISTRIBUTIONS
from tritongemm.problem import GemmProblem
from tritongemm.report.accuracy import _COLOURS, _LABELS, write_picture

CPU = torch.device("cpu")
FORCED = [name for name, one in ALGORITHMS.items() if one.kernel]
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


def test_each_algorithm_has_its_colour_and_its_label():
    assert set(_COLOURS) == set(_LABELS) == set(ALGORITHMS)


def test_the_help_names_every_algorithm(capsys):
    with pytest.raises(SystemExit):
        main(["accuracy", "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in ALGORITHMS)


def test_a_csv_is_read_as_it_was_written_and_an_old_name_as_the_new_one(tmp_path):
    rows = [replace(ROW, config_id="x_1", flagged=3), replace(
        ROW, max_error=math.nan, norm_error=math.nan, status=f'{NO_CONFIG}: "a", b')]
    path = write(tmp_path / "a.csv", rows)
    assert list(map(str, read_csv(path))) == list(map(str, rows))
    path.write_text(path.read_text().replace(",sgemm,", ",fp16x3,"))
    assert {row.algorithm for row in read_csv(path)} == {"split"}


@pytest.mark.parametrize("old, new, said", [
    ("device,", "machine,", "an accuracy CSV has device,"),
    (",256,", ",wide,", "row 2, field 'm': 'wide' is not a number"),
    (",ok", "", "row 2: has 13 values; a row has 14"),
])
def test_a_csv_that_is_not_one_of_the_study_is_refused(old, new, said, tmp_path):
    path = write(tmp_path / "a.csv", [ROW])
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(DataFileError) as raised:
        read_csv(path)
    assert said in str(raised.value)


class FakePlans:
    """Stands in for ``bind_config``: torch computes, and ``ran`` keeps what was to run."""

    def __init__(self, monkeypatch):
        self.ran = []
        monkeypatch.setattr(accuracy, "bind_config", self)
        monkeypatch.setattr(accuracy, "kept_scratch", self.scratch)

    def __call__(self, problem, config, spec):
        self.ran.append((problem, config))
        return lambda a, b, out: torch.mm(a, b, out=out)

    @staticmethod
    @contextlib.contextmanager
    def scratch():
        yield [torch.zeros(2**24, dtype=torch.uint8)]


@pytest.fixture
def plans(monkeypatch):
    return FakePlans(monkeypatch)


def test_a_named_kernel_runs_and_the_others_are_chosen(plans):
    points = [Point("normal", 70, 96, 515), Point("uniform", 33, 40, 64, "tt")]
    rows = [row for point in points
            for row in measure_point(point, tuple(ALGORITHMS), 0, representative(90), CPU)]
    assert [row.algorithm for row in rows] == 2 * list(ALGORITHMS)
    assert all(row.status == "ok" and row.norm_error < 1e-6 and not row.failed for row in rows)
    ours = [row for row in rows if not ALGORITHMS[row.algorithm].torch]
    for row, (problem, config) in zip(ours, plans.ran, strict=True):
        algorithm = ALGORITHMS[row.algorithm]
        assert row.config_id == config.config_id
        assert (problem.precision, problem.layout) == (algorithm.precision, row.layout)
        assert not algorithm.kernel or config == SPECS[algorithm.kernel].default(
            problem, representative(90))


@pytest.mark.parametrize("arch, point, algorithm, reason", [
    (80, Point("normal", 64, 64, 64), "split_product", "sm_90"),
    (90, Point("normal", 8, 4, 64), "simt", "a tile has at least 16x32 results")])
def test_a_kernel_without_a_config_for_a_product_says_so(plans, arch, point, algorithm, reason):
    (row,) = measure_point(point, [algorithm], 0, representative(arch), CPU)
    assert row.status.startswith(f"{NO_CONFIG}: ") and reason in row.status
    assert not plans.ran and not row.config_id and math.isnan(row.max_error) and not row.failed


def test_a_result_that_is_missing_or_stray_has_failed():
    assert replace(ROW, status="OutOfMemoryError: none left").failed
    assert replace(ROW, stray=1).failed and not ROW.failed


@pytest.mark.parametrize("algorithm", FORCED)
def test_every_point_of_the_study_has_a_config_of_each_named_kernel(algorithm):
    named = ALGORITHMS[algorithm]
    for point in default_points():
        problem = GemmProblem.contiguous(point.m, point.n, point.k, dtype="fp32",
                                         layout=point.layout, precision=named.precision)
        found = config_of(named, problem, representative(90))
        assert getattr(found, "kernel", found) == named.kernel, point


def test_the_rows_of_a_csv_are_printed_and_drawn_again_without_a_gpu(tmp_path, capsys):
    rows = [replace(ROW, algorithm=name, distribution=d, k=1024, max_error=error, norm_error=error)
            for d in ("normal", "uniform") for name, error in
            (("sgemm", 1e-6), ("split", 2e-6), ("simt", 3e-6))]
    path, out = write(tmp_path / "a.csv", rows), tmp_path / "b.csv"
    assert main(["accuracy", "--read", str(path), "--out", str(out), "--distributions", "normal",
                 "--algorithms", "sgemm,split"]) == 0
    assert read_csv(out) == rows[:2]
    said = capsys.readouterr().out
    assert "simt" not in said and "uniform" not in said
    assert ("split, normal, 256x256x1024 nn: max_error 2 times SGEMM's, 1 allowed") in said
    assert (tmp_path / "b-max-error.png").stat().st_size > 5000
    assert main(["accuracy", "--read", str(path), "--distributions", "hilbert"]) == 2
    assert "has no row" in capsys.readouterr().err


def test_the_csv_that_is_read_is_not_replaced(tmp_path, capsys):
    path = write(tmp_path / "a.csv", [ROW, replace(ROW, algorithm="simt")])
    before = path.read_bytes()
    (tmp_path / "link.csv").symlink_to(path)
    for out in (path, tmp_path / "link.csv"):
        assert main(["accuracy", "--read", str(path), "--out", str(out), "--algorithms",
                     "sgemm"]) == 2
        assert "is the file that --read reads" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_what_was_measured_is_written_however_the_measuring_ends(tmp_path, monkeypatch, capsys):
    def interrupted(*_):
        yield ROW
        raise KeyboardInterrupt

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(accuracy, "measure", interrupted)
    assert main(["accuracy", "--out", str(tmp_path / "a.csv")]) == 130
    assert read_csv(tmp_path / "a.csv") == [ROW] and "interrupted" in capsys.readouterr().err


def test_a_point_that_the_memory_has_no_room_for_says_so(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(accuracy, "reference", full)
    rows = list(measure_point(Point("normal", 8, 8, 8), ("sgemm", "split"), 0, representative(90),
                              CPU))
    assert [row.status for row in rows] == 2 * ["OutOfMemoryError: CUDA out of memory"]
    assert all(row.failed for row in rows)


@pytest.mark.parametrize("words, said", [
    (["--m", "64"], "--m and --k go together"),
    (["--read", "a.csv", "--m", "64", "--k", "64"], "leave out --m, --k and --seed"),
    (["--read", "a.csv", "--seed", "5"], "leave out --m, --k and --seed"),
    (["--layout", "tn"], "--layout without --m and --k would have no effect"),
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
        if row.status.startswith(NO_CONFIG):
            assert row.algorithm in FORCED
            continue
        assert row.status == "ok" and row.stray == 0, row
        assert row.norm_error < (2e-3 if "tf32" in row.algorithm else 1e-6), row
