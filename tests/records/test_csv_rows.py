"""CSV rows: derived once, appended without loss, read with types, refused with line and field."""

import math
from dataclasses import replace

import file_faults
import pytest

from tritongemm.errors import DataFileError
from tritongemm.problem import GemmProblem
from tritongemm.records import row_reader, rows
from tritongemm.records.rows import COLUMNS, NAMES, append_rows, derive, read_rows

RUN = "20261121T052300Z-1a2b3c"
PROBLEM = GemmProblem.contiguous(1024, 2048, 4096, layout="nt")
#: The order that every CSV of schema version 1 has; new columns go behind it.
FIRST = """schema_version run_id timestamp_utc tags device arch op dtype_a dtype_b dtype_out
precision layout epilogue align_a align_b align_c batch m n k suite provider kernel config_id
selection_source status error time_us_p50 time_us_p20 time_us_p80 n_rounds n_processes timer
l2_state tflops gbps pct_of_roof ratio_vs_torch ratio_low ratio_high torch_backend host_us_p50
max_err_ratio rms_err_ratio compile_s registers spills shared_bytes occupancy sm_clock_mhz power_w
energy_mj throttled""".split()


def row(**changes) -> dict:
    return {"run_id": RUN, "device": "nvidia-h200", "arch": 90, **rows.problem_columns(PROBLEM),
            "suite": "llm_prefill", "provider": "torch", "status": "ok", "time_us_p50": 25.5,
            **changes}


def test_the_schema_only_appends_columns():
    assert list(NAMES[:len(FIRST)]) == FIRST
    assert all(column.meaning for column in COLUMNS)


def test_rows_survive_the_disk_with_their_types(tmp_path):
    path = tmp_path / "new" / "a.csv"
    full = row(tags="a,b", error='say "no"', n_rounds=30, registers=168, pct_of_roof=61.25,
               max_err_ratio=math.inf, throttled=False)
    assert append_rows(path, [full]) == 1
    assert append_rows(path, [row(provider="x", time_us_p50=None, status="wrong")]) == 1
    one, two = read_rows(path)
    assert {name: one[name] for name in full} == {**full, "throttled": "no"}
    assert one["schema_version"] == 1 and one["host_us_p50"] is None
    assert (two["status"], two["time_us_p50"]) == ("wrong", None)
    assert list(one) == list(NAMES)
    assert path.read_text().count("schema_version") == 1
    assert rows.problem_of(one) == PROBLEM


def test_numpy_numbers_are_accepted(tmp_path):
    np = pytest.importorskip("numpy")
    append_rows(tmp_path / "a.csv", [row(m=np.int64(7), time_us_p50=np.float32(2.5))])
    one, = read_rows(tmp_path / "a.csv")
    assert (one["m"], one["time_us_p50"]) == (7, 2.5)


def test_nan_is_not_measured_and_line_breaks_are_spaces(tmp_path):
    append_rows(tmp_path / "a.csv", [row(power_w=math.nan, error="a\n b\0\r\n" + "c" * 5000)])
    one, = read_rows(tmp_path / "a.csv")
    assert one["power_w"] is None
    assert one["error"].startswith("a b ccc") and len(one["error"]) == rows.TEXT_LIMIT
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 2


@pytest.mark.parametrize("change, field", [
    ({"speed": 1}, "speed"), ({"m": "1024"}, "m"), ({"m": 10.5}, "m"), ({"m": True}, "m"),
    ({"m": -1}, "m"), ({"time_us_p50": "fast"}, "time_us_p50"), ({"time_us_p50": 0.0},
     "time_us_p50"), ({"time_us_p50": -1.0}, "time_us_p50"), ({"tflops": math.inf}, "tflops"),
    ({"provider": None}, "provider"), ({"provider": ""}, "provider"), ({"provider": 3},
     "provider"), ({"status": "fine"}, "status"), ({"status": "wrong"}, "time_us_p50"),
    ({"run_id": "../x"}, "run_id"), ({"align_a": 3}, "align_a"), ({"layout": "xx"}, "layout"),
    ({"precision": "tf32"}, "precision"), ({"dtype_out": "int4"}, "dtype_out")])
def test_a_row_that_could_not_be_read_is_not_written(tmp_path, change, field):
    path = tmp_path / "a.csv"
    append_rows(path, [row()])
    before = path.read_bytes()
    with pytest.raises(DataFileError) as caught:
        append_rows(path, [row(), row(**change)])
    assert caught.value.field == field
    assert path.read_bytes() == before


def test_derived_columns_follow_the_time():
    made = derive(row(time_us_p50=25.0), unit_peak_tflops=989.0, memory_gbps=4800.0)
    flops = 2 * 1024 * 2048 * 4096
    moved = 2 * (1024 * 4096 + 4096 * 2048 + 1024 * 2048)
    assert made["tflops"] == pytest.approx(flops / 25e-6 / 1e12)
    assert made["gbps"] == pytest.approx(moved / 25e-6 / 1e9)
    assert made["pct_of_roof"] == pytest.approx(
        100 * max(flops / 989e12, moved / 4800e9) / 25e-6)


def test_a_memory_bound_problem_has_its_roof_at_the_bandwidth():
    thin = GemmProblem.contiguous(1, 4096, 4096)
    made = derive(row(**rows.problem_columns(thin), time_us_p50=14.0), unit_peak_tflops=989.0,
                  memory_gbps=4800.0)
    assert made["pct_of_roof"] == pytest.approx(100 * made["gbps"] / 4800.0)


@pytest.mark.parametrize("time_us, peak, bandwidth, empty", [
    (None, 989.0, 4800.0, {"tflops", "gbps", "pct_of_roof"}),
    (25.0, None, 4800.0, {"pct_of_roof"}), (25.0, 989.0, None, {"pct_of_roof"})])
def test_what_is_not_known_is_not_derived(time_us, peak, bandwidth, empty):
    stale = row(time_us_p50=time_us, tflops=1.0, gbps=1.0, pct_of_roof=1.0)
    made = derive(stale, unit_peak_tflops=peak, memory_gbps=bandwidth)
    assert {n for n in ("tflops", "gbps", "pct_of_roof") if made[n] is None} == empty


def test_the_key_is_problem_by_provider(tmp_path):
    append_rows(tmp_path / "a.csv", [row(time_us_p50=1.0), row(time_us_p50=2.0)])
    one, two = read_rows(tmp_path / "a.csv")
    assert rows.row_key(one) == rows.row_key(two) == rows.row_key(row(tags=""))
    for change in ({"provider": "x"}, {"m": 1}, {"align_a": 8}, {"device": "cpu"},
                   {"suite": "x"}, {"tags": "x"}, {"layout": "nn"}, {"precision": "x"}):
        assert rows.row_key({**one, **change}) != rows.row_key(one)


# --- full disks, torn lines, other schemas ------------------------------------------------------


@pytest.mark.parametrize("fault, reason", [
    pytest.param(lambda m: file_faults.full_disk(m), "no space left", id="full"),
    pytest.param(lambda m: file_faults.full_disk(m, after=9), "no space left", id="full amid"),
    pytest.param(lambda m: file_faults.failing_fsync(m), "no space left", id="flush"),
    pytest.param(lambda m: file_faults.refusing_open(m), "not writable", id="unwritable"),
])
def test_rows_that_cannot_be_written_leave_the_file_as_it_was(tmp_path, monkeypatch, fault,
                                                              reason):
    path = tmp_path / "a.csv"
    append_rows(path, [row()])
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises(DataFileError, match=reason):
            append_rows(path, [row(), row()])
    assert path.read_bytes() == before
    append_rows(path, [row()])
    assert len(list(read_rows(path))) == 2


def test_a_folder_or_a_file_in_the_way_is_named(tmp_path):
    with pytest.raises(DataFileError, match="is a folder"):
        append_rows(tmp_path, [row()])
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFileError, match="is a file"):
        append_rows(tmp_path / "file" / "a.csv", [row()])


def test_an_incomplete_row_is_left_out_and_then_removed(tmp_path, caplog):
    path = tmp_path / "a.csv"
    append_rows(path, [row(m=1), row(m=2, error='"quoted", text')])
    whole = path.read_bytes()
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in (start + 1, start + 40, len(whole) - 40):
        path.write_bytes(whole[:end])
        assert [r["m"] for r in read_rows(path)] == [1]
        assert "cut short" in caplog.text
        append_rows(path, [row(m=3)])
        assert [r["m"] for r in read_rows(path)] == [1, 3]


def test_a_whole_last_row_without_its_line_end_is_kept(tmp_path):
    path = tmp_path / "a.csv"
    append_rows(path, [row(m=1), row(m=2)])
    path.write_bytes(path.read_bytes()[:-1])
    assert [r["m"] for r in read_rows(path)] == [1, 2]
    append_rows(path, [row(m=3)])
    assert [r["m"] for r in read_rows(path)] == [1, 2, 3]


def test_an_incomplete_header_or_empty_file_is_rewritten(tmp_path):
    path = tmp_path / "a.csv"
    for raw in (b"", b"schema_ver", ",".join(NAMES[:-1]).encode()):
        path.write_bytes(raw)
        append_rows(path, [row()])
        assert len(list(read_rows(path))) == 1


def test_a_file_of_a_newer_schema_is_read_and_appended_to(tmp_path):
    path = tmp_path / "a.csv"
    append_rows(path, [row(m=1)])
    line = path.read_text().splitlines()[1] + "," * (len(NAMES) - len(FIRST))
    path.write_text(f"{','.join(NAMES)},new_column\n{line},7\n")
    append_rows(path, [row(m=2)])
    assert [r["m"] for r in read_rows(path)] == [1, 2]
    assert path.read_text().splitlines()[2].endswith(",")


def test_a_file_of_an_older_schema_is_brought_to_todays(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    append_rows(path, [row(m=1)])
    old = path.read_text()
    newer = (*COLUMNS, rows.Column("added_later", float, "a test's"))
    for name, value in (("COLUMNS", newer), ("NAMES", tuple(c.name for c in newer)),
                        ("_NAMES", frozenset(c.name for c in newer))):
        monkeypatch.setattr(rows, name, value)
        monkeypatch.setattr(row_reader, name, value, raising=False)
    assert [r["added_later"] for r in read_rows(path)] == [None]
    append_rows(path, [row(m=2, added_later=0.5)])
    assert [(r["m"], r["added_later"]) for r in read_rows(path)] == [(1, None), (2, 0.5)]
    assert path.read_text().startswith(old.splitlines()[0] + ",")
    assert path.read_text().splitlines()[0].endswith(",added_later")


def test_a_file_has_the_columns_of_scales_and_groups_where_a_row_needs_them(tmp_path):
    path = tmp_path / "a.csv"
    append_rows(path, [row(m=1)])
    assert path.read_text().splitlines()[0].split(",") == FIRST
    scaled = replace(PROBLEM, scale_b="1x128")
    append_rows(path, [row(m=2), row(**rows.problem_columns(scaled))])
    assert path.read_text().splitlines()[0].split(",") == [*FIRST, "scale_a", "scale_b"]
    append_rows(path, [row(m=3)])
    grouped = replace(PROBLEM, scale_a="row", grouping="m8")
    append_rows(path, [row(**rows.problem_columns(grouped))])
    found = list(read_rows(path))
    assert [r["m"] for r in found] == [1, 2, 1024, 3, 1024]
    assert [rows.problem_of(r) for r in found if r["m"] == 1024] == [scaled, grouped]
    assert len({rows.row_key(r) for r in found}) == 5
    with pytest.raises(DataFileError, match="field 'scale_a': scale 'rows' is not known"):
        append_rows(path, [row(scale_a="rows")])


@pytest.mark.parametrize("raw, reason", [
    (b"", "is empty"),
    (b"m,n,k\n1,2,3\n", "not a CSV that `tritongemm bench` wrote"),
    (b"schema_version,run_id\n", "column is missing"),
    (b"\xff\xfe\n", "not UTF-8"),
    (b"\0\0\0\n", "null byte"),
    (b"{}\n", "not a CSV that `tritongemm bench` wrote"),
])
def test_another_csv_is_refused_and_not_changed(tmp_path, raw, reason):
    path = tmp_path / "a.csv"
    path.write_bytes(raw)
    with pytest.raises(DataFileError, match=reason):
        list(read_rows(path))
    if raw:
        with pytest.raises(DataFileError, match=reason):
            append_rows(path, [row()])
        assert path.read_bytes() == raw


@pytest.mark.parametrize("field, text, reason", [
    ("m", "-1", "outside 0"), ("m", "x", "not an integer"), ("m", "", "is empty"),
    ("m", "9" * 30, "not an integer"), ("batch", "1.0", "not an integer"),
    ("time_us_p50", "nan", "not a finite"), ("time_us_p50", "-3", "positive"),
    ("time_us_p50", "0", "positive"), ("time_us_p50", "fast", "not a finite"),
    ("tflops", "inf", "not a finite"), ("max_err_ratio", "nan", "at least 0"),
    ("max_err_ratio", "-1", "at least 0"), ("status", "fine", "one of ok"),
    ("status", "died", "holds a time"), ("run_id", "../../x", "not a run id"),
    ("dtype_a", "int4", "int4"), ("layout", "xx", "layout"), ("provider", "", "is empty"),
    ("error", "x" * 5000, "at most 4000"), ("schema_version", "one", "not an integer"),
    ("registers", str(2**63), "outside 0 to"), ("registers", "-1", "outside 0 to"),
    ("m", str(2**31), "outside 0 to"), ("tflops", "1e308", "outside 0 to 1e"),
    ("gbps", "1e-300", "nearer to 0 than"), ("time_us_p20", "1e300", "outside 0 to 1e"),
    ("power_w", "-5", "outside 0 to"),
    ("grouping", "m", "grouping"),
])
def test_a_bad_field_is_named_with_its_line(tmp_path, field, text, reason):
    path = tmp_path / "a.csv"
    append_rows(path, [row(), row()])
    lines = path.read_text().splitlines()
    lines[0] = ",".join(NAMES)
    lines[1:] = [line + "," * (len(NAMES) - len(FIRST)) for line in lines[1:]]
    texts = lines[2].split(",")
    texts[NAMES.index(field)] = text
    path.write_text("\n".join([*lines[:2], ",".join(texts), lines[1]]) + "\n")
    with pytest.raises(DataFileError, match=reason) as caught:
        list(read_rows(path))
    at = "time_us_p50" if text == "died" else field
    assert (caught.value.row, caught.value.field) == (3, at)


def test_the_first_of_several_bad_lines_is_named_whatever_its_column(tmp_path):
    path = tmp_path / "a.csv"
    append_rows(path, [row(m=m) for m in range(1, 9)])
    lines = path.read_text().splitlines()
    for at, name, text in ((3, "power_w", "x"), (4, "run_id", "x"), (5, "m", "")):
        texts = lines[at].split(",")
        texts[NAMES.index(name)] = text
        lines[at] = ",".join(texts)
    lines[6] += ",1"
    for row_at, name in ((4, "power_w"), (5, "run_id"), (6, "m"), (7, None)):
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(DataFileError) as caught:
            list(read_rows(path))
        assert (caught.value.row, caught.value.field) == (row_at, name)
        lines[row_at - 1] = lines[1]


@pytest.mark.parametrize("block", [1, 2, 7, 1000])
def test_rows_are_the_same_however_many_are_read_together(tmp_path, monkeypatch, block):
    path = tmp_path / "a.csv"
    append_rows(path, [row(m=m, registers=m % 3 or None, power_w=m * 0.5 if m % 4 else None,
                           max_err_ratio=math.inf if m == 5 else 0.5, error="x" * (m % 2))
                       for m in range(20)])
    with path.open("a") as file:
        file.write(path.read_text().splitlines()[-1][:40])  # torn
    monkeypatch.setattr(row_reader, "BLOCK", block)
    found = list(read_rows(path))
    assert [r["m"] for r in found] == list(range(20))
    assert [r["registers"] for r in found] == [m % 3 or None for m in range(20)]
    assert [r["power_w"] for r in found] == [m * 0.5 if m % 4 else None for m in range(20)]
    assert found[5]["max_err_ratio"] == math.inf and found[5]["error"] == "x"
    assert all(list(r) == list(NAMES) for r in found)


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: [*t, "x"]], ids=["less", "more"])
def test_a_row_of_another_width_is_named(tmp_path, change):
    path = tmp_path / "a.csv"
    append_rows(path, [row(), row()])
    lines = path.read_text().splitlines()
    lines[1] = ",".join(change(lines[1].split(",")))
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataFileError, match="the header has") as caught:
        list(read_rows(path))
    assert caught.value.row == 2


def test_a_csv_of_a_gigabyte_is_refused(tmp_path):
    path = file_faults.sparse(tmp_path / "a.csv", head=",".join(NAMES).encode() + b"\n")
    with pytest.raises(DataFileError, match="at most"):
        list(read_rows(path))
    with pytest.raises(DataFileError, match="at most"):
        append_rows(path, [row()])
