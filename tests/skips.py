"""The reasons for which a test may be skipped. Any other skip fails the run (``conftest.py``).

A test that needs a package of the extra ``[test]`` or of another extra that CI installs is not
skipped where that is missing: it fails.
"""

from __future__ import annotations

import re

#: Why the machine cannot run a test, as patterns that a whole reason matches.
MACHINE = (
    r"needs a CUDA device: torch sees none",
    r"needs (two CUDA devices|a second CUDA device)",
    r"needs sm_90",
    r"there is a (GPU|CUDA device)( here)?",
    r"this system has no fork",
    r"needs a browser: apt install chromium chromium-driver",
    r"needs g\+\+", r"Inductor needs a C\+\+ compiler here",
)
#: Why these versions or this copy of the project cannot.
INSTALLED = (
    r"needs TRITON_INTERPRET=1",
    r"the interpreter of Triton \S+ does not work with numpy \S+; it needs numpy < 2\.4",
    r"this Triton brings no cuobjdump and nvdisasm",
    r"this torch is not distributed",
    r"the tests run against an installed package, not a checkout",
    r"(perf/ is|examples/ is|the documents are) not beside (the tests|the package)",
)


def allowed(reason: str, place: str) -> bool:
    """Whether a test in the file ``place`` may be skipped for ``reason``. Tests of ``tests/gpu``
    also say why a config is not for the device."""
    if any(re.fullmatch(pattern, reason) for pattern in (*MACHINE, *INSTALLED)):
        return True
    return "tests/gpu/" in place and not reason.startswith("could not import")


def reason_of(longrepr: object) -> tuple[str, str]:
    """(reason, file) of a skipped report's ``longrepr``."""
    if isinstance(longrepr, tuple):
        place, _, text = longrepr
        return text.removeprefix("Skipped: "), str(place).replace("\\", "/")
    return str(longrepr), ""
