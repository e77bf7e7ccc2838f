"""Finds and loads the native dispatcher, or logs why it cannot be loaded.

A library that came with the package (``prebuilt/``) is used if it fits this process; else the one
in the cache folder, which :mod:`~tritongemm.native.background` builds where there is none.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from tritongemm import settings
from tritongemm.errors import DataFileError
from tritongemm.native import stored
from tritongemm.native.abi import present
from tritongemm.native.background import build_once
from tritongemm.native.compiler import folder
from tritongemm.native.stored import MANIFEST, MODULE

log = logging.getLogger("tritongemm")

#: Of a platform wheel (:mod:`~tritongemm.native.wheels`): a folder for each torch and Python.
PREBUILT = Path(__file__).with_name("prebuilt")
NOT_BUILT = "it is not built. Build it: tritongemm native"
_AGAIN = "Build it again: tritongemm native --again"

#: Loaded modules by the folder of the cache; they are never unloaded.
_loaded: dict[Path, FoundLibrary] = {}
_told: set[str] = set()


class FoundLibrary(NamedTuple):
    """The module that is loaded, if any.

    Attributes:
        module: None where none can be loaded.
        path: of its library.
        refused: why the package's own library is not used; None where it is, or there is none.
        obstacle: why none is loaded; None where one is.
    """

    module: ModuleType | None
    path: Path | None
    refused: str | None
    obstacle: str | None


def load(ready: Callable[[], None]) -> ModuleType | None:
    """The module; None if TRITONGEMM_NATIVE is off or no library can be loaded. Each reason is
    logged once, as a warning. Under TRITONGEMM_NATIVE=auto a library that does not exist is built
    in the background; ``ready`` is called when it does."""
    if not wanted():
        return None
    found = find()
    if found.refused is not None and found.refused not in _told:
        _told.add(found.refused)
        log.info("tritongemm: the native dispatcher of the package is not used: %s", found.refused)
    if found.obstacle == NOT_BUILT and settings.current().native == "auto":
        build_once(ready)
    elif found.obstacle is not None and found.obstacle not in _told:
        _told.add(found.obstacle)
        log.warning("tritongemm: no native dispatcher, the Python path runs every call: %s",
                    found.obstacle)
    return found.module


def wanted() -> bool:
    """Whether TRITONGEMM_NATIVE asks for the dispatcher on this machine."""
    import torch

    current = settings.current()
    if current.native == "auto":
        return not current.interpret and torch.cuda.is_available()
    return current.native == "on"


def find() -> FoundLibrary:
    """Loads the package's library, or that of the cache, or says why neither is loaded."""
    place = folder()
    if place not in _loaded:
        module, path, refused = _tried(_prebuilt)
        if module is not None:
            found = FoundLibrary(module, path, None, None)
        else:
            module, path, obstacle = _tried(_cached)
            found = FoundLibrary(module, path, refused, obstacle)
        if module is None:
            return found
        _loaded[place] = found
    return _loaded[place]


def _tried(find_in: Callable[[], tuple[Path | None, str | None]],
           ) -> tuple[ModuleType | None, Path | None, str | None]:
    """(the module, its path, why there is none)."""
    path, reason = find_in()
    if path is None:
        return None, None, reason
    try:
        return _imported(path), path, None
    except ImportError as error:
        return None, None, f"{path} cannot be loaded: {error}. {_AGAIN}"


def _prebuilt() -> tuple[Path | None, str | None]:
    """(the library that came with the package and fits this process, why there is none)."""
    needed = present()
    try:
        if not PREBUILT.is_dir():
            return None, None
        found = stored.read_whole(PREBUILT / needed.tag)
        if found is None:
            tags = ", ".join(sorted(x.parent.name for x in PREBUILT.glob(f"*/{MANIFEST}")))
            return None, f"the package has none for {needed.tag}; it has {tags or 'none'}"
        reason = needed.obstacle(found.abi)
    except DataFileError as error:
        return None, f"{error}. Install the package again"
    except OSError as error:
        return None, f"{error.filename or PREBUILT} cannot be read: {error.strerror or error}"
    return (found.path, None) if reason is None else (None, f"{found.path}: {reason}")


def _cached() -> tuple[Path | None, str | None]:
    """(the library of the cache folder, why it must not be loaded). Because it is executable code,
    only this user may be able to write to its folder, and its SHA-256 must match the build's."""
    place = folder()
    try:
        path = stored.foreign(place, stored.read(place))
        if path is not None:
            return None, f"{path} {stored.FOREIGN}"
        found = stored.read_whole(place)
        if found is None:
            return None, NOT_BUILT
        reason = present().obstacle(found.abi)
    except DataFileError as error:
        return None, f"{error}. {_AGAIN}"
    except OSError as error:
        return None, f"{error.filename or place} cannot be read: {error.strerror or error}"
    return (found.path, None) if reason is None else (None, f"{found.path}: {reason}. {_AGAIN}")


@functools.cache
def _imported(path: Path) -> ModuleType:
    """The library at ``path`` as a module. Raises ImportError."""
    import torch  # noqa: F401  (the library links against it)

    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
