"""What decides whether a library compiled in one environment may be loaded in another.

torch promises no stable C++ interface between minor versions, and the library uses Python's full
C interface. Five facts decide:

- the source: the library must be compiled from this package's ``dispatcher.cpp``;
- the machine and the Python, named together by ``SOABI``, as in ``cpython-312-x86_64-linux-gnu``;
- the ABI of ``std::string`` in libstdc++ (``_GLIBCXX_USE_CXX11_ABI``) that torch was compiled with;
- whether torch is a debug build;
- torch's minor version. Builds of one revision of torch fit each other: they differ in what they
  link, not in the headers that ``dispatcher.cpp`` includes. Another revision
  of the same minor version, such as a patch release, fits if the headers that lay out torch's
  classes are the same.

Functions that torch lacks are found when the library is loaded, since Python loads libraries with
all symbols resolved.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path

#: Compiled into the library.
SOURCE = Path(__file__).with_name("dispatcher.cpp")
#: Folders of torch's headers that define the classes whose fields inlined code reads.
_LAYOUTS = ("ATen/core", "c10/core", "c10/macros", "c10/util", "torch/headeronly")
#: Differs between patch releases.
_VERSION_HEADER = "version.h"
_REVISION = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Abi:
    """What a library was compiled for, or what this process needs.

    Attributes:
        source: SHA-256 of ``dispatcher.cpp``.
        python: ``SOABI``: Python's implementation and version, machine and C library.
        torch: version, as in ``2.11.0+cu130``.
        revision: of torch's source, as git names it; a build outside a checkout has none.
        debug: whether torch is a debug build.
        cxx11_abi: ``_GLIBCXX_USE_CXX11_ABI`` of torch.
        headers: SHA-256 of the headers that lay out torch's classes; empty: not computed.
    """

    source: str
    python: str
    torch: str
    revision: str
    debug: bool
    cxx11_abi: bool
    headers: str = ""

    @property
    def minor(self) -> str:
        """torch's minor version, as in ``2.11``."""
        return ".".join(self.torch.split(".")[:2])

    @property
    def tag(self) -> str:
        """The name of the folder of a library built in advance."""
        return f"torch{self.minor}-{self.python}"

    def obstacle(self, built: Abi) -> str | None:
        """Why a library for ``built`` must not be loaded in a process that needs this; None where
        it fits."""
        if built.source != self.source:
            return "it was compiled from another revision of dispatcher.cpp"
        for name, what in (("python", "{}"), ("minor", "torch {}"), ("debug", "debug={} of torch"),
                           ("cxx11_abi", "_GLIBCXX_USE_CXX11_ABI={:d}")):
            theirs, ours = getattr(built, name), getattr(self, name)
            if theirs != ours:
                return f"it is for {what.format(theirs)}; this is {what.format(ours)}"
        if _REVISION.fullmatch(self.revision) and self.revision == built.revision:
            return None
        if built.headers and built.headers == (self.headers or header_digest()):
            return None
        return f"it is for torch {built.torch}, whose headers differ from those of {self.torch}"


@functools.cache
def source_digest() -> str:
    """SHA-256 of ``dispatcher.cpp``."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def present(*, headers: bool = False) -> Abi:
    """The ABI of this process; imports torch. ``headers``: compute their digest too (40 ms)."""
    import torch

    return Abi(source_digest(), str(sysconfig.get_config_var("SOABI")), str(torch.__version__),
               str(torch.version.git_version), bool(torch.version.debug),
               bool(torch.compiled_with_cxx11_abi()), header_digest() if headers else "")


@functools.cache
def header_digest() -> str:
    """SHA-256 of the headers of the installed torch that lay out its classes; empty where they are
    not installed."""
    import torch

    root = Path(torch.__file__).parent / "include"
    paths = [path for folder in _LAYOUTS for path in sorted((root / folder).rglob("*.h"))
             if path.name != _VERSION_HEADER]
    digest = hashlib.sha256()
    for path in paths:
        name = path.relative_to(root).as_posix()
        digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest() if paths else ""
