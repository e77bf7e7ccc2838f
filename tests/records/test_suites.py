"""Suites: what the file says wins, and every bad file is one error with file, line and field."""

import file_faults
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tritongemm.errors import DataFileError, ProblemError, UsageError
from tritongemm.problem import LAYOUTS
from tritongemm.records.suites import Shape, known_suites, read_suite, suite_path, write_suite

SHIPPED = known_suites()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_suite_reads_and_makes_problems(name):
    shapes = read_suite(SHIPPED[name])
    assert {shape.suite for shape in shapes} == {name}
    assert len({shape.problem() for shape in shapes}) == len(shapes)


def test_the_shipped_suites_are_the_known_families():
    assert set(SHIPPED) >= {"aligned_random", "batched", "deepbench", "llm_decode", "llm_prefill",
                            "low_rank", "odd", "sources", "split_k", "square", "stream_k",
                            "training", "wide_k"}


def test_only_m_n_k_are_needed(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(" n , m, k\n\n 2 ,1,0\n\n")
    assert read_suite(path) == [Shape(1, 2, 0, suite="mine")]


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfm,n,k,note\r\n1,2,3,\"one, two\"\r\n")
    assert read_suite(path) == [Shape(1, 2, 3, note="one, two", suite="a")]


def test_what_the_suite_says_wins_over_the_arguments():
    problem = Shape(8, 16, 32, batch=2, layout="nt", dtype="fp16").problem("fp32", "nn")
    assert (problem.layout, problem.dtype_a, problem.batch) == ("nt", "fp16", 2)
    problem = Shape(8, 16, 32).problem("fp32", "tn", "tf32")
    assert (problem.layout, problem.dtype_a, problem.precision) == ("tn", "fp32", "tf32")


def test_a_precision_of_the_command_is_for_the_dtypes_that_have_it_and_one_of_the_suite_for_all():
    assert Shape(8, 16, 32, dtype="bf16").problem("fp32", "nn", "tf32").precision == "ieee"
    assert Shape(8, 16, 32, precision="tf32").problem("fp32", "nn", "fp16x3").precision == "tf32"
    with pytest.raises(ProblemError, match="precision tf32 is for fp32, c64 operands, not bf16"):
        Shape(8, 16, 32, precision="tf32").problem("bf16")
    with pytest.raises(ProblemError, match="precision 'tf23' is not known"):
        Shape(8, 16, 32).problem("bf16", precision="tf23")


def test_alignment_follows_the_extents():
    problem = Shape(8, 9, 10).problem("bf16", "nn")
    assert (problem.align_a, problem.align_b, problem.align_c) == (4, 2, 2)


def test_an_unknown_dtype_from_the_command_line_is_a_problem_error():
    with pytest.raises(ProblemError, match="int4"):
        Shape(1, 1, 1).problem("int4")


SHAPES = st.builds(
    Shape, st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1),
    st.integers(1, 2**31 - 1), st.sampled_from(("", *LAYOUTS)), st.sampled_from(("", "bf16")),
    st.sampled_from(("", "bias+gelu")), st.integers(1, 1000),
    st.text(max_size=100).map(lambda t: " ".join(t.replace("\0", "").split())),
    st.sampled_from(("odd", "llm_x")), st.sampled_from(("", "tf32")))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.lists(SHAPES, min_size=1, max_size=5))
def test_what_is_written_is_read(tmp_path, shapes):
    write_suite(tmp_path / "a.csv", shapes)
    assert read_suite(tmp_path / "a.csv") == shapes


def test_an_empty_suite_is_not_written(tmp_path):
    with pytest.raises(DataFileError, match="at least one"):
        write_suite(tmp_path / "a.csv", [])
    assert not (tmp_path / "a.csv").exists()


def test_no_space_left_leaves_the_old_suite(tmp_path, monkeypatch):
    write_suite(tmp_path / "a.csv", [Shape(1, 2, 3)])
    with monkeypatch.context() as patch:
        file_faults.full_disk(patch, after=4)
        with pytest.raises(DataFileError, match="no space left"):
            write_suite(tmp_path / "a.csv", [Shape(4, 5, 6)])
    assert read_suite(tmp_path / "a.csv")[0].m == 1


@pytest.mark.parametrize("text, row, field, reason", [
    ("", None, None, "is empty"),
    ("\n\n", None, None, "is empty"),
    ("m,n,k\n", None, None, "no shapes"),
    ("m,n\n1,2\n", 1, "k", "missing"),
    ("1,2,3\n4,5,6\n", 1, None, "has no header; put m,n,k above the numbers"),
    ("1,2,3,4\n4,5,6,7\n", 1, None, "has no header; put m,n,k,batch above the numbers"),
    ("M,N,K\n1,2,3\n", 1, None, "in lower case: m,n,k"),
    ("m\tn\tk\n1\t2\t3\n", 1, None, "separated by tabs"),
    ("a,b,c\n1,2,3\n", 1, "m", "missing; a suite has m, n, k and may have batch"),
    ("m,n,k,m\n1,2,3,4\n", 1, "m", "given twice"),
    ("m,n,k\n1,2,3\n-1,2,3\n", 3, "m", "outside 0"),
    ("m,n,k\n1,-2147483648,3\n", 2, "n", "outside 0"),
    ("m,n,k\n1,2,x\n", 2, "k", "not an integer"),
    ("m,n,k\n1,2,3.0\n", 2, "k", "not an integer"),
    ("m,n,k\n1,2,1e3\n", 2, "k", "not an integer"),
    ("m,n,k\n1,2,0x10\n", 2, "k", "not an integer"),
    ("m,n,k\n1,2,nan\n", 2, "k", "not an integer"),
    ("m,n,k\n1,2,\u0663\n", 2, "k", "not an integer"),
    ("m,n,k\n1,2," + "9" * 5000 + "\n", 2, "k", "not an integer"),
    ("m,n,k\n1,2,4294967296\n", 2, "k", "outside"),
    ("m,n,k\n1,,3\n", 2, "n", "is empty"),
    ("m,n,k\n1,2\n", 2, None, "has 2 fields"),
    ("m,n,k\n1,2,3,4\n", 2, None, "has 4 fields"),
    ("m;n;k\n1;2;3\n", 1, None, "separated by semicolons; a suite is separated by commas"),
    ("m,n,k,batch\n1,2,3,0\n", 2, "batch", "outside 1"),
    ("m,n,k,count\n1,2,3,-4\n", 2, "count", "outside 1"),
    ("m,n,k,layout\n1,2,3,tt\n1,2,3,row\n", 3, "layout", "one of nn, nt, tn, tt"),
    ("m,n,k,dtype\n1,2,3,float\n", 2, "dtype", "use one of bf16"),
    ("m,n,k,precision\n1,2,3,high\n", 2, "precision", "'high' is not a precision; use one of"),
    ("m,n,k,epilogue\n1,2,3,a;b\n", 2, "epilogue", "'a;b' is not known; use none"),
    ("m,n,k,epilogue\n1,2,3,gelu+bias\n", 2, "epilogue", r"joined by \+ \(bias\+gelu\)"),
    ("m,n,k,suite\n1,2,3,../../x\n", 2, "suite", "not a name"),
    ("m,n,k,suite\n1,2,3,=cmd()\n", 2, "suite", "not a name"),
    ("m,n,k,note\n1,2,3," + "x" * 501 + "\n", 2, "note", "501 characters"),
    ('m,n,k,note\n1,2,3,"cut', 2, None, "cut short"),
    ("m,n,k,layut\n1,2,3,nt\n", 1, "layut", "no such column, only m, n, k, .*; rename it, or"),
    ("m,n,k,\n1,2,3,\n", 1, None, "has no name; is there a comma at the end"),
    ("PK\x03\x04\n", 1, "m", "missing"),
    ('{"m": 1}\n', 1, "m", "missing"),
])
def test_a_bad_suite_is_one_error(tmp_path, text, row, field, reason):
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataFileError, match=reason) as caught:
        read_suite(path)
    assert (caught.value.row, caught.value.field) == (row, field)
    assert str(path) in str(caught.value)


def test_a_suite_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("m,n,k,note\n1,2,3,\u00e9\n".encode("latin-1"))
    with pytest.raises(DataFileError, match="not UTF-8") as caught:
        read_suite(path)
    assert caught.value.row == 2


def test_a_suite_of_a_gigabyte_is_refused(tmp_path):
    with pytest.raises(DataFileError, match="at most"):
        read_suite(file_faults.sparse(tmp_path / "a.csv", head=b"m,n,k\n1,2,3\n"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.binary(max_size=60))
def test_any_bytes_give_shapes_or_one_error(tmp_path, raw):
    path = tmp_path / "a.csv"
    path.write_bytes(b"m,n,k,note\n1,2,3,a\n" + raw)
    try:
        assert read_suite(path)
    except DataFileError as error:
        assert str(path) in str(error)


def test_a_suite_is_found_by_name_or_by_path(tmp_path):
    assert suite_path("square") == SHIPPED["square"]
    path = tmp_path / "mine.csv"
    path.write_text("m,n,k\n1,2,3\n")
    assert suite_path(path) == path
    assert suite_path(str(path)) == path


@pytest.mark.parametrize("name", ["squares", "../square", "", "x" * 5000, "a\0b", "/"])
def test_an_unknown_suite_lists_the_known_ones(name):
    with pytest.raises(UsageError, match="square, stream_k"):
        suite_path(name)
