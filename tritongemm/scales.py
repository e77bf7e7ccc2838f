"""The factors of an operand's elements: :class:`Scale`."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from tritongemm.errors import ProblemError
from tritongemm.formats import format_of


@dataclass(frozen=True, slots=True)
class Scale:
    """Factors of an operand: element = factor * what is stored. Its word is e.g. ``tensor``,
    ``row``, ``1x128``, ``1x32_e8m0``.

    Attributes:
        granularity: ``tensor``: one factor; ``row``: one for each row of A or column of B;
            ``block``: one for each block.
        block: elements that share a factor, of a ``block`` scale alone: along rows of A or columns
            of B, then along K.
        format: of the factors.
    """

    granularity: str
    block: tuple[int, ...] = ()
    format: str = "fp32"

    def __str__(self) -> str:
        word = "x".join(map(str, self.block)) or self.granularity
        return word if self.format == "fp32" else f"{word}_{self.format}"

    def count(self, rows: int, k: int) -> int:
        """Factors of an operand of ``rows`` rows of A, or columns of B, each of ``k`` elements."""
        if self.granularity == "tensor":
            return 1
        along_rows, along_k = self.block or (1, max(k, 1))
        return -(-rows // along_rows) * -(-k // along_k)


_SCALE = re.compile(r"(?:(tensor|row)|([1-9][0-9]{0,8})x([1-9][0-9]{0,8}))(?:_([a-z0-9]+))?")


@functools.lru_cache(maxsize=256)
def _scale_of(word: str) -> Scale:
    found = _SCALE.fullmatch(word)
    if found is None or found[4] == "fp32":  # one word a scale: equal problems are equal
        raise ProblemError(f"scale {word!r:.80} is not known; use none, tensor, row or a block "
                           "such as 1x128, each with the format of its factors behind _ where that "
                           "is not fp32")
    granularity, rows, along_k, name = found.groups()
    name = format_of(name or "fp32").name
    if granularity:
        return Scale(granularity, (), name)
    return Scale("block", (int(rows), int(along_k)), name)


def scale_of(word: str) -> Scale | None:
    """The :class:`Scale` of a word; None for ``none``. Raises :class:`ProblemError`."""
    if word == "none":
        return None
    if not isinstance(word, str):
        raise ProblemError(f"scale {word!r:.80} is not a word")
    return _scale_of(word)
