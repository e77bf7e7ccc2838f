"""Device files: what stands in the place of one costs a warning, neither a hang nor the others."""

from __future__ import annotations

import json

import file_faults
import pytest

from tritongemm import settings
from tritongemm.device import device_named, known_devices
from tritongemm.errors import DataFileError
from tritongemm.records import layers

GOOD = {"name": "NVIDIA X1", "arch": 90, "num_sms": 10, "shared_bytes_per_block": 1000,
        "shared_bytes_per_sm": 2000, "registers_per_sm": 65536, "l2_bytes": 1000}


@pytest.mark.parametrize("make", file_faults.NOT_A_FILE)
def test_what_is_no_device_file_is_left_out_with_one_warning(tmp_path, monkeypatch, make):
    said = []
    monkeypatch.setattr(layers.log, "warning", lambda text, *values: said.append(text % values))
    folder = tmp_path / "devices"
    folder.mkdir()
    (folder / "nvidia-x1.json").write_text(json.dumps(GOOD))
    make(folder / "nvidia-x2.json")
    with settings.override(config_dir=tmp_path, config_only=True):
        assert [*known_devices()] == [*known_devices()] == ["nvidia-x1"]
        with pytest.raises(DataFileError, match="nvidia-x2.json"):
            device_named("nvidia-x2")
    assert len(said) == 1 and "nvidia-x2.json" in said[0]


def test_a_damaged_device_file_of_the_user_leaves_the_shipped_one(tmp_path, monkeypatch):
    monkeypatch.setattr(layers.log, "warning", lambda *_: None)
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "nvidia-h200.json").write_text("{")
    shipped = device_named("nvidia-h200")
    with settings.override(config_dir=tmp_path):
        assert device_named("nvidia-h200") == shipped
