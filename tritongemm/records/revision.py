"""What choices depend on, as a digest: choices made under another one are out of date."""

from __future__ import annotations

import hashlib
from pathlib import Path

import tritongemm
from tritongemm import settings

#: Packages whose code chooses a config and names its binaries. Of ``kernels.device`` the pack has a
#: digest of its own.
_CODE = ("selection", "kernels")
#: Settings that choices depend on.
_SETTINGS = ("policy", "num_sms", "batch_invariant", "fp32")


def choices_digest() -> str:
    """SHA-256 of the tables, calibrations, device files and spaces that choices are read from, in
    the order in which they win, of the code that chooses and of its settings."""
    digest = hashlib.sha256()

    def add(folder: Path, pattern: str) -> None:
        for path in sorted(folder.glob(pattern)):
            name = path.relative_to(folder).as_posix()
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        digest.update(b"\0")

    for root in settings.config_roots():
        add(root, "**/*.json")
    for package in _CODE:
        add(Path(tritongemm.__file__).parent / package, "*.py")
    current = settings.current()
    digest.update(repr([(name, getattr(current, name)) for name in _SETTINGS]).encode())
    return digest.hexdigest()
