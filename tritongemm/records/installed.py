"""Versions of installed packages, without importing them."""

from __future__ import annotations

import importlib.metadata
import re

#: (torch, Triton) -> what was run with them; the table of docs/getting-started.md.
TESTED = {
    ("2.10", "3.6"): "compiled calls and transforms, without a GPU",
    ("2.11", "3.6"): "the GPU tests and the published measurements, on H100 and H200",
    ("2.11", "3.7"): "the GPU tests of one card and three benches, on an H100",
    ("2.11", "3.9"): "three quarters of the GPU tests, on an H100",
    ("2.12", "3.7"): "compiled calls, transforms and the native dispatcher, without a GPU",
    ("2.13", "3.7"): "all tests that need no GPU",
    ("2.15", "3.9"): "compiled calls, transforms and the native dispatcher, without a GPU; "
                     "torch 2.15 compiles no forward mode",
}


def version_of(distribution: str) -> str | None:
    """The installed version of ``distribution``, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """``"3.6.0+cu130"`` -> ``(3, 6, 0)``; what does not begin with a number -> ``()``."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def how_tested(torch: str, triton: str) -> str | None:
    """What of :data:`TESTED` was run with these versions, or None."""
    return TESTED.get((_minor(torch), _minor(triton)))


def _minor(version: str) -> str:
    return ".".join(map(str, release(version)[:2]))


def interpreter_obstacle(triton: str | None = None, numpy: str | None = None) -> str | None:
    """Why Triton's interpreter cannot work with what is installed, or None.

    Triton 3.6's interpreter turns one-element arrays into scalars in a way that numpy 2.4
    refuses ("only 0-dimensional arrays can be converted"); Triton 3.7 fixed it.

    Args:
        triton, numpy: versions; those installed if not given.
    """
    triton = triton or version_of("triton") or version_of("pytorch-triton")
    numpy = numpy or version_of("numpy")
    if triton is None:
        return "triton is not installed"
    if numpy is None:
        return "numpy is not installed"
    if release(triton) < (3, 7) and release(numpy) >= (2, 4):
        return (f"the interpreter of Triton {triton} does not work with numpy {numpy}; "
                "it needs numpy < 2.4")
    return None
