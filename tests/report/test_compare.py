"""Verdicts on two runs, and the exit status that CI reads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rows import LATER, RUN, make_row

from tritongemm.cli import main
from tritongemm.errors import UsageError
from tritongemm.records import rows as records
from tritongemm.report import compare as comparing
from tritongemm.report.load import load


@pytest.fixture
def judge(make_csv):
    """The comparison of two lists of rows."""
    def judge(old, new, **options):
        return comparing.compare(load([make_csv(old, "old/o.csv")]),
                                 load([make_csv(new, "new/n.csv")]), **options)

    return judge


@pytest.mark.parametrize("change, low, high, expected", [
    (1.00, 0.995, 1.005, "SAME"), (1.10, 1.05, 1.15, "FASTER"), (0.90, 0.85, 0.95, "SLOWER"),
    (1.00, 0.90, 1.10, "AMBIGUOUS"), (1.05, 0.99, 1.11, "AMBIGUOUS"),
    (1.008, 1.001, 1.02, "AMBIGUOUS"), (0.5, 0.4, 1.001, "AMBIGUOUS"),
    (1.01, 1.01, 1.01, "SAME"), (1.011, 1.0109, 1.0111, "FASTER"),
])
def test_verdict_by_interval_and_tolerance(change, low, high, expected):
    assert comparing.verdict(change, low, high) == expected


@given(st.floats(0.2, 5), st.floats(1, 2), st.floats(1, 2), st.floats(0, 0.5))
def test_swapping_old_and_new_swaps_faster_and_slower(change, up, down, tolerance):
    low, high = change / down, change * up
    swapped = {"FASTER": "SLOWER", "SLOWER": "FASTER"}
    first = comparing.verdict(change, low, high, tolerance)
    second = comparing.verdict(1 / change, 1 / high, 1 / low, tolerance * (1 + 1e-9))
    if first != second and "SAME" not in (first, second):  # at the tolerance itself: rounding
        assert swapped.get(first, first) == second


def test_rows_are_compared_by_their_ratio_so_that_a_slower_card_changes_nothing(judge):
    result = judge([make_row(ratio=1.2, width=0.001, time_us=10.0)],
                   [make_row(ratio=1.2, width=0.001, time_us=14.0)])
    (change,) = result.changes
    assert (change.verdict, change.by, change.change) == ("SAME", "ratio", pytest.approx(1.0))
    assert result.exit_status == 0


def test_by_time_the_same_rows_are_slower(judge):
    result = judge([make_row(ratio=1.2, width=0.001, time_us=10.0)],
                   [make_row(ratio=1.2, width=0.001, time_us=14.0)], by="time")
    assert (result.changes[0].verdict, result.exit_status) == ("SLOWER", 1)
    assert result.changes[0].change == pytest.approx(10 / 14)


def test_rows_without_a_ratio_are_compared_by_time(judge):
    (change,) = judge([make_row(time_us=10.0)], [make_row(time_us=5.0)]).changes
    assert (change.verdict, change.by, change.change) == ("FASTER", "time", pytest.approx(2.0))


def test_the_interval_of_the_change_is_the_unfavourable_quotient(judge):
    (change,) = judge([make_row(ratio=1.0, width=0.1)], [make_row(ratio=1.5, width=0.1)]).changes
    assert change.low == pytest.approx(1.5 * 0.9 / 1.1)
    assert change.high == pytest.approx(1.5 * 1.1 / 0.9)


def test_the_interval_of_a_change_of_time_is_the_unfavourable_quotient(judge):
    old = make_row(time_us=10.0, time_us_p20=9.0, time_us_p80=14.0)
    new = make_row(time_us=5.0, time_us_p20=4.0, time_us_p80=6.0)
    (change,) = judge([old], [new], by="time").changes
    assert change.change == pytest.approx(10 / 5)
    assert change.low == pytest.approx(9 / 6) and change.high == pytest.approx(14 / 4)


@pytest.mark.parametrize("before, after, expected, status", [
    ("ok", "wrong", "BROKEN", 1), ("compile", "ok", "MENDED", 0), ("oom", "timeout", "FAILED", 0)])
def test_a_change_of_status_is_a_verdict_of_its_own(judge, before, after, expected, status):
    def row(word):
        return make_row(ratio=1.0) if word == "ok" else make_row(status=word)

    result = judge([row(before)], [row(after)])
    assert (result.changes[0].verdict, result.exit_status) == (expected, status)


def test_rows_of_one_side_only_are_said_and_do_not_fail(judge):
    result = judge([make_row(64, ratio=1.0, width=0), make_row(128, ratio=1.0)],
                   [make_row(64, ratio=1.0, width=0), make_row(256, ratio=1.0)])
    assert dict(result.counts) == {"SAME": 1, "NEW": 1, "MISSING": 1}
    assert result.exit_status == 0


def test_untimed_rows_are_neither_same_nor_slower(judge):
    result = judge([make_row(max_err_ratio=0.1)], [make_row(max_err_ratio=0.1)])
    assert (result.changes[0].verdict, result.exit_status) == ("UNTIMED", 0)


def test_torch_and_its_control_are_compared_by_time_only(judge):
    rows = [make_row(provider="torch", ratio=1.0, time_us=10.0), make_row(ratio=1.0),
            make_row(provider="torch-control", ratio=1.0)]
    assert [c.row["provider"] for c in judge(rows, rows).changes] == ["tritongemm"]
    assert [c.row["provider"] for c in judge(rows, rows, by="time").changes] == [
        "torch", "tritongemm"]


def test_nothing_in_common_is_an_error_that_says_why_not_a_green_result(judge):
    with pytest.raises(UsageError, match="device a in OLD, b in NEW"):
        judge([make_row(ratio=1.0, device="a")], [make_row(ratio=1.0, device="b")])
    with pytest.raises(UsageError, match="NEW has no rows"):
        judge([make_row(64, ratio=1.0)], [])


def test_a_void_run_is_compared_with_nothing(make_csv, tmp_path):
    old = make_csv([make_row(ratio=1.0, run=RUN)], "old/o.csv")
    new = make_csv([make_row(ratio=1.0, run=LATER)], "new/n.csv")
    records.write_sidecar(new.parent, LATER, {"void": True})
    with pytest.raises(UsageError, match="all its runs are void"):
        comparing.compare(load([old]), load([new]))


@pytest.mark.parametrize("options", [{"by": "luck"}, {"tolerance": -0.1}, {"tolerance": 1.0},
                                     {"tolerance": float("nan")}])
def test_wrong_options_are_refused(judge, options):
    with pytest.raises(UsageError):
        judge([make_row(ratio=1.0)], [make_row(ratio=1.0)], **options)


@pytest.mark.parametrize("ratio, status, word", [(1.0, 0, "AMBIGUOUS"), (0.5, 1, "SLOWER"),
                                                 (2.0, 0, "FASTER")])
def test_the_command_prints_the_verdicts_and_returns_the_status(make_csv, capsys, ratio, status,
                                                                word):
    old = make_csv([make_row(ratio=1.0)], "old.csv")
    new = make_csv([make_row(ratio=ratio)], "new.csv")
    assert main(["compare", str(old), str(new), "--all"]) == status
    out = capsys.readouterr().out
    assert f"1 row: 1 {word}" in out
    assert "square 64x64x64 bf16 nt tritongemm" in out


def test_the_command_says_what_it_cannot_use(make_csv, capsys, tmp_path):
    good = make_csv([make_row(ratio=1.0)])
    assert main(["compare", str(good), str(tmp_path / "absent.csv")]) == 2
    assert main(["compare", str(good), str(good), "--provider", "cutlass"]) == 2
    assert main(["compare", str(good), str(good), "--limit", "-1"]) == 2
    assert "cutlass" in capsys.readouterr().err


def test_the_command_compares_chosen_providers_only(make_csv, capsys):
    rows = [make_row(ratio=1.0), make_row(ratio=1.0, provider="inductor")]
    slow = [make_row(ratio=1.0), make_row(ratio=0.5, provider="inductor")]
    old, new = make_csv(rows, "old.csv"), make_csv(slow, "new.csv")
    assert main(["compare", str(old), str(new)]) == 1
    assert main(["compare", str(old), str(new), "--provider", "tritongemm"]) == 0
