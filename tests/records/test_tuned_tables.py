"""Tuned tables: sorted, one row a line, merged without loss, and validated field by field."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import file_faults
import pytest

import tritongemm
from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.errors import DataFileError
from tritongemm.problem import GemmProblem
from tritongemm.records import tables
from tritongemm.records.tables import (
    TableHeader,
    TunedRow,
    TunedTable,
    merge,
    read_table,
    write_table,
)

HEADER = TableHeader("nvidia-h200", 90, "mm", "bf16", "bf16", "bf16", "ieee", "nt",
                     "0123456789ab", "2.13.0+cu130", "3.7.1")
CONFIG = KernelConfig("tiled", 128, 128, 64, num_warps=8)
RUN = "20261121T052300Z-1a2b3c"


def row(m=1024, time_us=10.0, **changes) -> TunedRow:
    values = dict(batch=1, m=m, n=4096, k=4096, align_a=16, align_b=16, align_c=16,
                  epilogue="none", config=CONFIG, time_us=time_us, margin_vs_second=0.02,
                  run_id=RUN)
    return TunedRow(**{**values, **changes})


def faster(old, new):
    return new.time_us < old.time_us


def test_a_table_survives_the_disk_with_one_row_a_line(tmp_path):
    path = tmp_path / "mm.json"
    rows = [row(2048), row(256, align_a=8), row(256), row(1024, margin_vs_second=None)]
    write_table(path, TunedTable(HEADER, {r.key: r for r in rows}))
    again = read_table(path)
    assert again.header == HEADER
    filled = {r.key: replace(r, space_hash=HEADER.space_hash, torch=HEADER.torch,
                             triton=HEADER.triton) for r in rows}
    assert again.rows == filled
    lines = [line for line in path.read_text().splitlines() if line.startswith('{"batch"')]
    assert [json.loads(line.rstrip(","))["m"] for line in lines] == [256, 256, 1024, 2048]
    before = path.read_text()
    write_table(path, again)
    assert path.read_text() == before


def test_an_empty_table_survives_the_disk(tmp_path):
    write_table(tmp_path / "a.json", TunedTable(HEADER))
    assert read_table(tmp_path / "a.json") == TunedTable(HEADER)


def test_a_row_is_found_by_its_problem():
    problem = GemmProblem.contiguous(100, 99, 98, dtype="fp16", layout="nt")
    header = TableHeader.of(problem, device="nvidia-h200", arch=90, space_hash="x", torch="1",
                            triton="2")
    found = TunedRow.of(problem, CONFIG, time_us=1.0, margin_vs_second=None, run_id=RUN)
    assert found.key == tables.key_of(problem)
    assert found.problem(header) == problem


def test_the_path_names_op_dtype_precision_and_layout(tmp_path):
    problem = GemmProblem.contiguous(8, 8, 8, dtype="bf16", dtype_out="fp32", layout="nt")
    with settings.override(config_dir=tmp_path, config_only=True):
        path = tables.path_for(problem, "nvidia-h200")
    assert path == tmp_path / "tuned" / "nvidia-h200" / "mm-bf16-fp32-ieee-nt.json"


MODIFIED = [
    ({"dtype_b": "fp16"}, "mm-bf16xfp16-ieee-nt"),
    ({"dtype_b": "fp16", "dtype_out": "fp32"}, "mm-bf16xfp16-fp32-ieee-nt"),
    ({"scale_a": "row", "scale_b": "128x128_bf16"}, "scaled_mm-bf16-ieee-nt-a_row-b_128x128_bf16"),
    ({"grouping": "m64", "scale_b": "tensor"}, "grouped_mm-bf16-ieee-nt-b_tensor-m64")]


@pytest.mark.parametrize(("changes", "name"), MODIFIED, ids=[name for _, name in MODIFIED])
def test_a_table_of_scales_groups_or_two_formats_has_a_name_and_header_of_its_own(
        tmp_path, changes, name):
    plain = GemmProblem.contiguous(8, 16, 32, layout="nt")
    problem = replace(plain, **changes)
    made = {"device": "nvidia-h200", "arch": 90, "space_hash": "x", "torch": "1", "triton": "2"}
    header, one = TableHeader.of(problem, **made), TunedRow.of(
        problem, CONFIG, time_us=1.0, margin_vs_second=None, run_id=RUN)
    with settings.override(config_dir=tmp_path):
        path = tables.path_for(problem, "nvidia-h200")
    assert path.stem == name
    merge(path, header, [one], faster)
    found = read_table(path)
    assert [row.problem(found.header) for row in found.rows.values()] == [problem]
    with pytest.raises(DataFileError, match="is a table of"):
        merge(path, TableHeader.of(plain, **made), [one], faster)


def test_a_header_of_nothing_new_has_no_new_field(tmp_path):
    write_table(tmp_path / "a.json", TunedTable(HEADER))
    assert list(json.loads((tmp_path / "a.json").read_text())) == [
        "schema_version", "device", "arch", "op", "dtype_a", "dtype_b", "dtype_out", "precision",
        "layout", "space_hash", "torch", "triton", "rows"]


def test_merging_adds_replaces_and_keeps(tmp_path):
    path = tmp_path / "new" / "mm.json"
    assert merge(path, HEADER, [row(1), row(2, 20.0)], faster) == tables.MergeReport(2, 0, 0)
    report = merge(path, HEADER, [row(1, 9.0), row(2, 21.0), row(3)], faster)
    assert report == tables.MergeReport(added=1, replaced=1, kept=1)
    assert [(r.m, r.time_us) for r in read_table(path).rows.values()] == [
        (1, 9.0), (2, 20.0), (3, 10.0)]


def test_rows_of_another_environment_keep_their_provenance(tmp_path):
    path = tmp_path / "mm.json"
    newer = replace(HEADER, triton="3.9.0", torch="2.15.0")
    seen = []
    merge(path, HEADER, [row(1), row(2)], faster)
    merge(path, newer, [row(2, 5.0)], lambda old, new: seen.append((old.triton, new.triton))
          or True)
    table = read_table(path)
    assert seen == [("3.7.1", "3.9.0")]
    assert table.header == newer
    assert {r.m: (r.triton, r.torch) for r in table.rows.values()} == {
        1: ("3.7.1", "2.13.0+cu130"), 2: ("3.9.0", "2.15.0")}


def test_a_merge_without_changes_does_not_touch_the_file(tmp_path):
    path = tmp_path / "mm.json"
    merge(path, HEADER, [row(1)], faster)
    before = path.stat().st_mtime_ns, path.read_bytes()
    merge(path, replace(HEADER, triton="3.9.0"), [row(1, 99.0)], faster)
    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


@pytest.mark.parametrize("change", [
    {"device": "nvidia-b200"}, {"arch": 100}, {"op": "bmm"}, {"layout": "nn"},
    {"dtype_out": "fp32"}])
def test_a_table_about_something_else_is_not_merged(tmp_path, change):
    path = tmp_path / "mm.json"
    merge(path, HEADER, [row(1)], faster)
    before = path.read_bytes()
    with pytest.raises(DataFileError) as caught:
        merge(path, replace(HEADER, **change), [row(2)], faster)
    assert caught.value.field == next(iter(change))
    assert path.read_bytes() == before


def test_a_ladders_table_holds_one_row_a_kernel(tmp_path):
    path = tmp_path / "ladder.json"
    other = replace(CONFIG, kernel="naive")
    header = replace(HEADER, op="ladder")
    merge(path, header, [row(1), row(1, config=other)], faster)
    assert len(read_table(path).rows) == 2
    assert merge(path, header, [row(1, 1.0, config=other)], faster).replaced == 1


def test_concurrent_publishers_lose_nothing(tmp_path):
    path = tmp_path / "mm.json"
    code = """
import sys
sys.path.insert(0, sys.argv[3])
from test_tuned_tables import HEADER, faster, row
from tritongemm.records.tables import merge
for i in range(20):
    merge(sys.argv[1], HEADER, [row(1 + 2 * i + int(sys.argv[2])), row(5000, 100.0 - i)], faster)
"""
    root = Path(tritongemm.__file__).resolve().parent.parent
    publishers = [subprocess.Popen([sys.executable, "-c", code, str(path), str(n),
                                    str(Path(__file__).parent)], cwd=root) for n in (0, 1)]
    assert [p.wait(timeout=120) for p in publishers] == [0, 0]
    rows = {r.m: r.time_us for r in read_table(path).rows.values()}
    assert set(rows) == {*range(1, 41), 5000}
    assert rows[5000] == 81.0


@pytest.mark.parametrize("fault", [
    pytest.param(lambda m: file_faults.full_disk(m), id="full"),
    pytest.param(lambda m: file_faults.full_disk(m, after=300), id="full amid"),
    pytest.param(lambda m: file_faults.failing_fsync(m), id="flush"),
    pytest.param(lambda m: file_faults.refusing_open(m), id="unwritable"),
])
def test_a_merge_that_cannot_be_written_keeps_the_old_table(tmp_path, monkeypatch, fault):
    path = tmp_path / "mm.json"
    merge(path, HEADER, [row(1)], faster)
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises(DataFileError, match="no space left|not writable"):
            merge(path, HEADER, [row(2)], faster)
    assert path.read_bytes() == before
    assert merge(path, HEADER, [row(2)], faster).added == 1  # and the lock is free again


@pytest.mark.parametrize("bad, field", [
    ({"time_us": float("nan")}, "time_us"), ({"time_us": 0.0}, "time_us"), ({"m": -1}, "m"),
    ({"m": "1"}, "m"), ({"batch": 0}, "batch"), ({"align_a": 3}, "align_a"),
    ({"run_id": "../x y"}, "run_id"), ({"time_us": None}, "time_us")])
def test_a_row_that_could_not_be_read_is_not_written(tmp_path, bad, field):
    path = tmp_path / "mm.json"
    merge(path, HEADER, [row(1)], faster)
    before = path.read_bytes()
    with pytest.raises(DataFileError) as caught:
        merge(path, HEADER, [row(2, **bad)] if "m" not in bad else [row(**bad)], faster)
    assert caught.value.field == field
    assert path.read_bytes() == before


def good() -> dict:
    return {"schema_version": 1, "device": "nvidia-h200", "arch": 90, "op": "mm",
            "dtype_a": "bf16", "dtype_b": "bf16", "dtype_out": "bf16", "precision": "ieee",
            "layout": "nt", "space_hash": "0123456789ab", "torch": "2.13.0+cu130",
            "triton": "3.7.1", "rows": [
                {"batch": 1, "m": m, "n": 64, "k": 64, "align_a": 16, "align_b": 16,
                 "align_c": 16, "epilogue": "none", "kernel": "tiled",
                 "config": {"block_m": 64, "block_n": 64, "block_k": 32}, "time_us": 2.5,
                 "margin_vs_second": None, "run_id": RUN} for m in (1, 2)]}


def test_the_good_table_of_the_next_tests_is_good(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(good()))
    assert len(read_table(tmp_path / "a.json").rows) == 2


MISSING = object()


@pytest.mark.parametrize("field, value, reason", [
    ("schema_version", MISSING, "missing"), ("schema_version", 99, "newer than 1"),
    ("schema_version", "1", "not an integer"), ("device", MISSING, "missing"),
    ("device", "../../etc", "not a name"), ("device", 3, "not a string"),
    ("arch", "sm_90", "not an integer"), ("arch", -90, "outside"), ("arch", True, "not an int"),
    ("dtype_a", "int4", "int4"), ("dtype_out", "x", "use one of"), ("layout", "xx", "layout"),
    ("precision", "fast", "precision"), ("precision", "tf32", "is for fp32, c64 operands"),
    ("rows", MISSING, "missing"), ("rows", {}, "not a list"),
    ("rows", None, "not a list"), ("hook", "os.system('x')", "not known"),
    ("torch", "", "not a name"), ("op", "x" * 101, "101 characters"),
])
def test_a_bad_header_field_is_named(tmp_path, field, value, reason):
    data = good()
    data.pop(field, None)
    if value is not MISSING:
        data[field] = value
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(DataFileError, match=reason) as caught:
        read_table(tmp_path / "a.json")
    assert caught.value.field == field


@pytest.mark.parametrize("field, value, reason", [
    ("m", -1, "outside 0"), ("n", 2**31, "outside"), ("k", 1.5, "not an integer"),
    ("m", "1", "not an integer"), ("m", None, "not an integer"), ("m", True, "not an integer"),
    ("batch", 0, "outside 1"), ("align_a", 3, "1, 2, 4, 8 or 16"), ("align_b", 32, "outside"),
    ("epilogue", 5, "not a string"), ("epilogue", "a;b", "not a name"),
    ("epilogue", "bias_gelu", "not known; use none"), ("kernel", "", "a name"),
    ("kernel", ["tiled"], "not a string"), ("config", None, "not an object"),
    ("config", [], "not an object"), ("config", {}, "missing"), ("config", "x", "not an object"),
    ("config", {"block_m": 64, "block_n": 64, "block_k": -1}, "block_k=-1"),
    ("config", {"block_m": 64, "block_n": 64, "block_k": 32, "exec": 1}, "unknown parameter"),
    ("config", {"block_m": 64, "block_n": 64, "block_k": 32, "kernel": "x"}, "unknown parameter"),
    ("time_us", 0, "not a measured time"), ("time_us", -1.0, "at least 0"),
    ("time_us", "fast", "not a number"), ("time_us", 10**400, "finite"),
    ("margin_vs_second", "x", "not a number"), ("run_id", 7, "not a string"),
    ("run_id", MISSING, "missing"), ("k", MISSING, "missing"), ("config", MISSING, "missing"),
    ("speed", 1, "not known"), ("triton", 3, "not a string"),
])
def test_a_bad_row_is_named_with_its_field(tmp_path, field, value, reason):
    data = good()
    data["rows"][1].pop(field, None)
    if value is not MISSING:
        data["rows"][1][field] = value
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(DataFileError, match=reason) as caught:
        read_table(tmp_path / "a.json")
    assert (caught.value.row, caught.value.field) == (2, field)


def test_a_number_of_thousands_of_digits_is_one_error(tmp_path):
    text = json.dumps(good()).replace('"m": 2', '"m": ' + "9" * 5000)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataFileError, match="is not valid|outside"):
        read_table(tmp_path / "a.json")


def test_a_problem_twice_is_named(tmp_path):
    data = good()
    data["rows"][1]["m"] = 1
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(DataFileError, match="earlier row") as caught:
        read_table(tmp_path / "a.json")
    assert caught.value.row == 2


@pytest.mark.parametrize("raw", [b"", b"[]", b"\0" * 50, b"\xff\xfe", b"rows", b"null",
                                 b"<html>", b"version https://git-lfs"])
def test_what_is_no_table_is_one_error(tmp_path, raw):
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    with pytest.raises(DataFileError, match=str(path)):
        read_table(path)


def test_a_table_cut_anywhere_is_one_error(tmp_path):
    path = tmp_path / "a.json"
    text = json.dumps(good())
    for end in range(0, len(text), 37):
        path.write_text(text[:end])
        with pytest.raises(DataFileError):
            read_table(path)


def test_a_merge_into_a_link_keeps_it(tmp_path):
    link, target = tmp_path / "mm.json", tmp_path / "real.json"
    merge(target, HEADER, [row(1)], faster)
    link.symlink_to(target)
    merge(link, HEADER, [row(2)], faster)
    assert link.is_symlink() and len(read_table(target).rows) == 2


def test_a_merge_into_a_table_with_a_row_of_a_newer_version_changes_nothing(tmp_path):
    path = tmp_path / "mm.json"
    data = good()
    data["rows"][0]["config"]["newer"] = 1
    path.write_text(json.dumps(data))
    before = path.read_bytes()
    with pytest.raises(DataFileError, match="unknown parameter newer"):
        merge(path, HEADER, [row(5)], faster)
    assert path.read_bytes() == before


def test_a_table_of_a_gigabyte_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="at most"):
        read_table(file_faults.sparse(tmp_path / "a.json"))


def test_the_shipped_tables_read():
    for path in sorted((settings.config_root() / "tuned").glob("*/*.json")):
        table = read_table(path)
        assert table.header.device == path.parent.name
        assert table.rows


def test_a_shipped_table_is_written_byte_for_byte_as_it_was(tmp_path):
    paths = sorted((settings.config_root() / "tuned").glob("*/*.json"))
    for path in min(paths, key=lambda x: x.stat().st_size), paths[0], paths[-1]:
        write_table(tmp_path / "again.json", read_table(path))
        assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
