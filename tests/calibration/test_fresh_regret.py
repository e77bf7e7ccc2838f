"""Judging the selection on drawn shapes: what is drawn, what is measured twice, what is judged."""

from __future__ import annotations

import csv
import functools
import itertools

import fakes
import pytest

from tritongemm import selection
from tritongemm.calibration import fresh_regret
from tritongemm.calibration.fresh_regret import (
    AGAIN,
    HOPELESS,
    MULTIPLE,
    SIDES,
    Again,
    Wide,
    draw,
    forecast,
    judge,
    measure,
    unmeasured,
)
from tritongemm.calibration.timings import times_of
from tritongemm.cli import main
from tritongemm.device import device_named
from tritongemm.errors import DeviceError, UsageError
from tritongemm.problem import GemmProblem
from tritongemm.selection.columns import Columns
from tritongemm.selection.model import model_for
from tritongemm.selection.work import class_of
from tritongemm.workers.messages import COARSE, FINAL

H200 = device_named("nvidia-h200")
FAKE = {"measurer": fakes.MEASURER, "builder": fakes.BUILDER, "compile_workers": 1,
        "measurer_arguments": {}}
SMALL = Wide(seed=3, top=4, at_random=2)


def drawn(seed, count, **kind):
    return list(itertools.islice(draw(seed, **kind), count))


def test_a_seed_draws_the_same_shapes_half_of_them_aligned():
    problems = drawn(7, 60)
    assert problems == drawn(7, 60) != drawn(8, 60)
    assert len(set(problems)) == 60
    for number, p in enumerate(problems):
        assert all(SIDES[0] <= side <= SIDES[1] for side in (p.m, p.n, p.k))
        if number % 2 == 0:
            assert p.m % MULTIPLE == p.n % MULTIPLE == p.k % MULTIPLE == 0
            assert (p.align_a, p.align_b, p.align_c) == (16, 16, 16)
    assert sum(min(p.align_a, p.align_c) < 16 for p in problems) > 20
    sides = sorted(x for p in problems for x in (p.m, p.n, p.k))
    assert 700 < sides[len(sides) // 2] < 1500  # log-uniform: the middle is the geometric mean


def test_more_shapes_begin_with_the_same_ones():
    assert drawn(7, 60)[:20] == drawn(7, 20)


def test_what_was_measured_is_left_out():
    problems = drawn(7, 3)
    measured = model_for(problems[0], H200).section.neighbours[0].problem
    tuned = GemmProblem.contiguous(4096, 4096, 4096, dtype="bf16", layout="nt")
    assert list(unmeasured([measured, *problems, tuned], H200)) == problems


def test_what_cannot_be_judged_is_not_drawn():
    with pytest.raises(UsageError, match="calibrate"):
        next(unmeasured(draw(7), device_named("nvidia-l40s")))


def test_the_wide_run_has_the_choice_the_best_of_each_class_and_some_at_random():
    problem = drawn(7, 1)[0]
    configs = SMALL(problem, H200).configs
    assert configs[0] == selection.choose(problem, H200).config
    assert configs == SMALL(problem, H200).configs  # resuming meets the same ones
    ordered = selection.candidates(problem, H200)
    assert set(ordered[:4]) <= set(configs) <= set(ordered)
    times = dict(zip(ordered, model_for(problem, H200).times(problem, Columns(ordered)),
                     strict=True))
    many = Wide(3, 4, 40)(problem, H200).configs
    assert max(times[c] for c in many) > HOPELESS * times[ordered[0]]  # what it thinks hopeless
    assert len({class_of(c) for c in configs}) > 4
    assert set(Wide(4, 4, 2)(problem, H200).configs) != set(configs)


def test_both_runs_measure_and_the_choice_is_judged_in_the_second(tmp_path):
    problems = drawn(7, 2)
    journal = tmp_path / "r.jsonl"
    measure(problems, journal, wide=SMALL, **FAKE)
    first, second = fresh_regret.journals(journal)
    wide, again = times_of(first, COARSE), times_of(second, COARSE)
    for one in judge(problems, journal, H200):
        choice = selection.choose(one.problem, H200)
        fastest = sorted(wide[one.problem].values())[:AGAIN]
        assert one.configs == len(wide[one.problem])
        assert choice.config in again[one.problem]
        assert sorted(again[one.problem].values())[:AGAIN] == fastest
        assert one.best.time_us == min(times_of(second, FINAL)[one.problem].values())
        assert one.model.config == choice.config
        assert one.share(one.model) == one.best.time_us / fakes.time_us(choice.config)
        assert one.predicted_us == choice.predicted_us
    assert len(judge(problems, journal, H200)) == 2


@pytest.mark.thorough
def test_resuming_measures_nothing_twice_and_goes_on(tmp_path):
    problems, journal, log = drawn(7, 2), tmp_path / "r.jsonl", tmp_path / "log"
    options = {**FAKE, "measurer_arguments": {"log": str(log)}}
    measure(problems[:1], journal, wide=SMALL, **options)
    before = log.read_text().splitlines()
    measure(problems, journal, wide=SMALL, resume=True, **options)
    after = log.read_text().splitlines()[len(before):]
    size = fakes.size_of(problems[0])
    assert after and not any(size in line for line in after if line.startswith("coarse"))
    assert len(judge(problems, journal, H200)) == 2


@pytest.mark.thorough
def test_a_shape_that_the_wide_run_did_not_reach_is_not_judged(tmp_path):
    problems, journal = drawn(7, 2), tmp_path / "r.jsonl"
    measure(problems[:1], journal, wide=SMALL, **FAKE)
    assert [one.problem for one in judge(problems, journal, H200)] == problems[:1]
    assert Again(fresh_regret.journals(journal)[0])(problems[1], H200).configs == ()


@pytest.mark.thorough
def test_a_forecast_counts_configs_and_binaries():
    problems = drawn(7, 2)
    found = forecast(problems, H200, SMALL)
    assert found.shapes == 2
    assert found.configs == sum(len(SMALL(p, H200).configs) for p in problems)
    assert found.binaries > 10 and found.seconds > 0


@pytest.fixture
def faked(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(fresh_regret, "sweep", functools.partial(_faked, fresh_regret.sweep))


def _faked(real, *args, **options):
    return real(*args, **{**options, **FAKE})


FRESH = ["regret", "--fresh", "7", "--device-name", "nvidia-h200", "--count", "2", "--top", "4",
         "--random", "2"]


@pytest.mark.thorough
def test_the_command_measures_judges_and_writes(faked, tmp_path, capsys):
    assert main([*FRESH, "--out", "r.csv"]) == 0
    out = capsys.readouterr().out
    assert "rounds of the second run" in out and "worst choices" in out
    with open("r.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 and all(float(row["model_share"]) <= 1 for row in rows)
    assert main([*FRESH, "--judge-only", "--at-least", "1.01"]) == 1
    assert main([*FRESH, "--judge-only", "--at-least", "0.01", "--worst", "0.01"]) == 0


def test_the_plan_needs_no_gpu_and_writes_nothing(faked, tmp_path, capsys):
    assert main([*FRESH, "--plan"]) == 0
    assert "2 shapes" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_the_shapes_of_a_family_can_be_drawn(faked, capsys):
    from tritongemm.bench.fresh import draw_up_to
    from tritongemm.cli.regret import _drawn

    problems = _drawn(7, "batched", 2, H200)
    assert len(problems) == 2 and all(p.batch > 1 for p in problems)
    assert set(problems) <= {x.problem(layout="nt") for x in draw_up_to("batched", 7, 8)}
    assert main([*FRESH, "--family", "batched", "--plan"]) == 0


@pytest.mark.parametrize("words, says", [
    ([*FRESH, "some.jsonl"], "leave out the journals"), (["regret"], "--fresh SEED"),
    ([*FRESH, "--family", "none_such"], "'none_such' is not known"),
    ([*FRESH, "--count", "0"], "--count 0 is below 1"),
    ([*FRESH, "--top", "-1"], "--top -1 is below 1"),
    ([*FRESH, "--random", "-1"], "--random -1 is below 0"),
    (["regret", "j.jsonl", "--count", "5", "--resume"], "--count, --resume without --fresh"),
    ([*FRESH, "--family", "wide_k", "--count", "999999"], "ask for fewer")])
def test_wrong_arguments_are_named(words, says, faked, capsys):
    assert main(words) == 2
    assert says in capsys.readouterr().err


def test_the_help_names_the_defaults(capsys):
    with pytest.raises(SystemExit):
        main(["regret", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for count in (fresh_regret.SHAPES, fresh_regret.TOP, fresh_regret.RANDOM):
        assert f"(default {count})" in said


def test_another_kind_can_be_drawn():
    (one,) = drawn(7, 1, dtype="fp16", layout="nn")
    assert one == GemmProblem.contiguous(one.m, one.n, one.k, dtype="fp16", layout="nn")


def test_a_plan_without_a_gpu_asks_for_the_device(capsys, monkeypatch):
    def no_device():
        raise DeviceError("there is none")

    monkeypatch.setattr("tritongemm.device.current_device", no_device)
    for word in ("--plan", "--judge-only"):
        assert main(["regret", "--fresh", "5", word]) == 2
        assert "name it: --device-name nvidia-h200" in capsys.readouterr().err
