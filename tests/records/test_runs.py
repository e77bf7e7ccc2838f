"""``runs.json``: the record of each run of a folder; older folders have a file for each run."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tritongemm.errors import DataFileError
from tritongemm.records.run import RUNS, read_sidecars, write_sidecar

RUN, LATER = "20260101T000000Z-abcdef", "20260102T000000Z-abcdef"
META = {"torch": "2.13.0", "gpu": None}


def test_records_survive_the_disk_one_run_a_line(tmp_path):
    path = write_sidecar(tmp_path, LATER, META)
    assert write_sidecar(tmp_path, RUN, {"void": True}) == path == tmp_path / RUNS
    assert read_sidecars(tmp_path) == {LATER: {**META, "run_id": LATER},
                                       RUN: {"void": True, "run_id": RUN}}
    first, second = path.read_text().splitlines()[1:3]
    assert first.startswith(f'  "{RUN}": ') and second.startswith(f'  "{LATER}": ')


def test_a_second_write_replaces_the_record_of_its_run_alone(tmp_path):
    write_sidecar(tmp_path, RUN, {"complete": False})
    write_sidecar(tmp_path, LATER, META)
    write_sidecar(tmp_path, RUN, {"complete": True})
    found = read_sidecars(tmp_path)
    assert found[RUN]["complete"] is True and found[LATER]["torch"] == "2.13.0"


def test_runs_written_at_the_same_time_are_all_kept(tmp_path):
    runs = [f"20260101T0000{i:02d}Z-abcdef" for i in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda run: write_sidecar(tmp_path, run, META), runs))
    assert sorted(read_sidecars(tmp_path)) == runs


def test_older_files_are_read_too_and_give_way(tmp_path):
    (tmp_path / f"{RUN}.meta.json").write_text(json.dumps({"torch": "1"}))
    (tmp_path / f"{LATER}.meta.json").write_text(json.dumps({"torch": "1", "run_id": LATER}))
    write_sidecar(tmp_path, LATER, META)
    found = read_sidecars(tmp_path)
    assert found[RUN]["torch"] == "1" and found[LATER]["torch"] == "2.13.0"


def test_what_is_no_record_is_not_written(tmp_path):
    with pytest.raises(DataFileError, match="not a run id"):
        write_sidecar(tmp_path, "../" + RUN, {})
    with pytest.raises(DataFileError, match="cannot be written as JSON"):
        write_sidecar(tmp_path, RUN, {"a": {1, 2}})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text, reason", [
    ("", "is empty"), ("[]", "not an object"), ('{"a": ', "cut short"),
    ('{"run_id": "other"}', "does not match"), ('{"void": "no"}', "neither true nor false")])
def test_a_bad_file_of_one_run_is_named(tmp_path, text, reason):
    (tmp_path / f"{RUN}.meta.json").write_text(text)
    with pytest.raises(DataFileError, match=reason) as caught:
        read_sidecars(tmp_path)
    assert "meta.json" in str(caught.value)


@pytest.mark.parametrize("text, reason", [
    ("", "is empty"), ("[]", "no object of runs"), ('{"schema_version": 1}', "no object of runs"),
    ('{"schema_version": 9, "runs": {}}', "schema_version"),
    ('{"schema_version": 1, "runs": {"a": 1}}', "not an object"),
    ('{"schema_version": 1, "runs": {"a": {"run_id": "b"}}}', "does not match")])
def test_a_bad_runs_file_is_named_and_not_overwritten(tmp_path, text, reason):
    (tmp_path / RUNS).write_text(text)
    for use in (lambda: read_sidecars(tmp_path), lambda: write_sidecar(tmp_path, RUN, META)):
        with pytest.raises(DataFileError, match=reason) as caught:
            use()
        assert RUNS in str(caught.value)
    assert (tmp_path / RUNS).read_text() == text


def test_a_folder_without_records_has_none(tmp_path):
    assert read_sidecars(tmp_path / "absent") == {}
