"""The library of the native dispatcher: built once, loaded only whole and one's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

from tritongemm import settings
from tritongemm.cli import main
from tritongemm.errors import CompileError
from tritongemm.native import build, library, load, obstacle
from tritongemm.native.compiler import digest_file


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
    monkeypatch.setattr("tritongemm.native.compiler.subprocess.run", fake)
    monkeypatch.setattr("tritongemm.native.compiler.shutil.which", lambda name: f"/usr/bin/{name}")
    with settings.override(cache_dir=tmp_path, native=True):
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
    assert load() is None and load() is None
    said = [r.getMessage() for r in caplog.records if "native dispatcher" in r.getMessage()]
    assert len(said) == 1 and "cannot be loaded" in said[0] and "--again" in said[0]


def test_it_is_off_by_default():
    assert not settings.current().native and load() is None


def test_doctor_says_whether_it_is_on(compiler, capsys):
    from tritongemm.cli.doctor import _native

    assert "is not built" in _native().detail and _native().fix == "tritongemm native --again"
    build()
    assert _native().ok and _native().detail == str(library())
    with settings.override(native=False):
        assert _native().ok and "off" in _native().detail


def test_the_verb_says_where_it_is_and_that_it_is_off(compiler, capsys):
    with settings.override(native=False):
        assert main(["native"]) == 0
    said = capsys.readouterr().out
    assert str(library()) in said and "TRITONGEMM_NATIVE=1" in said


def test_an_unknown_argument_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["native", "--agian"])
    assert "--agian" in capsys.readouterr().err


def test_importing_the_package_does_not_load_it():
    code = "import sys, tritongemm.settings; assert 'tritongemm.native' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
