"""Tables as Markdown, and the markers of a file that people edit too."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_rows import LATER, RUN, make_row

from tritongemm.errors import DataFileError, UsageError
from tritongemm.records import rows as records
from tritongemm.report import load, markdown, tables

PAGE = ("# Title\n\n<!-- tritongemm:headline -->\nold\n<!-- /tritongemm:headline -->\n\n"
        "more | text\n")


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "README.md"
    path.write_text(PAGE)
    return path


def test_only_text_between_the_markers_changes(page):
    assert markdown.write_between(page, "headline", "| new |\n") is True
    assert page.read_text() == PAGE.replace("old", "| new |")


def test_writing_the_same_again_changes_nothing(page):
    markdown.write_between(page, "headline", "new")
    assert markdown.write_between(page, "headline", "new") is False


def test_windows_line_endings_are_kept(page):
    page.write_bytes(PAGE.replace("\n", "\r\n").encode())
    markdown.write_between(page, "headline", "a\nb")
    assert page.read_bytes().replace(b"\r\n", b"").count(b"\n") == 0
    assert b"-->\r\na\r\nb\r\n<!--" in page.read_bytes()


@pytest.mark.parametrize("text, says", [
    ("no markers", "found 0 and 0"),
    ("<!-- tritongemm:headline -->", "found 1 and 0"),
    (PAGE + PAGE, "found 2 and 2"),
    ("<!-- /tritongemm:headline --> <!-- tritongemm:headline -->", "stands before"),
    ("<!-- tritongemm:other --><!-- /tritongemm:other -->", "it has markers for other"),
], ids=["none", "open only", "twice", "reversed", "another"])
def test_markers_that_are_not_one_pair_are_refused_and_the_file_stays(page, text, says):
    page.write_text(text)
    with pytest.raises(DataFileError, match=says):
        markdown.write_between(page, "headline", "new")
    assert page.read_text() == text


def test_a_file_that_is_missing_or_not_text_is_refused(page, tmp_path):
    with pytest.raises(DataFileError, match="does not exist"):
        markdown.write_between(tmp_path / "absent.md", "headline", "new")
    with pytest.raises(DataFileError, match="is a folder"):
        markdown.write_between(tmp_path, "headline", "new")
    page.write_bytes(b"\xff")
    with pytest.raises(DataFileError, match="not UTF-8"):
        markdown.write_between(page, "headline", "new")


@pytest.mark.parametrize("name", ["", "a b", "-->", "../x", "é"])
def test_an_invalid_marker_name_is_refused(page, name):
    with pytest.raises(UsageError, match="is not a name"):
        markdown.write_between(page, name, "new")


def test_the_summary_is_a_table_with_one_line_a_group(make_csv):
    results = load.load([make_csv([make_row(ratio=1.25), make_row(128, ratio=1.25)])])
    lines = markdown.section(results, "summary", heading=False).splitlines()
    assert lines[0].startswith("| suite | dtype | layout | provider | shapes | geomean |")
    assert lines[2].startswith("| square | bf16 | nt | tritongemm | 2 | 1.250 |")
    assert len({line.count("|") for line in lines[:3]}) == 1


def test_a_void_run_is_the_first_thing_a_reader_sees(make_csv, tmp_path):
    path = make_csv([make_row(ratio=2.0, run=LATER), make_row(ratio=1.0)])
    records.write_sidecar(tmp_path, LATER, {"void": True, "void_reason": "noisy"})
    text = markdown.document(load.load([path]))
    assert text.startswith(f"**Run {LATER} is VOID: noisy.")
    assert "2.000" not in text


def test_a_control_outside_its_limit_is_reported_without_a_void_record(make_csv):
    path = make_csv([make_row(ratio=1.0), make_row(provider="torch-control", ratio=1.03)])
    assert "outside 1 ± 0.5 %" in markdown.document(load.load([path]))


def test_rows_with_no_time_give_a_report_of_correctness(make_csv):
    results = load.load([make_csv([make_row(max_err_ratio=0.5, device="interpreter")])])
    text = markdown.document(results, sections=("summary", "correctness", "facts"))
    assert "Nothing here was timed" in text
    assert "| 1 | 1 | 0 | 0 | 0.500 |" in text
    assert "nan" not in text


def test_an_empty_csv_gives_a_document_that_says_so(make_csv):
    text = markdown.document(load.load([make_csv([])]), sections=markdown.SECTIONS)
    assert text.strip() == "No rows to report."


@pytest.mark.parametrize("name", markdown.SECTIONS)
def test_every_section_renders_for_a_full_csv(make_csv, tmp_path, name):
    rows = [make_row(ratio=1.1, provider="tritongemm-auto", selection_source="torch",
                     energy_mj=2.0), make_row(ratio=1.0, provider="torch", energy_mj=3.0),
            make_row(provider="torch-control", ratio=1.0), make_row(128, status="oom", error="x"),
            make_row(ratio=1.2)]
    path = make_csv(rows)
    records.write_sidecar(tmp_path, RUN, {"torch": "2.13.0", "gpu": {"driver": "580", "n": [1, 2]}})
    text = markdown.section(load.load([path]), name)
    assert text.strip()
    assert "nan" not in text


def test_an_absent_control_has_no_note_and_an_absent_record_is_named(make_csv):
    results = load.load([make_csv([make_row(ratio=1.0)])])
    assert markdown.section(results, "control") == ""
    assert RUN in markdown.section(results, "environment")


def test_an_unknown_section_lists_the_known_ones(make_csv):
    with pytest.raises(UsageError, match="summary"):
        markdown.section(load.load([make_csv([])]), "sumary")


@given(st.text(max_size=40))
def test_no_cell_can_break_its_table_or_the_markers(text):
    shown = tables.Table("t", "t", ("a", "b"), ((text, "x"),), (False, False))
    lines = markdown.table(shown).split("\n")
    assert len(lines) == 3 and len(lines[2].splitlines()) == 1
    unescaped = lines[2].replace("\\\\", "").replace("\\|", "")
    assert unescaped.count("|") == 3
    assert "<" not in lines[2]
