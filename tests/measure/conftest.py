"""Contenders, right and wrong, for the tests of measuring."""

from __future__ import annotations

import pytest

from tritongemm.measure import host


@pytest.fixture(autouse=True)
def short_items(monkeypatch):
    """Items of one call on the host: these tests ask what is measured, not how exactly."""
    monkeypatch.setattr(host, "MIN_ITEM_US", 0.0)
    monkeypatch.setattr(host, "cache_bytes", lambda: 2**16)
