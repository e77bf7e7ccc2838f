"""What several commands do with options: those that go with another one only, and tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritongemm.errors import UsageError


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
