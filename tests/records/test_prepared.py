"""What is kept of calibrations and tables: the same as the files say, and never out of date."""

from __future__ import annotations

import numpy as np
import pytest

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.records import calibration, prepared, sealed, tables
from tritongemm.records.prepared import Prepared
from tritongemm.records.prepared_calibration import Configs
from tritongemm.settings import shipped_root

CALIBRATION = shipped_root() / "calibration" / "nvidia-h100-80gb-hbm3.json"
TABLE = shipped_root() / "tuned" / "nvidia-h100-80gb-hbm3" / "mm-bf16-ieee-nt.json"


@pytest.fixture
def cache(tmp_path):
    with settings.override(cache_dir=tmp_path / "cache", cubins=settings.OFF):
        yield tmp_path / "cache" / "prepared"


def read_twice(read, path, cache, monkeypatch, module):
    """What is read with nothing kept, then what is read of what was kept."""
    first = read(path)
    assert len([*cache.glob("*.bin")]) == 1
    with monkeypatch.context() as patched:
        patched.setattr(module, "_parsed", None)  # the file is not parsed again
        return first, read(path)


def test_a_calibration_is_the_same(cache, monkeypatch):
    parsed, kept = read_twice(calibration.read_placed, CALIBRATION, cache, monkeypatch,
                              calibration)
    assert (parsed.device, parsed.arch) == (kept.device, kept.arch)
    for one, other in zip(parsed.sections, kept.sections, strict=True):
        assert calibration._values(one) == calibration._values(other)
        assert list(one.candidates) == list(other.candidates)
        assert list(one.neighbours) == list(other.neighbours)
        assert other.candidates[1:3] == list(one.candidates[1:3])
        assert other.candidates[0] is other.candidates[0] and other.candidates[-1]


def test_a_table_is_the_same(cache, monkeypatch):
    def read(path):
        return tables._read_usable(path, [])

    parsed, kept = read_twice(read, TABLE, cache, monkeypatch, tables)
    assert kept.header == parsed.header and len(kept.rows) == len(parsed.rows) > 0
    assert dict(kept.rows) == dict(parsed.rows)
    assert (1, 2, 3) not in kept.rows and kept.rows.get((1, 2, 3)) is None


def changed(path, tmp_path, before: str, after: str):
    """A copy of ``path`` in a folder of the same name, with one text replaced."""
    text = path.read_text()
    assert before in text
    folder = tmp_path / path.parent.name
    folder.mkdir()
    (folder / path.name).write_text(text.replace(before, after, 1))
    return folder / path.name


def test_a_file_that_changes_is_read_again(cache, tmp_path):
    tables._read_usable(TABLE, [])
    row = next(iter(tables.read_table(TABLE).rows.values()))
    other = changed(TABLE, tmp_path, f'"time_us": {row.time_us}', '"time_us": 12345.5')
    assert tables._read_usable(other, []).rows[row.key].time_us == 12345.5


def test_a_damaged_file_is_not_kept(cache, tmp_path):
    other = changed(TABLE, tmp_path, '"block_m"', '"block_of_a_newer_version"')
    for _ in range(2):
        skipped: list = []
        tables._read_usable(other, skipped)
        assert len(skipped) == 1 and not cache.exists()


@pytest.mark.parametrize("damage", ["cut", "bit", "another key", "nothing", "no arrays"])
def test_a_damaged_kept_file_is_made_again(damage, cache):
    wanted = dict(tables._read_usable(TABLE, []).rows)
    (path,) = cache.glob("*.bin")
    raw = path.read_bytes()
    path.write_bytes({
        "cut": raw[:-100], "bit": raw[:-1] + bytes([raw[-1] ^ 1]), "nothing": b"",
        "another key": sealed.seal("table-1-" + "0" * 64, raw),
        "no arrays": sealed.seal(path.stem, prepared.encode(Prepared({"keys": []}, {})))}[damage])
    assert dict(tables._read_usable(TABLE, []).rows) == wanted
    assert path.read_bytes() == raw


def test_configs_of_other_parameters_are_not_used(cache):
    calibration.read_placed(CALIBRATION)
    (path,) = cache.glob("*.bin")
    made = prepared.load(path.stem)
    made.head["parameters"] = made.head["parameters"][1:]
    prepared.keep(path.stem, made)
    assert calibration.read_placed(CALIBRATION).sections[0].candidates


def test_what_comes_with_the_package_is_read_first(cache, tmp_path, monkeypatch):
    calibration.prepare(CALIBRATION, tmp_path / "shipped")
    monkeypatch.setattr(prepared, "shipped", [lambda: [tmp_path / "shipped"]])
    monkeypatch.setattr(calibration, "_parsed", None)
    assert calibration.read_placed(CALIBRATION).device == CALIBRATION.stem
    assert not cache.exists()


def test_a_cache_that_cannot_be_written_changes_nothing(cache):
    cache.parent.mkdir()
    cache.write_text("a file in the folder's place")
    assert len(tables._read_usable(TABLE, []).rows) > 0


@pytest.mark.parametrize("content", [
    b"", b"{}\n", b"[1]\n", b'[{},{"a":["O",[1],0]}]\n12345678', b'[{},{"a":["<i8",[9],0]}]\n',
    b'[{},{"a":["<i8",[-1],0]}]\n1234567', b'[{},{"a":["<i8",[1],-8]}]\n12345678'])
def test_what_is_no_prepared_content_is_none(content):
    assert prepared.decode(content) is None


def test_texts_and_arrays_come_back():
    arrays = prepared.lines_of(["a", "", "\u00fcb"]) | {"x": np.arange(6.0).reshape(2, 3)}
    found = prepared.decode(prepared.encode(Prepared({"y": 1}, arrays)))
    assert found.head == {"y": 1} and (found.arrays["x"] == arrays["x"]).all()
    assert [prepared.line(found.arrays, i) for i in range(3)] == ["a", "", "\u00fcb"]


def test_configs_in_rows_are_the_configs():
    configs = [KernelConfig("tiled", 64, 64, 32), KernelConfig("gemv", 1, 64, 256, split_k=4)]
    rows = Configs.of(configs)
    assert list(Configs(rows.kernels, rows.rows)) == configs and len(rows) == 2
    assert [rows.place(c) for c in configs] == [0, 1]
    assert rows.place(KernelConfig("gemv", 1, 64, 256)) is None
    assert rows.place(KernelConfig("another", 1, 64, 256)) is None
    assert Configs.of(rows) is rows and hash(Configs(rows.kernels, rows.rows)[1]) == hash(
        configs[1])


def test_a_release_that_knows_other_parameters_reads_the_file_itself(monkeypatch):
    raw = TABLE.read_bytes()
    before = prepared.key_of("table", raw)
    monkeypatch.setattr(prepared, "PARAMETERS", (*prepared.PARAMETERS, "of_a_newer_release"))
    assert before != prepared.key_of("table", raw) != prepared.key_of("table", raw + b" ")
