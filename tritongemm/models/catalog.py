"""The programs by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritongemm.errors import UsageError

if TYPE_CHECKING:
    from tritongemm.models.program import Program

#: Modules of this package, each with ``PROGRAMS``; to add one, write a file and name it here.
FILES = ("gpt2", "llama", "qwen_moe", "bert", "siglip", "whisper", "unet", "lora", "recommender",
         "physics", "policy", "tensor_parallel")


def programs() -> dict[str, Program]:
    """Every program by its name, in the order of :data:`FILES`. It imports torch."""
    return {program.name: program for name in FILES
            for program in importlib.import_module(f"tritongemm.models.{name}").PROGRAMS}


def chosen(names: Sequence[str]) -> list[Program]:
    """The programs called ``names`` or that begin with one of them; all for none.

    Raises:
        UsageError: a name that no program begins with.
    """
    known = programs()
    for name in names:
        if not any(each.startswith(name) for each in known):
            raise UsageError(f"program {name!r} is not known; use some of {', '.join(known)}, or "
                             "the beginning of names")
    return [program for each, program in known.items()
            if not names or any(each.startswith(name) for name in names)]
