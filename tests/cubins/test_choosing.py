"""Which problems a pack is chosen for, which binaries, and how much of others they serve."""

from __future__ import annotations

import json

import pytest

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.cubins import choosing
from tritongemm.cubins.choosing import PackChoice, by_use, coverage, drawn, needed
from tritongemm.device import device_named
from tritongemm.errors import DataFileError, UsageError
from tritongemm.kernels.compile import launch_key, launches_of
from tritongemm.problem import GemmProblem
from tritongemm.records.revision import choices_digest
from tritongemm.selection import choose

H200 = device_named("nvidia-h200")
PROBLEM, CONFIG = GemmProblem(64, 64, 64), KernelConfig("tiled", 64, 64, 32)


def of(*keys: str) -> PackChoice:
    return PackChoice("nvidia-h200", PROBLEM, CONFIG if keys else None, keys)


def test_problems_are_drawn_of_every_family_and_are_the_same_for_a_seed():
    found = drawn(240, 3)
    assert found == drawn(240, 3) != drawn(240, 4)
    assert 220 <= len(found) == len({*found}) <= 240
    assert {p.layout for p in found} == {"nn", "nt", "tn"}
    assert any(p.batch > 1 for p in found) and any(p.k % 8 for p in found)
    assert {p.dtype_a for p in drawn(12, 3, "fp16")} == {"fp16"}
    with pytest.raises(UsageError, match="below 1"):
        drawn(0, 3)


def test_a_draw_of_another_seed_shares_few_problems():
    one, other = {*drawn(240, 3)}, {*drawn(240, 4)}
    assert len(one & other) < 0.4 * len(one)  # square and llm_decode have few shapes


def test_those_that_most_problems_need_come_first():
    found = [of("a"), of("b", "c"), of("a"), of("c", "b"), of("b", "c"), of("d"), of()]
    assert [sorted(x.keys) for x in by_use(found)] == [["b", "c"], ["a"], ["d"]]


@pytest.mark.parametrize(("share", "keys"), [
    (0.4, {"b", "c"}), (0.6, {"b", "c", "a"}), (0.9, {"b", "c", "a", "d"}),
    (1.0, {"b", "c", "a", "d"})])
def test_as_few_as_serve_the_share(share, keys):
    found = [of("a"), of("b", "c"), of("a"), of("b", "c"), of("b", "c"), of("d"), of("b"), of()]
    kept = {key for choice in needed(found, share) for key in choice.keys}
    assert kept == keys
    assert coverage(found, kept).share >= share


def test_a_problem_is_served_by_all_its_binaries_and_torchs_do_not_count():
    found = [of("a"), of("a", "b"), of("b"), of()]
    served = coverage(found, {"a"})
    assert (served.served, served.problems, served.torchs) == (1, 3, 1)
    assert "33.33 %" in str(served) and coverage([], {"a"}).share == 1.0


def test_a_choice_is_what_a_call_launches():
    problem = GemmProblem.contiguous(1000, 777, 999, layout="nt")
    found = choosing.chosen(problem, H200)
    config = choose(problem, H200).config
    assert found == PackChoice("nvidia-h200", problem, config, tuple(
        launch_key(x, 90) for x in launches_of(problem, config, H200)))
    nothing = choosing.chosen(GemmProblem.contiguous(64, 64, 64, dtype="fp32"), H200)
    assert nothing.config is None or nothing.keys  # torch's, or ours


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch):
    asked = []

    def chosen(problem, device):
        asked.append(problem)
        return PackChoice(device.slug, problem, CONFIG, (str(problem.m),))

    monkeypatch.setattr(choosing, "chosen", chosen)
    journal = tmp_path / "choices.jsonl"
    problems = [GemmProblem(m, 64, 64) for m in range(64, 69)]
    first = choosing.choices(problems[:3], [H200], journal=journal, workers=1)
    again = choosing.choices(problems, [H200], journal=journal, workers=1)
    assert again[:3] == first and len(asked) == 5
    assert [x.keys for x in again] == [(str(p.m),) for p in problems]


def test_an_empty_journal_is_begun(tmp_path, monkeypatch):
    monkeypatch.setattr(choosing, "chosen", lambda problem, device: PackChoice(
        device.slug, problem, CONFIG, ("key",)))
    journal = tmp_path / "choices.jsonl"
    journal.touch()  # of a full disk
    first = choosing.choices([PROBLEM], [H200], journal=journal, workers=1)
    assert choosing.choices([PROBLEM], [H200], journal=journal, workers=1) == first


@pytest.mark.parametrize("damage", [lambda text: text.replace('"m": 64', '"m": -64'),
                                    lambda text: text.replace("bf16", "\udcff")])
def test_a_damaged_line_of_a_journal_is_named(tmp_path, monkeypatch, damage):
    problem = GemmProblem.contiguous(64, 64, 64)
    monkeypatch.setattr(choosing, "chosen", lambda problem, device: PackChoice(
        device.slug, problem, CONFIG, ("key",)))
    journal = tmp_path / "choices.jsonl"
    choosing.choices([problem], [H200], journal=journal, workers=1)
    text = journal.read_text()
    assert damage(text) != text
    journal.write_bytes(damage(text).encode(errors="surrogateescape"))
    with pytest.raises(DataFileError, match=r"choices\.jsonl.* row 2"):
        choosing.choices([problem], [H200], journal=journal, workers=1)


def test_a_journal_of_another_revision_or_a_damaged_one_is_an_error(tmp_path):
    journal = tmp_path / "choices.jsonl"
    journal.write_text(json.dumps({"device_code": "0" * 64}) + "\n")
    with pytest.raises(DataFileError, match="another revision"):
        choosing.choices([PROBLEM], [H200], journal=journal, workers=1)
    journal.write_text('{"device_code": "')
    with pytest.raises(DataFileError, match="cut short"):
        choosing.choices([PROBLEM], [H200], journal=journal, workers=1)
    journal.write_text("[]\n")
    with pytest.raises(DataFileError, match="is a list, not an object"):
        choosing.choices([PROBLEM], [H200], journal=journal, workers=1)


CHANGES = {
    "table": lambda root: (root / "tuned/nvidia-h200/mm-bf16.json").write_text("{}"),
    "calibration": lambda root: (root / "calibration/nvidia-h200.json").write_text("{}"),
    "name": lambda root: (root / "tuned/nvidia-h200/mm.json").rename(root / "mm.json"),
}


@pytest.fixture
def tables(tmp_path):
    """A folder of tables that wins over the shipped ones."""
    root = tmp_path / "configs"
    for name in ("tuned/nvidia-h200/mm.json", "calibration/nvidia-h200.json"):
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_text("[]")
    with settings.override(config_dir=root):
        yield root


def journalled(tmp_path, monkeypatch):
    """Chooses with a journal; how often it asked for a choice."""
    asked = []
    monkeypatch.setattr(choosing, "chosen", lambda problem, device: asked.append(problem) or of(
        "key"))
    choosing.choices([PROBLEM], [H200], journal=tmp_path / "choices.jsonl", workers=1)
    return len(asked)


@pytest.mark.parametrize("name", CHANGES)
def test_choices_of_other_tables_or_calibrations_are_out_of_date(name, tables, tmp_path,
                                                                 monkeypatch):
    assert journalled(tmp_path, monkeypatch) == 1
    assert journalled(tmp_path, monkeypatch) == 0
    CHANGES[name](tables)
    with pytest.raises(DataFileError, match="other tables, calibrations.*delete it"):
        journalled(tmp_path, monkeypatch)


def test_so_are_those_of_other_settings_or_code_or_of_a_folder_that_wins(tables, tmp_path,
                                                                         monkeypatch):
    digests = [choices_digest()]
    for change in (dict(policy="model"), dict(num_sms=100), dict(batch_invariant=True),
                   dict(user_dir=tables, config_dir=None), dict(config_only=True)):
        with settings.override(**change):
            digests.append(choices_digest())
    package = tmp_path / "package"
    (package / "selection").mkdir(parents=True)
    monkeypatch.setattr("tritongemm.__file__", str(package / "__init__.py"))
    for text in ("a = 1", "a = 2"):
        (package / "selection/policy.py").write_text(text)
        with settings.override(config_only=True):
            digests.append(choices_digest())
    assert len(digests) == len({*digests})


def test_a_journal_from_before_tables_were_looked_at_is_out_of_date(tmp_path, monkeypatch):
    from tritongemm.kernels.revision import device_code_digest

    (tmp_path / "choices.jsonl").write_text(
        json.dumps({"device_code": device_code_digest()}) + "\n")
    with pytest.raises(DataFileError, match="other tables"):
        journalled(tmp_path, monkeypatch)
