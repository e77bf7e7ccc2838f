"""setup.py's option ``--native``: which wheel gets the library, and what happens without one."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import setuptools
from setuptools.command.bdist_wheel import bdist_wheel

from tritongemm.errors import CompileError

pytest.importorskip("torch")

SETUP = Path(__file__).resolve().parents[2] / "setup.py"


@pytest.fixture
def made(tmp_path, monkeypatch):
    """made(name): runs the command where setuptools makes a wheel of this name; (the names of what
    lies in its folder, warnings, how often the library was built). An older wheel lies there."""
    commands, built = {}, []
    monkeypatch.setattr(setuptools, "setup", lambda cmdclass: commands.update(cmdclass))
    runpy.run_path(str(SETUP))

    def build():
        built.append(1)
        raise CompileError("no C++ compiler")

    def run(name):
        path = tmp_path / name
        path.write_bytes(b"a wheel")
        command.distribution.dist_files.append(("bdist_wheel", "3.11", str(path)))

    monkeypatch.setattr("tritongemm.native.build", build)
    monkeypatch.setattr("sys.path", [*sys.path])
    # Not constructed: where another test has imported the standard library's distutils, setuptools
    # takes its own Distribution for a foreign one.
    command = object.__new__(commands["bdist_wheel"])
    command.distribution = SimpleNamespace(dist_files=[])
    command.native, command.dist_dir, warnings = True, str(tmp_path), []
    monkeypatch.setattr(command, "warn", warnings.append, raising=False)

    def go(name, library=None):
        monkeypatch.setattr(bdist_wheel, "run", lambda self: run(name))
        if library is not None:
            monkeypatch.setattr("tritongemm.native.build", lambda: library)
            monkeypatch.setattr("tritongemm.native.wheels.add", lambda wheel, _, into: (
                into / "with-a-library.whl").write_bytes(wheel.read_bytes()))
        command.run()
        return {path.name for path in tmp_path.iterdir()}, warnings, len(built)

    return go


def test_the_pure_wheel_is_replaced(made):
    found = made("tritongemm-1.0-py3-none-any.whl", library=object())
    assert found == ({"with-a-library.whl"}, [], 0)


def test_without_a_compiler_the_pure_wheel_stays(made):
    name = "tritongemm-1.0-py3-none-any.whl"
    assert made(name) == (
        {name}, ["the native dispatcher is not built into the wheel: no C++ compiler"], 1)


def test_under_another_tag_the_pure_wheel_stays_and_an_older_one_too(made, tmp_path):
    """As --python-tag names it."""
    older = tmp_path / "tritongemm-0.9-py3-none-any.whl"
    older.write_bytes(b"older")
    names, (said,), built = made("tritongemm-1.0-py310-none-any.whl")
    assert names == {"tritongemm-1.0-py310-none-any.whl", older.name} and not built
    assert "is no wheel of tritongemm for py3-none-any" in said
