"""Draws new suites of a known family: shapes that no tuned table contains, drawn with a seed.

A tuned table is fitted to its suite. New shapes of the same kind show how well selection works
without a row. Each family follows the construction of its committed suite:

- ``stream_k``, ``aligned_random``: log-uniform from 128 to 8192, any integer or multiples of 16
  (the corpus of the Stream-K paper, Osama et al., 2023, arXiv:2301.03598, section 6).
- ``square``: log-uniform between the suite's ends, on the suite's own grid.
- ``llm_prefill``, ``llm_decode``: linear layers of models that do not exist, with the suite's
  token counts; hidden sizes, heads and feed-forward widths as public models choose them.
- every other suite: its rows with each size multiplied by a random factor. Equal sizes stay equal,
  a size keeps the power of two that divides it, and small sizes, batch and layout do not change.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tritongemm.errors import UsageError
from tritongemm.problem import divisor_of
from tritongemm.records.suites import Shape, known_suites, read_suite, suite_path

#: Drawing gives up after this many repeats in a row: the family has no more shapes.
_PATIENCE = 1000
#: Sizes below this characterize their row (a decode batch, 16 x 16 outputs) and do not change.
_SMALL = 64
#: Alignment beyond this makes no difference to any kernel or to cuBLAS.
_GRID = 64


def draw(family: str, seed: int, count: int | None = None) -> list[Shape]:
    """``count`` shapes (default: as many as the suite has), none of them in the suite itself.

    The same family, seed and count give the same shapes on every Python version.

    Raises:
        UsageError: an unknown family, a count below 1, or a family without that many shapes.
    """
    committed = _committed(family)
    count = len(committed) if count is None else count
    if count < 1:
        raise UsageError(f"count {count} is below 1")
    shapes = draw_up_to(family, seed, count)
    if len(shapes) < count:
        raise UsageError(f"family {family!r} has no more than {len(shapes)} fresh shapes; "
                         "ask for fewer with --count")
    return shapes


def draw_up_to(family: str, seed: int, count: int) -> list[Shape]:
    """As :func:`draw`; fewer shapes where the family has no more.

    Raises:
        UsageError: an unknown family.
    """
    committed = _committed(family)
    rng = random.Random(f"{family}:{seed}")
    stream = _FAMILIES.get(family, _resampled)(committed, rng)
    taken = {_key(shape) for shape in committed}
    shapes: list[Shape] = []
    repeats = 0
    while len(shapes) < count and repeats < _PATIENCE:
        shape = replace(next(stream), suite=f"{family}-fresh-{seed}")
        if _key(shape) in taken:
            repeats += 1
            continue
        repeats = 0
        taken.add(_key(shape))
        shapes.append(shape)
    return shapes


def _committed(family: str) -> list[Shape]:
    """The suite of the family. Raises UsageError: an unknown one."""
    if family not in known_suites():
        raise UsageError(f"family {family!r} is not known; use one of "
                         f"{', '.join(sorted(known_suites()))}")
    return read_suite(suite_path(family))


def _key(shape: Shape) -> tuple[object, ...]:
    return shape.batch, shape.m, shape.n, shape.k, shape.layout, shape.dtype, shape.epilogue


def _log_uniform(rng: random.Random, low: int, high: int, step: int = 1) -> int:
    """A multiple of ``step`` in [low, high], its logarithm uniform; both ends are multiples."""
    return round(math.exp(rng.uniform(math.log(low), math.log(high))) / step) * step


def _stream_k(committed: Sequence[Shape], rng: random.Random, step: int = 1) -> Iterator[Shape]:
    while True:
        m, n, k = (_log_uniform(rng, 128, 8192, step) for _ in range(3))
        yield Shape(m=m, n=n, k=k, note="log-uniform 128..8192")


def _aligned_random(committed: Sequence[Shape], rng: random.Random) -> Iterator[Shape]:
    return _stream_k(committed, rng, 16)


def _square(committed: Sequence[Shape], rng: random.Random) -> Iterator[Shape]:
    sides = [shape.m for shape in committed]
    grid = math.gcd(*sides)
    while True:
        # Half a grid step: the suite has most of the grid points at the small end.
        side = _log_uniform(rng, min(sides), max(sides), max(grid // 2, 1))
        yield Shape(m=side, n=side, k=side)


def _layers(rng: random.Random) -> list[tuple[int, int, str]]:
    """(n, k, name) of the linear layers of one model drawn at random.

    Hidden sizes are multiples of 512 with heads of 128, grouped key and value heads, and a gated
    feed-forward of 2.5 to 5.5 times the hidden size; one model in six has latent attention and
    narrow experts, as the suite's own models have.
    """
    hidden = _log_uniform(rng, 2048, 8192, 512)
    if rng.random() < 1 / 6:
        rank_q, rank_kv, heads = rng.choice((1024, 1536, 2048)), rng.choice((256, 512)), \
            rng.choice((64, 96, 128))
        expert = _log_uniform(rng, 1024, 3072, 256)
        return [(rank_q + rank_kv + 64, hidden, "latent q_a+kv_a"),
                (heads * 192, rank_q, "latent q_b"), (heads * 256, rank_kv, "latent kv_b"),
                (hidden, heads * 128, "latent o"), (2 * expert, hidden, "expert gate_up"),
                (hidden, expert, "expert down")]
    kv = rng.choice((4, 8)) * 128
    wide = _log_uniform(rng, int(hidden * 2.5), int(hidden * 5.5), 256)
    return [(hidden + 2 * kv, hidden, "qkv"), (hidden, hidden, "o"),
            (2 * wide, hidden, "gate_up"), (hidden, wide, "down")]


def _llm(committed: Sequence[Shape], rng: random.Random) -> Iterator[Shape]:
    tokens = sorted({shape.m for shape in committed})
    while True:
        hidden_layers = _layers(rng)
        for n, k, name in hidden_layers:
            for m in tokens:
                yield Shape(m=m, n=n, k=k, note=f"drawn model, {name}")


def _resampled(committed: Sequence[Shape], rng: random.Random) -> Iterator[Shape]:
    """Rows of the suite in random order, repeatedly, with each size changed."""
    rows = list(committed)
    largest = max(max(row.m, row.n, row.k) for row in rows)
    while True:
        rng.shuffle(rows)
        for row in rows:
            moved: dict[int, int] = {}
            for size in (row.m, row.n, row.k):
                if size not in moved:
                    moved[size] = _moved(size, rng, largest)
            yield replace(row, m=moved[row.m], n=moved[row.n], k=moved[row.k],
                          note=f"near {row.m}x{row.n}x{row.k}")


def _moved(size: int, rng: random.Random, largest: int) -> int:
    """``size`` times a factor from 0.7 to 1.4, with the same power of two in it (at most 64)."""
    if size < _SMALL:
        return size
    step = divisor_of(size, _GRID)
    factor = math.exp(rng.uniform(-math.log(1.4), math.log(1.4)))
    parts = max(round(min(size * factor, largest) / step), 1)
    if step < _GRID and parts % 2 == 0:
        parts -= 1
    return parts * step


_FAMILIES: dict[str, Callable[[Sequence[Shape], random.Random], Iterator[Shape]]] = {
    "stream_k": _stream_k, "aligned_random": _aligned_random, "square": _square,
    "llm_prefill": _llm, "llm_decode": _llm,
}
