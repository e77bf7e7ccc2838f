"""A sweep over fake workers: what goes wrong is journalled, and the rest goes on."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import fakes
import pytest
from fakes import config, problem, run

from tritongemm import settings
from tritongemm.errors import CompileError, DataFileError, DeviceError, UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_from_json, problem_from_json
from tritongemm.records.journal import read_journal
from tritongemm.tuning import sweep as sweeping
from tritongemm.tuning.progress import Plain, Progress, Snapshot
from tritongemm.tuning.sweep_journal import RowSink
from tritongemm.tuning.task import Task
from tritongemm.workers.messages import Outcome

FOUR = [config(n) for n in (1, 2, 3, 4)]


def results(journal: Path, stage: str | None = None) -> dict[tuple[int, str], dict]:
    """(size, config_id) -> record; fails where one was journalled twice."""
    found: dict[tuple[int, str], dict] = {}
    for record in read_journal(journal):
        if record["kind"] == "result" and (record["stage"] == stage if stage
                                           else record["stage"] != "final"):
            key = (problem_from_json(record["problem"]).m,
                   config_from_json(record["config"]).config_id)
            assert key not in found
            found[key] = record
    return found


def statuses(journal: Path) -> dict[str, str]:
    return {name: record["status"] for (_, name), record in results(journal).items()}


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_every_config_is_journalled_and_the_fastest_finalist_wins(tmp_path):
    report = run(tmp_path / "j.jsonl", list(reversed(FOUR)))
    assert set(statuses(tmp_path / "j.jsonl").values()) == {"ok"}
    assert len(results(tmp_path / "j.jsonl")) == 4
    (one,) = report.problems
    assert one.winner == config(1)
    assert (one.time_us, one.ratio_vs_torch) == (16.0, 6.25)
    assert report.measured == 4 and report.failures == {}


def test_the_winner_record_says_where_it_comes_from(tmp_path):
    report = run(tmp_path / "j.jsonl", FOUR)
    (winner,) = [r for r in read_journal(tmp_path / "j.jsonl") if r["kind"] == "winner"]
    assert config_from_json(winner["config"]) == config(1)
    expected = {"device": "nvidia-h200", "arch": 90, "torch": "2.13.0", "triton": "3.7.1",
                "run_id": report.run_id, "environment": "fake", "ratio_vs_torch": 6.25}
    assert {name: winner[name] for name in expected} == expected


def test_build_values_are_kept_beside_the_time(tmp_path):
    run(tmp_path / "j.jsonl", FOUR[:1])
    ((_, record),) = results(tmp_path / "j.jsonl").items()
    assert (record["registers"], record["compile_s"], record["time_us"]) == (40, 0.5, 16.0)


def test_only_configs_near_the_fastest_are_finalists(tmp_path):
    run(tmp_path / "j.jsonl", [config(n) for n in (10, 11, 12, 13, 20)], finalists=3)
    assert [name for _, name in results(tmp_path / "j.jsonl", "final")] == [
        c.config_id for c in (config(10), config(11), config(12))]


def test_of_configs_of_a_kind_two_are_finalists_before_others_are():
    alike = [config(10, group_m=g) for g in (1, 2, 4, 8)]
    task = Task(problem(), total=6)
    task.coarse = [*zip((10.0, 10.1, 10.2, 10.3, 10.4, 20.0), (*alike, config(11), config(30)))]
    assert task.next_finalists(3) == (*alike[:2], config(11))
    assert task.next_finalists(5) == (*alike[:2], config(11), *alike[2:])  # 30 is too slow
    task.finals = {c: Outcome("wrong") for c in (*alike[:2], config(11))}
    assert task.next_finalists(3) == tuple(alike[2:])


@pytest.mark.parametrize(("what", "status", "words"), [
    ("exit", "died", "exit status 3: last words of file.py"),
    ("kill", "died", "killed by SIGKILL"),
    ("sticky", "died", "illegal memory access"),
    ("raise", "launch", "LaunchError: too many resources asked for"),
    ("unexpected", "launch", "ZeroDivisionError: a slip"),
    ("wrong", "wrong", "off by 3 limits"),
    ("oom", "oom", "no memory"),
])
def test_a_config_that_fails_is_journalled_with_its_kind_and_the_rest_goes_on(
        tmp_path, what, status, words):
    bad = FOUR[1].config_id
    report = run(tmp_path / "j.jsonl", FOUR, behaviour={f"coarse *:{bad}": what})
    found = results(tmp_path / "j.jsonl")
    assert {name: r["status"] for (_, name), r in found.items()} == {
        c.config_id: status if c.config_id == bad else "ok" for c in FOUR}
    assert words in found[64, bad]["reason"]
    assert "time_us" not in found[64, bad]
    assert report.failures == {status: 1}
    assert report.problems[0].winner == config(1)


def test_a_hang_is_ended_at_the_limit_and_the_rest_goes_on(tmp_path):
    bad = FOUR[0].config_id
    report = run(tmp_path / "j.jsonl", FOUR, behaviour={f"coarse *:{bad}": "hang"},
                 per_config_timeout_s=0.5)
    assert statuses(tmp_path / "j.jsonl")[bad] == "timeout"
    assert "measuring took over 0.5 s" in results(tmp_path / "j.jsonl")[64, bad]["reason"]
    assert report.problems[0].winner == config(2)


def test_no_path_of_this_machine_is_journalled(tmp_path):
    run(tmp_path / "j.jsonl", FOUR,
        behaviour={f"coarse *:{FOUR[1].config_id}": "exit"})
    text = (tmp_path / "j.jsonl").read_text()
    assert "secret" not in text and str(tmp_path) not in text


def test_a_config_is_tried_once_however_often_the_worker_dies(tmp_path):
    log = tmp_path / "log"
    run(tmp_path / "j.jsonl", FOUR, log=log,
        behaviour={f"coarse *:{c.config_id}": "kill" for c in FOUR[:3]})
    begun = [line for line in lines(log) if line.startswith("coarse")]
    assert len(begun) == len(set(begun)) == 4


def test_compile_failures_hangs_and_deaths_keep_their_kinds(tmp_path):
    configs = [config(1), config(2, fakes.REFUSED), config(3, fakes.HANGS),
               config(4, fakes.DIES), config(5)]
    report = run(tmp_path / "j.jsonl", configs, compile_timeout_s=1.0)
    found = results(tmp_path / "j.jsonl")
    assert [found[64, c.config_id]["status"] for c in configs] == [
        "ok", "compile", "timeout", "died", "ok"]
    assert [found[64, c.config_id]["stage"] for c in configs] == [
        "coarse", "compile", "compile", "compile", "coarse"]
    assert "gave up in kernel.ptx" in found[64, configs[1].config_id]["reason"]
    assert "compiling took over 1 s" in found[64, configs[2].config_id]["reason"]
    assert report.problems[0].winner == config(1)


def test_a_config_that_has_no_launch_is_a_compile_failure_and_the_rest_goes_on(tmp_path):
    configs = [config(1), config(2, fakes.REFUSED)]
    report = run(tmp_path / "j.jsonl", configs, builder="fakes:RefusingBuilder")
    record = results(tmp_path / "j.jsonl")[64, configs[1].config_id]
    assert (record["stage"], record["status"]) == ("compile", "compile")
    assert "no launch" in record["reason"] and report.problems[0].winner == config(1)


def test_no_compiler_at_all_is_an_error_that_says_why(tmp_path):
    with pytest.raises(CompileError, match="No module named 'triton'"):
        run(tmp_path / "j.jsonl", FOUR, builder="fakes:NoBuilder")


def test_equal_builds_are_made_once_and_stored_ones_not_at_all(tmp_path):
    configs = [fakes.KernelConfig("tiled", m, 64, 32, num_stages=s)
               for m in (16, 32) for s in (2, 3)]
    report = run(tmp_path / "j.jsonl", configs, builder="fakes:SharedBuilder",
                 problems=[problem(64), problem(128)])
    assert report.compile_s == 0.5
    assert len(results(tmp_path / "j.jsonl")) == 8
    assert sum("compile_s" in r for r in results(tmp_path / "j.jsonl").values()) <= 2


def test_a_problem_whose_operands_do_not_fit_is_left_and_the_next_goes_on(tmp_path):
    report = run(tmp_path / "j.jsonl", FOUR, problems=[problem(64), problem(128)],
                 behaviour={"open 64x64x64": "oom"})
    by_size = {p.problem.m: p for p in report.problems}
    assert by_size[64].winner is None and "oom" in by_size[64].note
    assert by_size[128].winner == config(1)
    assert Counter(r["status"] for (size, _), r in results(tmp_path / "j.jsonl").items()
                   if size == 64) == {"oom": 4}


@pytest.mark.parametrize("what", ["kill", "sticky"])
def test_a_death_while_making_operands_is_tried_once_more(tmp_path, what):
    log = tmp_path / "log"
    report = run(tmp_path / "j.jsonl", FOUR, log=log, behaviour={"open 64x64x64": what})
    assert sum(line.startswith("open") for line in lines(log)) == 2
    assert report.problems[0].winner is None
    assert set(statuses(tmp_path / "j.jsonl").values()) == {"died"}


@pytest.mark.parametrize("what", [
    "kill", "sticky", "raise", pytest.param("hang", marks=pytest.mark.thorough)])
def test_a_finalist_that_fails_is_found_by_measuring_them_one_by_one(tmp_path, what):
    configs = [config(n) for n in (20, 21, 22)]
    report = run(tmp_path / "j.jsonl", configs, per_config_timeout_s=0.4,
                 behaviour={f"final *:{configs[0].config_id}": what})
    found = results(tmp_path / "j.jsonl", "final")
    assert [found[64, c.config_id]["status"] == "ok" for c in configs] == [False, True, True]
    assert report.problems[0].winner == configs[1]


def test_a_finalist_that_proves_wrong_does_not_win(tmp_path):
    report = run(tmp_path / "j.jsonl", [config(20), config(21)],
                 behaviour={f"final *:{config(20).config_id}": "wrong"})
    assert report.problems[0].winner == config(21)


def test_when_no_finalist_is_right_the_next_best_are_tried(tmp_path):
    configs = [config(n) for n in (20, 21, 22, 23)]
    report = run(tmp_path / "j.jsonl", configs, finalists=2,
                 behaviour={f"final *:{c.config_id}": "wrong" for c in configs[:2]})
    assert report.problems[0].winner == configs[2]


def test_a_problem_without_candidates_says_so(tmp_path):
    report = run(tmp_path / "j.jsonl", [])
    assert report.problems[0].winner is None
    assert "no config is legal" in report.problems[0].note


def test_several_devices_share_the_problems_and_no_problem_is_on_two(tmp_path):
    log = tmp_path / "log"
    problems = [problem(n) for n in (16, 32, 48, 64, 80, 96)]
    report = run(tmp_path / "j.jsonl", FOUR, problems=problems, devices=None, devices_there=3,
                 log=log, each_s=0.02)
    where: dict[str, set[str]] = {}
    for line in lines(log):
        stage, what, device = line.split()
        if stage != "open":
            where.setdefault(what.split(":")[0], set()).add(device)
    assert all(len(devices) == 1 for devices in where.values())
    assert len(set.union(*where.values())) > 1
    assert len(report.winners) == 6 and len(results(tmp_path / "j.jsonl")) == 24


def test_a_device_that_cannot_start_is_left_out_while_others_work(tmp_path):
    report = run(tmp_path / "j.jsonl", FOUR, problems=[problem(16), problem(32)],
                 devices=(0, 1), refuse=[1])
    assert len(report.winners) == 2


def test_devices_that_differ_are_refused_with_what_differs(tmp_path):
    with pytest.raises(UsageError, match=r"device (.) \(NVIDIA H200\) is not like device (.) \("
                                         r"NVIDIA H200\): driver . there and . on device \2; sw"):
        run(tmp_path / "j.jsonl", FOUR, devices=(0, 1), each_s=0.5, drivers=["1", "2"],
            problems=[problem(16 * n) for n in range(1, 9)])


def test_no_usable_device_is_an_error_that_says_why(tmp_path):
    with pytest.raises(DeviceError, match="no CUDA device 5"):
        run(tmp_path / "j.jsonl", FOUR, devices=(5,), refuse=[5])
    assert not (tmp_path / "j.jsonl").exists()


@pytest.mark.thorough
def test_a_device_on_which_everything_dies_stops_the_sweep(tmp_path):
    configs = [config(n) for n in range(1, 40)]
    with pytest.raises(DeviceError, match="25 configs in a row"):
        run(tmp_path / "j.jsonl", configs,
            behaviour={f"coarse *:{c.config_id}": "kill" for c in configs})
    assert len(results(tmp_path / "j.jsonl")) == 25


def test_the_budget_ends_the_sweep_and_a_resume_goes_on(tmp_path):
    problems = [problem(16 * n) for n in range(1, 30)]
    report = run(tmp_path / "j.jsonl", FOUR, problems=problems, budget_s=1.5, each_s=0.1)
    assert report.stopped == "budget" or any(p.skipped for p in report.problems)
    assert len(report.winners) < len(problems)
    before = len(results(tmp_path / "j.jsonl"))
    again = run(tmp_path / "j.jsonl", FOUR, problems=problems, resume=True)
    assert again.resumed == before
    assert len(results(tmp_path / "j.jsonl")) == 4 * len(problems)
    assert {p.problem for p in again.problems} == set(problems)


def test_a_resume_in_the_same_environment_measures_nothing_again(tmp_path):
    log = tmp_path / "log"
    run(tmp_path / "j.jsonl", FOUR, log=log, behaviour={f"coarse *:{FOUR[3].config_id}": "exit"})
    before = lines(log)
    again = run(tmp_path / "j.jsonl", FOUR, log=log, resume=True)
    assert lines(log) == before
    assert (again.measured, again.resumed) == (0, 4)
    assert again.problems[0].note == "measured before"


@pytest.mark.parametrize(("bad", "behaviour", "limit"), [
    (FOUR[0], {f"coarse *:{FOUR[0].config_id}": "hang"}, "per_config_timeout_s"),
    (config(1, fakes.HANGS), {}, "compile_timeout_s")], ids=["coarse", "compile"])
def test_a_resume_with_a_higher_limit_tries_again_what_timed_out(tmp_path, bad, behaviour, limit):
    configs = [bad, *FOUR[1:]]
    run(tmp_path / "j.jsonl", configs, behaviour=behaviour, **{limit: 1.0})
    assert statuses(tmp_path / "j.jsonl")[bad.config_id] == "timeout"
    for limit_s, measured in ((1.0, 0), (1.5, 1), (1.5, 0), (1.0, 0)):
        again = run(tmp_path / "j.jsonl", configs, behaviour=behaviour, resume=True,
                    **{limit: limit_s})
        assert (again.measured, again.resumed) == (measured, 4 - measured)


def test_a_config_that_timed_out_wins_with_a_higher_limit(tmp_path):
    run(tmp_path / "j.jsonl", FOUR, behaviour={f"coarse *:{FOUR[0].config_id}": "hang"},
        per_config_timeout_s=1.0)
    again = run(tmp_path / "j.jsonl", FOUR, resume=True)
    assert again.measured == 1 and again.problems[0].winner == FOUR[0]
    assert run(tmp_path / "j.jsonl", FOUR, resume=True).measured == 0


def test_a_winner_that_a_later_outcome_may_beat_is_chosen_again():
    records: list[dict] = []
    run(RowSink(records.append), FOUR[1:])

    def interrupted(record):
        if record.get("stage") == "final":
            raise KeyboardInterrupt
        records.append(record)

    with pytest.raises(KeyboardInterrupt):
        run(RowSink(interrupted, known=list(records)), FOUR)
    again = run(RowSink(records.append, known=list(records)), FOUR)
    assert again.measured == 0 and again.problems[0].winner == FOUR[0]


def test_a_resume_in_another_environment_measures_again(tmp_path):
    run(tmp_path / "j.jsonl", FOUR)
    again = run(tmp_path / "j.jsonl", FOUR, resume=True, environment="newer driver")
    assert (again.measured, again.resumed) == (4, 0)


def test_more_configs_on_resume_are_measured_and_all_compete_in_the_end(tmp_path):
    run(tmp_path / "j.jsonl", [config(20), config(21)])
    again = run(tmp_path / "j.jsonl", [config(n) for n in (20, 21, 22)], resume=True)
    assert (again.measured, again.resumed) == (1, 2)
    assert again.problems[0].winner == config(20)


def test_an_existing_journal_is_refused_without_resume(tmp_path):
    run(tmp_path / "j.jsonl", FOUR[:1])
    with pytest.raises(UsageError, match="--resume"):
        run(tmp_path / "j.jsonl", FOUR)


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("my notes\n")
    with pytest.raises(DataFileError, match="not a journal"):
        run(tmp_path / "notes.txt", FOUR, resume=True)
    assert (tmp_path / "notes.txt").read_text() == "my notes\n"


def test_a_full_disk_ends_the_sweep_with_everything_before_it_kept(tmp_path, monkeypatch):
    real, written = os.write, Counter()

    def full(descriptor, raw):
        if b'"kind":"result"' in bytes(raw):
            written["results"] += 1
            if written["results"] > 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, raw)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(DataFileError, match="no space left.*resume"):
            run(tmp_path / "j.jsonl", FOUR)
    assert len(results(tmp_path / "j.jsonl")) == 2
    again = run(tmp_path / "j.jsonl", FOUR, resume=True)
    assert (again.measured, again.resumed) == (2, 2)


def test_a_disk_that_is_full_for_a_worker_is_not_held_against_the_config(tmp_path):
    bad = FOUR[1].config_id
    with pytest.raises(DeviceError, match="fault of this machine.*--resume"):
        run(tmp_path / "j.jsonl", FOUR, behaviour={f"coarse *:{bad}": "full"})
    assert bad not in statuses(tmp_path / "j.jsonl")
    again = run(tmp_path / "j.jsonl", FOUR, resume=True)
    assert again.resumed >= 1 and statuses(tmp_path / "j.jsonl")[bad] == "ok"


def test_a_system_that_starts_no_process_is_a_clear_error(tmp_path, monkeypatch):
    def refuse(*_: object, **__: object):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr("tritongemm.workers.worker.subprocess.Popen", refuse)
    with pytest.raises(DeviceError, match="no process can be started"):
        run(tmp_path / "j.jsonl", FOUR)


def test_an_unwritable_journal_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFileError, match="file"):
        run(tmp_path / "file" / "j.jsonl", FOUR)


@pytest.mark.parametrize(("options", "words"), [
    ({"budget_s": 0.0}, "budget_s=0.0"), ({"budget_s": float("nan")}, "budget_s=nan"),
    ({"per_config_timeout_s": -1.0}, "per_config_timeout_s"), ({"finalists": 0}, "finalists=0"),
    ({"compile_workers": 0}, "compile_workers=0"), ({"devices": ()}, "no device"),
])
def test_bad_options_are_refused_before_anything_starts(tmp_path, options, words):
    with pytest.raises(UsageError, match=words):
        run(tmp_path / "j.jsonl", FOUR, **options)
    assert list(tmp_path.iterdir()) == []


def test_compiling_runs_ahead_of_the_device(tmp_path):
    report = run(tmp_path / "j.jsonl", [config(n, fakes.SLOW) for n in (1, 2)],
                 problems=[problem(n) for n in (16, 32, 48)], compile_workers=2)
    assert len(report.winners) == 3
    assert 0 < report.gpu_waited_share <= 1


class Kept(Progress):
    def __init__(self):
        self.shots: list[Snapshot] = []
        self.ended = 0

    def update(self, snapshot):
        self.shots.append(snapshot)

    def close(self):
        self.ended += 1


def test_progress_is_shown_while_it_runs_and_closed_once(tmp_path):
    shown = Kept()
    run(tmp_path / "j.jsonl", FOUR, problems=[problem(16), problem(32)], each_s=0.1,
        progress=shown, behaviour={f"coarse *:{FOUR[1].config_id}": "wrong"})
    last = shown.shots[-1]
    assert last.problems == 2 and last.failures["wrong"] >= 1 and last.eta_s is not None
    assert any(d.best_us and d.torch_us == 100.0 for s in shown.shots for d in s.devices)
    assert shown.ended == 1


def test_plain_lines_name_each_problem_its_winner_and_the_ratio(tmp_path):
    said: list[str] = []
    run(tmp_path / "j.jsonl", FOUR, progress=Plain(said.append))
    assert any("64x64x64 bf16 nn: tiled_16x64x32" in line and "6.250 of torch's speed" in line
               and "[1/1]" in line for line in said)


def test_repeated_problems_are_measured_once(tmp_path):
    one = GemmProblem.contiguous(64, 64, 64)
    report = run(tmp_path / "j.jsonl", FOUR, problems=[one, one])
    assert len(report.problems) == 1


def test_records_can_go_to_a_function_that_also_knows_earlier_ones(tmp_path):
    first: list[dict] = []
    report = run(RowSink(first.append), FOUR)
    assert report.journal is None and report.problems[0].winner == config(1)
    assert [r["kind"] for r in first[:2]] == ["header", "result"]
    assert first[-1]["kind"] == "winner"
    half = [r for r in first if r["kind"] == "header" or r.get("stage") == "coarse"][:3]
    second: list[dict] = []
    again = run(RowSink(second.append, known=half), FOUR)
    assert (again.measured, again.resumed) == (2, 2)
    assert run(RowSink(second.append, known=first), FOUR).problems[0].note == "measured before"


def test_what_a_function_for_records_raises_ends_the_sweep(tmp_path):
    def full(record):
        raise OSError(errno.ENOSPC, "no room")

    with pytest.raises(OSError, match="no room"):
        run(RowSink(full), FOUR)


@pytest.mark.parametrize("fp32, precision", [("split", "fp16x3"), ("ieee", "ieee")])
def test_tune_takes_float32_at_the_precision_of_calls(monkeypatch, tmp_path, fp32, precision):
    swept = []
    monkeypatch.setattr(sweeping, "sweep", lambda problems, path, **options: swept.extend(problems))
    with settings.override(fp32=fp32):
        sweeping.tune([(64, 64, 64)], dtype="fp32", publish=False, journal=tmp_path / "j.jsonl")
    assert [problem.precision for problem in swept] == [precision]
