"""Fitting the model to journals, and judging it leave-one-out, on timings made by the model."""

from __future__ import annotations

import csv
import shutil
from dataclasses import replace

import pytest

from tritongemm import selection, settings
from tritongemm.calibration.calibrate import calibrate
from tritongemm.calibration.regret import COLUMNS, Summary, regret, shipped, summaries
from tritongemm.calibration.timings import read_timings
from tritongemm.cli import main
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.errors import DataFileError, UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import (
    calibration_path,
    read_calibration,
    write_calibration,
)
from tritongemm.records.codec import config_to_json, problem_to_json
from tritongemm.records.journal import Journal
from tritongemm.selection.model import Rates, keys_of, predict, scales
from tritongemm.selection.typical import usual
from tritongemm.selection.work import class_of, static_of, work_of

H200 = device_named("nvidia-h200")
CONFIGS = [KernelConfig("tiled", bm, bn, 64, num_warps=w, num_stages=s)
           for bm in (64, 128) for bn in (64, 128) for w in (4, 8) for s in (3, 4)]
PROBLEMS = [GemmProblem.contiguous(m, n, k, layout="nt")
            for m, n, k in ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024),
                            (2048, 2048, 2048), (4096, 4096, 4096), (128, 4096, 2048),
                            (2048, 256, 4096), (4096, 1024, 512))]
FAST = "tiled_128x64x64_w8"


def truth(problem, config, fast=0.5, device=H200):
    """A time by the model with a latency of its own, and one class twice as fast."""
    work = work_of(problem, config, device)
    static = static_of(problem, config, device)
    values = [usual(key, config, static, device, problem.unit) for key in keys_of(config, work)]
    values[Rates._fields.index("latency_us")] = 1.5
    scale = scales(problem, device)
    rates = Rates(*(v * s for v, s in zip(values, scale, strict=True)))
    return predict(work, rates, fast if class_of(config) == FAST else 1.0).total_us


def sweep(path, device="nvidia-h200", problems=PROBLEMS, configs=CONFIGS, fast=0.5):
    """A journal as a sweep of ``problems`` writes it, times from :func:`truth`."""
    header = {"environment": "e", "run_id": "20260101T000000Z-abcdef", "device": device,
              "arch": 90, "versions": {"triton": "3.6.0"}}
    with Journal.open(path, header) as journal:
        for problem in problems:
            for config in configs:
                journal.append({"kind": "result", "problem": problem_to_json(problem),
                                "config": config_to_json(config), "stage": "coarse",
                                "status": "ok",
                                "time_us": truth(problem, config, fast, device_named(device))})
    return path


@pytest.fixture
def journal(tmp_path):
    return sweep(tmp_path / "sweep.jsonl")


def test_constants_are_found_again(tmp_path):
    journal = sweep(tmp_path / "even.jsonl", fast=1.0)
    path, found = calibrate([journal], path=tmp_path / "out.json")
    assert read_calibration(path) == found
    (section,) = found.sections
    assert (section.units, section.problems) == (("bf16", "fp16"), len(PROBLEMS))
    assert section.results == len(PROBLEMS) * len(CONFIGS)
    assert section.rms_log_error < 0.02
    assert section.constants["tiled"]["latency_us"] == pytest.approx(1.5, rel=0.2)
    assert all(factor == pytest.approx(1, abs=0.02) for factor in section.factors.values())
    assert section.run_ids == ("20260101T000000Z-abcdef",) and section.triton == "3.6.0"


def test_fitting_twice_gives_the_same_file(journal, tmp_path):
    first, _ = calibrate([journal], path=tmp_path / "a.json")
    second, _ = calibrate([journal], path=tmp_path / "b.json")
    assert first.read_bytes() == second.read_bytes()


def test_a_new_file_keeps_the_sections_of_the_one_that_it_hides(tmp_path):
    shipped = read_calibration(calibration_path(H200.slug))
    fp32 = [GemmProblem.contiguous(p.m, p.n, p.k, dtype="fp32", layout="nt")
            for p in PROBLEMS]
    journal = sweep(tmp_path / "j.jsonl", problems=fp32)
    new = tmp_path / "new"
    new.mkdir()
    with settings.override(config_dir=new):
        path, made = calibrate([journal])
        assert path.parent.parent == new
        assert {s.units for s in made.sections} == {s.units for s in shipped.sections}
        (kept,) = (s for s in made.sections if "bf16" in s.units)
        assert kept == shipped.section("bf16") and made.section("fp32") != shipped.section("fp32")


def test_sections_of_other_units_stay(journal, tmp_path):
    fp32 = [GemmProblem.contiguous(m, m, m, dtype="fp32") for m in (256, 512)]
    other = sweep(tmp_path / "fp32.jsonl", problems=fp32,
                  configs=[KernelConfig("tiled", 64, 64, bk) for bk in (8, 16)])
    out = tmp_path / "out.json"
    calibrate([journal], path=out)
    kept = read_calibration(out).section("bf16")
    calibrate([other], path=out)
    assert read_calibration(out).section("bf16") == kept
    assert read_calibration(out).section("fp32").problems == 2


def test_a_file_that_cannot_be_kept_is_refused_before_anything_is_fitted(journal, tmp_path,
                                                                         monkeypatch):
    path = tmp_path / "nvidia-h200.json"
    path.write_text('{"schema_version": 1, "device": "nvidia-h200", "arch": 90, "sections": []}')
    monkeypatch.setattr("tritongemm.calibration.calibrate.section_of",
                        lambda *_: pytest.fail("fitted"))
    with pytest.raises(DataFileError, match="remove the file"):
        calibrate([journal], path=path)


@pytest.fixture
def learned(journal, tmp_path):
    """A configs folder whose only calibration, of the H200, has learned from the journal."""
    for name in ("spaces", "devices"):
        shutil.copytree(settings.config_root() / name, tmp_path / "learned" / name)
    with settings.override(config_dir=tmp_path / "learned", config_only=True):
        assert main(["calibrate", str(journal)]) == 0
        selection.reload()
        yield tmp_path / "learned"
    selection.reload()


def test_the_policy_follows_what_was_fitted(learned):
    choice = selection.choose(GemmProblem.contiguous(3000, 3000, 3000, layout="nt"), H200)
    assert choice.source == "model" and class_of(choice.config) == FAST


def test_the_model_chooses_well_what_it_has_not_seen(journal):
    found = regret([journal], folds=4)
    assert {one.problem for one in found} == set(PROBLEMS)
    model, _ = summaries(found)["all"]
    assert model.count == len(PROBLEMS) and model.mean > 0.97 and model.worst > 0.9
    assert all(one.share(one.model) <= 1 for one in found)


@pytest.mark.parametrize("device", ["nvidia-h200", "nvidia-h100-80gb-hbm3"])
def test_what_is_shipped_is_judged_on_the_timings_of_its_own_device_or_a_siblings(learned, tmp_path,
                                                                                 device, capsys):
    measured = sweep(tmp_path / "other.jsonl", device=device)
    found = shipped([measured])
    assert {one.problem for one in found} == set(PROBLEMS)
    assert summaries(found)["all"][0].mean > 0.97
    assert main(["regret", str(measured), "--shipped"]) == 0
    assert "the shipped calibration" in capsys.readouterr().out


def test_a_calibration_without_candidates_chooses_what_it_knows(learned, tmp_path):
    path = learned / "calibration" / "nvidia-h200.json"
    known = read_calibration(path)
    write_calibration(path, replace(known, sections=tuple(
        replace(section, candidates=()) for section in known.sections)))
    selection.reload()
    (one,) = shipped([sweep(tmp_path / "other.jsonl", problems=PROBLEMS[:1])])
    assert one.model is not None and class_of(one.model.config) == FAST


def test_where_no_calibration_serves_nothing_is_judged(learned, tmp_path):
    with pytest.raises(UsageError, match="no calibration serves nvidia-l40s"):
        shipped([sweep(tmp_path / "other.jsonl", device="nvidia-l40s", problems=PROBLEMS[:1])])


@pytest.mark.parametrize("words", [["--folds", "3"], ["--fresh", "1"]])
def test_what_is_shipped_is_judged_on_journals_alone(journal, words, capsys):
    assert main(["regret", str(journal), "--shipped", *words]) == 2
    assert f"leave out {words[0]}" in capsys.readouterr().err


def test_a_single_problem_has_no_model_and_no_neighbour(tmp_path):
    (one,) = regret([sweep(tmp_path / "one.jsonl", problems=PROBLEMS[:1])])
    assert one.model is None and one.nearest is None and one.best.config in CONFIGS
    assert summaries([one]) == {}


def test_the_commands_say_what_they_did(journal, tmp_path, capsys):
    assert main(["calibrate", str(journal), "--out", str(tmp_path / "c.json")]) == 0
    assert "bf16+fp16: 8 problems" in capsys.readouterr().out
    table = tmp_path / "regret.csv"
    assert main(["regret", str(journal), "--folds", "2", "--out", str(table)]) == 0
    assert "bf16 square" in capsys.readouterr().out
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS and len(rows) == len(PROBLEMS)
    for row in rows:
        assert float(row["model_share"]) == pytest.approx(
            float(row["best_us"]) / float(row["model_us"]), abs=1e-3)


def test_journals_of_two_devices_need_a_choice(journal, tmp_path):
    other = sweep(tmp_path / "other.jsonl", device="nvidia-l40s", problems=PROBLEMS[:1])
    with pytest.raises(UsageError, match="--device"):
        read_timings([journal, other])
    assert {t.problem for t in read_timings([journal, other], "nvidia-l40s").timings} == {
        PROBLEMS[0]}


def test_timings_of_fused_products_are_skipped(journal, tmp_path):
    fused = [replace(p, epilogue="bias+gelu") for p in PROBLEMS]
    other = sweep(tmp_path / "fused.jsonl", problems=fused)
    assert read_timings([journal, other]).timings == read_timings([journal]).timings
    with pytest.raises(DataFileError, match="holds no timing"):
        read_timings([other])


def test_nothing_to_fit_is_said(tmp_path):
    empty = sweep(tmp_path / "empty.jsonl", problems=[])
    with pytest.raises(DataFileError, match="holds no timing"):
        read_timings([empty])
    with pytest.raises(UsageError, match="no journal"):
        read_timings([])
    with pytest.raises(UsageError, match="at least 2"):
        regret([empty], folds=1)


def test_no_shares_are_no_mean():
    assert Summary.of([]) == Summary(0, 0.0, 0.0)
    assert Summary.of([0.5, 1.0]).mean == pytest.approx(0.5 ** 0.5)
