"""Publishing: winners get in, nothing better is replaced in silence, two at once lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import fakes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritongemm import settings
from tritongemm.cli import main
from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError
from tritongemm.problem import GemmProblem
from tritongemm.records.codec import config_to_json, problem_to_json
from tritongemm.records.journal import Journal
from tritongemm.records.tables import key_of, path_for, read_table
from tritongemm.tuning.publish import _version, publish

RUN = "20261121T05{:02}00Z-0a1b2c"


@pytest.fixture(autouse=True)
def config_dir(tmp_path, monkeypatch):
    folder = tmp_path / "configs"
    folder.mkdir()
    with settings.override(config_dir=folder, config_only=True):
        yield folder


def journal(path: Path, *winners: dict, run: int = 1) -> Path:
    with Journal.open(path, {"environment": "fake"}) as one:
        for winner in winners:
            problem = winner.pop("problem", fakes.problem(64))
            config = winner.pop("config", fakes.config(4))
            one.append({"kind": "winner", "problem": problem_to_json(problem),
                        "config": config_to_json(config), "time_us": 10.0,
                        "margin_vs_second": 0.02, "device": "nvidia-h200", "arch": 90,
                        "space_hash": "abc", "torch": "2.13.0", "triton": "3.7.1",
                        "environment": "fake", "run_id": RUN.format(run), **winner})
    return path


def row(problem: GemmProblem | None = None):
    problem = problem or fakes.problem(64)
    return read_table(path_for(problem, "nvidia-h200")).rows[key_of(problem)]


def test_a_swept_winner_becomes_the_row_that_selection_reads(tmp_path):
    swept = fakes.run(tmp_path / "j.jsonl", [fakes.config(n) for n in (20, 21)])
    report = publish([tmp_path / "j.jsonl"])
    assert (report.added, report.replaced, report.kept) == (1, 0, [])
    one = row()
    assert (one.config, one.time_us, one.run_id) == (fakes.config(20), 320.0, swept.run_id)
    assert one.margin_vs_second == pytest.approx(0.05)
    assert (one.torch, one.triton) == ("2.13.0", "3.7.1")


def test_a_coarse_result_alone_is_no_winner(tmp_path):
    configs = [fakes.config(20), fakes.config(21)]
    fakes.run(tmp_path / "j.jsonl", configs,
              behaviour={f"final *:{c.config_id}": "wrong" for c in configs})
    assert publish([tmp_path / "j.jsonl"]).winners == 0
    assert not path_for(fakes.problem(64), "nvidia-h200").exists()


def test_a_faster_row_replaces_a_slower_one(tmp_path):
    publish([journal(tmp_path / "a.jsonl", {"time_us": 10.0})])
    report = publish([journal(tmp_path / "b.jsonl", {"time_us": 9.0}, run=2)])
    assert (report.replaced, report.kept) == (1, [])
    assert row().time_us == 9.0 and row().run_id == RUN.format(2)


def test_each_rung_of_a_ladder_is_judged_by_what_it_beat(tmp_path):
    old = {rung: KernelConfig(rung, 16, 16, 16) for rung in ("naive", "padded")}
    new = {rung: KernelConfig(rung, 32, 32, 16) for rung in old}
    publish([journal(tmp_path / "a.jsonl", *(
        {"op": "ladder", "config": config, "vs_torch": 0.5} for config in old.values()))])
    # In the same rounds, so that naive's new config replaces it whatever the ratios say.
    beaten = {"kind": "result", "status": "ok", "stage": "final", "config": old["naive"]}
    later = {rung: {"op": "ladder", "config": config, "vs_torch": 0.49}
             for rung, config in new.items()}
    report = publish([journal(tmp_path / "b.jsonl", beaten, later["naive"], run=2),
                      journal(tmp_path / "c.jsonl", later["padded"], run=3)])
    assert report.replaced == 1
    assert [kept.row.config for kept in report.kept] == [old["padded"]]


@pytest.mark.parametrize(("offered", "reason"), [
    ({"time_us": 11.0}, "not faster: 11.000 us against 10.000 us"),
    ({"time_us": 9.0, "triton": "3.6.0"}, "triton 3.6.0, older than 3.7.1"),
    ({"time_us": 9.0, "torch": "2.9.1+cu130"}, "torch 2.9.1+cu130, older than 2.13.0"),
    ({"time_us": 11.0, "triton": "3.9.0"}, "not faster"),
])
def test_a_better_row_is_kept_and_the_report_says_why(tmp_path, offered, reason):
    publish([journal(tmp_path / "a.jsonl", {})])
    report = publish([journal(tmp_path / "b.jsonl", offered, run=2)])
    (kept,) = report.kept
    assert reason in kept.reason
    assert row().run_id == RUN.format(1)


def test_what_beat_the_row_in_the_same_rounds_of_a_later_run_replaces_it(tmp_path):
    """Torch may have been slow in the run that the row comes from."""
    flattered = {"config": fakes.config(21), "time_us": 330.0, "ratio_vs_torch": 1.5}
    swept = fakes.run(tmp_path / "j.jsonl", [fakes.config(n) for n in (20, 21)])
    early, soon = "20200101T000000Z-0a1b2c", datetime.now(timezone.utc) + timedelta(hours=2)
    late = f"{soon:%Y%m%dT%H%M%SZ}-0a1b2c"
    assert early < swept.run_id < late
    for run_id, replaced in ((early, 1), (late, 0)):
        publish([journal(tmp_path / f"{run_id}.jsonl", flattered | {"run_id": run_id})], force=True)
        assert publish([tmp_path / "j.jsonl"]).replaced == replaced
        assert row().config == fakes.config(20 if replaced else 21)
    other = flattered | {"config": fakes.config(4), "run_id": early}  # not in those rounds
    publish([journal(tmp_path / "other.jsonl", other)], force=True)
    assert publish([tmp_path / "j.jsonl"]).replaced == 0


def test_a_config_that_won_again_is_as_fast_as_the_later_run_says(tmp_path):
    """A lucky ratio must not keep out what is faster than the config is otherwise."""
    def won(name: str, number: int, ratio: float, day: int) -> Path:
        return journal(tmp_path / f"{name}.jsonl", {
            "config": fakes.config(number), "ratio_vs_torch": ratio,
            "run_id": f"202611{day}T000000Z-0a1b2c"})
    lucky, again, other = won("a", 4, 1.5, 10), won("b", 4, 1.1, 12), won("c", 5, 1.2, 14)
    for order in ([lucky, again, other], [other, again, lucky]):
        path_for(fakes.problem(64), "nvidia-h200").unlink(missing_ok=True)
        publish(order)
        assert (row().config, row().vs_torch) == (fakes.config(5), 1.2)
    publish([again], force=True)
    (kept,) = publish([lucky]).kept
    assert "a later run measured this config again" in kept.reason and row().vs_torch == 1.1


def test_a_run_dated_in_the_future_does_not_keep_later_ones_out(tmp_path):
    def won(name: str, ratio: float, run_id: str) -> Path:
        return journal(tmp_path / f"{name}.jsonl", {"ratio_vs_torch": ratio, "run_id": run_id})

    publish([won("a", 1.5, "29990101T000000Z-0a1b2c")])
    publish([won("b", 1.1, "20200101T000000Z-0a1b2c")])  # the same config, measured again
    assert row().vs_torch == 1.1
    publish([won("c", 1.5, "29990101T000000Z-0a1b2c")])
    assert row().vs_torch == 1.1


@pytest.mark.parametrize(("number", "replaced"), [(51, 0), (52, 1)])  # 2 % slower, 4 %
def test_what_lost_clearly_before_a_later_runs_final_is_replaced(tmp_path, number, replaced):
    flattered = {"config": fakes.config(number), "time_us": 820.0, "ratio_vs_torch": 1.5,
                 "run_id": "20200101T000000Z-0a1b2c"}
    publish([journal(tmp_path / "a.jsonl", flattered)])
    fakes.run(tmp_path / "j.jsonl", [fakes.config(50), fakes.config(number)], finalists=1)
    assert publish([tmp_path / "j.jsonl"]).replaced == replaced


def test_of_two_journals_what_beat_the_other_later_gets_in_whatever_their_order(tmp_path):
    flattered = {"config": fakes.config(52), "time_us": 820.0, "ratio_vs_torch": 1.5,
                 "run_id": "20200101T000000Z-0a1b2c"}
    early, late = journal(tmp_path / "a.jsonl", flattered), tmp_path / "j.jsonl"
    fakes.run(late, [fakes.config(50), fakes.config(52)])
    for order in ([early, late], [late, early]):
        path_for(fakes.problem(64), "nvidia-h200").unlink(missing_ok=True)
        publish(order)
        assert row().config == fakes.config(50)


def test_force_replaces_whatever_is_there(tmp_path):
    publish([journal(tmp_path / "a.jsonl", {})])
    report = publish([journal(tmp_path / "b.jsonl", {"time_us": 99.0}, run=2)], force=True)
    assert report.replaced == 1 and row().time_us == 99.0


def test_publishing_twice_changes_nothing(tmp_path):
    path = journal(tmp_path / "a.jsonl", {})
    publish([path])
    before = path_for(fakes.problem(64), "nvidia-h200").read_bytes()
    report = publish([path])
    assert report.kept[0].reason == "it is the same row"
    assert path_for(fakes.problem(64), "nvidia-h200").read_bytes() == before


def test_the_best_of_several_journals_gets_in_whatever_their_order(tmp_path):
    slow = journal(tmp_path / "a.jsonl", {"time_us": 12.0})
    fast = journal(tmp_path / "b.jsonl", {"time_us": 8.0}, run=2)
    for order in ([slow, fast], [fast, slow]):
        publish(order)
        assert row().time_us == 8.0


def test_each_problem_goes_to_the_table_of_its_dtype_and_layout(tmp_path):
    problems = [GemmProblem.contiguous(64, 64, 64, dtype=d, layout=x)
                for d in ("bf16", "fp16") for x in ("nn", "nt")]
    problems.append(GemmProblem.contiguous(64, 64, 64, batch=4))
    report = publish([journal(tmp_path / "a.jsonl", *({"problem": p} for p in problems))])
    assert len(report.tables) == 5
    for problem in problems:
        assert row(problem).run_id == RUN.format(1)


def test_rows_of_two_environments_keep_their_own_provenance(tmp_path):
    publish([journal(tmp_path / "a.jsonl", {"triton": "3.9.0", "problem": fakes.problem(32)},
                     {"triton": "3.7.1", "problem": fakes.problem(64)})])
    assert row(fakes.problem(32)).triton == "3.9.0"
    assert row(fakes.problem(64)).triton == "3.7.1"


@pytest.mark.parametrize(("field", "value"), [
    ("device", "../../etc"), ("device", "NVIDIA H200"), ("device", None), ("arch", "90"),
    ("arch", True), ("run_id", "yesterday"), ("time_us", -1.0), ("time_us", None),
    ("time_us", "10"), ("torch", 2), ("triton", ""), ("margin_vs_second", -0.5),
    ("space_hash", "x" * 200), ("time_us", 1e12), ("margin_vs_second", 1e12),
    ("ratio_vs_torch", 1e6), ("ratio_vs_torch", 1e-7),
])
def test_a_hostile_winner_is_an_error_naming_file_line_and_field(tmp_path, config_dir, field,
                                                                 value):
    path = journal(tmp_path / "a.jsonl", {}, {field: value, "problem": fakes.problem(32)})
    with pytest.raises(DataFileError) as caught:
        publish([path])
    assert (caught.value.path, caught.value.row, caught.value.field) == (str(path), 3, field)
    assert list(config_dir.rglob("*.json")) == []


def test_times_margins_and_ratios_are_rounded(tmp_path):
    publish([journal(tmp_path / "a.jsonl", {"time_us": 12.345678, "margin_vs_second": 0.0123456,
                                            "ratio_vs_torch": 1.234567})])
    assert (row().time_us, row().margin_vs_second, row().vs_torch) == (12.3457, 0.01235, 1.2346)


def test_a_table_names_the_newest_torch_that_made_it_whatever_its_triton(tmp_path):
    publish([journal(tmp_path / "a.jsonl", {"torch": "2.13.0", "triton": "3.6.0"},
                     {"torch": "2.11.0", "triton": "3.7.1", "problem": fakes.problem(32)})])
    header = read_table(path_for(fakes.problem(64), "nvidia-h200")).header
    assert (header.torch, header.triton) == ("2.13.0", "3.6.0")


def test_the_counts_of_a_table_add_up_over_its_environments(tmp_path):
    old = [{"problem": fakes.problem(size), "torch": "2.11.0"} for size in (16, 32)]
    publish([journal(tmp_path / "a.jsonl", *map(dict, old))])
    slower = [{**one, "time_us": 20.0} for one in old]
    new = {"problem": fakes.problem(64)}
    report = publish([journal(tmp_path / "b.jsonl", *slower, new, run=2)])
    assert [*report.tables.values()] == [(1, 0, 2)]
    faster = [{**one, "time_us": 5.0} for one in old]
    report = publish([journal(tmp_path / "c.jsonl", *faster, {**new, "problem": fakes.problem(64),
                                                              "time_us": 30.0}, run=3)])
    assert [*report.tables.values()] == [(0, 2, 1)] and (report.added, report.replaced) == (0, 2)


def test_a_kernel_that_is_not_known_is_an_error(tmp_path):
    other = fakes.KernelConfig("mystery", 64, 64, 32)
    with pytest.raises(DataFileError, match="not known"):
        publish([journal(tmp_path / "a.jsonl", {"config": other})])


@pytest.mark.parametrize("content", [b"", b"not json\n", b'{"kind":"result"}\n', b"\xff\xfe\n"])
def test_a_file_that_is_no_journal_is_a_clear_error(tmp_path, content):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(DataFileError, match="a.jsonl"):
        publish([tmp_path / "a.jsonl"])


def test_a_damaged_table_is_an_error_and_stays_as_it_is(tmp_path):
    path = path_for(fakes.problem(64), "nvidia-h200")
    path.parent.mkdir(parents=True)
    path.write_text('{"schema_version": 1')
    with pytest.raises(DataFileError):
        publish([journal(tmp_path / "a.jsonl", {})])
    assert path.read_text() == '{"schema_version": 1'


def test_two_publishes_at_once_lose_nothing(tmp_path, config_dir):
    paths = [journal(tmp_path / f"{i}.jsonl",
                     *({"problem": fakes.problem(16 * (1 + i + 4 * j))} for j in range(10)))
             for i in range(4)]
    code = ("import sys, pathlib; from tritongemm import settings; "
            "from tritongemm.tuning.publish import publish\n"
            "with settings.override(config_dir=pathlib.Path(sys.argv[1]), config_only=True):\n"
            "    sys.stdin.read(1)\n"
            "    publish([sys.argv[2]])")
    root = str(Path(__file__).resolve().parents[2])
    processes = [subprocess.Popen([sys.executable, "-c", code, str(config_dir), str(path)],
                                  stdin=subprocess.PIPE, cwd=root) for path in paths]
    for process in processes:
        process.stdin.write(b"x")
        process.stdin.flush()
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert len(read_table(path_for(fakes.problem(64), "nvidia-h200")).rows) == 40


def test_the_command_says_what_it_did_and_what_it_kept(tmp_path, capsys):
    assert main(["publish", str(journal(tmp_path / "a.jsonl", {}))]) == 0
    assert "1 added, 0 replaced, 0 kept" in capsys.readouterr().out
    assert main(["publish", str(journal(tmp_path / "b.jsonl", {"time_us": 11.0}, run=2))]) == 0
    assert "not faster" in capsys.readouterr().out


def test_the_command_on_a_journal_without_winners_answers_no(tmp_path, capsys):
    assert main(["publish", str(journal(tmp_path / "a.jsonl"))]) == 1
    assert "no winner" in capsys.readouterr().out


def test_the_command_on_a_missing_file_is_a_usage_error(tmp_path, capsys):
    assert main(["publish", str(tmp_path / "nothing.jsonl")]) == 2
    assert "nothing.jsonl" in capsys.readouterr().err


@given(st.lists(st.integers(0, 300), min_size=1, max_size=4), st.sampled_from(
    ["", "+cu130", "a0+git1234", "rc1", ".dev20261121"]))
def test_a_version_is_its_release_whatever_follows(numbers, suffix):
    text = ".".join(map(str, numbers))
    assert _version(text + suffix) == tuple(numbers)


def test_journals_hold_no_tuples_or_classes_beyond_json(tmp_path):
    fakes.run(tmp_path / "j.jsonl", [fakes.config(1)])
    for line in (tmp_path / "j.jsonl").read_text().splitlines():
        assert isinstance(json.loads(line), dict)


def test_to_names_another_folder(tmp_path, config_dir, capsys):
    path, elsewhere = journal(tmp_path / "a.jsonl", {}), tmp_path / "elsewhere"
    assert main(["publish", str(path), "--to", str(elsewhere)]) == 0
    assert str(elsewhere) in capsys.readouterr().out
    assert not (config_dir / "tuned").exists()
    table = read_table(path_for(fakes.problem(64), "nvidia-h200", root=elsewhere))
    assert key_of(fakes.problem(64)) in table.rows


def test_a_csv_is_not_called_a_damaged_journal(tmp_path, capsys):
    (tmp_path / "good.csv").write_text("schema_version,run_id\n1,a\n1,b\n")
    assert main(["publish", str(tmp_path / "good.csv")]) == 2
    said = capsys.readouterr().err
    assert "is not a journal that `tritongemm sweep` wrote" in said and "damaged" not in said
