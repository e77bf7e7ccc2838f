"""The programs by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritongemm.errors import UsageError

if TYPE_CHECKING:
    from tritongemm.models.program import Program

#: Modules of this package, each with ``PROGRAMS``. A new file must be listed here.
FILES = ("gpt2", "llama", "qwen_moe", "bert", "siglip", "whisper", "unet", "lora", "recommender",
         "physics", "policy", "tensor_parallel", "fsdp")


def programs() -> dict[str, Program]:
    """Every program by its name, in the order of :data:`FILES`. Imports torch."""
    return {program.name: program for name in FILES
            for program in importlib.import_module(f"tritongemm.models.{name}").PROGRAMS}


def chosen(names: Sequence[str]) -> list[Program]:
    """The programs whose names are, or begin with, one of ``names``; all if ``names`` is empty.

    Raises:
        UsageError: no program begins with one of the names.
    """
    known = programs()
    for name in names:
        if not any(each.startswith(name) for each in known):
            raise UsageError(f"program {name!r} is not known; use some of {', '.join(known)}, or "
                             "the beginning of names")
    return [program for each, program in known.items()
            if not names or any(each.startswith(name) for name in names)]
