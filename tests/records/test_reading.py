"""Whatever a file holds, reading it gives its content or one clear error."""

import os

import file_faults
import pytest

from tritongemm.errors import DataFileError
from tritongemm.records import reading


@pytest.mark.parametrize("text, reason", [
    ("", "is empty"),
    ("  \n", "is empty"),
    ("{", "cut short"),
    ('{"a": 1', "cut short"),
    ("[1, 2,, 3]", "is not JSON"),
    ("{'a': 1}", "is not JSON"),
    ("__import__('os')", "is not JSON"),
    ('{"a": NaN}', "NaN"),
    ('{"a": -Infinity}', "Infinity"),
    ('{"a": 1e999}', "too large"),
    ('{"a": 1, "a": 2}', "'a' is given twice"),
    ("[" * 100_000, "nested too deeply|is not JSON"),
    ("1" * 10_000, "is not valid"),
    ('{"a": 1} {"b": 2}', "is not JSON"),
], ids=lambda v: v[:20])
def test_bad_json_is_one_error(tmp_path, text, reason):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(DataFileError, match=reason) as caught:
        reading.read_json(path)
    assert str(path) in str(caught.value)


def test_the_line_of_a_json_error_is_named(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{\n"a": 1,\n"b": x\n}')
    with pytest.raises(DataFileError) as caught:
        reading.read_json(path)
    assert caught.value.row == 3


def test_what_is_not_utf8_is_named_with_its_line(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'{\n"a": "\xff"}')
    with pytest.raises(DataFileError, match="not UTF-8") as caught:
        reading.read_json(path)
    assert caught.value.row == 2


def test_utf16_and_gzip_are_not_utf8(tmp_path):
    path = tmp_path / "a.json"
    for raw in ("{}".encode("utf-16"), b"\x1f\x8b\x08\0\0\0\0\0"):
        path.write_bytes(raw)
        with pytest.raises(DataFileError, match="not UTF-8"):
            reading.read_json(path)


def test_a_byte_order_mark_is_dropped(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert reading.read_json(path) == [1]


def test_a_gigabyte_is_refused_without_being_read(tmp_path):
    path = file_faults.sparse(tmp_path / "a.json")
    with pytest.raises(DataFileError, match=f"1073741824 bytes; at most {reading.JSON_LIMIT}"):
        reading.read_json(path)
    with pytest.raises(DataFileError, match=f"at most {reading.CSV_LIMIT}"):
        list(reading.csv_records(path))


def test_a_long_line_is_refused_without_being_held(tmp_path):
    path = file_faults.sparse(tmp_path / "a.csv", reading.CSV_LIMIT, head=b"m,n,k\n")
    with pytest.raises(DataFileError, match="longer than") as caught:
        list(reading.csv_records(path))
    assert caught.value.row == 2


@pytest.mark.parametrize("raw, reason", [
    (b'm,n,k\n"1,2,3\n', "cut short"),
    (b'm,n,k\n"1"2,3\n', "is not CSV"),
    (b"m,n,k\n1,\0,3\n", "null byte"),
    (b"m,n,k\n1,\xff,3\n", "not UTF-8"),
    (b"m,n,k\n1,2," + b"9" * 200_000 + b"\n", "field larger"),
])
def test_bad_csv_names_its_line(tmp_path, raw, reason):
    path = tmp_path / "a.csv"
    path.write_bytes(raw)
    with pytest.raises(DataFileError, match=reason) as caught:
        list(reading.csv_records(path))
    assert caught.value.row in (2, 3)


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    for path, reason in ((tmp_path, "is a folder"), (tmp_path / "pipe", "not a regular file"),
                         ("/dev/zero", "not a regular file"),
                         (tmp_path / "absent", "does not exist"),
                         ("x" * 5000, "cannot be read"), ("a\0b", "null byte")):
        with pytest.raises(DataFileError, match=reason):
            reading.read_text(path)


def test_a_pipe_put_there_after_the_first_look_is_not_waited_for(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("{}")
    real = reading._open_without_waiting

    def exchanged(name, flags):
        path.unlink()
        os.mkfifo(path)
        return real(name, flags)

    monkeypatch.setattr(reading, "_open_without_waiting", exchanged)
    with pytest.raises(DataFileError, match="not a regular file"):
        reading.read_json(path)


@pytest.mark.parametrize("depth, good", [(reading.DEPTH_LIMIT, True),
                                         (reading.DEPTH_LIMIT + 1, False)])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":[', "]}")])
def test_the_depth_of_json_is_bounded(tmp_path, depth, good, opening, closing):
    depth //= len(opening.replace('"a":', ""))
    depth += not good
    path = tmp_path / "a.json"
    path.write_text(opening * depth + "1" + closing * depth)
    if good:
        reading.read_json(path)
        return
    with pytest.raises(DataFileError, match="nested too deeply"):
        reading.read_json(path)


def test_an_error_holds_no_control_character_of_the_file(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"\\u001b[2J\\u202e": 1}')
    with pytest.raises(DataFileError) as caught:
        reading.Fields(path, reading.read_json(path)).only(())
    assert "\x1b" not in str(caught.value) and "\\x1b[2J\\u202e" in str(caught.value)


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("{}")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", refuse)
        with pytest.raises(DataFileError, match="Permission denied"):
            reading.read_json(path)


def test_a_number_of_thousands_of_digits_is_not_repeated_in_the_error(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(f"[{'9' * 4000}.5]")
    with pytest.raises(DataFileError, match="is too large for a number") as caught:
        reading.read_json(path)
    assert len(str(caught.value)) < 300
