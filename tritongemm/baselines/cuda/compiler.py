"""CUDA C++ -> cubin through NVRTC, with no GPU needed, kept on disk.

Only cubins for a named architecture are made: PTX and the default architecture ask the driver.
NVRTC brings no headers, so a source includes only files of its own folder, which are put in its
text here; parameters reach it as macros.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tritongemm import settings
from tritongemm.baselines.cuda.launcher import CudaKernel
from tritongemm.baselines.cuda.resources import Resources
from tritongemm.errors import (
    CompileError,
    DataFileError,
    DeviceError,
    MissingDependencyError,
    UsageError,
    install_command,
    missing,
)
from tritongemm.records import sealed
from tritongemm.records.reading import read_text

_log = logging.getLogger(__name__)
#: Changes when the layout of a stored cubin changes.
_STORE_VERSION = 2
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
_INCLUDE = re.compile(r'#include "(\w+\.cuh)"\Z')
_ARCH = re.compile(r"sm_\d{2,3}[af]?\Z")


def compile_cuda(source: str | Path, name: str, macros: Mapping[str, object] | None = None, *,
                 arch: int | str | None = None, options: Sequence[str] = ()) -> CudaKernel:
    """Compiles one ``extern "C"`` kernel, or takes it from the disk cache.

    >>> kernel = compile_cuda(text, "scale", {"THREADS": 256})          # doctest: +SKIP
    >>> kernel.launch(grid, 256, [x, np.float32(2), np.int32(x.numel())])  # doctest: +SKIP

    Args:
        source: CUDA C++ text, or the path of a ``.cu`` file (:func:`read_source`). No headers.
        name: the kernel's name, declared ``extern "C" __global__``.
        macros: name -> int, float, bool or text, as ``-D`` would define them.
        arch: ``90`` or ``"sm_90"``, ``"sm_90a"``; None: of the current CUDA device.
        options: more options for ptxas, e.g. ``("-O1",)``.

    Returns:
        The kernel with its ``resources``; it is loaded at its first launch on a device.

    Raises:
        CompileError: NVRTC's log, with file, line and the source line.
        MissingDependencyError: cuda-core, cuda-bindings or NVRTC is not installed.
        DeviceError: no ``arch`` was given and there is no CUDA device.
        UsageError: a name that is no identifier, a macro's value of another type.
        DataFileError: the source file cannot be read.
    """
    text, label = _source_text(source, name)
    if not isinstance(name, str) or not _IDENTIFIER.match(name):
        raise UsageError(f"kernel name {name!r} is not an identifier")
    defines = _defines(macros or {})
    target = _target(arch)
    version = _nvrtc_version()

    key = hashlib.sha256(json.dumps([_STORE_VERSION, text, name, defines, target, list(options),
                                     version]).encode()).hexdigest()
    path = settings.cache_root() / "cuda" / f"{name}-{target}-{key[:24]}.cubin"
    stored = _load(path, key)
    if stored is not None:
        code, log, resources = stored
        return CudaKernel(name, target, code, resources, log, seconds=0.0, cached=True)

    start = time.perf_counter()
    code, log = _compile(text, label, defines, target, options)
    resources = read_resources(log, name)
    if resources is None and defines_kernel(code, name):
        # With a driver at hand NVRTC keeps binaries in its own cache, and a hit has no log.
        code, log = _compile(text, label, defines, target, options, fresh=True)
        resources = read_resources(log, name)
    if not defines_kernel(code, name):
        raise CompileError(f"{label} defines no kernel {name!r} for {target}; declare it "
                           f'extern "C" __global__. The compiler said:\n{log}')
    if resources is None:
        raise CompileError(f"{label} compiled for {target}, but NVRTC {version} does not say what "
                           f"{name!r} takes. It said:\n{log or '(nothing)'}")
    _store(path, key, code, log, resources)
    return CudaKernel(name, target, code, resources, log, time.perf_counter() - start,
                      cached=False)


def read_resources(log: str, name: str) -> Resources | None:
    """The resources of kernel ``name`` in the output of ``ptxas -v``; None if it is not there."""
    section = re.search(rf"Compiling entry function '{re.escape(name)}' for.*?"
                        r"(?=Compiling entry function|\Z)", log, re.DOTALL)
    if section is None:
        return None

    def number(pattern: str) -> int:
        found = re.search(pattern, section.group())
        return int(found.group(1)) if found else 0

    return Resources(
        registers=number(r"Used (\d+) registers"),
        spill_bytes=number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads"),
        stack_bytes=number(r"(\d+) bytes stack frame"),
        shared_bytes=number(r"(\d+) bytes smem"))


def defines_kernel(code: bytes, name: str) -> bool:
    """Whether a cubin holds code under the plain (``extern "C"``) name ``name``."""
    return b".text." + name.encode() + b"\0" in code


def read_source(path: Path) -> str:
    """The text of a ``.cu`` file, each line ``#include "NAME.cuh"`` replaced by that file, which is
    beside it. Raises :class:`DataFileError` for a file that cannot be read."""
    lines = _read(path).splitlines()
    for index, line in enumerate(lines):
        if included := _INCLUDE.match(line):
            name = included.group(1)
            lines[index] = (f'#line 1 "{name}"\n{_read(path.with_name(name))}'
                            f'#line {index + 2} "{path.name}"')
    return "\n".join(lines) + "\n"


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except DataFileError as error:
        raise DataFileError(path, f"cannot be read as CUDA source: {error.reason}") from error


def _source_text(source: str | Path, name: str) -> tuple[str, str]:
    if isinstance(source, Path):
        return read_source(source), source.name
    if not isinstance(source, str):
        raise UsageError(f"source is a {type(source).__name__}; give CUDA C++ text or a Path")
    return source, f"{name}.cu"


def _defines(macros: Mapping[str, object]) -> list[tuple[str, str]]:
    for key, value in macros.items():
        if not isinstance(key, str) or not _IDENTIFIER.match(key):
            raise UsageError(f"macro name {key!r} is not an identifier")
        if not isinstance(value, (bool, int, float, str)):
            raise UsageError(f"macro {key}={value!r} is a {type(value).__name__}; "
                             "give an int, a float, a bool or text")
    return sorted((key, str(int(value)) if isinstance(value, bool) else str(value))
                  for key, value in macros.items())


def _target(arch: int | str | None) -> str:
    if arch is None:
        import torch

        if not torch.cuda.is_available():
            raise DeviceError("there is no CUDA device to take the architecture from; "
                              'give one, e.g. arch="sm_90"')
        major, minor = torch.cuda.get_device_capability()
        return f"sm_{major}{minor}"
    target = f"sm_{arch}" if isinstance(arch, int) else arch
    if not isinstance(target, str) or not _ARCH.match(target):
        raise UsageError(f"arch={arch!r} is not an architecture; use e.g. 90 or 'sm_90'")
    return target


def _nvrtc_version() -> str:
    """``13.0``. Raises :class:`MissingDependencyError`, and names what is missing."""
    what = "compiling CUDA kernels"
    try:
        import cuda.core  # noqa: F401
    except ImportError as error:
        raise missing("cuda-core", "cuda", what) from error
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise missing("cuda-bindings (cuda-core's extra [cu12] or [cu13])", "cuda",
                      what) from error
    try:
        _, major, minor = nvrtc.nvrtcVersion()
    except (RuntimeError, OSError, ImportError) as error:  # the library itself is not there
        raise MissingDependencyError(
            f"{what} needs the NVRTC library, which cannot be loaded ({error}). "
            f"Run: {install_command('cuda')}") from error
    return f"{major}.{minor}"


def _compile(text: str, label: str, defines: list[tuple[str, str]], target: str,
             options: Sequence[str], fresh: bool = False) -> tuple[bytes, str]:
    """The cubin and what the compiler said; ``fresh``: never from NVRTC's own cache."""
    from cuda.core import Program, ProgramOptions

    log = io.StringIO()
    try:
        program = Program(text, "c++", ProgramOptions(
            name=label, arch=target, define_macro=defines or None, ptxas_options=["-v", *options],
            no_cache=fresh or None))
        code = program.compile("cubin", logs=log).code
    except Exception as error:  # cuda.core keeps its error classes private
        shown = " ".join(f"-D{k}={v}" for k, v in defines)
        raise CompileError(f"{label} does not compile for {target} ({shown or 'no macros'}): "
                           f"{str(error).strip()}") from error
    return bytes(code), log.getvalue().replace("\0", "").strip()


def _load(path: Path, key: str) -> tuple[bytes, str, Resources] | None:
    """A stored cubin; None if there is none that may be used (it is then made again)."""
    content = sealed.read(path, key, path.parent)
    if content is None:
        if path.exists():
            _log.warning("cached kernel %s is damaged or foreign; it is compiled again", path.name)
        return None
    header, _, code = content.partition(b"\n")
    meta = json.loads(header)
    return code, meta["log"], Resources(**meta["resources"])


def _store(path: Path, key: str, code: bytes, log: str, resources: Resources) -> None:
    meta = {"log": log, "resources": asdict(resources)}
    try:
        sealed.write(path, key, json.dumps(meta).encode() + b"\n" + code)
    except DataFileError as error:
        _log.warning("compiled kernel is not cached: %s", error)
