"""What a sweep does while its worker starts: plans and compiles for the device that is expected."""

from __future__ import annotations

from pathlib import Path

import fakes
import pytest

from tritongemm import settings
from tritongemm.device import cuda_device, device_named, interpreter_device
from tritongemm.records.journal import read_journal
from tritongemm.tuning import loop
from tritongemm.tuning.expected_device import expected_device
from tritongemm.tuning.sweep import sweep

H200, H100 = device_named("nvidia-h200"), device_named("nvidia-h100-80gb-hbm3")


class Counting(fakes.CandidateList):
    """Notes the devices that it planned for."""

    def __init__(self, configs) -> None:
        super().__init__(configs)
        self.planned = []

    def __call__(self, problem, device):
        self.planned.append((problem.m, device.slug))
        return super().__call__(problem, device)


def run(journal: Path, candidates: Counting, **options):
    options = {"compile_workers": 1, "measurer": fakes.MEASURER, "builder": fakes.BUILDER,
               "expect": lambda index: H200, **options}
    return sweep([fakes.problem(64), fakes.problem(96)], journal, candidates=candidates, **options)


@pytest.fixture
def fed(monkeypatch):
    """How many builds wait when the compilers are first fed, and whether the journal is open."""
    seen = []
    feed = loop.CompilePool.feed

    def note(pool):
        seen.append(pool.outstanding)
        feed(pool)

    monkeypatch.setattr(loop.CompilePool, "feed", note)
    return seen


@pytest.mark.parametrize("search", ["full", "model"])
def test_the_first_problem_is_planned_once_and_compiled_meanwhile(tmp_path, fed, search):
    configs = [fakes.config(i) for i in range(1, 7)]
    candidates = Counting(configs)
    report = run(tmp_path / "a.jsonl", candidates, search=search)
    assert candidates.planned == [(64, "nvidia-h200"), (96, "nvidia-h200")]
    assert fed[0] == 6
    assert [p.winner for p in report.problems] == [fakes.config(1)] * 2
    results = [r for r in read_journal(tmp_path / "a.jsonl") if r["kind"] == "result"]
    coarse = [r for r in results if r["stage"] == "coarse"]
    assert len(coarse) == 12 and all(r["compile_s"] for r in coarse)
    assert report.measured == 12 and report.device == "nvidia-h200"


def test_another_device_than_expected_is_planned_for_again(tmp_path, fed):
    candidates = Counting([fakes.config(1), fakes.config(2)])
    report = run(tmp_path / "a.jsonl", candidates, expect=lambda index: H100)
    assert candidates.planned == [(64, H100.slug), (64, H200.slug), (96, H200.slug)]
    assert report.device == H200.slug and len(report.winners) == 2


def test_a_build_that_failed_meanwhile_is_the_outcome_of_its_config(tmp_path):
    candidates = Counting([fakes.config(1, fakes.REFUSED), fakes.config(2)])
    report = run(tmp_path / "a.jsonl", candidates)
    assert report.failures == {"compile": 2}
    assert [p.winner for p in report.problems] == [fakes.config(2)] * 2


def test_a_journal_that_is_continued_is_read_first(tmp_path, fed):
    configs = [fakes.config(1), fakes.config(2)]
    run(tmp_path / "a.jsonl", Counting(configs))
    fed.clear()
    report = run(tmp_path / "a.jsonl", Counting(configs), resume=True)
    assert report.measured == 0 and not any(fed)


def test_what_the_driver_does_not_describe_is_left_to_the_worker():
    assert expected_device(0, "libthatisnowhere.so.1") is None
    with settings.override(interpret=False):
        assert expected_device(None) is None
    with settings.override(interpret=True):
        assert expected_device(None) == interpreter_device()


@pytest.mark.gpu
def test_the_driver_and_torch_describe_one_device():
    assert expected_device(0) == cuda_device(0)
