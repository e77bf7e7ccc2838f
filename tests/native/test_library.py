"""The library of the native dispatcher: built once, loaded only whole and one's own."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from dataclasses import asdict, replace

import pytest

pytest.importorskip("torch")

from tritongemm import settings
from tritongemm.cli import main
from tritongemm.errors import CompileError, DataFileError
from tritongemm.native import abi, background, build, failure, find, load, loading, stored
from tritongemm.native.compiler import _key, folder
from tritongemm.native.loading import wanted
from tritongemm.native.stored import MANIFEST


def never() -> None:
    """Nothing is built in the background here."""
    raise AssertionError("a build was waited for")


def obstacle() -> str | None:
    """Why no library is loaded, or None."""
    loading._loaded.clear()
    return find().obstacle


def test_the_library_is_built_once(compiler):
    first = build()
    assert first == build() and find().path == first.path and compiler.calls == 1
    build(again=True)
    assert compiler.calls == 2 and obstacle() is None


def test_without_a_compiler_the_error_says_what_to_install(compiler, monkeypatch):
    monkeypatch.setattr("tritongemm.native.compiler.shutil.which", lambda name: None)
    with pytest.raises(CompileError, match="no C\\+\\+ compiler: none of c\\+\\+, g\\+\\+"):
        build()
    assert main(["native"]) == 2


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(compiler):
    compiler.status, compiler.said = 1, "dispatcher.cpp:1: error: no torch\n"
    with pytest.raises(CompileError, match="no torch"):
        build()
    assert obstacle() == "it is not built. Build it: tritongemm native"


@pytest.mark.parametrize(("damage", "said"), [
    ("cut", "is damaged"), ("altered", "is damaged"), ("gone", "is damaged"),
    ("manifest", "is not JSON"), ("name", "no name of a library")])
def test_a_damaged_library_is_not_loaded_and_built_again(compiler, damage, said):
    path = build().path
    manifest = path.with_name(MANIFEST)
    if damage == "manifest":
        manifest.write_text("{")
    elif damage == "name":
        manifest.write_text(manifest.read_text().replace(path.name, "../evil.so"))
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + (b"" if damage == "cut" else b"!"))
    found = obstacle() or ""
    assert said in found and found.endswith("Build it again: tritongemm native --again")
    build()
    assert obstacle() is None


def test_a_reader_sees_a_whole_library_at_each_step_of_a_build(compiler, monkeypatch):
    """Of the two files that a build writes, whichever is there: the old pair or the new one."""
    before, seen = build().sha256, []
    write = stored.write_atomic

    def looking(path, data, **more):
        for step in (lambda: None, lambda: write(path, data, **more)):
            step()
            assert obstacle() is None
            seen.append(stored.read_whole(path.parent).sha256)

    monkeypatch.setattr(stored, "write_atomic", looking)
    compiler.made = b"another library"
    after = build(again=True).sha256
    assert seen == [before] * 3 + [after] and before != after


def test_readers_of_other_threads_see_no_damage_while_it_is_built_again(compiler):
    place, ended, found = build().path.parent, threading.Event(), []

    def read():
        while not ended.is_set():
            found.append(stored.read_whole(place))  # raises where a pair does not fit

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(40):
        compiler.made = b"library %d" % number
        build(again=True)
        read_before = len(found)
        while len(found) == read_before and reader.is_alive():  # on a busy machine it gets no turn
            ended.wait(0.001)
    ended.set()
    reader.join()
    assert None not in found and len({x.sha256 for x in found}) > 1
    assert len(list(place.glob("*.so"))) == 2  # the last, and the one before for late readers


def test_a_reader_that_is_late_reads_again(compiler, monkeypatch):
    """Its library was removed after it had read the manifest."""
    place, read = build().path.parent, stored.read
    old = read(place)
    compiler.made = b"another library"
    new = build(again=True)
    old.path.unlink()
    answers = iter((old, new))
    monkeypatch.setattr(stored, "read", lambda folder: next(answers))
    assert stored.read_whole(place) == new


@pytest.mark.parametrize("name", ("library", MANIFEST))
def test_a_library_that_others_may_write_is_not_loaded_and_built_again(compiler, name):
    """Not passed on either: a wheel would be trusted."""
    path = build().path
    (path if name == "library" else path.with_name(name)).chmod(0o666)
    assert "others may write to it" in (obstacle() or "")
    assert build().path == path and compiler.calls == 2 and obstacle() is None


@pytest.mark.parametrize("again", (False, True))
@pytest.mark.parametrize("whole", (False, True))
def test_into_a_folder_that_others_may_write_nothing_is_built(compiler, whole, again):
    place = folder()
    if whole:
        build()
    place.mkdir(parents=True, exist_ok=True)
    place.chmod(0o777)
    before, calls = {*place.iterdir()}, compiler.calls
    with pytest.raises(DataFileError, match="others may write.*TRITONGEMM_CACHE_DIR") as raised:
        build(again=again)
    assert raised.value.path == str(place) and compiler.calls == calls
    assert {*place.iterdir()} == before
    assert f"{place} {stored.FOREIGN}" == obstacle()
    assert main(["native", *(["--again"] if again else [])]) == 2


def test_a_folder_that_cannot_be_made_is_named(compiler):
    folder().parent.write_text("a file")
    with pytest.raises(DataFileError, match="is a file, not a folder"):
        build()


@pytest.mark.parametrize(("field", "value", "said"), [
    ("source", "other", "another revision"), ("torch", "1.0", "it is for torch 1.0; this is"),
    ("debug", True, "debug=True"), ("cxx11_abi", False, "_GLIBCXX_USE_CXX11_ABI=0"),
    ("debug", 0, "neither true nor false"), ("cxx11_abi", "yes", "neither true nor false"),
    ("debug", None, "neither true nor false"), ("cxx11_abi", [1] * 99, "neither true nor false")])
def test_a_manifest_of_another_library_is_not_believed(compiler, field, value, said):
    path = build().path
    manifest = path.with_name(MANIFEST)
    content = json.loads(manifest.read_text())
    content["abi"][field] = value
    manifest.write_text(json.dumps(content))
    found = obstacle() or ""
    assert said in found and found.endswith("Build it again: tritongemm native --again")
    build()
    assert compiler.calls == 2 and obstacle() is None


def test_the_folder_depends_on_everything_that_decides(monkeypatch):
    """But on the headers, which take 40 ms to read."""
    now = abi.present()
    others = [replace(now, **{name: not value if isinstance(value, bool) else value + "0"})
              for name, value in asdict(now).items() if name != "headers"]
    monkeypatch.setattr("tritongemm.native.compiler.present", iter([now, *others]).__next__)
    assert len({_key.__wrapped__() for _ in range(1 + len(others))}) == 1 + len(others) == 7


def test_what_cannot_be_imported_is_one_warning(compiler, caplog, monkeypatch):
    monkeypatch.setattr(loading, "_imported", compiler.imported)
    build()
    assert load(never) is None and load(never) is None
    said = [r.getMessage() for r in caplog.records if "native dispatcher" in r.getMessage()]
    assert len(said) == 1 and "cannot be loaded" in said[0] and "--again" in said[0]


def test_by_default_it_is_for_gpus():
    default = next(x for x in settings.VARIABLES if x.field == "native").default
    with settings.override(native=default, interpret=True):
        assert not wanted() and load(never) is None
    with settings.override(native="off"):
        assert not wanted() and load(never) is None


def test_auto_builds_once_in_the_background_and_says_when_it_is_done(automatic, caplog):
    done = threading.Event()
    assert load(done.set) is None and load(done.set) is None
    assert done.wait(60) and len(automatic.started) == 1
    command, environment = automatic.started[0]
    assert environment["TRITONGEMM_CACHE_DIR"] == str(settings.cache_root())
    assert json.loads(command[-1]) == sys.path
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_build_that_fails_is_not_begun_again_by_later_processes(automatic, compiler,
                                                                  monkeypatch):
    compiler.status, compiler.said = 1, "no torch\n"
    with pytest.raises(CompileError):
        build()
    assert "no torch" in (failure() or "") and load(never) is None and not automatic.started
    from tritongemm.cli.doctor import _native

    assert not _native().ok and "no torch" in _native().detail
    compiler.status = 0
    build()
    assert failure() is None


@pytest.mark.parametrize(("status", "said", "passing"), (
    (-9, "", True), (1, "no such flag", False),
    (1, "c++: fatal error: Killed signal terminated program cc1plus", True),
    (1, "as: No space left on device", True)))
def test_a_compiler_that_was_killed_is_tried_again(compiler, status, said, passing):
    compiler.status, compiler.said = status, said
    with pytest.raises(CompileError):
        build()
    assert (failure() is None) == passing


@pytest.mark.parametrize(("error", "raised", "says"), [
    (PermissionError(13, "Permission denied"), DataFileError, "permission"),
    (NotImplementedError("no locks"), CompileError, "TRITONGEMM_CACHE_DIR")])
def test_a_folder_that_cannot_be_used_is_one_clear_error(compiler, monkeypatch, error, raised,
                                                         says):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    with pytest.raises(raised, match=f"(?i){says}"):
        build()


def test_a_child_of_a_fork_waits_for_the_library_itself(automatic):
    load(lambda: None)
    background._after_fork()
    load(lambda: None)
    assert len(automatic.started) == 2


def test_without_a_compiler_auto_runs_in_python_and_builds_nothing(automatic, monkeypatch):
    monkeypatch.setattr("tritongemm.native.compiler.shutil.which", lambda name: None)
    assert load(never) is None and not automatic.started


def test_the_builder_finds_the_package_and_runs_nothing_of_the_working_folder(automatic, tmp_path):
    load(lambda: None)
    code = background._BUILDER.replace("import build; build()", "import build; print(build)")
    command = [code if x == background._BUILDER else x for x in automatic.started[0][0]]
    (tmp_path / "json.py").write_text("raise SystemExit('of the working folder')")
    done = subprocess.run([sys.executable, *command[command.index(sys.executable) + 1:]],
                          cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "function build" in done.stdout, done.stderr


def test_doctor_says_whether_it_is_on(compiler, automatic, monkeypatch):
    from tritongemm.cli.doctor import _native

    assert _native().ok and "not built yet" in _native().detail
    with monkeypatch.context() as patch:
        patch.setattr("tritongemm.native.compiler.shutil.which", lambda name: None)
        assert not _native().ok and "no C++ compiler" in _native().detail
    with settings.override(native="auto", interpret=True):
        assert _native().ok and "no GPU" in _native().detail
    with settings.override(native="on"):
        _is_named(_native)


def _is_named(_native):
    assert "is not built" in _native().detail and _native().fix == "tritongemm native --again"
    build()
    assert _native().ok and _native().detail == str(find().path)
    with settings.override(native="off"):
        assert _native().ok and "off" in _native().detail


def test_the_verb_says_where_it_is_and_that_it_is_off(compiler, capsys):
    with settings.override(native="off"):
        assert main(["native"]) == 0
    said = capsys.readouterr().out
    assert str(build().path) in said and "TRITONGEMM_NATIVE=0" in said


def test_an_unknown_argument_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["native", "--agian"])
    assert "--agian" in capsys.readouterr().err


def test_importing_the_package_does_not_load_it():
    code = "import sys, tritongemm.settings; assert 'tritongemm.native' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
