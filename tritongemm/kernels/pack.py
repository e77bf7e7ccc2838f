"""Compiled kernels that come with the package: found, checked and loaded without a compiler.

A pack is a folder of two files, made by ``tritongemm cubins build``. The first line of
``manifest.jsonl`` says what the pack was made from; each other line describes one binary: its key
(``compile.launch_key``), launch parameters and tensor maps, and where its cubin lies in
``cubins.bin``, compressed by zlib. Lines are sorted by key.

An entry is trusted by the SHA-256 that its line has of the compressed cubin, the lines by the
SHA-256 that the first one has of them. Which compiler is installed does not matter: the manifest
records the one that made the binaries. The pack's folder is trusted as the package's own code is.

``prepared/`` holds the shipped calibrations and tables in a form that is read faster.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import logging
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tritongemm import settings
from tritongemm.device import known_devices
from tritongemm.errors import DataFileError
from tritongemm.kernels.revision import device_code_digest
from tritongemm.kernels.store import Binary, head_of, with_head
from tritongemm.records import atomic, prepared
from tritongemm.records.reading import Fields, open_regular, parse_json, read_bytes

SCHEMA_VERSION = 1
MANIFEST, CUBINS, PREPARED = "manifest.jsonl", "cubins.bin", "prepared"
#: Bytes of a manifest, of a compressed cubin and of an unpacked one that are read at most.
_MANIFEST_LIMIT, _ENTRY_LIMIT, _CUBIN_LIMIT = 256 << 20, 16 << 20, 64 << 20
_HEAD = ("schema_version", "arch", "triton", "compiler", "device_code", "entries", "sha256")
#: Field of the head that packs made before it lack.
_CHOICES = "choices"
_PLACE = ("key", "sha256", "offset", "packed_bytes", "cubin_bytes")

_log = logging.getLogger("tritongemm")


def package_of(arch: int) -> str:
    """The importable package that holds the pack of ``sm_<arch>``."""
    return f"tritongemm_cubins_sm{arch}"


class Pack:
    """An opened pack.

    Attributes:
        folder: where it lies.
        arch: architecture of all its binaries.
        entries: how many they are.
        triton: version of the Triton that compiled them.
        compiler: all that is known of the compiler, as ``triton_version.compiler_key`` has it.
        device_code: digest of the device code that was compiled.
        choices: digest of the tables, calibrations, code and settings that chose the binaries
            (``records/revision.py``); empty where that is not known.

    Raises:
        DataFileError: the manifest is missing, damaged, or of a newer version.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._path = folder, folder / MANIFEST
        first, _, self._lines = read_bytes(self._path, _MANIFEST_LIMIT).partition(b"\n")
        head = Fields(self._path, _parsed(self._path, first), 1, "head").only(_HEAD, (_CHOICES,))
        head.version(SCHEMA_VERSION)
        self.arch = head.integer("arch", 1, 10_000)
        self.entries = head.integer("entries", 0, 10**7)
        self.triton = head.word("triton")
        self.compiler = head.values["compiler"]
        self.device_code = head.text("device_code", 64)
        self.choices = head.text(_CHOICES, 64) if _CHOICES in head.values else ""
        if head.text("sha256", 64) != hashlib.sha256(self._lines).hexdigest():
            raise DataFileError(self._path, "the lines do not have the SHA-256 that the first one "
                                "says: the file was cut or altered; install the package again",
                                field="sha256")
        self._damaged: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return self._find(key) >= 0

    def keys(self) -> list[str]:
        """The keys of all binaries."""
        return [str(self._entry(line).values["key"]) for line in self._lines.splitlines()]

    def bytes(self) -> int:
        """Of both files, as far as they are there."""
        files = (self.folder / name for name in (MANIFEST, CUBINS))
        return sum(file.stat().st_size for file in files if file.exists())

    def load(self, key: str) -> Binary | None:
        """The binary of ``key``; None where it has none, or a damaged one, of which it warns once.
        """
        start = self._find(key)
        if start < 0 or key in self._damaged:
            return None
        try:
            return self._read(self._entry(self._lines[start:self._lines.index(b"\n", start)]))
        except DataFileError as error:
            self._damaged.add(key)
            _log.warning("tritongemm: %s; the kernel is compiled instead", error)
            return None

    def damage(self) -> list[DataFileError]:
        """What is wrong with each damaged binary, all of them read."""
        found = []
        for line in self._lines.splitlines():
            try:
                self._read(self._entry(line))
            except DataFileError as error:
                found.append(error)
        return found

    def _find(self, key: str) -> int:
        return self._lines.find(_start(key))

    def _entry(self, line: bytes) -> Fields:
        entry = Fields(self._path, _parsed(self._path, line))
        for name in _PLACE:
            if name not in entry.values:
                raise entry.error(name, "is missing")
        return entry

    def _read(self, entry: Fields) -> Binary:
        """Raises :class:`DataFileError`."""
        path = self.folder / CUBINS
        values = dict(entry.values)
        key, sha256, offset, packed_bytes, cubin_bytes = (values.pop(name) for name in _PLACE)
        entry.integer("offset", 0, 2**40)
        entry.integer("packed_bytes", 1, _ENTRY_LIMIT)
        entry.integer("cubin_bytes", 1, _CUBIN_LIMIT)
        with open_regular(path) as file:
            file.seek(offset)  # type: ignore[arg-type]
            packed = file.read(packed_bytes)  # type: ignore[arg-type]
        if hashlib.sha256(packed).hexdigest() != sha256:
            raise DataFileError(path, f"the binary {str(key)[:12]} does not have the SHA-256 of "
                                "the manifest: it was cut or altered; install the package again")
        unpacking = zlib.decompressobj()
        try:
            cubin = unpacking.decompress(packed, cubin_bytes + 1)  # type: ignore[operator]
        except zlib.error as error:
            raise DataFileError(path, f"the binary {str(key)[:12]} is not compressed by zlib: "
                                f"{error}") from error
        binary = with_head(values, cubin) if len(cubin) == cubin_bytes else None
        if binary is None:
            raise DataFileError(path, f"the binary {str(key)[:12]} cannot be launched as the "
                                "manifest says; install the package again")
        return binary


def _parsed(path: Path, line: bytes) -> object:
    try:
        return parse_json(path, line.decode())
    except UnicodeDecodeError as error:
        raise DataFileError(path, f"is not UTF-8: {error}") from error


def _start(key: str) -> bytes:
    """What the line of ``key``, and no other, begins with."""
    return b'{"key":"%s"' % key.encode()


def write(folder: Path, arch: int, triton: str, compiler: Mapping[str, object],
          binaries: Iterable[tuple[str, Binary]], choices: str = "") -> Pack:
    """Writes a pack of ``binaries``, each with its key. ``choices``: :attr:`Pack.choices`. Raises
    :class:`DataFileError`."""
    lines, parts, offset = [], [], 0
    for key, binary in sorted(binaries, key=lambda x: x[0]):
        packed = pack_cubin(binary.cubin)
        place = (key, hashlib.sha256(packed).hexdigest(), offset, len(packed), len(binary.cubin))
        lines.append(_dumped({**dict(zip(_PLACE, place, strict=True)), **head_of(binary)}))
        parts.append(packed)
        offset += len(packed)
    text = "".join(f"{line}\n" for line in lines)
    head = _dumped(dict(zip((*_HEAD, _CHOICES), (
        SCHEMA_VERSION, arch, triton, compiler, device_code_digest(), len(lines),
        hashlib.sha256(text.encode()).hexdigest(), choices), strict=True)))
    # The manifest describes the file of cubins, so that is written first.
    atomic.write_atomic(folder / CUBINS, b"".join(parts))
    atomic.write_atomic(folder / MANIFEST, f"{head}\n{text}")
    return Pack(folder)


def pack_cubin(cubin: bytes) -> bytes:
    """``cubin`` as a pack holds it."""
    return zlib.compress(cubin, 9)


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


# --- the pack of this installation --------------------------------------------------------------


@dataclass(frozen=True)
class FoundPack:
    """The pack that calls on one architecture use, or why there is none.

    Attributes:
        pack: None where none is used.
        reason: why, one phrase.
    """

    pack: Pack | None
    reason: str = ""


def found(arch: int) -> FoundPack:
    """The pack of ``sm_<arch>``: TRITONGEMM_CUBINS, else the installed package's. One that cannot
    be used is said once.

    With a variable set that changes what Triton compiles (:func:`settings.compiler_environment`,
    read each time, as Triton does) nothing that was compiled without it is used.
    """
    if environment := settings.compiler_environment():
        return FoundPack(None, f"{', '.join(sorted(environment))} changes what Triton compiles, so "
                         "nothing that is shipped is used")
    return _found(arch)


@functools.lru_cache(maxsize=8)
def _found(arch: int) -> FoundPack:
    folder = _folder(arch)
    if folder is None:
        off = settings.current().cubins == settings.OFF
        return FoundPack(None, "TRITONGEMM_CUBINS=off" if off else
                         f"the package {package_of(arch).replace('_', '-')} is not installed")
    try:
        opened = Pack(folder)
    except DataFileError as error:
        return _refused(str(error))
    if opened.arch != arch:
        return FoundPack(None, f"{opened.folder} is of sm_{opened.arch}, not of sm_{arch}")
    if opened.device_code != device_code_digest():
        return _refused(f"{opened.folder} was made from another revision of the kernels "
                        f"({opened.device_code[:12]}; these are {device_code_digest()[:12]})")
    return FoundPack(opened)


def _folder(arch: int) -> Path | None:
    named = settings.current().cubins
    if named is not None:
        return None if named == settings.OFF else Path(named)
    spec = importlib.util.find_spec(package_of(arch))
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def prepared_folders() -> tuple[Path, ...]:
    """Where packs keep what was made of calibrations and tables (``records/prepared.py``)."""
    found = dict.fromkeys(map(_folder, sorted({x.arch for x in known_devices().values()})))
    return tuple(folder / PREPARED for folder in found if folder is not None)


def _refused(reason: str) -> FoundPack:
    _log.warning("tritongemm: shipped kernels are not used: %s", reason)
    return FoundPack(None, reason)


def load(key: str, arch: int) -> Binary | None:
    """The shipped binary of a ``compile.launch_key``, or None."""
    pack = found(arch).pack
    return None if pack is None else pack.load(key)


def holds(key: str, arch: int) -> bool:
    """Whether :func:`load` would find the binary; a damaged one is known after it was read."""
    pack = found(arch).pack
    return pack is not None and key in pack and pack.load(key) is not None


def _forget() -> None:
    _found.cache_clear()
    prepared_folders.cache_clear()


settings.when_changed(_forget)
prepared.shipped.append(prepared_folders)
