"""Compiling takes most of the suite's time: `make test` runs what is marked quick here."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the others of this folder thorough (`make test-all`)."""
    for item in items:
        marked = any(map(item.get_closest_marker, ("quick", "slow")))
        if HERE in item.path.parents and not marked:
            item.add_marker(pytest.mark.thorough)
