"""Problems on the command line: ranges, lists, suites, and every way to get them wrong."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritongemm.cli.shapes import MAX_PROBLEMS, add_shape_arguments, integers, problems_from
from tritongemm.errors import DataFileError, UsageError


def problems(*words):
    parser = argparse.ArgumentParser()
    add_shape_arguments(parser)
    return problems_from(parser.parse_args(list(words)))


def sizes(*words):
    return [(p.batch, p.m, p.n, p.k) for _, p in problems(*words)]


@pytest.mark.parametrize(("text", "values"), [
    ("64", (64,)), ("64,128", (64, 128)), ("128,64,128", (128, 64)), ("0", (0,)),
    ("1024:4096:1024", (1024, 2048, 3072, 4096)), ("1:10:4", (1, 5, 9)), ("7:7:1", (7,)),
    ("1:3:1,2,16", (1, 2, 3, 16)), (" 8 , 9 ", (8, 9)),
])
def test_ranges_hold_their_end_and_lists_keep_their_order(text, values):
    assert integers(text) == values


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(1, 700))
def test_a_range_is_every_step_from_start_to_stop(start, length, step):
    values = integers(f"{start}:{start + length}:{step}")
    assert values[0] == start and start + length - step < values[-1] <= start + length
    assert all(b - a == step for a, b in zip(values, values[1:]))


@pytest.mark.parametrize(("text", "says"), [
    ("", "not an integer"), ("a", "not an integer"), ("1.5", "not an integer"),
    ("1:2", "needs its step"), ("1:2:3:4", "needs its step"), ("1:5:0", "at least 1"),
    ("5:1:1", "must not exceed"), ("-4", "outside 0"), ("1:-4:1", "outside 0"),
    ("99999999999", "outside 0"), ("64,,128", "not an integer"), ("0:2000000000:1", "larger step"),
])
def test_a_bad_range_is_named_with_the_way_out(text, says):
    with pytest.raises(UsageError, match=says):
        integers(text, "m")


def test_ranges_are_multiplied_with_dtypes_and_layouts():
    found = problems("--m", "64,128", "--n", "32", "--k", "16:48:16", "--dtype", "fp16,fp32",
                     "--layout", "nt,tn", "--batch", "1,2")
    assert len(found) == 2 * 3 * 2 * 2 * 2
    assert len({p for _, p in found}) == len(found)
    assert {s.suite for s, _ in found} == {"range"}


def test_epilogues_are_one_more_axis_where_the_suite_says_none(tmp_path):
    found = problems("--m", "64", "--n", "32", "--k", "16", "--epilogue", "none,bias+gelu")
    assert [p.epilogue for _, p in found] == ["none", "bias+gelu"]
    path = tmp_path / "mine.csv"
    path.write_text("m,n,k,epilogue\n8,8,8,add\n16,16,16,\n")
    assert [p.epilogue for _, p in problems(str(path), "--epilogue", "relu")] == ["add", "relu"]


def test_what_a_suite_says_wins_and_is_not_multiplied(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("m,n,k,layout,dtype\n8,8,8,tt,fp32\n16,16,16,,\n")
    found = problems(str(path), "--dtype", "bf16,fp16", "--layout", "nn,nt")
    own = [p for _, p in found if p.m == 8]
    assert [(p.layout, p.dtype_a) for p in own] == [("tt", "fp32")]
    assert len([p for _, p in found if p.m == 16]) == 4
    assert {s.suite for s, _ in found} == {"mine"}


def test_tf32_is_only_asked_of_fp32():
    found = problems("--m", "8", "--n", "8", "--k", "8", "--dtype", "bf16,fp32",
                     "--precision", "tf32")
    assert [(p.dtype_a, p.precision) for _, p in found] == [("bf16", "ieee"), ("fp32", "tf32")]


def test_repeats_are_measured_once_but_kept_apart_by_suite(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.csv").write_text("m,n,k\n8,8,8\n8,8,8\n")
    assert len(problems(str(tmp_path / "one.csv"))) == 1
    assert len(problems(str(tmp_path / "one.csv"), "--shapes", str(tmp_path / "two.csv"))) == 2


def test_spread_takes_the_middles_of_equal_parts():
    words = ("--m", "1:100:1", "--n", "8", "--k", "8")
    taken = [m for _, m, _, _ in sizes(*words, "--spread", "4")]
    assert taken == [13, 38, 63, 88]
    assert len(sizes(*words, "--spread", "1000")) == 100


def test_max_extent_leaves_large_shapes_out():
    assert all(max(p) <= 4096 for p in sizes("square", "--max-extent", "4096"))
    assert (1, 4096, 4096, 4096) in sizes("square", "--max-extent", "4096")


@pytest.mark.parametrize(("words", "says"), [
    ((), "no problems named"), (("--m", "8"), "--n, --k is missing"),
    (("--m", "8", "--n", "8"), "--k is missing"), (("--batch", "2"), "is missing"),
    (("no_such_suite",), "neither a file nor one of"), (("square", "--dtype", "int3"), "dtype"),
    (("square", "--epilogue", "gelu+bias"), "epilogue"),
    (("square", "--layout", "xy"), "layout"), (("square", "--spread", "0"), "below 1"),
    (("square", "--max-extent", "1"), "--max-extent is 1, and each of the"),
    (("--m", "1:900:1", "--n", "1:900:1", "--k", "1"), f"at most {MAX_PROBLEMS}"),
])
def test_what_cannot_be_meant_is_refused(words, says):
    with pytest.raises(UsageError, match=says):
        problems(*words)


def test_a_bad_suite_file_is_named(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("m,n,k\n8,8,-1\n")
    with pytest.raises(DataFileError, match=r"bad.csv, row 2, field 'k'"):
        problems("--shapes", str(path))
