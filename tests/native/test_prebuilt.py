"""Libraries that come with the package: which fit, what happens to the others, and the wheel."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import sysconfig
import zipfile
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from tritongemm import settings
from tritongemm.cli import main
from tritongemm.errors import UsageError
from tritongemm.native import abi, build, find, load, loading, stored, wheels
from tritongemm.native.abi import Abi, present

NEEDED = present()
PATCH = replace(NEEDED, torch=f"{NEEDED.minor}.99", revision="0" * 40)
MISFITS = {
    "source": replace(NEEDED, source="0" * 64),
    "python": replace(NEEDED, python="cpython-39-x86_64-linux-gnu"),
    "machine": replace(NEEDED, python=NEEDED.python.replace("x86_64", "riscv64") + "-other"),
    "minor version": replace(NEEDED, torch="2.9.1"),
    "debug": replace(NEEDED, debug=not NEEDED.debug),
    "std::string": replace(NEEDED, cxx11_abi=not NEEDED.cxx11_abi),
    "headers": replace(PATCH, headers="1" * 64),
    "no headers": PATCH,
    "no revision": replace(NEEDED, revision="Unknown"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_library_that_does_not_fit_is_refused_with_the_reason(name):
    reason = NEEDED.obstacle(MISFITS[name])
    assert reason is not None and ("it is for " in reason or "another revision" in reason)


def test_two_builds_of_one_revision_of_torch_fit():
    assert NEEDED.obstacle(NEEDED) is None
    cuda = replace(NEEDED, torch=NEEDED.torch.split("+")[0] + "+cu130", revision="a" * 40)
    assert replace(cuda, torch=NEEDED.torch).obstacle(cuda) is None


def test_a_patch_release_fits_if_the_headers_are_the_same():
    assert NEEDED.obstacle(replace(PATCH, headers=abi.header_digest())) is None


def test_the_digest_of_headers_sees_their_text_and_not_torchs_version(tmp_path, monkeypatch):
    folder = tmp_path / "include/c10/core"
    folder.mkdir(parents=True)
    monkeypatch.setattr("torch.__file__", str(tmp_path / "__init__.py"))
    digest = abi.header_digest.__wrapped__
    found = [digest()]
    for name, text in (("A.h", "int x;"), ("A.h", "long x;"), ("B.h", ""), ("version.h", "1")):
        (folder / name).write_text(text)
        found.append(digest())
    assert found[0] == "" and len({*found}) == 4 and found[-1] == found[-2]


@pytest.fixture
def prebuilt(compiler, tmp_path, monkeypatch):
    """put(abi): a library of the package, built for it."""
    monkeypatch.setattr(loading, "PREBUILT", tmp_path / "prebuilt")

    def put(built: Abi = NEEDED, tag: str = NEEDED.tag) -> stored.Stored:
        return stored.write(loading.PREBUILT / tag, b"of the package", built)

    return put


def again() -> loading.FoundLibrary:
    loading._loaded.clear()
    return find()


def test_a_library_of_the_package_is_loaded_before_that_of_the_cache(prebuilt, compiler):
    own = prebuilt()
    assert find() == (compiler_module(own), own.path, None, None)
    build()
    assert again().path == own.path


def compiler_module(library: stored.Stored):
    """As the fixture ``compiler`` imports it."""
    return loading._imported(library.path)


def damage(own: stored.Stored) -> None:
    own.path.write_bytes(b"of the packagf")


def manifest_lost(own: stored.Stored) -> None:
    own.path.with_name(stored.MANIFEST).write_text("")


@pytest.mark.parametrize(("spoil", "said"), [
    (damage, "is damaged. Install the package again"), (manifest_lost, "is empty")])
def test_a_damaged_one_is_not_loaded_and_the_cache_serves(prebuilt, spoil, said):
    spoil(prebuilt())
    found = again()
    assert found.module is None and said in found.refused and found.obstacle == loading.NOT_BUILT
    cached = build()
    assert again().path == cached.path and said in find().refused


@pytest.mark.parametrize("reading", ("tritongemm.native.stored.read",
                                     "tritongemm.native.abi.header_digest"))
def test_one_that_cannot_be_read_is_replaced_by_the_caches(prebuilt, monkeypatch, reading):
    cached = build()
    own = prebuilt(replace(PATCH, headers="1" * 64) if "digest" in reading else NEEDED)
    read = stored.read

    def denied(folder=own.path.parent):
        if folder != own.path.parent:
            return read(folder)
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(reading, denied)
    found = again()
    assert found.path == cached.path
    assert found.refused == f"{own.path.parent} cannot be read: Permission denied"


@pytest.mark.parametrize("name", MISFITS)
def test_one_that_does_not_fit_is_not_loaded(prebuilt, name):
    """Not even where its folder says that it does."""
    prebuilt(MISFITS[name])
    found = again()
    assert found.module is None and found.refused is not None
    assert found.refused.endswith(NEEDED.obstacle(MISFITS[name]))


def test_a_package_with_libraries_of_other_torchs_says_which(prebuilt):
    other = MISFITS["minor version"]
    prebuilt(other, other.tag)
    assert find().refused == f"the package has none for {NEEDED.tag}; it has {other.tag}"


def test_one_that_cannot_be_imported_is_replaced_by_the_caches(prebuilt, monkeypatch):
    """As one for a later C library."""
    own, imported = prebuilt(), loading._imported

    def importing(path):
        if path == own.path:
            raise ImportError("version `GLIBC_2.99' not found")
        return imported(path)

    monkeypatch.setattr(loading, "_imported", importing)
    assert "GLIBC_2.99" in again().refused
    assert again().obstacle == loading.NOT_BUILT
    assert build().path == again().path


def test_auto_builds_only_where_the_package_has_none_that_fits(prebuilt, automatic, caplog):
    prebuilt()
    assert load(lambda: None) is not None and not automatic.started
    prebuilt(MISFITS["minor version"])
    loading._loaded.clear()
    assert load(lambda: None) is None and len(automatic.started) == 1
    assert not [x for x in caplog.records if x.levelname == "WARNING"]  # it is built soon


def test_doctor_names_the_library_or_why_it_is_refused(prebuilt):
    from tritongemm.cli.doctor import _native

    own = prebuilt()
    assert _native().ok and _native().detail == str(own.path)
    prebuilt(MISFITS["minor version"])
    loading._loaded.clear()
    said = str(_native())
    assert not _native().ok and "it is for torch 2.9; this is torch" in said
    cached = build()
    said = str(_native())
    assert _native().ok and str(cached.path) in said and "it is for torch 2.9" in said


def test_the_command_builds_nothing_where_the_package_has_a_library(prebuilt, compiler, capsys):
    own = prebuilt()
    assert main(["native"]) == 0 and compiler.calls == 0
    assert f"the package has one that fits: {own.path}" in capsys.readouterr().out
    assert main(["native", "--again"]) == 0 and compiler.calls == 1


# --- the wheel ----------------------------------------------------------------------------------

PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")
ABOUT = "tritongemm-1.0.dist-info/"


def wheel_of(folder, name="tritongemm-1.0-py3-none-any.whl", source=None):
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tritongemm/__init__.py", "")
        archive.writestr("tritongemm/native/dispatcher.cpp",
                         abi.SOURCE.read_bytes() if source is None else source)
        archive.writestr(ABOUT + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\n"
                                          "Root-Is-Purelib: true\nTag: py3-none-any\n\n")
        archive.writestr(ABOUT + "RECORD", "")
    return path


def test_a_wheel_holds_a_library_for_each_torch(compiler, tmp_path):
    pure, one = wheel_of(tmp_path), build()
    made = wheels.add(pure, one, tmp_path / "out")
    assert made == tmp_path / "out" / f"tritongemm-1.0-py3-none-{PLATFORM}.whl" and pure.exists()
    other = replace(one, abi=MISFITS["minor version"])
    for _ in range(2):  # a second time it is replaced
        assert wheels.add(made, other, made.parent) == made
    archive = zipfile.ZipFile(made)
    names = archive.namelist()
    assert len(names) == len({*names})
    about = archive.read(ABOUT + "WHEEL").decode()
    assert f"Tag: py3-none-{PLATFORM}\n" in about and "Root-Is-Purelib: false\n" in about
    archive.extractall(tmp_path / "installed")
    for library in (one, other):
        folder = tmp_path / "installed/tritongemm/native/prebuilt" / library.abi.tag
        found = stored.read_whole(folder)
        assert (found.abi, found.sha256) == (library.abi, library.sha256)
    rows = {name: (digest, size) for name, digest, size
            in csv.reader(io.StringIO(archive.read(ABOUT + "RECORD").decode()))}
    assert {*rows} == {*names} and rows.pop(ABOUT + "RECORD") == ("", "")
    for name, (digest, size) in rows.items():
        raw = archive.read(name)
        assert int(size) == len(raw) and digest == "sha256=" + base64.urlsafe_b64encode(
            hashlib.sha256(raw).digest()).rstrip(b"=").decode()


@pytest.mark.parametrize(("name", "said"), [
    ("tritongemm-1.0-py3-none-macosx_11_0_arm64.whl", "no wheel of tritongemm for"),
    ("torch-2.11.0-py3-none-any.whl", "no wheel of tritongemm for")])
def test_a_wheel_of_another_platform_or_package_is_refused(compiler, tmp_path, name, said):
    with pytest.raises(UsageError, match=said):
        wheels.add(wheel_of(tmp_path, name), build(), tmp_path)


def test_a_wheel_of_another_revision_or_a_damaged_one_is_refused(compiler, tmp_path):
    with pytest.raises(UsageError, match="another revision of dispatcher.cpp"):
        wheels.add(wheel_of(tmp_path, source="// other"), build(), tmp_path)
    path = wheel_of(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UsageError, match="no whole wheel"):
        wheels.add(path, build(), tmp_path)
    path.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        wheels.add(path, build(), tmp_path)


def test_a_library_that_others_may_have_written_gets_into_no_wheel(compiler, tmp_path):
    """Even where its manifest fits what was written."""
    honest = build()
    evil = stored.write(honest.path.parent, b"of another user", honest.abi)
    evil.path.chmod(0o666)
    made = wheels.add(wheel_of(tmp_path), build(), tmp_path / "out")
    archive = zipfile.ZipFile(made)
    assert b"of another user" not in map(archive.read, archive.namelist())
    assert compiler.calls == 2


def test_the_command_adds_the_library_to_a_wheel(compiler, tmp_path, capsys):
    wheel = wheel_of(tmp_path)
    with settings.override(native="on"):
        assert main(["native", "--wheel", str(wheel), "--into", str(tmp_path / "out")]) == 0
        said = capsys.readouterr().out
        (made,) = (tmp_path / "out").iterdir()
        assert str(made) in said and NEEDED.torch in said
        assert main(["native", "--into", str(tmp_path)]) == 2
        assert "--into needs --wheel" in capsys.readouterr().err
        assert main(["native", "--wheel", str(tmp_path / "none.whl")]) == 2
