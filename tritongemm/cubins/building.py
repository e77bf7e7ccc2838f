"""Compiling the binaries of a pack, and writing it and its wheel; needs no GPU.

Binaries go through the store (the cache folder), so that an interrupted build goes on where it was.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritongemm import __version__, settings
from tritongemm.cubins.choosing import Coverage, PackChoice, coverage
from tritongemm.device import DeviceSpec, device_named
from tritongemm.errors import CompileError
from tritongemm.kernels import pack, store
from tritongemm.kernels.compile import binary_key, launch_key, launches_of
from tritongemm.kernels.pack import Pack
from tritongemm.kernels.store import Binary
from tritongemm.kernels.triton_version import compiler_key, triton_version
from tritongemm.records import calibration, tables
from tritongemm.records.atomic import write_atomic
from tritongemm.records.revision import choices_digest
from tritongemm.workers.builder import Builder
from tritongemm.workers.compile_pool import compile_all

#: Choices that are compiled before the size of the pack is looked at again.
_AT_ONCE = 200


class PackBuilder(Builder):
    """Compiles for a pack: no pack that is installed serves instead."""

    def __init__(self, device: DeviceSpec) -> None:
        super().__init__(device)
        self._own = settings.override(cubins=settings.OFF)
        self._own.__enter__()


@dataclass(frozen=True)
class Built:
    """What a build made.

    Attributes:
        pack: the pack. packed_bytes: of its two files.
        failed: (key, reason) of what could not be compiled.
        full: the limit of its size left out binaries.
        served: of the problems that it was chosen for.
        wheel: where one was asked for.
    """

    pack: Pack
    packed_bytes: int
    failed: tuple[tuple[str, str], ...]
    full: bool
    served: Coverage
    wheel: Path | None = None


def build(wanted: Sequence[PackChoice], found: Sequence[PackChoice], folder: Path, arch: int, *,
          max_bytes: int, workers: int,
          progress: Callable[[int, int], None] = lambda done, total: None) -> Built:
    """Compiles what ``wanted`` launch, in that order, until the pack has ``max_bytes``, and writes
    the project of its package below ``folder``.

    Args:
        found: the choices that the pack is to serve, for :attr:`Built.served`.
        workers: compiling processes.
        progress: called with (choices whose binaries are there, to do).

    Raises:
        CompileError: no process that compiles can start, or nothing could be compiled.
        DataFileError: a file cannot be written.
    """
    binaries: dict[str, Binary] = {}
    failed: list[tuple[str, str]] = []
    packed_bytes, full = 0, False
    with settings.override(cubins=settings.OFF):
        for start in range(0, len(wanted), _AT_ONCE):
            part = wanted[start:start + _AT_ONCE]
            failed += _compile(part, workers, lambda done, total, start=start: progress(  # type: ignore
                start + done, len(wanted)))
            for choice in part:
                new = _stored(choice, binaries)
                size = sum(len(pack.pack_cubin(binary.cubin)) + _LINE_BYTES
                           for binary in new.values())
                full |= packed_bytes + size > max_bytes
                if not full:
                    binaries.update(new)
                    packed_bytes += size
            if full:
                break
    if not binaries:
        raise CompileError("nothing could be compiled" + (
            f": {failed[0][1]}" if failed else f" within {max_bytes} bytes"))
    into = _project(folder, arch)
    prepare(into / pack.PREPARED)
    made = pack.write(into, arch, triton_version(), compiler_key(arch), binaries.items(),
                      choices_digest())
    return Built(made, made.bytes(), tuple(failed), full, coverage(found, binaries))


def prepare(folder: Path) -> None:
    """Writes into ``folder`` what first calls read of the shipped calibrations and tables."""
    for old in folder.glob("*.bin"):
        old.unlink()
    root = settings.shipped_root()
    for path in sorted((root / "calibration").glob("*.json")):
        calibration.prepare(path, folder)
    for path in sorted((root / "tuned").glob("*/*.json")):
        tables.prepare(path, folder)


#: Of a binary in the manifest, about.
_LINE_BYTES = 700


def _compile(part: Sequence[PackChoice], workers: int,
             progress: Callable[[int, int], None]) -> list[tuple[str, str]]:
    """Compiles what the store does not have; (key, reason) of failures."""
    failed = []
    for slug in dict.fromkeys(choice.device for choice in part):
        device = device_named(slug)
        builds = {}
        for choice in part:
            if choice.device == slug and choice.config is not None:
                key = Builder.key(choice.problem, choice.config, device)
                if not Builder.stored(key):
                    builds[key] = (choice.problem, choice.config)
        outcomes = compile_all(((key, *what) for key, what in builds.items()), {"device": device},
                               target=f"{__name__}:PackBuilder", workers=workers,
                               progress=progress)
        failed += [(key, outcome.reason) for key, outcome in outcomes.items() if not outcome.ok]
    return failed


def _stored(choice: PackChoice, among: dict[str, Binary]) -> dict[str, Binary]:
    """The binaries of a choice that are not ``among`` them; empty where one is not in the store."""
    device, found = device_named(choice.device), {}
    assert choice.config is not None
    for launch in launches_of(choice.problem, choice.config, device):
        key = launch_key(launch, device.arch)
        if key not in among:
            binary = store.load(binary_key(launch, device.arch))
            if binary is None:
                return {}
            found[key] = binary
    return found


_PYPROJECT = """\
[build-system]
requires = ["setuptools>=70.1"]
build-backend = "setuptools.build_meta"
"""
_SETUP = """\
[metadata]
name = {distribution}
version = {version}
description = Compiled kernels of tritongemm {version} for sm_{arch}
license = MIT

[options]
python_requires = >=3.10
packages = {package}

[options.package_data]
{package} = {manifest}, {cubins}, {prepared}/*.bin
"""
_INIT = '"""Compiled kernels of tritongemm {version} for sm_{arch}: data alone."""\n'


def _project(folder: Path, arch: int) -> Path:
    """Writes the files beside the pack; its folder."""
    package = pack.package_of(arch)
    words = {"package": package, "distribution": package.replace("_", "-"),
             "version": __version__, "arch": arch, "manifest": pack.MANIFEST,
             "cubins": pack.CUBINS, "prepared": pack.PREPARED}
    write_atomic(folder / "pyproject.toml", _PYPROJECT)
    write_atomic(folder / "setup.cfg", _SETUP.format(**words))
    write_atomic(folder / package / "__init__.py", _INIT.format(**words))
    return folder / package


def wheel(folder: Path) -> Path:
    """Builds the wheel of a project that :func:`build` wrote, into ``folder/dist``, with this
    Python's setuptools; nothing is downloaded. Raises :class:`CompileError`."""
    into = folder / "dist"
    for made in (folder / "build", *folder.glob("*.egg-info")):  # pip packs what lies there, too
        shutil.rmtree(made, ignore_errors=True)
    words = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet",
             "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(into),
             str(folder))
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False)
    found = sorted(into.glob("*.whl"), key=lambda path: path.stat().st_mtime)
    if done.returncode or not found:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise CompileError(f"the wheel of {folder} could not be built: {lines[-1]}. It needs pip "
                           "and setuptools 70.1 or later")
    return found[-1]
