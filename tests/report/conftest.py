"""Fixtures of the report's tests; the rows themselves are made in made_rows.py."""

from __future__ import annotations

import made_rows
import pytest


@pytest.fixture
def make_csv(tmp_path):
    """``make_csv(rows, name="bench.csv")`` -> the path of a CSV in the test's own folder."""
    def make(rows, name="bench.csv"):
        return made_rows.write_csv(tmp_path / name, rows)

    return make
