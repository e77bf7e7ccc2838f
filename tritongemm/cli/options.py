"""Options that go with another one only."""

from __future__ import annotations

from collections.abc import Mapping

from tritongemm.errors import UsageError


def only_with(other: str, options: Mapping[str, object]) -> None:
    """Raises :class:`UsageError` where any of ``options``, name -> value, was given without
    ``other``, since it would have no effect. None and False stand for options not given."""
    given = [name for name, value in options.items() if value is not None and value is not False]
    if given:
        raise UsageError(f"{', '.join(given)} without {other} would have no effect; give {other}, "
                         f"or leave {'it' if len(given) == 1 else 'them'} out")
