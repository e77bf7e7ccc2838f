"""A configs/ folder of the test's own: the shipped spaces and devices, no table, no calibration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tritongemm import selection, settings
from tritongemm.device import device_named
from tritongemm.records import layers


@pytest.fixture
def configs(tmp_path: Path):
    """The folder; what a test puts under tuned/ or calibration/ is seen by selection."""
    shipped = settings.config_root()
    for name in ("spaces", "devices"):
        shutil.copytree(shipped / name, tmp_path / name)
    selection.reload()
    with settings.override(config_dir=tmp_path, config_only=True):
        yield tmp_path
    selection.reload()


@pytest.fixture
def h200():
    return device_named("nvidia-h200")


@pytest.fixture
def warned(monkeypatch) -> list[str]:
    """What is logged of files and rows that are left out."""
    said: list[str] = []
    monkeypatch.setattr(layers.log, "warning", lambda text, *values: said.append(text % values))
    return said
