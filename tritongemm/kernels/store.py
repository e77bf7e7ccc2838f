"""The store of compiled kernels, shared by all processes of a user: one sealed file a binary.

An entry is found by its key, which names all that made it (``compile.binary_key``). What is not
whole is a miss: the binary is compiled again and the file replaced.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tritongemm import settings
from tritongemm.records import sealed

#: Of an entry's layout. Each has a folder: another version of this package may share the cache.
VERSION = 2


@dataclass(frozen=True)
class Binary:
    """A compiled kernel.

    Attributes:
        symbol: its name in the cubin.
        num_warps: warps a program, worker warps of a warp-specialised kernel included.
        shared_bytes, registers, spills: resources a program; a thread; 32-bit words a thread.
            None: the tool that reads them is missing.
        maps: a descriptor's parameters for the driver, in argument order: swizzle, element size
            and type, box.
        parameters: (bytes, alignment) of each parameter of the entry point, in order.
    """

    symbol: str
    cubin: bytes
    num_warps: int
    num_ctas: int
    shared_bytes: int
    registers: int | None
    spills: int | None
    maps: tuple[dict, ...]
    parameters: tuple[tuple[int, int], ...]


def encode(binary: Binary) -> bytes:
    """The content of ``binary``'s entry: a line of JSON, then the cubin."""
    return json.dumps(head_of(binary)).encode() + b"\n" + binary.cubin


def decode(content: bytes) -> Binary | None:
    """The binary of an entry's content; None where it cannot be launched as it says."""
    head, _, cubin = content.partition(b"\n")
    try:
        return with_head(json.loads(head), cubin)
    except (ValueError, RecursionError):
        return None


def head_of(binary: Binary) -> dict[str, object]:
    """All of ``binary`` but the cubin, as JSON."""
    return {name: value for name, value in asdict(binary).items() if name != "cubin"}


def with_head(head: object, cubin: bytes) -> Binary | None:
    """The binary of a :func:`head_of` and its cubin; None where it cannot be launched as it says.
    """
    try:
        values = dict(head)  # type: ignore[call-overload]
        values["maps"] = tuple(values["maps"])
        values["parameters"] = tuple(tuple(p) for p in values["parameters"])
        binary = Binary(cubin=cubin, **values)
        return binary if _launchable(binary) else None
    except (ValueError, KeyError, TypeError):
        return None


def _launchable(binary: Binary) -> bool:
    """Whether every value is one that a launch can have.

    Limits are those of every architecture so far: 1,024 threads a block, 16 blocks a cluster; and
    what the driver accepts of shared memory is below 256 KiB.
    """
    return (isinstance(binary.symbol, str) and binary.symbol.isidentifier()
            and whole_cubin(binary.cubin)
            and _integer(binary.num_warps, 1, 32) and _integer(binary.num_ctas, 1, 16)
            and _integer(binary.shared_bytes, 0, 256 * 1024)
            and all(x is None or _integer(x, 0, 2**31)
                    for x in (binary.registers, binary.spills))
            and all(_is_map(x) for x in binary.maps)
            and all(len(p) == 2 and all(_integer(x, 1, 4096) for x in p)
                    for p in binary.parameters))


def _integer(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _is_map(entry: dict) -> bool:
    return (_integer(entry["swizzle"], 0, 15) and _integer(entry["elem_type"], 0, 15)
            and all(_integer(x, 1, 1024) for x in entry["block_size"]))


def whole_cubin(cubin: bytes) -> bool:
    """Whether ``cubin`` is a 64-bit ELF file for CUDA whose tables lie inside it: one that was cut
    ends the process that loads it."""
    if len(cubin) < 64 or cubin[:5] != b"\x7fELF\x02" or cubin[18:20] != b"\xbe\x00":
        return False
    for place, size_at in ((32, 54), (40, 58)):  # of program headers, of section headers
        offset = int.from_bytes(cubin[place:place + 8], "little")
        size = int.from_bytes(cubin[size_at:size_at + 2], "little")
        count = int.from_bytes(cubin[size_at + 2:size_at + 4], "little")
        if offset + size * count > len(cubin):
            return False
    return True


def root() -> Path:
    """The folder of all entries of this layout."""
    return settings.cache_root() / "binaries" / f"v{VERSION}"


def store_path(key: str) -> Path:
    """The file of a binary."""
    return root() / key[:2] / f"{key}.bin"


def load(key: str) -> Binary | None:
    """A stored binary; None where there is none, or none that may be used."""
    content = sealed.read(store_path(key), key, root())
    return None if content is None else decode(content)


def holds(key: str) -> bool:
    """Whether :func:`load` would find the binary."""
    return load(key) is not None


def save(key: str, binary: Binary) -> None:
    """Writes or replaces an entry. Raises :class:`DataFileError`."""
    sealed.write(store_path(key), key, encode(binary))


@dataclass(frozen=True)
class StoreReport:
    """What a check of the store found.

    Attributes:
        whole: entries that a call may load.
        damaged: files that are cut or altered.
        foreign: files of another user, or that others may write to; none of them is loaded.
        removed: how many of the last two are gone now.
    """

    whole: int
    damaged: int
    foreign: int
    removed: int


def check() -> StoreReport:
    """Reads every entry and removes the damaged ones, and the user's own that others may write
    to: the next call that needs one compiles it. Files of other users stay."""
    found: Counter[str] = Counter()
    removed = 0
    for path in sorted(root().glob("*/*.bin")):
        state, content = sealed.look(path, path.stem)
        if state == sealed.WHOLE and decode(content) is None:
            state = sealed.DAMAGED
        found[state] += 1
        if state in (sealed.DAMAGED, sealed.FOREIGN):
            removed += _remove(path)
    return StoreReport(found[sealed.WHOLE], found[sealed.DAMAGED], found[sealed.FOREIGN], removed)


def _remove(path: Path) -> bool:
    """Whether ``path``, if it is this user's, could be removed."""
    try:
        if path.lstat().st_uid != os.geteuid():
            return False
        path.unlink()
    except OSError:
        return False
    return True
