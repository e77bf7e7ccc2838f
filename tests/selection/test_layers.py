"""Tuned rows, calibrations and devices of several folders: the user's over the shipped ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from selection_made import TILED, TMA, calibrate, publish

from tritongemm import settings
from tritongemm.device import known_devices
from tritongemm.errors import DataFileError
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import find_calibration
from tritongemm.records.spaces import load_spaces
from tritongemm.records.tables import path_for
from tritongemm.selection import choose, reload

PROBLEM = GemmProblem.contiguous(1024, 4096, 512, layout="nt")

@pytest.fixture
def users(configs, tmp_path_factory, monkeypatch):
    """``configs`` as what is shipped, below an empty folder of the user's, which it returns."""
    folder = tmp_path_factory.mktemp("users")
    monkeypatch.setattr(settings, "shipped_root", lambda: configs)
    with settings.override(config_dir=None, config_only=False, user_dir=folder):
        yield folder


def in_folder(folder):
    return settings.override(config_dir=folder, config_only=True)


def test_the_users_exact_row_wins_and_the_other_shipped_rows_stay(configs, h200, users):
    other = replace(PROBLEM, n=1024)
    with in_folder(configs):
        publish(h200, (PROBLEM, TMA), (other, TMA))
    assert choose(PROBLEM, h200).config == TMA
    with in_folder(users):
        publish(h200, (PROBLEM, TILED))
    assert [(c.source, c.config) for c in (choose(PROBLEM, h200), choose(other, h200))] == [
        ("exact", TILED), ("exact", TMA)]
    path_for(PROBLEM, h200.slug, root=users).unlink()
    assert choose(PROBLEM, h200).config == TMA


def test_a_config_folder_wins_over_the_users(configs, h200, users, tmp_path_factory):
    top = tmp_path_factory.mktemp("top")
    for folder, config in ((users, TMA), (top, TILED)):
        with in_folder(folder):
            publish(h200, (PROBLEM, config))
    with settings.override(config_dir=top):
        assert choose(PROBLEM, h200).config == TILED
    assert choose(PROBLEM, h200).config == TMA


def test_an_empty_folder_takes_nothing_away(configs, h200, users):
    with in_folder(configs):
        calibrate(h200, TILED)
    reload()
    assert known_devices()[h200.slug] == h200 and load_spaces()
    assert find_calibration(h200.slug).is_relative_to(configs)
    assert choose(PROBLEM, h200).source == "model"


def test_tables_about_other_things_do_not_mix(configs, h200, users):
    with in_folder(configs):
        publish(h200, (PROBLEM, TMA))
    with in_folder(users):
        publish(h200, (PROBLEM, TMA))
        path = path_for(PROBLEM, h200.slug)
        path.write_text(path.read_text().replace('"arch": 90', '"arch": 80'))
    with pytest.raises(DataFileError, match="is a table of 90, but the rows to merge are of 80"):
        choose(PROBLEM, h200)
