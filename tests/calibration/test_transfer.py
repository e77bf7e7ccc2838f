"""A device that was measured little learns from its sibling too, on timings made by the model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_calibrate import CONFIGS, FAST, sweep

from tritongemm import selection, settings
from tritongemm.calibration import transfer
from tritongemm.calibration.calibrate import calibrate
from tritongemm.calibration.regret import regret_with_sibling, shipped, summaries
from tritongemm.calibration.transfer import TrainingSet, calibrate_with_sibling
from tritongemm.cli import main
from tritongemm.cli.doctor import _configs
from tritongemm.device import device_named
from tritongemm.errors import DataFileError, UsageError
from tritongemm.problem import GemmProblem
from tritongemm.records.calibration import calibration_path, read_shipped
from tritongemm.records.codec import config_from_json
from tritongemm.selection.sibling import sibling_of, with_rows_for
from tritongemm.selection.work import class_of

H200, H100 = device_named("nvidia-h200"), device_named("nvidia-h100-80gb-hbm3")
pytestmark = pytest.mark.thorough  # they train networks
SIDES = (1024, 1536, 2048, 3072, 4096)
DEEP = [GemmProblem.contiguous(m, n, k, layout="nt") for m in SIDES for n in SIDES
        for k in (1024, 4096)]
THIN = [GemmProblem.contiguous(m, n, 64, layout="nt") for m in SIDES for n in SIDES]
FAST_HERE = "tiled_64x128x64_w4"


@pytest.fixture(scope="module")
def journals(tmp_path_factory):
    """Of the H200 deep products; of the H100 thin ones, of which another class does best."""
    folder = tmp_path_factory.mktemp("journals")
    source, target = (sweep(folder / "h200.jsonl", problems=DEEP),
                      sweep(folder / "h100.jsonl", device=H100.slug, problems=THIN))
    text = target.read_text().splitlines()
    target.write_text("\n".join(map(_made_faster, text)) + "\n")
    return source, target


def _made_faster(line):
    entry = json.loads(line)
    if entry["kind"] == "result" and class_of(config_from_json(entry["config"])) == FAST_HERE:
        entry["time_us"] /= 4
    return json.dumps(entry)


@pytest.fixture(scope="module")
def folder(journals, tmp_path_factory):
    """A configs folder whose only calibration is the H200's."""
    root = tmp_path_factory.mktemp("configs")
    for name in ("spaces", "devices"):
        shutil.copytree(settings.config_root() / name, root / name)
    (root / "calibration").mkdir()
    with settings.override(config_dir=root, config_only=True):
        assert main(["calibrate", str(journals[0])]) == 0
    return root


@pytest.fixture
def configs(folder, tmp_path):
    """The same, to be changed."""
    root = shutil.copytree(folder, tmp_path / "configs")
    with settings.override(config_dir=root, config_only=True):
        selection.reload()
        yield root
    selection.reload()


def chosen(problem, device):
    return class_of(selection.choose(problem, device).config)


def test_what_is_otherwise_here_is_learned_and_the_sibling_stays(configs, journals, capsys):
    deep, thin = (GemmProblem.contiguous(2560, 2560, k, layout="nt") for k in (2048, 64))
    assert {chosen(p, d) for p in (deep, thin) for d in (H200, H100)} == {FAST}
    before = calibration_path(H200.slug).read_bytes()
    assert main(["calibrate", *map(str, journals), "--device-name", H100.slug,
                 "--with-sibling"]) == 0
    path = calibration_path(H100.slug, H200.slug)
    assert f"wrote {path}" in capsys.readouterr().out and path.name == (
        "nvidia-h100-80gb-hbm3-and-nvidia-h200.json")
    selection.reload()
    assert (chosen(deep, H100), chosen(thin, H100)) == (FAST, FAST_HERE)
    assert (chosen(deep, H200), chosen(thin, H200)) == (FAST, FAST)
    choice = selection.choose(thin, H100)
    assert choice.note.startswith("predicted ") and choice.vs_torch is None
    assert "75 problems on NVIDIA H200 and NVIDIA H100 80GB HBM3" in choice.note
    assert calibration_path(H200.slug).read_bytes() == before
    assert sibling_of(H100) == with_rows_for(H100) == H200 and sibling_of(H200) is None


def plain(value):
    """A value of dataclasses, mappings, sequences and arrays as dicts and lists."""
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(x) for x in value]
    return value


def test_a_target_has_the_siblings_constants_with_its_own_memory(configs, journals):
    path, made = calibrate_with_sibling(journals, H100.slug)
    (there,), (here,) = read_shipped(H200.slug).sections, made.sections
    read = read_shipped(H100.slug, H200.slug)
    # What is kept of a large file has arrays in the place of tuples.
    assert path.exists() and plain(read) == plain(made)
    assert made.device == H100.slug and here.results == 75 * len(CONFIGS)
    for owner, values in there.constants.items():
        for name, value in values.items():
            ratio = 3350 / 4800 if name in ("dram_gbps", "l2_gbps", "pad_gbps") else 1.0
            assert here.constants[owner][name] == pytest.approx(value * ratio, rel=1e-4)
    assert here.rms_log_error < 0.1 and here.network is not None


def test_a_target_with_a_calibration_keeps_its_constants_and_learns_of_both(configs, journals):
    alone = calibrate(journals, H100.slug)[1].sections[0]
    selection.reload()
    path, made = calibrate_with_sibling(journals, H100.slug)
    (section,) = made.sections
    assert path == calibration_path(H100.slug)
    assert not calibration_path(H100.slug, H200.slug).exists()
    assert alone.results == len(THIN) * len(CONFIGS) and section.results == 75 * len(CONFIGS)
    assert section.constants == alone.constants
    assert {n.problem for n in section.neighbours if n.vs_torch is not None} <= {*THIN}


def test_units_with_and_without_a_calibration_of_their_own_need_a_file(monkeypatch):
    found = [SimpleNamespace(section=SimpleNamespace(units=units))
             for units in (("bf16", "fp16"), ("fp32",))]
    monkeypatch.setattr(transfer, "transfers_from_sibling", lambda *_: (H100, H200, found))
    monkeypatch.setattr(transfer, "calibrated", lambda _, unit: unit == "fp32")
    with pytest.raises(UsageError, match=r"bf16\+fp16: no; fp32: yes.*--out"):
        calibrate_with_sibling([], H100.slug)


def test_the_same_journals_give_the_same_file(configs, journals, tmp_path):
    first, second = (calibrate_with_sibling(journals, H100.slug, tmp_path / name)[0]
                     for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_problems_left_out_are_chosen_for_better_than_by_the_sibling(configs, journals, capsys):
    alone = summaries(shipped([journals[1]]))["all"][0]
    found = regret_with_sibling(journals, H100.slug, folds=4)
    beside = summaries(found)["all"][0]
    assert {one.problem for one in found} == {*THIN}
    assert alone.mean < 0.7 and beside.mean > 0.95
    assert main(["regret", *map(str, journals), "--device-name", H100.slug, "--folds", "2",
                 "--with-sibling"]) == 0
    assert "bf16 other" in capsys.readouterr().out


def test_problems_of_the_same_extents_are_left_out_of_the_siblings_too(
        configs, journals, tmp_path, monkeypatch):
    learned = []
    real = TrainingSet.network

    def seen(training):
        learned.append({(p.m, p.n, p.k) for p in training.problems()})
        return real(training)

    monkeypatch.setattr(TrainingSet, "network", seen)
    both = sweep(tmp_path / "same.jsonl", device=H100.slug, problems=DEEP[:2])
    regret_with_sibling([journals[0], both], H100.slug, folds=2)
    left_out = [{(p.m, p.n, p.k) for p in DEEP} - one for one in learned]
    assert sorted(map(len, left_out)) == [1, 1]


def test_what_cannot_be_learned_from_is_said(configs, journals, tmp_path, capsys):
    source, target = map(str, journals)
    assert main(["calibrate", source, target, "--with-sibling"]) == 2
    assert "--device-name" in capsys.readouterr().err
    l40s = str(sweep(tmp_path / "l40s.jsonl", device="nvidia-l40s", problems=THIN[:1]))
    assert main(["calibrate", source, l40s, "--device", "nvidia-l40s", "--with-sibling"]) == 2
    assert "nvidia-l40s has no sibling" in capsys.readouterr().err
    with pytest.raises(DataFileError, match="nvidia-h200"):
        calibrate_with_sibling([target], H100.slug)
    fp32 = sweep(tmp_path / "fp32.jsonl", device=H100.slug,
                 problems=[GemmProblem.contiguous(512, 512, 512, dtype="fp32")],
                 configs=[replace(CONFIGS[0], block_k=8)])
    assert main(["calibrate", source, str(fp32), "--device-name", H100.slug, "--with-sibling"]) == 2
    assert "of what nvidia-h100-80gb-hbm3 measured" in capsys.readouterr().err
    named = ["--device-name", H100.slug]
    for words in (["--shipped", *named], ["--fresh", "1", *named], []):
        files = [] if "--fresh" in words else [source, target]
        assert main(["regret", *files, "--with-sibling", *words]) == 2
        assert "--with-sibling" in capsys.readouterr().err


def test_a_damaged_file_is_left_out_and_named(configs, journals, caplog):
    path, _ = calibrate_with_sibling(journals, H100.slug)
    path.write_text("{")
    selection.reload()
    choice = selection.choose(THIN[0], H100)
    assert choice.source == "model" and choice.config == choose_without(path)
    assert "h100-80gb-hbm3-and-nvidia-h200.json" in caplog.text
    assert selection.choose(THIN[0], H200).source == "model"


def choose_without(path):
    """The config for the H100 where the file at ``path`` is not there."""
    path.unlink()
    selection.reload()
    return selection.choose(THIN[0], H100).config


def test_doctor_says_whose_model_chooses(configs, journals, monkeypatch):
    monkeypatch.setattr("tritongemm.device.current_device", lambda: H100)
    assert "else the model of nvidia-h200 chooses" in str(_configs())
    calibrate_with_sibling(journals, H100.slug)
    assert "else the model of nvidia-h200 and nvidia-h100-80gb-hbm3 chooses" in str(_configs())
