"""Which tuned rows are stale, ``tritongemm tables``, and ``sweep --stale``."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import fakes
import pytest

import tritongemm.tuning.sweep as door
from tritongemm import settings
from tritongemm.cli import main
from tritongemm.config import KernelConfig
from tritongemm.device import device_named
from tritongemm.kernels import SPECS
from tritongemm.kernels.revision import code_of, kernel_revision
from tritongemm.records.journal import read_journal
from tritongemm.records.tables import (
    TableHeader,
    TunedRow,
    TunedTable,
    path_for,
    read_table,
    write_table,
)
from tritongemm.tuning import stale
from tritongemm.tuning.publish import publish

NOW = stale.Present("3.7.1", "580.1")
CONFIG = KernelConfig("tiled", 64, 64, 32)


def row(size, run="20261101T000000Z-00000a", **made_with):
    return TunedRow.of(fakes.problem(size), CONFIG, time_us=5.0, margin_vs_second=None, run_id=run,
                       **{"space_hash": "s", "torch": "2.13.0", "triton": "3.7.1", **made_with})


def table_in(folder, *rows):
    header = TableHeader.of(fakes.problem(), device="nvidia-h200", arch=90, space_hash="s",
                            torch="2.13.0", triton="3.7.1")
    path = path_for(fakes.problem(), "nvidia-h200", root=folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, TunedTable(header, {one.key: one for one in rows}))
    return path


@pytest.fixture
def folders(tmp_path):
    """A user's folder and TRITONGEMM_CONFIG_DIR, without the shipped tables."""
    mine, first = tmp_path / "mine", tmp_path / "first"
    first.mkdir()
    with settings.override(config_dir=first, user_dir=mine):
        yield mine, first


@pytest.mark.parametrize("made_with, reason", [
    ({}, None), ({"triton": "3.6.0"}, "Triton 3.6.0, now 3.7.1"),
    ({"driver": "570.9"}, "driver 570.9, now 580.1"), ({"driver": "580.1"}, None),
    ({"kernel_revision": "0123456789ab"}, "kernel revision 0123456789ab, now "),
    ({"kernel_revision": kernel_revision(CONFIG)}, None)])
def test_why_a_row_is_stale(made_with, reason):
    found = stale.stale_because(row(64, **made_with), NOW)
    assert (len(found) == 1 and found[0].startswith(reason)) if reason else not found


def test_an_unknown_version_makes_no_row_stale():
    here = stale.Present(None, None)
    assert not stale.stale_because(row(64, triton="3.6.0", driver="570.9"), here)


def test_a_revision_is_of_code_alone_and_of_the_passes_that_run():
    code = '"""Doc."""\nX = 1  # why\ndef f(a):\n    """Doc."""\n    return f"{a}" + "text"\n'
    assert code_of(code) == code_of('X = 1\n\n\ndef f( a ):\n  return f"{a}" + "text"\n')
    assert code_of(code) != code_of(code.replace("X = 1", "X = 2"))
    assert code_of(code) != code_of(code.replace('"text"', '"other"'))
    plain, split = kernel_revision(CONFIG), kernel_revision(replace(CONFIG, split_k=2))
    assert plain and split and plain != split and len(plain) == 12
    assert kernel_revision(KernelConfig("gemv", 1, 64, 16, num_stages=1)) not in (None, plain)
    assert all(kernel_revision(KernelConfig(name, 64, 64, 64)) for name in SPECS)


def test_tables_without_the_new_fields_are_written_as_before(tmp_path):
    path = table_in(tmp_path, row(64))
    assert "driver" not in path.read_text() and "kernel_revision" not in path.read_text()
    shipped = next((settings.shipped_root() / "tuned").glob("*/mm-bf16-ieee-nn.json"))
    copy = tmp_path / shipped.name
    write_table(copy, read_table(shipped))
    assert copy.read_bytes() == shipped.read_bytes()
    path = table_in(tmp_path, row(64, driver="580.1", kernel_revision="0123456789ab"))
    (found,) = read_table(path).rows.values()
    assert (found.driver, found.kernel_revision) == ("580.1", "0123456789ab")


def test_a_new_journal_tells_driver_and_revision_and_an_old_one_makes_the_old_table(tmp_path):
    journal = tmp_path / "j.jsonl"
    fakes.run(journal, [CONFIG])
    publish([journal], to=tmp_path / "new")
    (found,) = read_table(path_for(fakes.problem(), "nvidia-h200", root=tmp_path / "new")
                          ).rows.values()
    assert (found.driver, found.kernel_revision) == ("1", kernel_revision(CONFIG))
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        line.pop("kernel_revision", None)
    (tmp_path / "old.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    publish([tmp_path / "old.jsonl"], to=tmp_path / "old")
    (found,) = read_table(path_for(fakes.problem(), "nvidia-h200", root=tmp_path / "old")
                          ).rows.values()
    assert found.driver is None and found.kernel_revision is None


def test_the_verb_lists_origins_ages_and_reasons(folders, monkeypatch, capsys):
    mine, first = folders
    monkeypatch.setattr(stale, "present", lambda: NOW)
    table_in(mine, row(64, triton="3.6.0"), row(128), row(192, driver="570.9"))
    table_in(first, row(64))
    assert main(["tables", "--device-name", "nvidia-h200", "--rows"]) == 0
    out = capsys.readouterr().out
    assert "here: Triton 3.7.1, driver 580.1" in out
    assert "mm-bf16-ieee-nn.json (TRITONGEMM_CONFIG_DIR): 1 row" in out
    assert "mm-bf16-ieee-nn.json (your own): 3 rows" in out and "(shipped)" in out
    assert "2 stale, 1 replaced by rows of an earlier origin" in out
    assert "1: driver 570.9, now 580.1" in out and "does not serve" in out
    assert main(["tables", "--device-name", "nvidia-h200", "--stale"]) == 0
    out = capsys.readouterr().out
    assert "192x192x192" in out and "128x128x128 bf16 nn  tiled_64x64x32" not in out
    next((first / "tuned" / "nvidia-h200").glob("*.json")).write_text("{")
    assert main(["tables", "--device-name", "nvidia-h200"]) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_stale_problems_are_those_whose_serving_row_is_stale_the_oldest_first(folders):
    mine, first = folders
    table_in(mine, row(64, triton="3.6.0"), row(128, "20261103T000000Z-00000a", triton="3.6.0"),
             row(192, "20261102T000000Z-00000a", driver="570.9"), row(256))
    table_in(first, row(64))
    with settings.override(config_only=True, config_dir=mine):
        assert [p.m for p in stale.stale_problems("nvidia-h200", NOW)] == [64, 192, 128]
    ours = {64, 128, 192, 256}
    assert [p.m for p in stale.stale_problems("nvidia-h200", NOW)
            if p.m == p.n == p.k and p.m in ours][:2] == [192, 128]


def test_a_sweep_of_stale_rows_publishes_them_anew(folders, monkeypatch, tmp_path, capsys):
    mine, first = folders
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stale, "present", lambda: NOW)
    monkeypatch.setattr("tritongemm.device.cuda_device", lambda index: device_named("nvidia-h200"))
    monkeypatch.setattr(door, "sweep", functools.partial(
        door.sweep, measurer=fakes.MEASURER, builder=fakes.BUILDER))
    path = table_in(first, row(64, triton="3.6.0"), row(128))
    (tmp_path / "two.csv").write_text("m,n,k\n64,64,64\n128,128,128\n")
    words = ["sweep", "two.csv", "--stale", "--top", "1", "--kernels", "tiled",
             "--journal", "j.jsonl"]
    assert main(words) == 0
    assert "tritongemm publish j.jsonl --force" in capsys.readouterr().out
    assert [r["problem"]["m"] for r in read_journal("j.jsonl") if r["kind"] == "winner"] == [64]
    assert main(["publish", "j.jsonl", "--force"]) == 0
    assert {r.m: r.triton for r in read_table(path).rows.values()} == {64: "3.7.1", 128: "3.7.1"}
    monkeypatch.setattr(stale, "present", lambda: stale.Present("3.7.1", "1"))
    assert main(words) == 0 and "no row is stale" in capsys.readouterr().out
    assert main([*words, "--scheduler", "tcp://a:1"]) == 2
