"""Which rows of which files count, and what the figures made of them are."""

import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import LATER, RUN, make_row

from tritongemm.bench.combine import control_of
from tritongemm.cli import main
from tritongemm.errors import DataFileError, UsageError
from tritongemm.records import rows as records
from tritongemm.report import aggregate, load, tables


def one_line(path_or_results, **options):
    results = (path_or_results if isinstance(path_or_results, load.Results)
               else load.load([path_or_results], **options))
    frame = aggregate.summary(results.headline)
    assert len(frame) == 1
    return frame.iloc[0]


def test_summary_is_the_geometric_mean_with_its_extremes_and_where_they_are(make_csv):
    line = one_line(make_csv([make_row(64, ratio=0.5), make_row(128, ratio=2.0),
                              make_row(256, ratio=8.0)]))
    assert line["geomean"] == pytest.approx(2.0)
    assert (line["min"], line["min_at"]) == (0.5, "64x64x64")
    assert (line["max"], line["max_at"]) == (8.0, "256x64x64")
    assert (line["rows"], line["timed"], line["failed"]) == (3, 3, 0)


def test_an_interval_that_contains_one_is_a_tie_and_still_enters_the_mean(make_csv):
    line = one_line(make_csv([make_row(64, ratio=1.005, width=0.01),
                              make_row(128, ratio=1.2, width=0.01),
                              make_row(256, ratio=0.9, width=0.01)]))
    assert (line["faster"], line["tie"], line["slower"]) == (1, 1, 1)
    assert line["geomean"] == pytest.approx((1.005 * 1.2 * 0.9) ** (1 / 3))


@pytest.mark.parametrize("status", [s for s in records.STATUSES if s != "ok"])
def test_a_row_that_is_not_ok_is_counted_and_listed_and_never_averaged(make_csv, status):
    failed = make_row(128, status=status, error="why")
    results = load.load([make_csv([make_row(64, ratio=2.0), failed])])
    line = one_line(results)
    assert (line["rows"], line["timed"], line["failed"]) == (2, 1, 1)
    assert line["geomean"] == 2.0
    assert list(aggregate.failures(results.headline)["status"]) == [status]


def test_a_ratio_in_a_failed_row_is_ignored(make_csv):
    sly = make_row(128, status="timeout", ratio_vs_torch=100.0, ratio_low=99.0, ratio_high=101.0)
    line = one_line(make_csv([make_row(64, ratio=0.5), sly]))
    assert (line["geomean"], line["max"], line["faster"]) == (0.5, 0.5, 0)


def test_torch_and_its_control_are_in_no_headline(make_csv):
    results = load.load([make_csv([make_row(provider="torch", ratio=1.0),
                                   make_row(provider="torch-control", ratio=1.001)])])
    assert aggregate.summary(results.headline).empty
    assert aggregate.slowest(results.headline, 5).empty


def test_rows_that_the_provider_handed_to_torch_are_counted(make_csv):
    rows = [make_row(m, provider="tritongemm-auto", ratio=1.0, selection_source=source)
            for m, source in ((64, "torch"), (128, "exact"), (256, "torch"))]
    results = load.load([make_csv(rows)])
    assert one_line(results)["fallback"] == 2
    assert aggregate.sources(results.headline)["rows"].tolist() == [1, 2]


def test_the_energy_of_a_call_is_compared_with_torchs_of_the_same_run(make_csv):
    rows = [make_row(m, provider=provider, ratio=1.0, energy_mj=energy) for m, provider, energy in (
        (64, "torch", 30.0), (64, "tritongemm", 10.0), (64, "other", 60.0),
        (128, "torch", 48.0), (128, "tritongemm", 4.0), (256, "tritongemm", 1.0),
        (512, "torch", 1.0))]
    rows += [make_row(64, provider="torch", ratio=1.0, energy_mj=99.0, run=LATER),
             make_row(32, provider="torch", ratio=1.0, energy_mj=9.0, run=LATER),
             make_row(32, ratio=1.0, energy_mj=1.0),
             make_row(96, provider="torch", ratio=1.0, energy_mj=9.0),
             make_row(96, energy_mj=1.0, status="wrong")]
    results = load.load([make_csv(rows)])
    other, ours = aggregate.energy(results.headline, results.rows).to_dict("records")
    assert (other["rows"], other["geomean"]) == (1, pytest.approx(0.5))
    assert (ours["rows"], ours["min"], ours["max"]) == (2, pytest.approx(3.0), pytest.approx(12.0))
    assert ours["min_at"] == "64x64x64" and ours["geomean"] == pytest.approx(6.0)
    (cells, _) = tables.energy_table(results).cells[::-1]
    assert "6.000" in cells and "device" not in tables.energy_table(results).heads


def test_rivals_are_compared_on_the_problems_that_both_timed(make_csv):
    rows = [make_row(m, provider=provider, ratio=ratio) for m, provider, ratio in (
        (64, "torch", 1.0), (64, "tritongemm", 2.0), (64, "other", 1.0),
        (128, "torch", 1.0), (128, "tritongemm", 0.5), (128, "other", 0.75),
        (256, "tritongemm", 4.0), (256, "torch-control", 9.0), (512, "other", 9.0))]
    rows.append(make_row(256, provider="other", status="wrong"))
    results = load.load([make_csv(rows)])
    other, torchs = aggregate.rivals(results.headline, "tritongemm").to_dict("records")
    assert (other["provider"], other["rows"], other["behind"], other["fastest"]) == ("other", 2, 1,
                                                                                     0)
    assert other["geomean"] == pytest.approx((2.0 * 0.5 / 0.75) ** 0.5)
    assert (other["min_at"], other["max"]) == ("128x64x64", pytest.approx(2.0))
    assert (torchs["provider"], torchs["behind"], torchs["fastest"]) == ("torch", 1, 1)
    assert tables.rivals_table(results).cells[0][-2:] == ("1", "0")


def test_without_our_own_rows_there_are_no_rivals(make_csv):
    results = load.load([make_csv([make_row(provider="other", ratio=1.0)])])
    assert aggregate.rivals(results.headline, "tritongemm").empty
    assert tables.rivals_table(results).cells == ()


def test_the_newest_run_of_a_problem_and_provider_wins_whatever_the_file_order(make_csv):
    new, old = make_row(ratio=2.0, run=LATER), make_row(ratio=0.5, run=RUN)
    path = make_csv([new, old])
    assert one_line(path)["geomean"] == 2.0
    assert load.load([path]).superseded == 1


def test_all_runs_keeps_every_run(make_csv):
    path = make_csv([make_row(ratio=2.0, run=LATER), make_row(ratio=0.5, run=RUN)])
    line = one_line(path, all_runs=True)
    assert line["rows"] == 2
    assert line["geomean"] == pytest.approx(1.0)


def test_a_newer_failure_replaces_an_older_success(make_csv):
    path = make_csv([make_row(ratio=2.0, run=RUN), make_row(status="wrong", run=LATER)])
    line = one_line(path)
    assert (line["timed"], line["failed"]) == (0, 1)
    assert math.isnan(line["geomean"])


def test_the_same_problem_of_two_suites_counts_in_each(make_csv):
    path = make_csv([make_row(ratio=1.0, suite="a"), make_row(ratio=1.0, suite="b")])
    results = load.load([path])
    assert len(aggregate.summary(results.headline)) == 2


def test_the_same_rows_in_two_files_count_once(make_csv):
    rows = [make_row(ratio=2.0)]
    paths = [make_csv(rows, "a.csv"), make_csv(rows, "copy/b.csv")]
    assert one_line(load.load(paths))["rows"] == 1
    assert one_line(load.load(paths, all_runs=True))["rows"] == 1


def test_a_file_named_twice_or_through_its_folder_is_read_once(make_csv, tmp_path):
    path = make_csv([make_row(ratio=2.0)])
    results = load.load([path, tmp_path, path])
    assert len(results.rows) == 1


def test_a_void_run_is_left_out_and_does_not_displace_an_older_good_one(make_csv, tmp_path):
    path = make_csv([make_row(ratio=2.0, run=RUN), make_row(ratio=9.0, run=LATER)])
    records.write_sidecar(tmp_path, LATER, {"void": True, "void_reason": "control at 1.02"})
    results = load.load([path])
    assert one_line(results)["geomean"] == 2.0
    assert results.void_runs == {LATER: "control at 1.02"}


def test_a_void_that_is_neither_true_nor_false_is_refused(make_csv, tmp_path):
    path = make_csv([make_row(ratio=2.0)])
    records.write_sidecar(tmp_path, RUN, {"void": "no"})
    with pytest.raises(DataFileError, match="'no' of .* is neither true nor false") as caught:
        load.load([path])
    assert caught.value.field == "void"


def test_runs_without_a_sidecar_are_named(make_csv, tmp_path):
    path = make_csv([make_row(ratio=1.0), make_row(128, ratio=1.0, run=LATER)])
    records.write_sidecar(tmp_path, RUN, {"torch": "2.13.0"})
    results = load.load([path])
    assert list(results.sidecars) == [RUN]
    assert results.without_sidecar == (LATER,)


def test_rows_can_be_chosen_by_a_tag(make_csv):
    path = make_csv([make_row(64, ratio=1.0, tags="night, split-k"),
                     make_row(128, ratio=1.0, tags="nightly")])
    assert one_line(path, tag="night")["rows"] == 1
    with pytest.raises(UsageError, match="no row carries the tag 'day'"):
        load.load([path], tag="day")


def test_the_control_is_judged_run_by_run(make_csv):
    rows = [make_row(64, provider="torch-control", ratio=1.004),
            make_row(64, provider="torch-control", ratio=1.02, run=LATER)]
    table = aggregate.control(load.load([make_csv(rows)], all_runs=True).rows)
    assert table["within"].tolist() == [True, False]


def test_the_report_judges_a_control_as_the_bench_does(make_csv):
    """A host's clock has the wider limit; one rule for both."""
    for timer, ratio in (("graph", 1.004), ("graph", 1.006), ("host", 1.04), ("host", 1.06)):
        row = make_row(64, provider="torch-control", ratio=ratio, timer=timer)
        line = aggregate.control(load.load([make_csv([row])], all_runs=True).rows).iloc[0]
        verdict = control_of([row])
        assert line["within"] == (not verdict.void) and line["limit"] == verdict.limit


def test_rows_without_a_time_still_tell_what_was_checked(make_csv):
    rows = [make_row(64, max_err_ratio=0.4, rms_err_ratio=0.2),
            make_row(128, max_err_ratio=0.9), make_row(256, status="wrong", max_err_ratio=7.0),
            make_row(512, status="compile")]
    results = load.load([make_csv(rows)])
    line = aggregate.correctness(results.headline).iloc[0]
    assert (line["rows"], line["checked"], line["wrong"], line["other"]) == (4, 3, 1, 1)
    assert line["max_err_ratio"] == 7.0
    assert one_line(results)["timed"] == 0


def test_batch_dtype_and_precision_have_labels_of_their_own(make_csv):
    rows = [make_row(batch=8, ratio=1.0), make_row(ratio=1.0, dtype="fp32", precision="tf32"),
            make_row(ratio=1.0, dtype_out="fp32")]
    frame = load.load([make_csv(rows)]).headline
    assert frame["problem"].tolist() == ["8x64x64x64", "64x64x64", "64x64x64"]
    assert frame["dtype"].tolist() == ["bf16", "fp32 tf32", "bf16>fp32"]


def test_a_csv_with_only_its_header_is_an_empty_report_not_an_error(make_csv):
    results = load.load([make_csv([])])
    assert results.headline.empty
    for figure in (aggregate.summary, aggregate.correctness, aggregate.failures, aggregate.control,
                   aggregate.sources):
        assert figure(results.headline).empty
    assert aggregate.energy(results.headline, results.rows).empty


HOSTILE = {
    "empty": b"",
    "not a csv of ours": b"a,b,c\n1,2,3\n",
    "not text": b"\x89PNG\r\n\x1a\n\x00\x00\x00",
    "not UTF-8": b"\xff\xfe\n",
    "one long line": b"x" * 2_000_000,
    "a null byte": b"schema_version\x00,run_id\n",
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_csv_is_one_clear_error_that_names_the_file(tmp_path, raw):
    path = tmp_path / "bad.csv"
    path.write_bytes(raw)
    with pytest.raises(DataFileError, match="bad.csv"):
        load.load([path])


@pytest.mark.parametrize("column, value", [
    ("m", "-1"), ("m", "lots"), ("ratio_vs_torch", "0"), ("ratio_vs_torch", "-3"),
    ("time_us_p50", "inf"), ("status", "fine"), ("provider", ""), ("layout", "zz"),
    ("dtype_a", "bf17"), ("schema_version", "one"),
])
def test_a_bad_field_names_file_row_and_field(make_csv, column, value):
    path = make_csv([make_row(ratio=1.0), make_row(128, ratio=1.0)])
    lines = path.read_text().splitlines()
    fields = lines[2].split(",")
    fields[records.NAMES.index(column)] = value
    path.write_text("\n".join([*lines[:2], ",".join(fields)]) + "\n")
    with pytest.raises(DataFileError) as caught:
        load.load([path])
    assert caught.value.row == 3
    assert caught.value.path.endswith("bench.csv")


def test_a_row_of_too_few_fields_is_refused(make_csv):
    path = make_csv([make_row(ratio=1.0)])
    path.write_text(path.read_text() + "1,2,3\n")
    with pytest.raises(DataFileError, match="fields"):
        load.load([path])


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"void": true, "void": false}', b"\xff"])
def test_a_hostile_sidecar_is_one_clear_error(make_csv, tmp_path, raw):
    path = make_csv([make_row(ratio=1.0)])
    (tmp_path / f"{RUN}.meta.json").write_bytes(raw)
    with pytest.raises(DataFileError, match="meta.json"):
        load.load([path])


def test_a_missing_file_and_a_folder_without_csv_say_so(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        load.load([tmp_path / "absent.csv"])
    with pytest.raises(UsageError, match="holds no .csv"):
        load.load([tmp_path])
    with pytest.raises(UsageError, match="no CSV"):
        load.load([])


def test_a_pipe_is_refused_rather_than_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataFileError, match="not a regular file"):
        load.load([tmp_path / "pipe.csv"])


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12), st.randoms())
def test_summary_does_not_depend_on_row_order_and_counts_every_row(tmp_path_factory, ratios,
                                                                  random):
    rows = [make_row(64 + i, ratio=ratio) for i, ratio in enumerate(ratios)]
    folder = tmp_path_factory.mktemp("order")
    records.append_rows(folder / "a.csv", rows)
    random.shuffle(rows)
    records.append_rows(folder / "b.csv", rows)
    first, second = one_line(folder / "a.csv"), one_line(folder / "b.csv")
    for name in ("geomean", "min", "max", "faster", "tie", "slower", "timed"):
        assert first[name] == pytest.approx(second[name])
    assert first["faster"] + first["tie"] + first["slower"] == len(ratios)
    assert first["min"] * (1 - 1e-6) <= first["geomean"] <= first["max"] * (1 + 1e-6)


REGRET = ("batch,m,n,k,dtype,layout,precision,align_a,align_b,align_c,configs,best_config,best_us\n"
          "1,1,6144,4096,bf16,nt,ieee,16,16,16,151,skinny_8x16x256_w4_s4_g8,13.260\n")


@pytest.mark.parametrize("name, text", [
    ("regret.csv", REGRET), ("shapes.csv", "m,n,k\n1,2,3\n"),
    ("train_gpt2.csv", "mode,step,ms\neager,1,20.5\n")])
def test_other_csvs_of_a_folder_are_skipped_with_a_note(make_csv, tmp_path, capsys, name, text):
    make_csv([make_row(ratio=1.0)])
    (tmp_path / name).write_text(text)
    results = load.load([tmp_path])
    assert len(results.rows) == 1 and [p.name for p in results.skipped] == [name]
    assert main(["report", str(tmp_path)]) == 0
    assert f"Skipped, no rows of a bench: {name}." in capsys.readouterr().out
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 0
    assert f"OLD: skipped, no rows of a bench: {name}\n" in capsys.readouterr().out
    with pytest.raises(DataFileError, match="not a CSV that `tritongemm bench` wrote"):
        load.load([tmp_path / name])  # named by itself, it is an error


def test_a_folder_of_other_csvs_only_is_an_error_that_names_them(tmp_path):
    (tmp_path / "regret.csv").write_text(REGRET)
    with pytest.raises(UsageError, match="holds no .csv file.*only regret.csv"):
        load.load([tmp_path])


@pytest.mark.parametrize("damage", ["columns", "first column", "empty"])
def test_a_damaged_csv_in_a_folder_is_not_skipped(make_csv, tmp_path, damage):
    make_csv([make_row(ratio=1.0)])
    if damage == "columns":
        (tmp_path / "broken.csv").write_text("schema_version,m,n,k\n1,2,3,4\n")
    elif damage == "first column":
        lines = (tmp_path / "bench.csv").read_text().splitlines()
        (tmp_path / "broken.csv").write_text("\n".join(x.split(",", 1)[1] for x in lines) + "\n")
    else:
        (tmp_path / "broken.csv").touch()
    with pytest.raises(DataFileError, match="broken.csv"):
        load.load([tmp_path])
