"""How often a kind of small product is seen before an override judges it.

Judging a new kind of call takes selection milliseconds, which a product that does not return would
never give back. Until it is due a small product is torch's. ``dispatcher.cpp`` has the same rule
for the calls that it answers; this one is for the Python path. The numbers are those of
:mod:`tritongemm.selection.hosttime`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from typing import NamedTuple

from tritongemm.selection.hosttime import (
    EARLY_SHAPES,
    EARLY_SIGHTS,
    LARGE_BYTES,
    LARGE_PRODUCTS,
    NATIVE,
    PYTHON,
    HostPath,
    sights,
)

SEEN_TOO_LITTLE = "a small product that was not repeated often enough to pay for its selection"
#: Kinds that are counted; beyond these, those that are not judged yet are forgotten.
_MOST = 65536


class Patience(NamedTuple):
    """The numbers of the rule.

    Attributes:
        sights: a small product is judged when it is seen this often.
        early_sights: the same for the first ``early_shapes`` kinds.
        products, bytes: from so many multiply-adds (batch * M * N * K), or bytes of A and B, on a
            product is not small, and judged at once.
    """

    sights: int
    early_sights: int = EARLY_SIGHTS
    early_shapes: int = EARLY_SHAPES
    products: float = LARGE_PRODUCTS
    bytes: float = LARGE_BYTES


#: By the path of repeated calls.
PATIENCE: dict[HostPath, Patience] = {path: Patience(sights(path)) for path in (NATIVE, PYTHON)}


class Sights:
    """Counts the sights of kinds of products. Bounded; thread-safe."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Starts again."""
        self._seen: dict[int, int] = {}
        self._judged_early = 0

    def due(self, kind: Hashable, products: float, bytes: float) -> bool:
        """Whether it is time to judge a product of this kind, which is seen once more."""
        patience = self.patience
        if products >= patience.products or bytes >= patience.bytes:
            return True
        with self._lock:
            if len(self._seen) >= _MOST:  # kinds that were judged stay, unless all were
                self._seen = {place: times for place, times in self._seen.items()
                              if times >= patience.sights}
                if len(self._seen) >= _MOST:
                    self._seen = {}
            place = hash(kind)
            times = self._seen[place] = self._seen.get(place, 0) + 1
            if times >= patience.sights:
                return True
            if times != patience.early_sights or self._judged_early >= patience.early_shapes:
                return False
            self._judged_early += 1
            self._seen[place] = patience.sights  # from now on
            return True

    def __len__(self) -> int:
        return len(self._seen)


seen = Sights(PATIENCE[PYTHON])


def _after_fork() -> None:
    seen._lock = threading.Lock()  # the parent's may be held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
