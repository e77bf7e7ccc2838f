"""Whether this Triton can be trusted with the Gluon kernels; where not, the ``tl`` kernels run.

Gluon is experimental: its interface changes between minor versions. Those that the tests compile
for are known; a newer one, or one whose Gluon cannot be imported, is not used, and ``tritongemm
doctor`` says so. Nothing here imports Triton: a call with a stored binary needs none.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from tritongemm.kernels.triton_version import triton_version

#: Minor versions that tests/compile/test_triton_versions.py compiles the kernels with.
KNOWN = ((3, 6), (3, 9))

_refused: str | None = None


def obstacle() -> str | None:
    """Why Gluon kernels are not used here; None where they are, and where there is no Triton."""
    return _refused or _obstacle(triton_version())


def refuse(reason: str) -> None:
    """From now on this process uses no Gluon kernel: importing Gluon failed."""
    global _refused
    _refused = f"Gluon cannot be imported: {reason}"


def forget() -> None:
    """Forgets what was refused and looked up (tests)."""
    global _refused
    _refused = None
    _obstacle.cache_clear()


def _minor(version: str) -> tuple[int, ...]:
    parts = [part for part in version.split(".")[:2] if part.isdigit()]
    return tuple(map(int, parts))


@functools.cache
def _obstacle(version: str) -> str | None:
    if not version:
        return None  # nothing to compile with: the store, or what will be installed
    lowest, highest = KNOWN
    if not lowest <= _minor(version) <= highest:
        return (f"Triton {version} is not one of {lowest[0]}.{lowest[1]} to {highest[0]}."
                f"{highest[1]}, which the Gluon kernels were tested with")
    found = importlib.util.find_spec("triton")
    if found is not None and found.origin and not (
            Path(found.origin).parent / "experimental" / "gluon" / "_runtime.py").is_file():
        return f"Triton {version} was installed without Gluon"
    return None
