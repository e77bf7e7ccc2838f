"""Loads the native dispatcher, or says why there is none."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import logging
import os
import stat
from pathlib import Path
from types import ModuleType

from tritongemm import settings
from tritongemm.native.build import MODULE, library

log = logging.getLogger("tritongemm")

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def load() -> ModuleType | None:
    """The module; None where TRITONGEMM_NATIVE is off, or, warned once, where it cannot be
    loaded."""
    return _loaded() if settings.current().native else None


@functools.cache
def _loaded() -> ModuleType | None:
    path = library()
    reason = obstacle()
    if reason is None:
        try:
            return _imported(path)
        except ImportError as error:
            reason = f"{path} cannot be loaded: {error}. Build it again: tritongemm native --again"
    log.warning("tritongemm: no native dispatcher, the Python path runs every call: %s", reason)
    return None


def obstacle() -> str | None:
    """Why the library may not be loaded, or None. It is code: only this user may have written
    it."""
    path = library()
    for place in (path, path.parent):
        try:
            status = place.stat()
        except OSError:
            return "it is not built. Build it: tritongemm native"
        if status.st_uid != os.getuid():
            return f"{place} belongs to another user. Remove it, or set TRITONGEMM_CACHE_DIR"
        if status.st_mode & _OTHERS_WRITE:
            return f"others may write to {place}. Run: chmod go-w {place}"
    return None


def _imported(path: Path) -> ModuleType:
    import torch  # noqa: F401  (the library links against it)

    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
