"""What several commands do with options: numbers within limits, those that go with another one
only, and tags."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence

from tritongemm.errors import UsageError


class _Checked(argparse.Action):
    """Stores a number that ``allowed`` accepts. Raises :class:`UsageError` for another one, which
    the verb reports in one line, as it does its other errors."""

    def __init__(self, *args, allowed: Callable[[float], bool], says: str, **words) -> None:
        super().__init__(*args, **words)
        self._allowed, self._says = allowed, says

    def __call__(self, parser, namespace, value, option=None) -> None:
        if not self._allowed(value):
            raise UsageError(f"{option} {value:g} {self._says}")
        setattr(namespace, self.dest, value)


def add_number(group: argparse._ActionsContainer, name: str, allowed: Callable[[float], bool],
               says: str, **words) -> None:
    """Adds the option ``name`` of a number; the error for one that is not ``allowed`` is the
    option, the value and ``says``."""
    group.add_argument(name, action=_Checked, allowed=allowed, says=says,
                       **{"type": float, "metavar": "X", **words})


def add_count(group: argparse._ActionsContainer, name: str, least: int = 1, **words) -> None:
    """Adds the option ``name`` of an integer of at least ``least``."""
    add_number(group, name, lambda value: value >= least, f"is below {least}",
               **{"type": int, "metavar": "N", **words})


def add_seconds(group: argparse._ActionsContainer, name: str, least: float = 0.0, **words) -> None:
    """Adds the option ``name`` of a positive number of seconds, of at least ``least``."""
    says = f"number of seconds of at least {least:g}" if least else "positive number of seconds"
    add_number(group, name, lambda value: 0 < value < math.inf and value >= least,
               f"is not a {says}", **{"metavar": "SECONDS", **words})


def only_with(other: str, options: Mapping[str, object]) -> None:
    """Raises :class:`UsageError` where any of ``options``, name -> value, was given without
    ``other``, since it would have no effect. None and False stand for options not given."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        raise UsageError(f"{', '.join(given)} without {other} would have no effect; give {other}, "
                         f"or leave {'it' if len(given) == 1 else 'them'} out")


def joined_tags(words: Sequence[str]) -> str:
    """The tags of all ``words``, comma-separated, as a CSV keeps them: without repeats, runs of
    blanks as one."""
    parts = (" ".join(part.split()) for word in words for part in word.split(","))
    return ",".join(dict.fromkeys(filter(None, parts)))
