"""Packs of shipped binaries: found, trusted by their manifest alone, and used before the store."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import tritongemm
from tritongemm import settings
from tritongemm.cli import doctor
from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import DataFileError
from tritongemm.kernels import compile as compiling
from tritongemm.kernels import pack, store, triton_version
from tritongemm.kernels.compile import build, launch_key, launches_of
from tritongemm.kernels.pack import CUBINS, MANIFEST, Pack, package_of
from tritongemm.kernels.store import Binary
from tritongemm.problem import GemmProblem
from tritongemm.workers.builder import Builder

DEVICE = representative(90)
PROBLEM = GemmProblem.contiguous(256, 512, 1024, layout="nt")
CONFIG, SPLIT = KernelConfig("tiled", 64, 64, 32), KernelConfig("tiled", 64, 64, 32, split_k=4)
CUBIN = (b"\x7fELF\x02\x01".ljust(18, b"\0") + b"\xbe\0").ljust(64, b"\0") + bytes(range(256))


def binary_of(symbol: str) -> Binary:
    return Binary(symbol, CUBIN + symbol.encode(), 4, 1, 1234, 56, 0,
                  ({"swizzle": 3, "elem_type": 10, "block_size": [64, 64]},), ((8, 8), (4, 4)))


def keys_of(config: KernelConfig) -> list[str]:
    return [launch_key(x, 90) for x in launches_of(PROBLEM, config, DEVICE)]


def make(folder: Path, *configs: KernelConfig, arch: int = 90) -> Pack:
    return pack.write(folder, arch, "3.6.0", {"triton": "3.6.0", "build": "abc"}, {
        key: binary_of(f"of_{key[:8]}") for config in configs for key in keys_of(config)}.items())


@pytest.fixture
def shipped(tmp_path):
    """A pack of CONFIG's and SPLIT's binaries, which calls use; the cache folder is empty."""
    made = make(tmp_path / "pack", CONFIG, SPLIT)
    with settings.override(cubins=made.folder, cache_dir=tmp_path / "cache"):
        yield made


@pytest.fixture
def compiled(monkeypatch):
    """The symbols of what is compiled, by a compiler that is faked."""
    symbols: list[str] = []

    def compile_launch(launch, arch):
        symbols.append(launch.symbol)
        return binary_of(launch.symbol)

    monkeypatch.setattr(compiling, "compile_launch", compile_launch)
    return symbols


def test_what_is_read_is_what_was_written(shipped):
    again = Pack(shipped.folder)
    assert (again.arch, again.triton, again.entries) == (90, "3.6.0", len({*again.keys()}))
    assert again.compiler == {"triton": "3.6.0", "build": "abc"} and again.damage() == []
    for key in keys_of(CONFIG) + keys_of(SPLIT):
        assert key in again and again.load(key) == binary_of(f"of_{key[:8]}")
    assert "0" * 64 not in again and again.load("0" * 64) is None


def test_a_shipped_binary_is_neither_compiled_nor_looked_for_in_the_store(shipped, compiled,
                                                                          monkeypatch):
    def asked(*_):
        raise AssertionError("the compiler's key was computed")

    monkeypatch.setattr(compiling, "compiler_key", asked)
    for config in (CONFIG, SPLIT):
        report = build(PROBLEM, config, DEVICE)
        assert report.cached and report.registers == 56
    assert compiled == [] and not store.root().exists()


def test_what_is_not_shipped_is_compiled_and_stored(shipped, compiled):
    other = KernelConfig("tiled", 128, 64, 32)
    assert not build(PROBLEM, other, DEVICE).cached and build(PROBLEM, other, DEVICE).cached
    assert len(compiled) == 1


def test_warming_up_counts_shipped_binaries_as_there(shipped, compiled):
    shipped_key, other = (Builder.key(PROBLEM, c, DEVICE)
                          for c in (SPLIT, KernelConfig("tiled", 128, 64, 32)))
    assert Builder.stored(shipped_key) and not Builder.stored(other)
    assert len(shipped_key.split()) == 2 and shipped_key != Builder.key(PROBLEM, CONFIG, DEVICE)


def damaged(name: str, folder: Path, key: str) -> None:
    """Damages the entry of ``key`` in one way."""
    manifest, cubins = folder / MANIFEST, folder / CUBINS
    head, *lines = manifest.read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines) if key in line)
    entry = json.loads(lines[number])
    raw = bytearray(cubins.read_bytes())
    if name == "a bit of the cubin":
        raw[entry["offset"] + entry["packed_bytes"] // 2] ^= 1
    elif name == "cut":
        del raw[entry["offset"] + 3:]
    elif name == "no file":
        cubins.unlink()
    else:
        entry.update({"warps": {"num_warps": 64}, "unknown": {"extra": 1}, "place": {"offset": -1},
                      "bomb": {"cubin_bytes": 3}, "shared": {"shared_bytes": 2**40},
                      "symbol": {"symbol": "a b"}}[name])
        lines[number] = json.dumps(entry, separators=(",", ":"))
        text = "".join(f"{line}\n" for line in lines)
        values = json.loads(head) | {"sha256": hashlib.sha256(text.encode()).hexdigest()}
        manifest.write_text(json.dumps(values) + "\n" + text)
    if cubins.exists():
        cubins.write_bytes(raw)


@pytest.mark.parametrize("name", ["a bit of the cubin", "cut", "no file", "warps", "unknown",
                                  "place", "bomb", "shared", "symbol"])
def test_a_damaged_entry_is_compiled_instead_with_one_warning(name, shipped, compiled, caplog):
    (key,) = keys_of(CONFIG)
    damaged(name, shipped.folder, key)
    pack._found.cache_clear()
    assert not build(PROBLEM, CONFIG, DEVICE).cached and build(PROBLEM, CONFIG, DEVICE).cached
    assert len(compiled) == 1 and not Builder.key(PROBLEM, CONFIG, DEVICE).startswith("shipped")
    warnings = [x.getMessage() for x in caplog.records if "compiled instead" in x.getMessage()]
    assert len(warnings) == 1 and str(shipped.folder) in warnings[0]
    check = doctor._shipped(False)
    assert not check.ok and check.partly and "damaged" in check.detail


@pytest.mark.parametrize(("name", "reason"), [
    ("line", "SHA-256"), ("head", "JSON"), ("newer", "upgrade"), ("field", "missing"),
    ("gone", "does not exist"), ("revision", "another revision"), ("arch", "is of sm_80")])
def test_a_pack_that_cannot_be_trusted_is_not_used_and_doctor_says_why(name, reason, shipped,
                                                                      compiled, caplog):
    path = shipped.folder / MANIFEST
    head, _, lines = path.read_text().partition("\n")
    values = json.loads(head)
    if name == "line":
        lines = lines.replace('"num_warps":4', '"num_warps":8', 1)
    elif name == "newer":
        values["schema_version"] = pack.SCHEMA_VERSION + 1
    elif name == "field":
        del values["triton"]
    elif name == "revision":
        values["device_code"] = "0" * 64
    elif name == "arch":
        values["arch"] = 80
    path.write_text((json.dumps(values) if name != "head" else head[:-1]) + "\n" + lines)
    if name == "gone":
        path.unlink()
    pack._found.cache_clear()
    assert not build(PROBLEM, CONFIG, DEVICE).cached and len(compiled) == 1
    said = [x for x in caplog.records if "shipped kernels are not used" in x.getMessage()]
    assert len(said) == (name != "arch")
    check = doctor._shipped(False)
    assert not check.ok and reason in check.detail and "cubins build" in check.fix


def test_doctor_says_how_many_by_which_compiler_from_which_revision(shipped):
    check = doctor._shipped(False)
    assert check.ok and "by Triton 3.6.0" in check.detail and str(shipped.folder) in check.detail
    assert f"{shipped.entries} for sm_90" in check.detail
    assert compiling.device_code_digest()[:12] in check.detail


@pytest.mark.parametrize(("cubins", "reason"), [
    (None, "tritongemm-cubins-sm90 is not installed"), ("off", "TRITONGEMM_CUBINS=off")])
def test_without_a_pack_calls_compile(cubins, reason, compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(pack.importlib.util, "find_spec", lambda name: None)
    with settings.override(cubins=cubins, cache_dir=tmp_path):
        assert not build(PROBLEM, CONFIG, DEVICE).cached
        check = doctor._shipped(False)
    assert not check.ok and reason in check.detail and not check.partly


def test_a_variable_that_changes_compiled_code_turns_shipped_binaries_off(shipped, compiled,
                                                                          monkeypatch):
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    assert not build(PROBLEM, CONFIG, DEVICE).cached
    assert "DISABLE_PTXAS_OPT" in doctor._shipped(False).detail
    monkeypatch.delenv("DISABLE_PTXAS_OPT")
    assert build(PROBLEM, CONFIG, DEVICE).cached and len(compiled) == 1


def test_the_installed_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = tmp_path / package_of(90)
    made = make(package, CONFIG)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with settings.override(cubins=None):
        found = pack.found(90)
    assert found.pack is not None and found.pack.folder == made.folder
    assert package_of(90) not in sys.modules


def test_a_key_of_another_compiler_does_not_matter(shipped, monkeypatch):
    monkeypatch.setattr(triton_version, "triton_version", lambda: "9.9")
    assert pack.holds(keys_of(CONFIG)[0], 90)


def test_the_setting_is_read(tmp_path):
    code = "from tritongemm import settings; print(settings.current().cubins)"
    for text, said in (("off", "off"), ("OFF", "off"), (str(tmp_path), str(tmp_path)),
                       ("", "None")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              cwd=Path(tritongemm.__file__).parent.parent, check=True,
                              env=settings.child_environment(TRITONGEMM_CUBINS=text))
        assert done.stdout.strip() == said


def test_a_manifest_of_another_kind_of_file_is_an_error(tmp_path):
    (tmp_path / MANIFEST).mkdir()
    with pytest.raises(DataFileError, match="folder"):
        Pack(tmp_path)
