"""Guarded memory: whatever a kernel may read or write lies between bands that are compared bit by
bit afterwards.

Around an operand everything is NaN, so that a read outside it is seen in the result.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence

import torch

from tritongemm.formats import FORMATS
from tritongemm.measure.distributions import DISTRIBUTIONS as ACCURACY
from tritongemm.ops import plan
from tritongemm.ops.operands import gapless

from .case import View

#: Elements before and after each view.
GUARD = 128
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: (normal values, generator) -> as many others.
Draw = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
_LAZY = {"": lambda x: x, "conj": torch.conj, "neg": torch._neg_view}


def dtype_of(name: str) -> torch.dtype:
    """torch's dtype of a format, or of torch's own name."""
    return getattr(torch, FORMATS[name].torch_name if name in FORMATS else name)


def bits(x: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, which NaNs compare as."""
    return x.view(_BITS[x.element_size()])


def places(view: View, device: torch.device) -> torch.Tensor:
    """The index in its storage of every element of a view, in order."""
    found = torch.tensor([GUARD + view.offset], device=device)
    for extent, stride in zip(view.shape, view.stride):
        found = (found[:, None] + torch.arange(extent, device=device) * stride).flatten()
    return found


def span(view: View) -> int:
    """Elements from the first to the end of the last, the offset included."""
    if 0 in view.shape:
        return view.offset
    return view.offset + 1 + sum((n - 1) * s for n, s in zip(view.shape, view.stride))


class World:
    """The tensors of one call, drawn anew: equal arguments give equal bits. (A GPU draws others
    than the CPU, a hundred times faster.)

    Args:
        views: of the operands and, last, of ``out`` if there is one.
        seed: of the values. distribution: a name of :data:`DISTRIBUTIONS`.
    """

    def __init__(self, views: Sequence[View], dtype: str, seed: int, device: torch.device,
                 out: View | None = None, distribution: str = "normal") -> None:
        everything = (*views, *(() if out is None else (out,)))
        homes = [i if v.shares < 0 else v.shares for i, v in enumerate(everything)]
        drawn = _drawn(tuple(views), out, dtype, seed, device, distribution)
        self._flats = {home: flat.clone() for home, flat in drawn.items()}
        self._before = {home: bits(flat).clone() for home, flat in self._flats.items()}
        tensors = [self._flats[home].as_strided(v.shape, v.stride, GUARD + v.offset)
                   for v, home in zip(everything, homes)]
        self._written: dict[int, torch.Tensor] = {}
        self._places = (everything, homes)
        self.operands = [_LAZY[v.lazy](x) for v, x in zip(views, tensors)]
        self.out = tensors[-1] if out is not None else None

    def may_be_written(self, index: int) -> None:
        """The operand, or with -1 ``out``, is what the call writes."""
        everything, homes = self._places
        self._written[homes[index]] = places(everything[index], self._flats[homes[index]].device)

    def changed(self) -> str:
        """What the call wrote that it must not write; empty: nothing."""
        faults = []
        for home, flat in self._flats.items():
            differs = bits(flat) != self._before[home]
            if home in self._written:
                differs[self._written[home]] = False
            if count := int(differs.sum()):
                first = int(differs.nonzero()[0])
                faults.append(f"{count} elements of operand {home}'s memory changed outside what "
                              f"the call may write, the first at {first - GUARD}")
        return "; ".join(faults)


def _scaled(like: torch.Tensor, power: int) -> torch.Tensor:
    return torch.ldexp(like, torch.tensor(power, device=like.device))


def _of_accuracy(name: str) -> Draw:
    """The operand A of ``tritongemm accuracy``, as one row."""
    return lambda like, generator: ACCURACY[name](1, 1, len(like), generator)[0][0]


def _powers(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Neighbouring elements have one scale: rows, or parts of them, differ by up to 2^60."""
    powers = torch.randint(-30, 31, (len(like) // 32 + 1,), generator=generator,
                           device=like.device)
    return torch.ldexp(like, powers.repeat_interleave(32)[:len(like)])


def _planted(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A few elements are subnormal, tiny or large."""
    kind = torch.randint(0, 100, (len(like),), generator=generator, device=like.device)
    for i, power in enumerate((-140, -120, -40, 50)):
        like = torch.where(kind == i, _scaled(like, power), like)
    return like


#: What operands are drawn from. No product of two leaves the range of float32.
DISTRIBUTIONS: dict[str, Draw] = {
    "normal": lambda x, _: x,
    **{name: _of_accuracy(name) for name in (
        "uniform", "log_normal", "cancelling", "sparse_outliers", "integers", "hilbert")},
    "powers": _powers,
    "planted": _planted,
    "tiny": lambda x, _: _scaled(x, -72),
    "large": lambda x, _: _scaled(x, 48),
}


@functools.lru_cache(maxsize=2)
def _drawn(views: tuple[View, ...], out: View | None, dtype: str, seed: int,
           device: torch.device, distribution: str) -> dict[int, torch.Tensor]:
    """The memory of a world by the place of the view that it belongs to, kept for the next world
    of the same case. What is drawn for operands does not depend on ``out``."""
    generator = torch.Generator(device).manual_seed(seed)
    drawn = torch.complex64 if dtype_of(dtype).is_complex else torch.float32
    poison = complex(math.nan, math.nan) if drawn.is_complex else math.nan
    everything = (*views, *(() if out is None else (out,)))
    homes = [i if v.shares < 0 else v.shares for i, v in enumerate(everything)]
    flats: dict[int, torch.Tensor] = {}
    for home in dict.fromkeys(homes):
        size = max(span(v) for v, h in zip(everything, homes) if h == home)
        flats[home] = torch.full((size + 2 * GUARD,), poison, dtype=drawn, device=device)
        if everything[home] is out:  # around it lie values of others, not poison
            flats[home].normal_(generator=torch.Generator(device).manual_seed(seed))
    for view, home in zip(everything, homes):
        at = places(view, device)
        if view is out:
            if view.shares < 0:
                flats[home][at] = poison
            continue
        # By a mask: a GPU writes an element that strides reach twice in any order.
        read = torch.zeros(GUARD + span(view), dtype=torch.bool, device=device)
        read[at] = True
        flat = flats[home][:len(read)]
        values = torch.randn(len(read), generator=generator, dtype=drawn, device=device)
        torch.where(read, DISTRIBUTIONS[distribution](values, generator), flat, out=flat)
        for index, value in view.special:
            flats[home][at[index % len(at)]] = value
    return {home: _as(flat, dtype_of(everything[home].dtype or dtype))
            for home, flat in flats.items()}


def forget_drawn() -> None:
    """Frees the memory of the last cases, a GPU's too."""
    _drawn.cache_clear()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _as(flat: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return (flat.real if flat.is_complex() and not dtype.is_complex else flat).to(dtype)
    flat = flat.real if flat.is_complex() else flat
    return flat.mul(3).nan_to_num(99).round().to(dtype)


class Fresh:
    """The results that a call allocated, each between guard bands."""

    def __init__(self) -> None:
        self._made: list[tuple[torch.Tensor, torch.Tensor, int]] = []
        self._scratch: list[tuple[torch.Tensor, int]] = []

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """``torch.empty_strided`` and ``torch.empty`` of a tuple guard what they make, and poison
        it; so does the scratch of plans on a GPU."""
        real, real_scratch, real_empty = torch.empty_strided, plan._scratch, torch.empty

        def empty_strided(size, stride, *, dtype=None, device=None, **more):
            if more or dtype is None or dtype.itemsize not in _BITS:
                return real(size, stride, dtype=dtype, device=device, **more)
            length = span(View(tuple(size), tuple(stride)))
            flat = torch.full((length + 2 * GUARD,), 7.0, dtype=dtype, device=device)
            poison = complex(math.nan, math.nan) if dtype.is_complex else math.nan
            flat[GUARD:GUARD + length] = 0 if dtype.itemsize == 1 or not (
                dtype.is_floating_point or dtype.is_complex) else poison
            self._made.append((flat, bits(flat).clone(), length))
            made = real_empty(0, dtype=dtype, device=device)
            return made.set_(flat.untyped_storage(), GUARD, size, stride)

        def empty(*size, dtype=None, device=None, **more):
            if len(size) != 1 or type(size[0]) is not tuple:
                return real_empty(*size, dtype=dtype, device=device, **more)
            return empty_strided(size[0], gapless(size[0]), dtype=dtype, device=device, **more)

        def scratch(size: int, index: int) -> torch.Tensor:
            # Whole lines before it: scratch is as aligned as torch's allocator makes it.
            flat = torch.full((size + 8 * GUARD,), 0xFF, dtype=torch.uint8,
                              device=torch.device("cuda", index))
            self._scratch.append((flat, size))
            return flat[4 * GUARD:]

        torch.empty_strided, torch.empty, plan._scratch = empty_strided, empty, scratch
        try:
            yield
        finally:
            torch.empty_strided, torch.empty, plan._scratch = real, real_empty, real_scratch

    def changed(self) -> str:
        """Which of them were written outside; empty: none."""
        for flat, before, length in self._made:
            differs = bits(flat) != before
            differs[GUARD:GUARD + length] = False
            if count := int(differs.sum()):
                return (f"{count} elements around a fresh result of {length} were written, the "
                        f"first at {int(differs.nonzero()[0]) - GUARD}")
        for flat, size in self._scratch:
            if not (bool((flat[:4 * GUARD] == 0xFF).all())
                    and bool((flat[4 * GUARD + size:] == 0xFF).all())):
                return f"bytes around scratch of {size} were written"
        return ""
