"""The store of cubins: what is compiled once is found by all, and no file of it is trusted."""

from __future__ import annotations

import errno
import sys
from dataclasses import replace

import pytest

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import (
    CompileError,
    ConstraintError,
    DataFileError,
    MissingDependencyError,
)
from tritongemm.kernels import compile as compiling
from tritongemm.kernels.compile import Binary, binary_key, build, launches_of, store_path
from tritongemm.problem import GemmProblem

DEVICE = representative(90)
PROBLEM = GemmProblem.contiguous(256, 512, 1024, layout="nt")
CONFIG = KernelConfig("tiled", 64, 64, 32)


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A store of its own and a compiler that counts; yields the symbols compiled so far."""
    symbols: list[str] = []

    def compile_launch(launch, arch):
        symbols.append(launch.symbol)
        return Binary(launch.symbol, b"\x7fELF\n" + launch.symbol.encode(), 4, 1, 1234, 56, 0,
                      ({"swizzle": 3, "elem_type": 10, "block_size": [64, 64]},),
                      ((8, 8), (4, 4)))

    monkeypatch.setattr(compiling, "compile_launch", compile_launch)
    with settings.override(cache_dir=tmp_path / "cache"):
        yield symbols


def stored():
    return store_path(binary_key(launches_of(PROBLEM, CONFIG, DEVICE)[0], DEVICE.arch))


def test_a_second_build_compiles_nothing_and_is_the_same(compiled):
    first, second = build(PROBLEM, CONFIG, DEVICE), build(PROBLEM, CONFIG, DEVICE)
    assert len(compiled) == 1 and not first.cached and second.cached
    assert (second.registers, second.spills, second.shared_bytes) == (56, 0, 1234)


def test_what_is_read_is_what_was_compiled(compiled):
    launches = launches_of(PROBLEM, CONFIG, DEVICE)
    one, _ = compiling.build_launches(launches, 90)
    two, _ = compiling.build_launches(launches, 90)
    assert one == two


def test_another_problem_of_the_same_key_is_found(compiled):
    build(PROBLEM, CONFIG, DEVICE)
    assert build(GemmProblem.contiguous(192, 1024, 2048, layout="nt"), CONFIG, DEVICE).cached


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\n\x7fELF", b"[]\n\x7fELF",
                                     b'{"symbol": "x"}\n\x7fELF', b"null\n\x7fELF", "cut", "text"])
def test_a_damaged_file_is_compiled_again_and_replaced(compiled, content):
    build(PROBLEM, CONFIG, DEVICE)
    path, whole = stored(), stored().read_bytes()
    if content == "cut":
        content = whole[:whole.index(b"\n")]
    elif content == "text":
        content = whole.replace(b"\x7fELF", b"ELF?")
    path.write_bytes(content)
    assert not build(PROBLEM, CONFIG, DEVICE).cached
    assert path.read_bytes() == whole and len(compiled) == 2


def test_an_illegal_config_is_not_compiled(compiled):
    with pytest.raises(ConstraintError, match="breaks the rule 'power_of_two'"):
        build(PROBLEM, replace(CONFIG, block_m=48), DEVICE)
    assert not compiled


def unwritable(cache, monkeypatch) -> None:
    cache.write_text("a file where the folder should be")


def full(cache, monkeypatch) -> None:
    def no_space(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)


@pytest.mark.parametrize("broken", [unwritable, full])
def test_a_store_that_cannot_be_written_costs_only_the_next_compile(
        compiled, tmp_path, monkeypatch, caplog, broken):
    broken(tmp_path / "cache", monkeypatch)
    launches = launches_of(PROBLEM, CONFIG, DEVICE)
    for _ in range(2):
        binaries, report = compiling.build_launches(launches, 90)
        assert not report.cached and binaries[0].registers == 56
    assert len(compiled) == 2 and "is not kept for other processes" in caplog.text
    assert not stored().exists()


@pytest.mark.parametrize("broken", [unwritable, full])
def test_a_build_for_other_processes_needs_the_store(compiled, tmp_path, monkeypatch, broken):
    broken(tmp_path / "cache", monkeypatch)
    with pytest.raises(DataFileError, match="binaries"):
        build(PROBLEM, CONFIG, DEVICE)


def test_without_triton_the_command_that_installs_it_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "triton", None)
    with settings.override(cache_dir=tmp_path), pytest.raises(
            MissingDependencyError, match="compiling needs triton.*pip install triton"):
        build(PROBLEM, CONFIG, DEVICE)


def test_what_the_compiler_says_becomes_a_compile_error(monkeypatch, tmp_path):
    triton = pytest.importorskip("triton")

    def refuses(*_, **__):
        raise RuntimeError("line one\n\n  line two  \n" + "x" * 5000)

    monkeypatch.setattr(triton, "compile", refuses)
    with settings.override(cache_dir=tmp_path), pytest.raises(CompileError) as caught:
        build(PROBLEM, CONFIG, DEVICE)
    text = str(caught.value)
    assert "tiled_64x64x32" in text and "sm_90: RuntimeError: line one | line two" in text
    assert len(text) < 1000
