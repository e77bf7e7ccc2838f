"""The CUDA rungs: one ``.cu`` file each, their parameters and limits, compiler and launcher."""

from __future__ import annotations

from pathlib import Path

#: Where the sources are.
SOURCES = Path(__file__).resolve().parent


def source_path(name: str) -> Path:
    """The ``.cu`` file ``name`` (without its suffix)."""
    return SOURCES / f"{name}.cu"
