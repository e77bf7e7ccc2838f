"""Scripts of perf/ as modules."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parent.parent / "perf"


def loaded(name: str) -> ModuleType:
    """The script as a module. What it adds to ``sys.path`` for itself does not stay."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as dataclasses need it
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module
