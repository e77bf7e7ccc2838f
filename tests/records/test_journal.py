"""The journal: nothing is lost by a kill or a full disk, and nothing is done twice."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import file_faults
import pytest

import tritongemm
from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError
from tritongemm.problem import GemmProblem
from tritongemm.records import journal as journal_module
from tritongemm.records.codec import config_to_json, problem_to_json
from tritongemm.records.journal import Journal, read_journal
from tritongemm.records.resume import REMEMBERED, read_done

ENV = {"torch": "2.13.0", "triton": "3.7.1", "gpu": "NVIDIA H200"}
HEADER = {"environment": ENV, "run_id": "20261121T052300Z-1a2b3c"}
PROBLEM = GemmProblem.contiguous(128, 256, 512, layout="nt")
OTHER = GemmProblem.contiguous(129, 256, 512, layout="nt")
CONFIGS = [KernelConfig("tiled", 64, 64, 32, num_stages=s) for s in range(1, 41)]


def result(config=CONFIGS[0], problem=PROBLEM, **changes) -> dict:
    return {"kind": "result", "problem": problem_to_json(problem),
            "config": config_to_json(config), "stage": "coarse", "status": "ok", "time_us": 5.0,
            **changes}


def write(path, *records):
    with Journal.open(path, HEADER) as journal:
        for record in records:
            journal.append(record)


def test_what_is_appended_is_read_in_order(tmp_path):
    path = tmp_path / "new" / "a.jsonl"
    write(path, result(), result(CONFIGS[1], status="compile", time_us=None, reason="ü\n"),
          {"kind": "note", "text": "any other kind is kept"})
    records = list(read_journal(path))
    assert [r["kind"] for r in records] == ["header", "result", "result", "note"]
    assert records[0]["environment"] == ENV and records[0]["schema_version"] == 1
    assert records[2]["reason"] == "ü\n"
    assert len(path.read_text().splitlines()) == 4


def test_a_compressed_journal_is_read_as_it_is(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, result(), result(CONFIGS[1]))
    for name in ("a.jsonl.gz", "packed.jsonl"):
        packed = tmp_path / name
        packed.write_bytes(gzip.compress(path.read_bytes()))
        assert list(read_journal(packed)) == list(read_journal(path))


@pytest.mark.parametrize("damage", [lambda raw: raw[:-20], lambda raw: b"plain text",
                                    lambda raw: raw[:20] + b"\xff" * 30 + raw[50:]])
def test_a_damaged_compressed_journal_is_named(tmp_path, damage):
    path = tmp_path / "a.jsonl"
    write(path, *(result(config) for config in CONFIGS))
    packed = tmp_path / "a.jsonl.gz"
    packed.write_bytes(damage(gzip.compress(path.read_bytes())))
    with pytest.raises(DataFileError, match="a.jsonl.gz"):
        list(read_journal(packed))


def test_nothing_is_appended_to_a_compressed_journal(tmp_path):
    with pytest.raises(DataFileError, match="gunzip it, or choose another name"):
        write(tmp_path / "a.jsonl.gz", result())
    assert not list(tmp_path.iterdir())


def test_an_append_is_one_write_that_is_on_disk_at_once(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    with Journal.open(path, HEADER) as journal:
        writes = []
        real = os.write
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, raw: writes.append(bytes(raw)) or real(fd, raw))
            journal.append(result())
        assert len(writes) == 1 and writes[0].endswith(b"\n") and writes[0].count(b"\n") == 1
        assert len(list(read_journal(path))) == 2  # before it is closed


@pytest.mark.parametrize("interval, flushes", [(0.0, 3), (3600.0, 0)])
def test_flushes_respect_their_interval(tmp_path, monkeypatch, interval, flushes):
    with Journal.open(tmp_path / "a.jsonl", HEADER, sync_interval_s=interval) as journal:
        seen = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", seen.append)
            for config in CONFIGS[:3]:
                journal.append(result(config))
        assert len(seen) == flushes


def test_outcomes_of_any_status_are_done(tmp_path):
    path = tmp_path / "a.jsonl"
    statuses = ("ok", "timeout", "compile", "launch", "wrong", "constraint", "oom", "died")
    write(path, *[result(c, status=s, time_us=5.0 if s == "ok" else None)
                  for c, s in zip(CONFIGS, statuses, strict=False)])
    done = read_done(path, ENV)
    assert len(done) == len(statuses)
    assert all(done.has(PROBLEM, config) for config in CONFIGS[:len(statuses)])
    assert not done.has(PROBLEM, CONFIGS[len(statuses)])
    assert not done.has(OTHER, CONFIGS[0])
    assert not done.has(PROBLEM, CONFIGS[0], stage="final")


def test_another_environment_has_nothing_done(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, result())
    with Journal.open(path, {"environment": {**ENV, "triton": "3.9.0"}}) as journal:
        journal.append(result(CONFIGS[1]))
        newer = journal.done_keys({**ENV, "triton": "3.9.0"})
        older = journal.done_keys(dict(reversed(ENV.items())))
    assert (older.has(PROBLEM, CONFIGS[0]), older.has(PROBLEM, CONFIGS[1])) == (True, False)
    assert (newer.has(PROBLEM, CONFIGS[0]), newer.has(PROBLEM, CONFIGS[1])) == (False, True)
    assert len(read_done(path, None)) == 0


def test_the_fastest_of_a_problem_are_remembered(tmp_path):
    path = tmp_path / "a.jsonl"
    order = [7, 3, 39, 0, *[i for i in range(40) if i not in (7, 3, 39, 0)]]
    write(path, *[result(CONFIGS[i], time_us=100.0 - i) for i in order],
          result(CONFIGS[39], time_us=62.0), result(CONFIGS[1], stage="final", time_us=1.0),
          result(CONFIGS[2], OTHER, time_us=1.0),
          result(CONFIGS[3], status="wrong", time_us=None))
    done = read_done(path, ENV)
    fastest = done.fastest(PROBLEM, 3)
    assert fastest == [(61.0, CONFIGS[39]), (62.0, CONFIGS[38]), (63.0, CONFIGS[37])]
    assert len(done.fastest(PROBLEM)) <= REMEMBERED
    assert done.fastest(OTHER) == [(1.0, CONFIGS[2])]


def test_a_winner_closes_its_problem(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, result(), {**result(), "kind": "winner"})
    done = read_done(path, ENV)
    assert done.has_winner(PROBLEM) and not done.has_winner(OTHER)
    assert len(done) == 1


def test_a_winner_counts_until_the_next_outcome_of_its_problem(tmp_path):
    path = tmp_path / "a.jsonl"
    winner = {**result(), "kind": "winner", "gain": 0.01, "space_hash": "a"}
    write(path, result(), winner, result(CONFIGS[1], OTHER), result(stage="final"))
    assert read_done(path, ENV).has_winner(PROBLEM)
    write(path, result(CONFIGS[1]))
    done = read_done(path, ENV)
    assert not done.has_winner(PROBLEM) and done.searched_to(PROBLEM, "a") is None


def test_a_search_counts_for_its_spaces_and_one_without_a_hash_for_all(tmp_path):
    path = tmp_path / "a.jsonl"
    winner = {**result(), "kind": "winner", "gain": 0.01}
    write(path, {**winner, "space_hash": "a"}, {**winner, "space_hash": "b", "gain": 0.02})
    done = read_done(path, ENV)
    assert [done.searched_to(PROBLEM, name) for name in "abc"] == [0.01, 0.02, None]
    write(tmp_path / "old.jsonl", winner)
    assert read_done(tmp_path / "old.jsonl", ENV).searched_to(PROBLEM, "a") == 0.01


def test_a_timeout_counts_up_to_its_limit(tmp_path):
    path = tmp_path / "a.jsonl"
    late = result(status="timeout", time_us=None)
    write(path, {**late, "limit_s": 20.0}, {**late, "config": config_to_json(CONFIGS[1])})
    done = read_done(path, ENV)
    assert [done.has(PROBLEM, CONFIGS[0], limit_s=s) for s in (10, 20, 30)] == [True, True, False]
    assert [done.retries(PROBLEM, CONFIGS[0], limit_s=s) for s in (20, 30)] == [False, True]
    assert done.has(PROBLEM, CONFIGS[1], limit_s=30)  # an older journal states no limit
    assert not done.retries(PROBLEM, CONFIGS[2], limit_s=30)
    write(path, result())
    assert read_done(path, ENV).has(PROBLEM, CONFIGS[0], limit_s=30)


def test_problems_that_differ_only_in_alignment_are_two(tmp_path):
    path = tmp_path / "a.jsonl"
    gapped = GemmProblem(128, 256, 512, layout="nt", align_a=2)
    write(path, result(problem=gapped))
    assert read_done(path, ENV).has(gapped, CONFIGS[0])
    assert not read_done(path, ENV).has(PROBLEM, CONFIGS[0])


# --- crashes ------------------------------------------------------------------------------------


def test_a_torn_last_line_is_ignored_then_removed(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, result(CONFIGS[0]), result(CONFIGS[1]))
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for torn in (whole[start:start + 1], whole[start:start + 60], whole[start:-1], b"\0" * 4096,
                 b"\0" * 100 + b"}\n", b"\xff"):
        path.write_bytes(whole[:start] + torn)
        kinds = [r["kind"] for r in read_journal(path)]
        assert kinds == ["header", "result"]
        done = read_done(path, ENV)
        assert done.has(PROBLEM, CONFIGS[0]) and not done.has(PROBLEM, CONFIGS[1])
        write(path, result(CONFIGS[2]))
        assert path.read_bytes().startswith(whole[:start] + b'{"environment"')
        assert read_done(path, ENV).has(PROBLEM, CONFIGS[2])


def test_an_incomplete_header_is_rewritten(tmp_path):
    path = tmp_path / "a.jsonl"
    for raw in (b"", b'{"environment":{"tor'):
        path.write_bytes(raw)
        write(path, result())
        assert [r["kind"] for r in read_journal(path)] == ["header", "result"]


def test_a_sweep_killed_at_any_moment_loses_no_line(tmp_path):
    path = tmp_path / "a.jsonl"
    code = """
import sys
sys.path.insert(0, sys.argv[2])
from test_journal import *
with Journal.open(sys.argv[1], HEADER) as journal:
    for m in range(1, 10**6):
        journal.append(result(problem=GemmProblem.contiguous(m, 8, 8)))
        print(m, flush=True)
"""
    root = Path(tritongemm.__file__).resolve().parent.parent
    with subprocess.Popen([sys.executable, "-c", code, str(path), str(Path(__file__).parent)],
                          stdout=subprocess.PIPE, cwd=root, text=True) as sweep:
        for _ in range(200):
            said = int(sweep.stdout.readline())
        sweep.send_signal(signal.SIGKILL)
    done = read_done(path, ENV)
    assert len(done) >= said
    assert all(done.has(GemmProblem.contiguous(m, 8, 8), CONFIGS[0]) for m in range(1, said + 1))
    write(path, result())  # the lock died with its holder
    assert len(read_done(path, ENV)) == len(done) + 1


def test_a_journal_has_one_writer(tmp_path):
    path = tmp_path / "a.jsonl"
    code = ("import sys\nfrom tritongemm.records.journal import Journal\n"
            "Journal.open(sys.argv[1], {'environment': 1})\n")
    root = Path(tritongemm.__file__).resolve().parent.parent
    with Journal.open(path, HEADER) as journal:
        other = subprocess.run([sys.executable, "-c", code, str(path)], cwd=root,
                               capture_output=True, text=True, check=False)
        journal.append(result())
    assert "is in use" in other.stderr
    assert [r["kind"] for r in read_journal(path)] == ["header", "result"]


@pytest.mark.parametrize("after", [0, 1, 50])
def test_a_full_disk_loses_nothing_and_can_be_continued_from(tmp_path, monkeypatch, after):
    path = tmp_path / "a.jsonl"
    with Journal.open(path, HEADER) as journal:
        journal.append(result(CONFIGS[0]))
        before = path.read_bytes()
        with monkeypatch.context() as patch:
            file_faults.full_disk(patch, after)
            with pytest.raises(DataFileError, match="no space left.*--resume") as caught:
                journal.append(result(CONFIGS[1]))
        assert str(path) in str(caught.value)
        assert path.read_bytes() == before
        journal.append(result(CONFIGS[2]))
    done = read_done(path, ENV)
    assert [done.has(PROBLEM, c) for c in CONFIGS[:3]] == [True, False, True]


def test_a_failed_flush_is_reported(tmp_path, monkeypatch):
    journal = Journal.open(tmp_path / "a.jsonl", HEADER, sync_interval_s=0.0)
    with monkeypatch.context() as patch:
        file_faults.failing_fsync(patch)
        with pytest.raises(DataFileError, match="no space left"):
            journal.append(result())
        with pytest.raises(DataFileError, match="no space left"):
            journal.close()
    with pytest.raises(DataFileError, match="is closed"):
        journal.append(result())
    assert len(list(read_journal(tmp_path / "a.jsonl"))) == 2
    write(tmp_path / "a.jsonl")  # the lock is free again


def test_an_unwritable_journal_is_named(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        file_faults.refusing_open(patch)
        with pytest.raises(DataFileError, match="not writable"):
            Journal.open(tmp_path / "a.jsonl", HEADER)
    with pytest.raises(DataFileError, match="is a folder"):
        Journal.open(tmp_path, HEADER)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFileError, match="is a file"):
        Journal.open(tmp_path / "file" / "a.jsonl", HEADER)


@pytest.fixture
def warned(monkeypatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(journal_module.log, "warning", lambda text, *v: said.append(text % v))
    return said


@pytest.mark.parametrize("removed", [
    lambda path: path.unlink(), lambda path: path.rename(path.with_name("moved")),
    lambda path: shutil.rmtree(path.parent)], ids=["removed", "moved", "folder removed"])
def test_a_journal_removed_while_it_is_written_is_written_again(tmp_path, warned, removed):
    path = tmp_path / "folder" / "a.jsonl"
    with Journal.open(path, HEADER) as journal:
        journal.append(result(CONFIGS[0]))
        removed(path)
        journal.append(result(CONFIGS[1]))
        assert len(list(read_journal(path))) == 3
        journal.append(result(CONFIGS[2]))
        removed(path)
    assert len(list(read_journal(path))) == 4
    assert len(warned) == 2 and str(path) in warned[0]


def test_a_journal_behind_a_link_is_written_again_behind_it(tmp_path, warned):
    link, target = tmp_path / "link.jsonl", tmp_path / "target.jsonl"
    link.symlink_to(target)
    with Journal.open(link, HEADER) as journal:
        target.unlink()
        journal.append(result())
    assert link.is_symlink() and len(list(read_journal(target))) == 2


@pytest.mark.parametrize("gone", [True, False])
def test_a_journal_replaced_by_another_file_fails_and_keeps_its_records(tmp_path, gone):
    path, moved = tmp_path / "a.jsonl", tmp_path / "moved.jsonl"
    with pytest.raises(DataFileError, match="replaced by another file.*a.jsonl.recovered"):
        with Journal.open(path, HEADER) as journal:
            journal.append(result())
            path.unlink() if gone else path.rename(moved)
            path.write_text("another's\n")
            journal.append(result(CONFIGS[1]))
    assert path.read_text() == "another's\n"
    kept = tmp_path / "a.jsonl.recovered" if gone else moved
    assert len(list(read_journal(kept))) == 2


@pytest.mark.parametrize("make", file_faults.NOT_A_FILE)
def test_what_is_no_file_is_no_journal(tmp_path, make):
    make(tmp_path / "a.jsonl")
    with pytest.raises(DataFileError, match="a.jsonl: .*(regular file|folder|leads to itself)"):
        Journal.open(tmp_path / "a.jsonl", HEADER)


def test_a_device_that_is_always_full_is_no_journal():
    with pytest.raises(DataFileError, match="not a regular file|permission denied"):
        Journal.open("/dev/full", HEADER)


@pytest.mark.parametrize("reason, done", [
    ("the worker was killed by SIGKILL", False), ("the worker was killed by SIGTERM: bye", False),
    ("the worker was killed by SIGSEGV", True), ("the worker ended with exit status 1", True),
    ("device fault: misaligned address", True), (None, True)])
def test_a_config_whose_worker_was_killed_from_outside_is_tried_once_more(tmp_path, reason, done):
    path = tmp_path / "a.jsonl"
    lost = result(status="died", time_us=None, reason=reason)
    write(path, lost)
    assert read_done(path, ENV).has(PROBLEM, CONFIGS[0]) is done
    write(path, lost)  # it may be what makes the system kill its worker
    assert read_done(path, ENV).has(PROBLEM, CONFIGS[0])


def test_a_killed_config_that_was_measured_since_is_done(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, result(status="died", time_us=None, reason="the worker was killed by SIGKILL"),
          result())
    assert read_done(path, ENV).has(PROBLEM, CONFIGS[0])


def test_closing_twice_is_closing_once(tmp_path):
    journal = Journal.open(tmp_path / "a.jsonl", HEADER)
    journal.close()
    journal.close()


# --- bad records and bad files ------------------------------------------------------------------


@pytest.mark.parametrize("record, field", [
    ({"a": 1}, "kind"), ({"kind": 3}, "kind"), ({"kind": "a b"}, "kind"),
    (result(status="fine"), "status"), (result(time_us=-1.0), "time_us"),
    (result(time_us="5"), "time_us"), (result(time_us=True), "time_us"),
    (result(status="wrong"), "time_us"), (result(time_us=float("nan")), None),
    (result(error=object()), None), (result(reason="x" * (1 << 20)), None),
    ({**result(), "problem": {"m": 1}}, "problem"), ({**result(), "problem": None}, "problem"),
    ({**result(), "config": {"kernel": "tiled"}}, "config"), ({**result(), "config": []},
                                                              "config"),
    ({"kind": "winner"}, "problem"), ({"kind": "header"}, "schema_version")])
def test_a_record_that_could_not_be_read_is_not_written(tmp_path, record, field):
    path = tmp_path / "a.jsonl"
    with Journal.open(path, HEADER) as journal:
        before = path.read_bytes()
        with pytest.raises(DataFileError) as caught:
            journal.append(record)
        assert caught.value.field == field
        assert path.read_bytes() == before


def test_a_record_changed_in_place_is_checked_again(tmp_path):
    record = result()
    with Journal.open(tmp_path / "a.jsonl", HEADER) as journal:
        journal.append(record)
        record["problem"]["m"] = -5
        with pytest.raises(DataFileError, match="m=-5"):
            journal.append(record)


def test_a_header_needs_its_environment(tmp_path):
    with pytest.raises(DataFileError, match="environment"):
        Journal.open(tmp_path / "a.jsonl", {"run_id": "x"})
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize("change, field, reason", [
    ({"problem": {**problem_to_json(PROBLEM), "m": -1}}, "problem", "m=-1"),
    ({"problem": {**problem_to_json(PROBLEM), "m": [1]}}, "problem", "not an integer"),
    ({"problem": {**problem_to_json(PROBLEM), "x": 1}}, "problem", "unknown field 'x'"),
    ({"problem": 7}, "problem", "not an object"),
    ({"config": {**config_to_json(CONFIGS[0]), "block_m": 0}}, "config", "block_m=0"),
    ({"config": {"block_m": 64}}, "config", "missing"),
    ({"config": {**config_to_json(CONFIGS[0]), "kernel": 5}}, "config", "kernel"),
    ({"config": "tiled"}, "config", "not an object"),
    ({"status": None}, "status", "one of ok"), ({"status": ["ok"]}, "status", "one of ok"),
    ({"time_us": "1"}, "time_us", "positive"), ({"time_us": 0}, "time_us", "positive"),
    ({"kind": None}, "kind", "not a kind"), ({"kind": "header"}, "schema_version", "integer"),
    ({"kind": "header", "schema_version": 9}, "schema_version", "newer"),
    ({"kind": "header", "schema_version": 1}, "environment", "missing"),
])
def test_a_bad_record_is_named_with_its_line(tmp_path, change, field, reason):
    path = tmp_path / "a.jsonl"
    write(path, result())
    with open(path, "a") as file:
        file.write(json.dumps({**result(), **change}) + "\n" + json.dumps(result()) + "\n")
    for read in (lambda: list(read_journal(path)), lambda: read_done(path, ENV)):
        with pytest.raises(DataFileError, match=reason) as caught:
            read()
        assert (caught.value.row, caught.value.field) == (3, field)


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"7", b"\xff", b'{"kind": NaN}', b"{} {}",
                                  b"[" * 100_000, b"9" * 10_000, b"\0"])
def test_damage_inside_the_file_is_named_with_its_line(tmp_path, line):
    path = tmp_path / "a.jsonl"
    write(path, result())
    whole = path.read_bytes()
    path.write_bytes(whole + line + b"\n" + whole.splitlines()[1] + b"\n")
    with pytest.raises(DataFileError, match="damaged") as caught:
        list(read_journal(path))
    assert caught.value.row == 3


@pytest.mark.parametrize("raw", [
    b"m,n,k\n1,2,3\n", b"precious", b"precious\n", b"\x7fELF\0\0", b"{}\n",
    b'{"kind":"result"}\n', b'{"schema_version": 1, "rows": [\n]}\n', b"[1]\n[2]\n"])
def test_another_file_is_refused_and_not_changed(tmp_path, raw):
    path = tmp_path / "a.jsonl"
    path.write_bytes(raw)
    for use in (lambda: Journal.open(path, HEADER), lambda: list(read_journal(path))):
        with pytest.raises(DataFileError, match="is not a journal|damaged"):
            use()
    assert path.read_bytes() == raw


def test_an_empty_or_absent_journal_is_an_error_to_read(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    with pytest.raises(DataFileError, match="is empty"):
        list(read_journal(tmp_path / "a.jsonl"))
    with pytest.raises(DataFileError, match="does not exist"):
        read_done(tmp_path / "b.jsonl", ENV)


def test_a_gigabyte_without_lines_is_refused_without_being_held(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, result())
    file_faults.sparse(path, head=path.read_bytes())
    for use in (lambda: list(read_journal(path)), lambda: Journal.open(path, HEADER)):
        with pytest.raises(DataFileError, match="longer than"):
            use()
    assert path.stat().st_size == 1 << 30
