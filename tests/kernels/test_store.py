"""The store of cubins: what is compiled once is found by all, and no file of it is trusted."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import tritongemm
from tritongemm import settings
from tritongemm.cli import main
from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import (
    CompileError,
    ConstraintError,
    DataFileError,
    MissingDependencyError,
)
from tritongemm.kernels import compile as compiling
from tritongemm.kernels import store, triton_version
from tritongemm.kernels.compile import binary_key, build, launches_of
from tritongemm.kernels.store import Binary, store_path
from tritongemm.problem import GemmProblem
from tritongemm.records import sealed
from tritongemm.workers.builder import Builder

DEVICE = representative(90)
PROBLEM = GemmProblem.contiguous(256, 512, 1024, layout="nt")
CONFIG = KernelConfig("tiled", 64, 64, 32)


#: What the driver would see as a cubin: a header of ELF for CUDA, with no tables, and some code.
CUBIN = (b"\x7fELF\x02\x01".ljust(18, b"\0") + b"\xbe\0").ljust(64, b"\0") + bytes(range(256))


def binary_of(symbol: str) -> Binary:
    return Binary(symbol, CUBIN + symbol.encode(), 4, 1, 1234, 56, 0,
                  ({"swizzle": 3, "elem_type": 10, "block_size": [64, 64]},), ((8, 8), (4, 4)))


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    """A store of its own and a compiler that counts; yields the symbols compiled so far."""
    symbols: list[str] = []

    def compile_launch(launch, arch):
        symbols.append(launch.symbol)
        return binary_of(launch.symbol)

    monkeypatch.setattr(compiling, "compile_launch", compile_launch)
    monkeypatch.setattr(sealed, "_warned", set())
    with settings.override(cache_dir=tmp_path / "cache"):
        yield symbols


def key():
    return binary_key(launches_of(PROBLEM, CONFIG, DEVICE)[0], DEVICE.arch)


def stored():
    return store_path(key())


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


def made_again(compiled, content: bytes) -> bool:
    """Whether the entry with ``content`` is a miss, and is the same as before after it."""
    path = stored()
    whole = path.read_bytes()
    before = len(compiled)
    path.write_bytes(content)
    missed = not Builder.stored(key()) and not build(PROBLEM, CONFIG, DEVICE).cached
    return missed and path.read_bytes() == whole and len(compiled) == before + 1


def test_an_entry_is_of_no_one_else_and_readable(compiled):
    before = os.umask(0)
    try:
        build(PROBLEM, CONFIG, DEVICE)
    finally:
        os.umask(before)
    assert stat.S_IMODE(stored().stat().st_mode) == 0o644 and Builder.stored(key())


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\n\x7fELF", b"[]\n\x7fELF",
                                     b'{"symbol": "x"}\n\x7fELF', b"null\n\x7fELF", b"\0" * 500])
def test_what_is_no_entry_is_compiled_again_and_replaced(compiled, content):
    build(PROBLEM, CONFIG, DEVICE)
    assert made_again(compiled, content)


def test_an_entry_cut_anywhere_is_compiled_again_and_replaced(compiled):
    build(PROBLEM, CONFIG, DEVICE)
    whole = stored().read_bytes()
    for end in [*range(0, len(whole), 37), len(whole) - 1]:
        assert made_again(compiled, whole[:end]), end
    assert made_again(compiled, whole + b"\0")


def test_an_entry_with_any_bit_flipped_is_compiled_again_and_replaced(compiled):
    build(PROBLEM, CONFIG, DEVICE)
    whole = stored().read_bytes()
    chosen = random.Random(46)
    for count in range(2000):
        place, bit = chosen.randrange(len(whole)), chosen.randrange(8)
        altered = bytearray(whole)
        altered[place] ^= 1 << bit
        assert sealed.unseal(key(), bytes(altered)) is None, (place, bit)
        assert count % 80 or made_again(compiled, bytes(altered)), (place, bit)
    assert made_again(compiled, whole[:100] + bytes(len(whole) - 100)), "zeroed"


def test_an_entry_of_another_key_in_its_place_is_compiled_again(compiled):
    build(PROBLEM, CONFIG, DEVICE)
    launch = launches_of(PROBLEM, CONFIG, DEVICE)[0]
    other = binary_key(launch, 100)
    store.save(other, binary_of("of_sm_100"))
    assert store.load(other) is not None
    assert made_again(compiled, store_path(other).read_bytes())


@pytest.mark.parametrize("change", [
    {"num_warps": -4}, {"num_warps": 0}, {"num_warps": 64}, {"num_warps": 4.0}, {"num_warps": "4"},
    {"num_ctas": 0}, {"shared_bytes": -1}, {"shared_bytes": 2**30}, {"registers": "many"},
    {"cubin": b"\x7fELF"}, {"cubin": b""}, {"cubin": b"x" * 400}, {"symbol": "a b"},
    {"symbol": ""}, {"parameters": ((8,),)}, {"parameters": ((0, 8),)}, {"maps": ({},)},
    {"maps": ({"swizzle": 3, "elem_type": 99, "block_size": [64]},)},
    {"maps": ({"swizzle": 3, "elem_type": 1, "block_size": 64},)},
    {"cubin": CUBIN[:40] + (2**40).to_bytes(8, "little") + CUBIN[48:]}], ids=str)
def test_a_sealed_entry_that_cannot_be_launched_is_compiled_again(compiled, change):
    build(PROBLEM, CONFIG, DEVICE)
    bad = store.encode(replace(binary_of("x"), **change))
    assert made_again(compiled, sealed.seal(key(), bad))


def test_a_link_a_pipe_and_a_file_too_large_are_misses_and_replaced(compiled, tmp_path,
                                                                     monkeypatch):
    build(PROBLEM, CONFIG, DEVICE)
    path, whole = stored(), stored().read_bytes()
    target = tmp_path / "whole"
    for make in (lambda: (target.write_bytes(whole), path.symlink_to(target)),
                 lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        path.unlink()
        make()
        assert not build(PROBLEM, CONFIG, DEVICE).cached
        assert path.read_bytes() == whole and not path.is_symlink()
    assert target.read_bytes() == whole
    monkeypatch.setattr(sealed, "_LIMIT", len(whole) - 1)
    assert not Builder.stored(key())


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o646])
def test_a_file_that_others_may_write_to_is_not_loaded(compiled, mode, caplog):
    build(PROBLEM, CONFIG, DEVICE)
    for _ in range(2):  # one warning a process
        stored().chmod(mode)
        assert not build(PROBLEM, CONFIG, DEVICE).cached
        assert stat.S_IMODE(stored().stat().st_mode) == 0o644
        assert build(PROBLEM, CONFIG, DEVICE).cached
    said, = (r.getMessage() for r in caplog.records)
    assert str(stored()) in said and "TRITONGEMM_CACHE_DIR" in said


def test_a_file_of_another_user_is_not_loaded_and_roots_is(compiled, monkeypatch, caplog):
    build(PROBLEM, CONFIG, DEVICE)
    owner = stored().stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1000)
    loaded = Builder.stored(key())
    assert loaded == (owner == 0) and loaded == (not caplog.records)
    real = os.fstat

    def as_of_another(descriptor):
        info = list(real(descriptor))
        info[4] = owner + 7
        return os.stat_result(info)

    monkeypatch.setattr(os, "fstat", as_of_another)
    assert not Builder.stored(key()) and "belongs to another user" in caplog.text
    assert store.check().foreign == 1


def test_the_check_counts_and_removes_what_is_damaged(compiled, capsys):
    keys = [f"{i:064x}" for i in range(6)]
    for one in keys:
        store.save(one, binary_of("k"))
    whole = store_path(keys[0]).read_bytes()
    store_path(keys[0]).write_bytes(whole[:-1])
    store_path(keys[1]).write_bytes(b'{"symbol": "x"}\n\x7fELF')
    store_path(keys[2]).write_bytes(sealed.seal(keys[2], b"{}"))
    store_path(keys[3]).chmod(0o666)
    assert main(["doctor", "--check-cache"]) == 0
    said = capsys.readouterr().out
    assert "2 whole, 3 damaged" in said and "1 of another owner" in said and "4 removed" in said
    assert store.check() == store.StoreReport(2, 0, 0, 0)
    assert main(["doctor", "--check-cache"]) == 0
    assert "removed" not in capsys.readouterr().out


def test_the_check_says_what_it_cannot_remove(compiled, capsys):
    store_path("ab").mkdir(parents=True)
    assert main(["doctor", "--check-cache"]) == 1
    said = capsys.readouterr().out
    assert "0 whole, 1 damaged" in said and "could not be removed" in said


def test_the_check_leaves_what_another_version_of_the_package_keeps(compiled, tmp_path):
    other = tmp_path / "cache" / "binaries" / "ab" / "abcd.bin"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"of another layout")
    build(PROBLEM, CONFIG, DEVICE)
    assert store.check() == store.StoreReport(1, 0, 0, 0) and other.exists()


def test_the_check_of_no_store_is_well(compiled, capsys):
    assert main(["doctor", "--check-cache"]) == 0
    assert "0 whole, 0 damaged" in capsys.readouterr().out


#: Writes one entry again and again, until it is killed; says when it has begun.
_WRITER = """
from tritongemm.kernels import store
binary = store.Binary("k", {cubin!r} + bytes(2_000_000), 4, 1, 0, None, None, (), ((8, 8),))
store.save("0" * 64, binary)
print("written", flush=True)
while True:
    store.save("0" * 64, binary)
"""


@pytest.mark.thorough
def test_two_processes_that_write_at_once_and_are_killed_leave_whole_entries(tmp_path):
    environment = settings.child_environment(TRITONGEMM_CACHE_DIR=str(tmp_path))
    with settings.override(cache_dir=tmp_path):
        for delay in (0.0, 0.01, 0.05):
            writers = [subprocess.Popen([sys.executable, "-c", _WRITER.format(cubin=CUBIN)],
                                        stdout=subprocess.PIPE, env=environment,
                                        cwd=Path(tritongemm.__file__).parents[1])
                       for _ in range(2)]
            for one in writers:
                assert one.stdout is not None and one.stdout.readline() == b"written\n"
            end = time.monotonic() + delay
            loaded = 0
            while time.monotonic() < end or not loaded:
                assert store.load("0" * 64) is not None
                loaded += 1
            for one in writers:
                one.kill()
                one.wait()
                one.stdout.close()
            assert store.check() == store.StoreReport(1, 0, 0, 0)


def fake_triton(folder: Path) -> Path:
    """What is hashed of Triton, and what is not."""
    for name in ("compiler/compiler.py", "backends/nvidia/compiler.py", "language/core.py",
                 "runtime/cache.py", "_C/libtriton.so", "backends/nvidia/bin/ptxas",
                 "profiler/hooks.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize("name, counts", [
    ("compiler/compiler.py", True), ("backends/nvidia/compiler.py", True),
    ("language/core.py", True), ("_C/libtriton.so", True), ("backends/nvidia/bin/ptxas", True),
    ("profiler/hooks.py", False)])
def test_a_change_to_the_compiler_is_another_compiler(tmp_path, name, counts):
    package = fake_triton(tmp_path / "triton")
    with settings.override(cache_dir=tmp_path / "cache"):
        before = digest(package)
        assert digest(package) == before
        (package / name).write_text(name.upper() + " ")
        assert (digest(package) != before) == counts


def digest(package: Path) -> str:
    """As another process would find it."""
    triton_version.build_digest.cache_clear()
    try:
        return triton_version.build_digest(package)
    finally:
        triton_version.build_digest.cache_clear()


def test_the_digest_of_the_compiler_is_kept_and_a_damaged_one_made_again(tmp_path, monkeypatch):
    hashed = []
    real = triton_version._digest
    monkeypatch.setattr(triton_version, "_digest", lambda path: hashed.append(path) or real(path))
    with settings.override(cache_dir=tmp_path / "cache"):
        package = fake_triton(tmp_path / "triton")
        first = digest(package)
        assert len(hashed) == 6 and digest(package) == first and len(hashed) == 6
        kept, = (tmp_path / "cache" / "compilers").iterdir()
        raw = kept.read_bytes()
        kept.write_bytes(raw.replace(first[:8].encode(), b"00000000"))
        assert digest(package) == first and len(hashed) == 12 and kept.read_bytes() == raw
        # A copy elsewhere is the same compiler: a cache may be copied with it.
        assert digest(fake_triton(tmp_path / "elsewhere" / "triton")) == first


def test_a_variable_or_an_assembler_that_changes_code_makes_another_key(monkeypatch, tmp_path):
    assembler = tmp_path / "ptxas"
    found = {key()}
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(assembler))
    found.add(key())
    for version in "12.8", "12.9":
        assembler.write_text(f"#!/bin/sh\necho release {version}\n")
        assembler.chmod(0o755)
        triton_version._assembler.cache_clear()
        found.add(key())
    monkeypatch.delenv("TRITON_PTXAS_PATH")
    assert len(found) == 4 and key() in found
    for name in ("DISABLE_PTXAS_OPT", "PTXAS_OPTIONS", "TRITON_DISABLE_LINE_INFO"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            found.add(key())
    assert len(found) == 7
    triton_version._assembler.cache_clear()


def test_what_a_binary_is_does_not_depend_on_the_compiler(monkeypatch):
    launch = launches_of(PROBLEM, CONFIG, DEVICE)[0]
    before = compiling.launch_key(launch, 90)
    monkeypatch.setattr(compiling, "compiler_key", lambda arch: {"triton": "0.0.1"})
    assert compiling.launch_key(launch, 90) == before != compiling.launch_key(launch, 100)


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


@pytest.mark.parametrize("damaged", [
    {"cubin": CUBIN[:40] + b"\xff\xff\0\0\0\0\0\0" + CUBIN[48:]}, {"cubin": b""}, {"ptx": ""}],
    ids=("cut", "empty", "no PTX"))
def test_a_damaged_file_of_tritons_own_cache_is_compiled_again(monkeypatch, tmp_path, damaged):
    triton = pytest.importorskip("triton")
    forced = []

    def compile(*_, **__):
        forced.append(triton.knobs.compilation.always_compile)
        whole = {"cubin": CUBIN, "ptx": ".entry k(.param .u64 k_param_0) {"}
        return SimpleNamespace(asm=whole if forced[-1] else {**whole, **damaged},
                               metadata=SimpleNamespace(name="k", num_warps=4, num_ctas=1, shared=0,
                                                        global_scratch_size=0))

    monkeypatch.setattr(triton, "compile", compile)
    monkeypatch.setattr(compiling, "_resources", lambda cubin: (None, None))
    with settings.override(cache_dir=tmp_path):
        build(PROBLEM, CONFIG, DEVICE)
        found = store.load(key())
    assert forced == [False, True] and found is not None and found.cubin == CUBIN
    assert found.parameters == ((8, 8),) and not triton.knobs.compilation.always_compile
