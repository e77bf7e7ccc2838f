"""Which Triton is installed."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def triton_version() -> str:
    """Triton's version without importing it; empty where it is not installed."""
    for name in ("triton", "pytorch-triton"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""
