"""Packed journals: columns from which the same timings are read as from the journals."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest

from tritongemm.calibration.timings import read_timings, times_of
from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError
from tritongemm.problem import GemmProblem
from tritongemm.records import packed
from tritongemm.records.codec import config_to_json, problem_to_json
from tritongemm.records.journal import Journal, read_journal
from tritongemm.tuning.publish import publish

RUN, LATER = "20260101T000000Z-abcdef", "20260102T000000Z-abcdef"
CONFIGS = [KernelConfig("tiled", bm, 64, 64) for bm in (32, 64, 128)]
PROBLEMS = [GemmProblem.contiguous(m, 256, 512, layout="nt", dtype=dtype)
            for m, dtype in ((64, "bf16"), (128, "fp16"), (256, "bf16"))]
PROVENANCE = {"device": "nvidia-h200", "arch": 90, "space_hash": "abc", "environment": "e"}
#: Of the fixture's journals: five of each problem.
RESULTS = 25
VERSIONS = {"torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0", "driver": "580"}


def write(path, run, problems, scale=1.0):
    """A journal with coarse and final times, a failure, a winner without a margin, a note."""
    with Journal.open(path, {**PROVENANCE, "run_id": run, "versions": VERSIONS}) as journal:
        for i, problem in enumerate(problems):
            for j, config in enumerate(CONFIGS):
                one = {"kind": "result", "problem": problem_to_json(problem),
                       "config": config_to_json(config), "run_id": run, "registers": 128,
                       "utc": f"2026-01-01T00:00:{10 * i + j:02d}Z"}
                time_us = scale * (1 + i + j / 7)
                journal.append({**one, "stage": "coarse", "status": "ok", "time_us": time_us})
                if j < 2:
                    journal.append({**one, "stage": "final", "status": "ok",
                                    "time_us": time_us * 1.1})
            journal.append({**one, "stage": "coarse", "status": "compile", "reason": "no"})
            journal.append({
                "kind": "winner", "problem": problem_to_json(problem),
                "config": config_to_json(CONFIGS[0]), "time_us": scale * (1 + i) * 1.1,
                "ratio_vs_torch": 1.25, "ratio_low": 1.2, "ratio_high": 1.3,
                "margin_vs_second": None if i else 0.02, **PROVENANCE, **VERSIONS, "run_id": run,
                "utc": "2026-01-01T00:00:59Z"})
        journal.append({"kind": "left_out", "problem": problem_to_json(problems[0]), "run_id": run})
    return path


@pytest.fixture
def journals(tmp_path):
    return [write(tmp_path / "a.jsonl", RUN, PROBLEMS),
            write(tmp_path / "b.jsonl", LATER, PROBLEMS[1:], scale=0.9)]


@pytest.fixture
def one_file(journals, tmp_path):
    path = tmp_path / "all.npz"
    packed.pack(path, ((one.stem, read_journal(one)) for one in journals))
    return path


def test_the_timings_are_those_of_the_journals_bit_for_bit(journals, one_file):
    assert read_timings([one_file]) == read_timings(journals)
    assert len(read_timings([one_file]).finals) == 10


def test_results_and_winners_keep_their_fields(journals, one_file):
    kept = ("kind", "problem", "config", "stage", "status", "time_us", "run_id", "utc")
    old = [r for path in journals for r in read_journal(path)]
    new = list(read_journal(one_file))
    results = [{name: r[name] for name in kept} for r in old
               if r["kind"] == "result" and r["status"] == "ok"]
    assert [r for r in new if r["kind"] == "result"] == results and len(results) == RESULTS
    assert [r for r in new if r["kind"] == "winner"] == [r for r in old if r["kind"] == "winner"]


def test_the_times_of_one_sweep_are_those_of_its_journal(journals, one_file):
    for stage in ("coarse", "final"):
        for journal in journals:
            assert times_of(one_file, stage, journal.stem) == times_of(journal, stage)
    assert times_of(one_file, sweep="c") == {}
    assert times_of(one_file) == {**times_of(journals[0]), **times_of(journals[1])}


def test_what_is_published_is_what_the_journals_publish(journals, one_file, tmp_path):
    found = []
    for name, sources in (("old", journals), ("new", [one_file])):
        report = publish(sources, to=tmp_path / name)
        found.append((report.winners, {path.relative_to(tmp_path / name): path.read_text()
                                       for path in report.tables}))
    assert found[0] == found[1] and found[0][0] == 3


def test_headers_name_their_journals_and_a_second_packing_keeps_them(one_file, tmp_path):
    again = tmp_path / "again.npz"
    packed.pack(again, [("all", read_journal(one_file))])
    names = [r["journal"] for r in read_journal(again) if r["kind"] == "header"]
    assert names == ["a", "b"] and again.read_bytes() == one_file.read_bytes()


def test_a_record_of_another_run_is_not_packed(journals, tmp_path):
    records = list(read_journal(journals[0]))
    records[0] = {**records[0], "run_id": LATER}
    with pytest.raises(DataFileError, match="follows the header"):
        packed.pack(tmp_path / "out.npz", [("a", records)])
    assert not (tmp_path / "out.npz").exists()


def arrays(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def column(values, dtype):
    raw = io.BytesIO()
    np.save(raw, np.array(values, dtype), allow_pickle=dtype is object)
    return raw.getvalue()


@pytest.mark.parametrize("name, content, reason", [
    ("configs.npy", None, "is missing"),
    ("result_config.npy", lambda count: column([3] * count, np.uint32), "index beyond 3"),
    ("result_config.npy", lambda count: column([-1] * count, np.int64), "no column of numbers"),
    ("result_config.npy", lambda count: column([0.0] * count, np.float64), "index beyond"),
    ("result_time_us.npy", lambda count: column([1.0], np.float64), "has 1 values"),
    ("result_time_us.npy", lambda count: column([-1.0] * count, np.float64), "positive number"),
    ("result_time_us.npy", lambda count: column([np.nan] * count, np.float64), "positive number"),
    ("result_time_us.npy", lambda count: column([object()], object), "no column of numbers"),
    ("result_time_us.npy", lambda count: b"nothing", "is no array"),
    ("result_counts.npy", lambda count: column([count], np.uint32), "has 1 runs"),
    ("headers.npy", lambda count: column(list(b"[1, 2]"), np.uint8), "list of objects"),
    ("problems.npy", lambda count: column(list(b"[{}, {}, {}]"), np.uint8), "is missing"),
    ("configs.npy", lambda count: column(list(b'[{"kernel": "tiled"'), np.uint8), "not JSON"),
])
def test_a_damaged_file_is_one_clear_error(one_file, name, content, reason):
    found = arrays(one_file)
    if content is None:
        del found[name]
    else:
        found[name] = content(RESULTS)
    with zipfile.ZipFile(one_file, "w") as archive:
        for member, raw in found.items():
            archive.writestr(member, raw)
    with pytest.raises(DataFileError, match=reason) as caught:
        read_timings([one_file])
    assert "all.npz" in str(caught.value)


def test_a_file_that_is_cut_short_is_refused(one_file):
    one_file.write_bytes(one_file.read_bytes()[:-30])
    with pytest.raises(DataFileError, match="damaged"):
        list(read_journal(one_file))


def test_a_small_file_that_unpacks_to_too_much_is_refused(one_file, monkeypatch):
    monkeypatch.setattr(packed, "LIMIT", 100_000)
    with zipfile.ZipFile(one_file, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more.npy", b"\0" * 100_000)
    with pytest.raises(DataFileError, match="unpacks to"):
        list(read_journal(one_file))


def test_a_forged_length_reserves_no_memory(one_file):
    found = arrays(one_file)
    header = json.dumps({"descr": "<f8", "fortran_order": False, "shape": [1 << 40]})
    text = header.replace("false", "False").replace("[", "(").replace("]", ",)").encode()
    text += b" " * (63 - (10 + len(text)) % 64) + b"\n"
    found["result_time_us.npy"] = (b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    with zipfile.ZipFile(one_file, "w") as archive:
        for member, raw in found.items():
            archive.writestr(member, raw)
    with pytest.raises(DataFileError, match="no column of numbers"):
        list(read_journal(one_file))


@pytest.mark.parametrize(("seconds", "utc"), [
    (0, None), (1, "1970-01-01T00:00:01Z"), (2**31, "2038-01-19T03:14:08Z"),
    (2**32 - 1, "2106-02-07T06:28:15Z"), (2**32, None)])
def test_a_time_is_read_as_far_as_its_field_reaches(seconds, utc):
    assert packed._when(seconds) == ({} if utc is None else {"utc": utc})
