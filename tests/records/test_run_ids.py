"""Run ids are safe in file names, sort by time and do not repeat."""

import re

from tritongemm.records.run import is_run_id, new_run_id, utc_now


def test_a_run_id_is_a_time_and_a_random_part():
    ids = {new_run_id() for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{6}", i) and is_run_id(i) for i in ids)


def test_what_is_no_run_id_is_known():
    for text in ("", "../../etc/passwd", "20261121T052300Z-1a2b3c/..", "20261121T052300Z-1A2B3C",
                 "20261121T052300Z-1a2b3c\n", None, 7):
        assert not is_run_id(text)


def test_time_is_utc_in_iso_8601():
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", utc_now())
