"""``calibrate --quick``: what it measures, and that it makes a calibration of it."""

from __future__ import annotations

from dataclasses import replace

import fakes
import pytest

from tritongemm import selection, settings
from tritongemm.calibration import quick
from tritongemm.cli import main
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.errors import DeviceError, UsageError
from tritongemm.records.calibration import (
    Calibration,
    calibration_path,
    read_calibration,
    write_calibration,
)
from tritongemm.records.journal import read_journal
from tritongemm.tuning.candidates import PruneReport

L40S, H200 = device_named("nvidia-l40s"), device_named("nvidia-h200")


def test_whatever_the_budget_cuts_off_leaves_a_spread():
    problems = quick.quick_problems()
    assert problems == quick.quick_problems() and len(set(problems)) == len(problems)
    assert len(problems) > 0.9 * sum(quick.FAMILIES.values())
    for count in (40, len(problems)):
        some = problems[:count]
        decode = sum(p.m <= 64 for p in some) / count
        assert 0.08 < decode < 0.4
        assert {p.layout for p in some} == {"nn", "nt", "tn", "tt"}
        assert any(p.batch > 1 for p in some) and any(p.align_a < 16 for p in some)
    assert max(p.flops() for p in problems) <= 2e12


def test_configs_are_half_promising_and_half_spread_over_tiles():
    tiled = [KernelConfig("tiled", 64, 64, 64, num_stages=stages) for stages in (2, 3, 4, 5)]
    others = [KernelConfig("tiled", 128, 64, 64), KernelConfig("gemv", 1, 64, 16, num_stages=1),
              KernelConfig("skinny", 8, 16, 512, num_stages=1)]
    for seed in "abcdef":
        found = quick.spread([*tiled, *others], 5, seed)
        assert found[0] == tiled[0] and {found[2], found[4]} <= {*tiled, *others}
        assert found[1] in others and found[3] in others and len(set(found)) == 5
    assert quick.spread(tiled, 99, "seed")[0] == tiled[0] and len(quick.spread(tiled, 99, "")) == 4


def test_candidates_are_legal_from_one_pool_with_what_is_in_use():
    problems = quick.quick_problems()[:6]
    planner = quick.QuickPlanner(problems[:2], count=8)
    planner.spaces = [s for s in planner.spaces if s.kernel in ("gemv", "skinny")]
    pool = {c for p in problems for c in planner.legal(p, L40S, PruneReport())}
    for problem in problems:
        found = planner(problem, L40S).configs
        assert set(found) <= pool | {selection.choose(problem, L40S).config}
        assert len(found) <= 9


CONFIGS = [KernelConfig("tiled", m, n, 32) for m in (16, 32, 64) for n in (32, 64)]


def test_a_quick_calibration_is_written_and_serves(tmp_path, monkeypatch, capsys):
    problems = [p for p in quick.quick_problems() if p.batch == 1][:8]
    given = {}

    def swept(wanted, journal, **options):
        given.update(options, problems=list(wanted))
        for name in ("devices", "progress"):
            options.pop(name)
        return fakes.run(journal, CONFIGS, problems=problems,
                         **{k: v for k, v in options.items() if k in ("budget_s", "finalists")})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quick, "sweep", swept)
    unknown = device_named("nvidia-l40s")
    monkeypatch.setattr("tritongemm.device.cuda_device", lambda index: unknown)
    assert main(["calibrate", "--quick", "--budget", "40", "--plain", "--journal", "q.jsonl",
                 "--out", "new.json"]) == 0
    out = capsys.readouterr().out
    assert "48 configs of 8 problems measured" in out and "wrote new.json" in out
    assert given["budget_s"] == pytest.approx(0.92 * 40) and given["finalists"] == 3
    assert len(given["problems"]) > 200 and isinstance(given["candidates"], quick.QuickPlanner)
    (section,) = read_calibration("new.json").sections
    assert section.units == ("bf16", "fp16") and section.problems == 8
    assert not section.candidates
    assert sum(r["kind"] == "winner" for r in read_journal("q.jsonl")) == 8


def test_what_was_made_of_more_is_not_replaced(monkeypatch, capsys):
    monkeypatch.setattr("tritongemm.device.cuda_device", lambda index: device_named("nvidia-h200"))
    assert main(["calibrate", "--quick"]) == 2
    assert "nvidia-h200 has a calibration" in capsys.readouterr().err
    assert main(["calibrate"]) == 2 and "--quick to measure now" in capsys.readouterr().err
    assert main(["calibrate", "--quick", "j.jsonl"]) == 2
    assert "--quick measures by itself" in capsys.readouterr().err
    with pytest.raises(UsageError, match="budget_s=0"):
        quick.quick("j.jsonl", budget_s=0)


def test_float32_is_measured_at_the_precision_of_calls():
    for precision, expected in ((None, "fp16x3"), ("tf32", "tf32"), ("ieee", "ieee")):
        problems = quick.quick_problems("fp32", precision=precision)
        assert {(p.dtype_a, p.precision) for p in problems} == {("fp32", expected)}
    with settings.override(fp32="ieee"):
        assert quick.quick_problems("fp32")[0].precision == "ieee"
    assert quick.quick_problems("fp16", precision="tf32")[0].precision == "ieee"


def test_a_gpu_that_no_kernel_runs_on_is_refused_before_anything_is_written(
        tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tritongemm.device.cuda_device", lambda index: replace(
        H200, slug="tesla-t4", name="Tesla T4", arch=75))
    with settings.override(config_dir=tmp_path, config_only=True):
        assert main(["calibrate", "--quick", "--plain"]) == 2
    assert "Tesla T4 is sm_75; kernels need sm_80" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_unit_without_a_section_is_measured_and_the_other_sections_are_kept(
        tmp_path, monkeypatch, capsys):
    problems = [p for p in quick.quick_problems("fp32") if p.batch == 1][:8]
    monkeypatch.setattr(quick, "sweep", lambda wanted, journal, **options: fakes.run(
        journal, CONFIGS, problems=problems))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tritongemm.device.cuda_device", lambda index: H200)
    bf16 = read_calibration(calibration_path(H200.slug)).section("bf16")
    with settings.override(config_dir=tmp_path, config_only=True):
        write_calibration(calibration_path(H200.slug), Calibration(H200.slug, 90, (bf16,)))
        assert main(["calibrate", "--quick", "--plain"]) == 2
        assert "nvidia-h200 has a calibration for bf16" in capsys.readouterr().err
        assert main(["calibrate", "--quick", "--plain", "--dtype", "fp32"]) == 0
        made = read_calibration(calibration_path(H200.slug))
        assert [s.units for s in made.sections] == [bf16.units, ("fp16x3",)]
        assert main(["calibrate", "--quick", "--plain", "--dtype", "fp32"]) == 2
        assert "has a calibration for fp16x3" in capsys.readouterr().err


def test_options_of_quick_are_refused_without_it(capsys):
    assert main(["calibrate", "j.jsonl", "--budget", "5", "--dtype", "fp32"]) == 2
    assert "--budget, --dtype without --quick would have no effect" in capsys.readouterr().err


def test_a_device_without_a_file_gets_one_with_the_driver_s_limits(tmp_path):
    unknown = replace(L40S, slug="nvidia-rtx-6000-ada", name="NVIDIA RTX 6000 Ada",
                      peak_tflops={}, memory_gbps=None, sources={})
    with settings.override(config_dir=tmp_path):
        with pytest.raises(DeviceError):
            device_named("rtx-6000-ada")
        assert quick.remember(unknown) == tmp_path / "devices" / "nvidia-rtx-6000-ada.json"
        found = device_named("rtx-6000-ada")
        assert replace(found, sources={}) == unknown and found.sources == {"limits": "the driver"}
        assert quick.remember(unknown) is None and quick.remember(L40S) is None
        assert selection.choose(quick.quick_problems()[0], found).source == "rule"
