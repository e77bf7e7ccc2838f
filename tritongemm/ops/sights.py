"""How often a kind of product is seen before an override judges it.

Judging a new kind of call takes selection milliseconds, which a product that does not return would
never give back. Until it is due a small product is torch's (:class:`Sights`). ``dispatcher.cpp``
has the same rule for the calls that it answers; this one is for the Python path. A large product
is judged when it is first seen, but in a program that shows ever new ones (:class:`Selections`).
The numbers are those of :mod:`tritongemm.selection.hosttime`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from typing import NamedTuple

from tritongemm.device import DeviceSpec
from tritongemm.problem import GemmProblem
from tritongemm.selection.hosttime import (
    EARLY_SHAPES,
    EARLY_SIGHTS,
    FIRST_SELECTIONS,
    FLOAT32_PRODUCTS,
    LARGE_BYTES,
    LARGE_PRODUCTS,
    NATIVE,
    PYTHON,
    HostPath,
    calls_first,
    sights,
)
from tritongemm.selection.policy import has_row

SEEN_TOO_LITTLE = "a small product that was not repeated often enough to pay for its selection"
ONE_OF_MANY = (f"a product of new sizes, after {FIRST_SELECTIONS} others, that was not repeated "
               "often enough to pay for its selection")
#: Kinds that are counted; beyond these, those that are not judged yet are forgotten.
_MOST = 65536


class Patience(NamedTuple):
    """The numbers of the rule.

    Attributes:
        sights: a small product is judged when it is seen this often.
        early_sights: the same for the first ``early_shapes`` kinds.
        products, bytes: from so many multiply-adds (batch * M * N * K), or bytes of A and B, on a
            product is not small, and judged at once.
        float32_products: a small float32 product that is not under TF32 is judged sooner, when the
            multiply-adds of its sights are so many.
    """

    sights: int
    early_sights: int = EARLY_SIGHTS
    early_shapes: int = EARLY_SHAPES
    products: float = LARGE_PRODUCTS
    bytes: float = LARGE_BYTES
    float32_products: float = FLOAT32_PRODUCTS


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
        self._left: dict[int, int] = {}
        self._judged_early = 0

    def due(self, kind: Hashable, products: float, bytes: float, float32: bool = False) -> bool:
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
            if not float32 or times * products < patience.float32_products:
                if times != patience.early_sights or self._judged_early >= patience.early_shapes:
                    return False
                self._judged_early += 1
            self._seen[place] = patience.sights  # from now on
            return True

    def wait(self, kind: Hashable, calls: int) -> None:
        """Makes a kind wait for so many calls, of which one has been made."""
        with self._lock:
            if len(self._left) >= _MOST:
                self._left = {}
            self._left[hash(kind)] = calls - 1

    def waits(self, kind: Hashable) -> bool:
        """Whether a call of a kind is one of those that it was made to wait for."""
        if not self._left:
            return False
        with self._lock:
            place = hash(kind)
            left = self._left.pop(place, 0)
            if left > 1:
                self._left[place] = left - 1
            return left > 0

    def __len__(self) -> int:
        return len(self._seen)


class Selections:
    """Counts the large products that selection, not a tuned row, decided for an override. Bounded;
    its caller lets one thread in at a time."""

    def __init__(self) -> None:
        self._made = 0
        self._waiting: set[Hashable] = set()

    def wait(self, place: Hashable, problem: GemmProblem, device: DeviceSpec) -> int:
        """How many calls of ``problem`` go to torch before it is to be asked for again; 0: it is
        judged now. ``place``: of its plan, which more than the problem decides."""
        batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
        products = batch * m * n * k
        bytes = problem.a.format.bytes_of(batch * m * k) + problem.b.format.bytes_of(batch * k * n)
        if products < LARGE_PRODUCTS and bytes < LARGE_BYTES or has_row(problem, device):
            return 0
        if self._made >= FIRST_SELECTIONS and place not in self._waiting:
            if len(self._waiting) >= _MOST:
                self._waiting.clear()
            self._waiting.add(place)
            return calls_first(problem.precision, products, bytes)
        self._waiting.discard(place)
        self._made += 1
        return 0


seen = Sights(PATIENCE[PYTHON])


def _after_fork() -> None:
    seen._lock = threading.Lock()  # the parent's may be held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
