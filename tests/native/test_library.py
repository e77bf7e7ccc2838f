"""The library of the native dispatcher: built once, loaded only whole and one's own."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from tritongemm import settings
from tritongemm.cli import main
from tritongemm.errors import CompileError
from tritongemm.native import background, build, failure, library, load, obstacle
from tritongemm.native.compiler import digest_file
from tritongemm.native.loading import wanted


def never() -> None:
    """Nothing is built in the background here."""
    raise AssertionError("a build was waited for")


class FakeCompiler:
    """Stands for ``subprocess.run`` of a compiler."""

    def __init__(self, status: int = 0, said: str = "") -> None:
        self.status, self.said, self.calls = status, said, 0

    def __call__(self, command, **_):
        self.calls += 1
        if self.status == 0:
            with open(command[command.index("-o") + 1], "wb") as file:
                file.write(b"a library")
        return subprocess.CompletedProcess(command, self.status, "", self.said)


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    fake = FakeCompiler()
    monkeypatch.setattr("tritongemm.native.compiler.subprocess", SimpleNamespace(
        run=fake, TimeoutExpired=subprocess.TimeoutExpired))
    monkeypatch.setattr("tritongemm.native.compiler.shutil.which", lambda name: f"/usr/bin/{name}")
    with settings.override(cache_dir=tmp_path, native="on"):
        yield fake


def test_the_library_is_built_once(compiler):
    assert build() == build() == library() and compiler.calls == 1
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
    assert not library().exists() and obstacle() == "it is not built. Build it: tritongemm native"


@pytest.mark.parametrize("damage", ("cut", "altered", "no digest"))
def test_a_damaged_library_is_not_loaded(compiler, damage):
    path = build()
    if damage == "no digest":
        digest_file(path).unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + (b"" if damage == "cut" else b"!"))
    assert "is damaged. Build it again: tritongemm native --again" in (obstacle() or "")
    build(again=True)
    assert obstacle() is None


def test_a_library_that_others_may_write_is_not_loaded(compiler):
    build().chmod(0o777)
    assert "others may write to it" in (obstacle() or "")


def test_what_cannot_be_imported_is_one_warning(compiler, caplog):
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


class Builder:
    """In the place of the process that builds."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.started = status, []

    def __call__(self, command, **more):
        self.started.append((command, more["env"]))
        return self

    def wait(self) -> int:
        """Ends."""
        return self.status


@pytest.fixture
def automatic(compiler, monkeypatch):
    """auto, on a machine with a GPU, in a process that has not built yet."""
    builder = Builder()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(background, "_begun", True)  # what other tests left would build at once
    monkeypatch.setattr(background, "subprocess", SimpleNamespace(
        Popen=builder, DEVNULL=subprocess.DEVNULL))
    with settings.override(native="auto"):
        monkeypatch.setattr(background, "_begun", False)
        yield builder


def test_auto_builds_once_in_the_background_and_says_when_it_is_done(automatic, caplog):
    done = threading.Event()
    assert load(done.set) is None and load(done.set) is None
    assert done.wait(10) and len(automatic.started) == 1
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


@pytest.mark.parametrize("status", (-9, 1))
def test_a_compiler_that_was_killed_is_tried_again(compiler, status):
    compiler.status = status
    with pytest.raises(CompileError):
        build()
    assert (failure() is None) == (status < 0)


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


def test_doctor_says_whether_it_is_on(compiler, automatic):
    from tritongemm.cli.doctor import _native

    assert _native().ok and "not built yet" in _native().detail
    with settings.override(native="auto", interpret=True):
        assert _native().ok and "no GPU" in _native().detail
    with settings.override(native="on"):
        _is_named(_native)


def _is_named(_native):
    assert "is not built" in _native().detail and _native().fix == "tritongemm native --again"
    build()
    assert _native().ok and _native().detail == str(library())
    with settings.override(native="off"):
        assert _native().ok and "off" in _native().detail


def test_the_verb_says_where_it_is_and_that_it_is_off(compiler, capsys):
    with settings.override(native="off"):
        assert main(["native"]) == 0
    said = capsys.readouterr().out
    assert str(library()) in said and "TRITONGEMM_NATIVE=0" in said


def test_an_unknown_argument_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["native", "--agian"])
    assert "--agian" in capsys.readouterr().err


def test_importing_the_package_does_not_load_it():
    code = "import sys, tritongemm.settings; assert 'tritongemm.native' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
