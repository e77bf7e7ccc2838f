"""Loads the native dispatcher, or logs why it cannot be loaded."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from tritongemm import settings
from tritongemm.errors import DataFileError
from tritongemm.native.background import build_once
from tritongemm.native.compiler import MODULE, digest_file, library
from tritongemm.records.reading import read_text
from tritongemm.records.sealed import own

log = logging.getLogger("tritongemm")

#: Loaded modules by path; they are never unloaded.
_loaded: dict[Path, ModuleType] = {}
_told: set[str] = set()
_AGAIN = "Build it again: tritongemm native --again"


def load(ready: Callable[[], None]) -> ModuleType | None:
    """The module; None if TRITONGEMM_NATIVE is off or the library cannot be loaded. Each reason is
    logged once, as a warning. Under TRITONGEMM_NATIVE=auto a library that does not exist is built
    in the background; ``ready`` is called when it does."""
    if not wanted():
        return None
    path = library()
    if path in _loaded:
        return _loaded[path]
    if settings.current().native == "auto" and not path.exists():
        build_once(ready)
        return None
    reason = obstacle()
    if reason is None:
        try:
            return _loaded.setdefault(path, _imported(path))
        except ImportError as error:
            reason = f"{path} cannot be loaded: {error}. {_AGAIN}"
    if reason not in _told:
        _told.add(reason)
        log.warning("tritongemm: no native dispatcher, the Python path runs every call: %s", reason)
    return None


def wanted() -> bool:
    """Whether TRITONGEMM_NATIVE asks for the dispatcher on this machine."""
    import torch

    current = settings.current()
    if current.native == "auto":
        return not current.interpret and torch.cuda.is_available()
    return current.native == "on"


def obstacle() -> str | None:
    """Why the library must not be loaded, or None. Because it is executable code, only this user
    may be able to write to its folder, and its SHA-256 must match the build's."""
    path = library()
    for place in (path, path.parent):
        try:
            info = place.stat()
        except OSError:
            return "it is not built. Build it: tritongemm native"
        if not own(info):
            return (f"{place} belongs to another user, or others may write to it. Remove it, or "
                    "set TRITONGEMM_CACHE_DIR to a folder of your own")
    try:
        whole = hashlib.sha256(path.read_bytes()).hexdigest() == read_text(digest_file(path))
    except (OSError, DataFileError):
        whole = False
    return None if whole else f"{path} is damaged. {_AGAIN}"


def _imported(path: Path) -> ModuleType:
    import torch  # noqa: F401  (the library links against it)

    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
