"""A write replaces the whole file or leaves it alone, and says why when it cannot."""

import errno
import os
import subprocess
import sys

import file_faults
import pytest

from tritongemm.errors import DataFileError
from tritongemm.records.atomic import locked, write_atomic


def test_a_write_replaces_the_file_and_leaves_no_other(tmp_path):
    path = tmp_path / "new" / "folder" / "table.json"
    write_atomic(path, "old")
    write_atomic(path, "ä new one")
    assert path.read_text(encoding="utf-8") == "ä new one"
    assert [p.name for p in path.parent.iterdir()] == ["table.json"]


def test_the_file_is_flushed_before_it_gets_its_name_and_the_folder_after(tmp_path, monkeypatch):
    steps, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (
        steps.append(os.readlink(f"/proc/self/fd/{descriptor}")), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append("rename"), replace(a, b)))
    write_atomic(tmp_path / "a", "new")
    file, rename, folder = steps
    assert (rename, folder) == ("rename", str(tmp_path))
    assert file.startswith(str(tmp_path / ""))


def test_an_error_is_told_where_the_working_folder_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(DataFileError, match="cannot be written"):
        write_atomic("x/y.json", "a")


def test_bytes_are_written_as_they_are(tmp_path):
    write_atomic(tmp_path / "cubin", b"\x7fELF\0")
    assert (tmp_path / "cubin").read_bytes() == b"\x7fELF\0"


def test_the_mode_of_the_old_file_is_kept(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    write_atomic(path, "new")
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("fault", [
    pytest.param(lambda m: file_faults.full_disk(m), id="full before the first byte"),
    pytest.param(lambda m: file_faults.full_disk(m, after=3), id="full amid the file"),
    pytest.param(lambda m: file_faults.failing_fsync(m), id="full when flushed"),
])
def test_no_space_left_keeps_the_old_file_and_is_reported(tmp_path, monkeypatch, fault):
    path = tmp_path / "a"
    path.write_text("old")
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises(DataFileError, match="no space left") as caught:
            write_atomic(path, "much longer")
    assert str(path) in str(caught.value)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_keeps_pointing_to_the_file_that_is_replaced(tmp_path, there):
    link, target = tmp_path / "link", tmp_path / "real" / "table.json"
    link.symlink_to("real/table.json")
    if there:
        target.parent.mkdir()
        target.write_text("old")
    write_atomic(link, "new", follow_links=True)
    assert link.is_symlink() and target.read_text() == "new" and not target.is_symlink()
    assert [p.name for p in target.parent.iterdir()] == ["table.json"]


def test_without_following_a_link_is_replaced_and_its_target_stays(tmp_path):
    (tmp_path / "victim").write_text("old")
    (tmp_path / "link").symlink_to("victim")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "victim").read_text() == "old"
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "link").read_text() == "new"


def test_a_link_and_its_target_have_one_lock(tmp_path):
    (tmp_path / "link").symlink_to("table.json")
    with locked(tmp_path / "link"), pytest.raises(DataFileError, match="is in use"):
        with locked(tmp_path / "table.json", timeout_s=0.05):
            pass


@pytest.mark.parametrize("make", file_faults.NOT_A_FILE)
def test_what_is_no_file_is_not_replaced(tmp_path, make):
    path = tmp_path / "a"
    make(path)
    with pytest.raises(DataFileError, match="not a regular file|is a folder|leads to itself"):
        write_atomic(path, "text", follow_links=True)
    assert os.path.lexists(path) and not path.is_file()


def test_what_a_killed_writer_left_is_removed_and_what_is_being_written_is_not(tmp_path):
    code = """
import os, sys
from tritongemm.records import atomic
def stop(descriptor):
    print("writing", flush=True)
    sys.stdin.read()
os.fsync = stop
atomic.write_atomic(sys.argv[1], "never")
"""
    new = [sys.executable, "-c", "import sys; from tritongemm.records.atomic import write_atomic\n"
           "write_atomic(sys.argv[1], 'new')", str(tmp_path / "other")]
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "table.json")],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"writing\n"
        (tmp_path / ".mine.tmp").write_text("of another program")
        subprocess.run(new, check=True)
        assert len([p for p in tmp_path.iterdir() if p.name.startswith(".table.json.")]) == 1
        writer.kill()
    subprocess.run(new, check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".mine.tmp", "other"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_an_unwritable_folder_is_named(tmp_path, monkeypatch, code):
    with monkeypatch.context() as patch:
        file_faults.refusing_open(patch, code)
        with pytest.raises(DataFileError, match="not writable"):
            write_atomic(tmp_path / "a", "text")
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataFileError, match="is a file, not a folder"):
        write_atomic(tmp_path / "file" / "a", "text")
    with pytest.raises(DataFileError, match="is a file, not a folder"), \
            locked(tmp_path / "file" / "a"):
        pass


def test_a_folder_in_the_place_of_the_file_is_named(tmp_path):
    with pytest.raises(DataFileError, match="is a folder"):
        write_atomic(tmp_path, "text")


def test_a_lock_that_another_process_holds_times_out_with_its_name(tmp_path):
    path = tmp_path / "a"
    code = ("import sys\nfrom tritongemm.records.atomic import locked\n"
            "with locked(sys.argv[1]):\n print('held', flush=True)\n sys.stdin.read()\n")
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, cwd=_root()) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataFileError, match="is in use"), locked(path, timeout_s=0.05):
            pass
        holder.kill()
    with locked(path, timeout_s=5):  # the system let go of it when its holder died
        pass


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        file_faults.refusing_open(patch)
        with pytest.raises(DataFileError, match="not writable"), locked(tmp_path / "a", 1):
            pass


def _root() -> str:
    import tritongemm

    return os.path.dirname(os.path.dirname(os.path.abspath(tritongemm.__file__)))


@pytest.mark.parametrize(("make", "says"), [
    (lambda path: path.symlink_to("victim"), r"a\.json\.lock: is a symbolic link; remove it"),
    (lambda path: path.mkdir(), r"a\.json\.lock: is a folder")], ids=["link", "folder"])
def test_what_stands_in_the_place_of_a_lock_is_named(tmp_path, make, says):
    (tmp_path / "victim").write_text("kept")
    make(tmp_path / "a.json.lock")
    with pytest.raises(DataFileError, match=says), locked(tmp_path / "a.json", 1):
        pass
    assert (tmp_path / "victim").read_text() == "kept"
