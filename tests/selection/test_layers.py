"""Tuned rows, calibrations and devices of several folders: the user's over the shipped ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from selection_made import TILED, TMA, calibrate, publish

from tritongemm import settings
from tritongemm.device import known_devices
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import find_calibration
from tritongemm.records.spaces import load_spaces
from tritongemm.records.tables import path_for
from tritongemm.selection import choose, reload, shipped

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


def test_a_table_of_another_architecture_is_left_out_and_the_shipped_rows_serve(configs, h200,
                                                                               users, warned):
    with in_folder(configs):
        publish(h200, (PROBLEM, TMA))
    with in_folder(users):
        publish(h200, (PROBLEM, TILED))
        path = path_for(PROBLEM, h200.slug)
        path.write_text(path.read_text().replace('"arch": 90', '"arch": 80'))
    assert (choose(PROBLEM, h200).source, choose(PROBLEM, h200).config) == ("exact", TMA)
    assert len(warned) == 1 and str(path) in warned[0] and "80 is not the arch" in warned[0]


@pytest.mark.parametrize("field, value", [
    ("device", "nvidia-a100-sxm4-80gb"), ("dtype_a", "fp16"), ("dtype_b", "fp16"),
    ("dtype_out", "fp32"), ("layout", "nn"), ("op", "bmm"), ("op", "ladder")])
def test_a_table_whose_header_does_not_fit_its_place_is_not_used(configs, h200, warned, field,
                                                                value):
    publish(h200, (PROBLEM, TILED))
    path = path_for(PROBLEM, h200.slug)
    table = json.loads(path.read_text())
    path.write_text(json.dumps({**table, field: value}))
    reload()
    assert choose(PROBLEM, h200).source == "rule"
    assert choose(replace(PROBLEM, m=2048), h200).source == "rule"
    assert len(warned) == 1 and str(path) in warned[0]


@pytest.mark.parametrize("damage", [
    lambda row: row["config"].update(warp_count=4), lambda row: row.update(speed=3),
    lambda row: row["config"].update(block_m=-1), lambda row: row.update(m="many")])
def test_a_row_of_a_newer_version_is_left_out_and_the_rest_serves(configs, h200, warned, damage):
    other = replace(PROBLEM, n=1024)
    publish(h200, (PROBLEM, TILED), (other, TILED))
    path = path_for(PROBLEM, h200.slug)
    table = json.loads(path.read_text())
    damage(table["rows"][1])  # rows are sorted: that of PROBLEM
    path.write_text(json.dumps(table))
    reload()
    assert choose(other, h200).source == "exact"
    assert choose(PROBLEM, h200).source == "nearest"
    assert len(warned) == 1 and f"{path}, row 2" in warned[0] and "row is left out" in warned[0]


@pytest.mark.parametrize("text", ["{", "[" * 100_000, *(
    pytest.param(x, marks=pytest.mark.thorough) for x in ("", "[]", "null", "\0"))])
@pytest.mark.parametrize("kind", ["tuned", "calibration", "spaces"])
def test_where_a_file_is_damaged_the_next_layer_or_rule_chooses_not_torch(configs, h200, users,
                                                                        warned, kind, text):
    with in_folder(configs):
        publish(h200, (PROBLEM, TMA))
        calibrate(h200, TILED)
    path = {"tuned": path_for(PROBLEM, h200.slug, root=users),
            "calibration": users / "calibration" / f"{h200.slug}.json",
            "spaces": users / "spaces" / "tiled.json"}[kind]
    path.parent.mkdir(parents=True)
    path.write_text(text)
    reload()
    assert choose(PROBLEM, h200).config == TMA
    assert choose(replace(PROBLEM, n=64), h200).source == "model"
    assert shipped.configs(PROBLEM)
    assert len(warned) == 1 and str(path) in warned[0]
    (configs / "calibration" / f"{h200.slug}.json").write_text(text)
    (configs / "tuned" / h200.slug / path_for(PROBLEM, h200.slug).name).write_text(text)
    reload()
    assert choose(PROBLEM, h200).source == "rule"
