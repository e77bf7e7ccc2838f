"""Compiles ``dispatcher.cpp`` for the torch and the Python of this process.

torch's C++ interface changes from one minor version to the next, so the library is stored in the
cache folder under a hash of its source and of what is known of torch and Python.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from tritongemm import settings
from tritongemm.errors import CompileError, DataFileError
from tritongemm.native import stored
from tritongemm.native.abi import SOURCE, present
from tritongemm.native.stored import Stored
from tritongemm.records.atomic import write_atomic, write_error
from tritongemm.records.reading import read_text

COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 600
#: What a compiler says of failures that may pass: a part of it was killed, a disk or the memory is
#: full.
_PASSING = ("Killed signal terminated", "No space left on device", "annot allocate memory",
            "out of memory")


@functools.cache
def _key() -> str:
    abi = present()
    parts = (abi.source, abi.torch, abi.revision, str(abi.debug), str(abi.cxx11_abi), abi.python)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def folder() -> Path:
    """The folder of the cache for this torch and this Python, whether or not it exists."""
    return settings.cache_root() / "native" / _key()


def _failure_file() -> Path:
    return folder() / "failed.txt"


def failure() -> str | None:
    """Why the last build for this torch and this Python failed; None where none did."""
    try:
        return read_text(_failure_file())
    except (OSError, DataFileError):
        return None


def compiler_path() -> str | None:
    """The C++ compiler that would be used; None where there is none on PATH."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def command(compiler: str, target: Path) -> list[str]:
    """The command line that compiles and links the library."""
    import torch

    root = Path(torch.__file__).parent
    include = root / "include"
    headers = (include, include / "torch" / "csrc" / "api" / "include",
               sysconfig.get_paths()["include"])
    return [compiler, "-O2", "-std=c++20", "-fPIC", "-shared", "-fvisibility=hidden", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{path}" for path in headers), str(SOURCE), "-o", str(target),
            f"-L{root / 'lib'}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"]


def build(*, again: bool = False) -> Stored:
    """Compiles the library into the cache folder if it is not there whole, or, with ``again``, in
    any case. Takes about 20 s.

    Raises:
        CompileError: there is no C++ compiler, or it fails; the message ends with its last lines,
            and :func:`failure` returns it from then on.
        DataFileError: a file cannot be written, or others may write to the folder.
    """
    if not again and (found := _built()):
        return found
    compiler = compiler_path()
    if compiler is None:
        raise CompileError(f"no C++ compiler: none of {', '.join(COMPILERS)} is on PATH. Install "
                           "one; without it the Python path runs every call")
    import filelock  # takes longer than the rest of what a first call imports of this folder

    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        foreign = stored.foreign(place)
    except OSError as error:
        raise write_error(place, error) from error
    if foreign is not None:
        raise DataFileError(foreign, stored.FOREIGN)
    try:
        with filelock.FileLock(place / "lock", timeout=_SECONDS), tempfile.TemporaryDirectory(
                dir=place) as temporary:
            if not again and (found := _built()):  # another process has built it meanwhile
                return found
            return _compiled(compiler, place, Path(temporary, "library.so"))
    except (filelock.Timeout, NotImplementedError) as error:
        raise CompileError(f"{place / 'lock'} cannot be had within {_SECONDS} s: another process "
                           "holds it, or the file system has no locks; choose another folder with "
                           "TRITONGEMM_CACHE_DIR") from error
    except OSError as error:
        raise write_error(place, error) from error


def _compiled(compiler: str, place: Path, made: Path) -> Stored:
    """Compiles to ``made``, and stores it in the folder ``place``."""
    try:
        done = subprocess.run(command(compiler, made), capture_output=True, text=True,
                              timeout=_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{compiler} took more than {_SECONDS} s for {SOURCE.name}") from error
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-12:])
        reason = f"{compiler} could not compile {SOURCE.name}:\n{last}"
        # A compiler that was killed, itself or a part of it, may succeed next time.
        if done.returncode > 0 and not any(said in done.stderr for said in _PASSING):
            write_atomic(_failure_file(), reason)
        raise CompileError(reason)
    _failure_file().unlink(missing_ok=True)
    return stored.write(place, made.read_bytes(), present(headers=True))


def _built() -> Stored | None:
    """The library of the cache folder, where it may be loaded or passed on."""
    place = folder()
    try:
        found = stored.read_whole(place)
        if found is None or stored.foreign(place, found) or present().obstacle(found.abi):
            return None
        return found
    except (OSError, DataFileError):
        return None
