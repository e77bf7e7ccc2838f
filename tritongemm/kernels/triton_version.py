"""Which Triton is installed, and exactly which compiler that is."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tritongemm import settings
from tritongemm.errors import DataFileError
from tritongemm.records import sealed
from tritongemm.records.installed import version_of

#: What Triton's own cache hashes of it: all Python of these folders, and the library.
_SOURCES = ("compiler", "backends", "language")
_LIBRARY = "_C"
#: From this architecture on Triton calls the other assembler.
_BLACKWELL = 100


@functools.cache
def triton_version() -> str:
    """Triton's version without importing it; empty where it is not installed."""
    return version_of("triton") or version_of("pytorch-triton") or ""


def compiler_key(arch: int) -> dict[str, object]:
    """All that decides which code the compiler makes for ``sm_<arch>``, beside what it is given:
    Triton's version and a digest of its files, the assembler, and the variables that change code
    (:func:`settings.compiler_environment`).

    It names no folder of the installation: a cache may be copied to another machine.
    """
    environment = settings.compiler_environment()
    return {"triton": triton_version(), "build": _build(),
            "ptxas": _assembler(environment.get(
                "TRITON_PTXAS_BLACKWELL_PATH" if arch >= _BLACKWELL else "TRITON_PTXAS_PATH", "")),
            "environment": environment}


def _build() -> str:
    """A digest of what the installed Triton's compiler is made of; empty where there is none.
    Triton is not imported."""
    try:
        spec = importlib.util.find_spec("triton")
    except ValueError:  # an import that was cut short
        spec = None
    return "" if spec is None or spec.origin is None else build_digest(Path(spec.origin).parent)


@functools.cache
def build_digest(package: Path) -> str:
    """A digest of the compiler's files in Triton's folder ``package``.

    The library has 460 MB, which take 0.4 to 1.1 s to hash. So the digest is kept in the cache
    folder, by the sizes and times of the files.
    """
    files = sorted(path for path in _compiler_files(package) if path.is_file())
    stats = "\n".join(f"{path.relative_to(package)} {info.st_size} {int(info.st_mtime)}"
                      for path in files for info in (path.stat(),))
    key = hashlib.sha256(f"{package}\n{stats}".encode()).hexdigest()
    root = settings.cache_root() / "compilers"
    kept = sealed.read(root / key, key, root)
    if kept is not None:
        return kept.decode()
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(package)}\0{_digest(path)}\0".encode())
    try:
        sealed.write(root / key, key, digest.hexdigest().encode())
    except DataFileError:  # the store says so too, where it keeps what this is for
        pass
    return digest.hexdigest()


def _compiler_files(package: Path) -> Iterator[Path]:
    for folder in _SOURCES:
        yield from (package / folder).rglob("*.py")
    yield from (package / _LIBRARY).glob("libtriton*.so")
    yield from package.glob("backends/nvidia/bin/ptxas*")
    yield package / "runtime" / "cache.py"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@functools.cache
def _assembler(path: str) -> str:
    """What a ptxas that the user names says of itself; empty for Triton's own, which
    :func:`build_digest` covers."""
    if not path or not os.path.isfile(path):  # Triton then takes its own
        return ""
    try:
        done = subprocess.run([path, "--version"], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace", timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{path}: {type(error).__name__}"
    return f"{path}: {done.stdout}"
