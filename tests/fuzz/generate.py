"""A case from a seed: the same one everywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tritongemm.problem import ACTIVATIONS, GATES

from .case import Case, View
from .memory import DISTRIBUTIONS


@dataclass(frozen=True)
class Sizes:
    """The largest extents, and the multiply-adds that a call may take.

    Attributes:
        kinds: so many kinds of calls; seeds of one kind differ in extents and values alone, by so
            little that most need the same binaries. 0: each seed is a kind of its own.
    """

    mn: int
    k: int
    work: int
    kinds: int = 0


#: What Triton's interpreter multiplies in milliseconds, and what a GPU does.
SMALL, LARGE = Sizes(48, 100, 30_000), Sizes(3000, 9000, 4_000_000_000, 1200)
#: Of float32 alone in the interpreter: sums so long that a bound of K roundings says little.
LONG = Sizes(48, 2000, 500_000)
#: Precisions of float32.
FLOAT32 = ("ieee", "fp16x3", "tf32")
#: Seeds that share their kinds: ``--seed`` behind them tries others.
SEEDS_OF_KINDS = 1_000_000_000
#: Powers of two that divide an extent, or lead; the quotient is odd.
_UNITS, _GAPS = (1, 1, 1, 2, 4, 8, 16, 32, 64, 128, 256, 1024), (0, 0, 0, 1, 4, 8, 16)

_FUNCTIONS = {"matmul": 5, "mm": 4, "bmm": 3, "addmm": 4, "baddbmm": 3, "linear": 4, "mv": 1,
              "dot": 1, "@": 1, "addmm_": 1, "baddbmm_": 1, "residual": 2, "gated": 2, "mulmm": 2,
              "ops.matmul": 1, "ops.mm": 1, "ops.bmm": 1, "ops.addmm": 1, "ops.baddbmm": 1}
_DTYPES = {"bf16": 10, "fp16": 8, "fp32": 10, "c64": 3, "float64": 1, "int32": 1}
#: Functions of ours that torch composes of several.
_LAYERS = ("residual", "gated", "mulmm")
_MIXED = ("matmul", "mm", "bmm", "linear")
_FACTORS = (0, 0.0, -1, 0.5, 2, -0.75, 1.5, 300.0, 1e-3, math.nan, math.inf, -math.inf, True)
#: Before an activation only the first: gelu(-inf) is -inf * 0, NaN or 0 by the order of operations.
_SPECIALS = (math.nan, math.inf, -math.inf, -0.0, 0.0)
#: What the override alone reaches.
_OVERRIDE_ONLY = ("@", "addmm_", "baddbmm_")


def case_of(seed: int, sizes: Sizes, precision: str = "") -> Case:
    """The case of a seed; with a ``precision`` one of float32 at that precision."""
    kind = seed
    if sizes.kinds:
        kind = seed // SEEDS_OF_KINDS * sizes.kinds + seed % sizes.kinds
    rng = random.Random(kind)
    function = _pick(rng, _FUNCTIONS)
    dtype = _pick(rng, _DTYPES)
    if precision:
        dtype = "fp32"
    shapes = _shapes(rng, random.Random(f"extents of {seed}"), function, sizes)
    operands = [_view(rng, shape) for shape in shapes]
    case = Case(function, tuple(operands), dtype, values=seed, strict=rng.random() < 0.8,
                override=function in _OVERRIDE_ONLY or rng.random() < 0.12,
                configs=rng.randrange(1000) if rng.random() < (
                    0.9 if sizes.kinds else 0.6) else None,
                warm=rng.random() < 0.12)
    if "add" in function:
        case = replace(case, alpha=_factor(rng), beta=_factor(rng))
        if case.alpha == case.beta == 0:  # torch 2.13 then leaves what baddbmm returns unwritten
            case = replace(case, beta=1)
    if function in ("linear", *_LAYERS) and dtype != "c64":
        case = replace(case, activation=rng.choice(GATES if function == "gated" else ACTIVATIONS),
                       interleaved=function == "gated" and rng.random() < 0.5,
                       apart=function == "gated" and rng.random() < 0.4)
    elif function == "gated":  # it has no gate that torch has for complex numbers
        case = replace(case, dtype="fp32", activation="silu")
    dtype = case.dtype
    if function in _MIXED and dtype == "fp32" and not precision and rng.random() < 0.2:
        narrow = replace(case.operands[-2], dtype=rng.choice(("bf16", "fp16")))
        case = replace(case, mixed=True,
                       operands=(*case.operands[:-2], narrow, case.operands[-1]))
    if dtype == "fp32":
        case = replace(case, precision=precision or rng.choice(("ieee", *FLOAT32)))
    if rng.random() < 0.12:
        case = replace(case, mode=rng.choice(("batch_invariant", "batch_invariant", "sm_budget")))
    chance = rng.random()
    in_place = function.endswith("_")
    if in_place:
        first = _view(rng, _result(function, shapes), written=True)
        case = replace(case, operands=(first, *case.operands[1:]))
    elif chance < 0.25 and dtype not in ("float64", "int32") and function != "mulmm":
        case = replace(case, gradients=tuple(rng.random() < 0.6 for _ in shapes))
    elif chance < 0.6 and function[:4] not in ("line", "@", "ops.", "resi", "gate",
                                                 "mulm"):
        case = _with_out(rng, case, shapes)
    if rng.random() < 0.12 and dtype not in ("int32", "c64") and function != "gated":
        case = _with_specials(rng, case)
    unread = case.beta == 0 and math.prod(case.operands[0].shape) > 0
    if unread and rng.random() < 0.5:
        first = replace(case.operands[0], special=((0, math.nan),))
        case = replace(case, operands=(first, *case.operands[1:]))
    if rng.random() < 0.06 and not case.mixed:
        case = _with_overlap(rng, case)
    if not in_place and rng.random() < (0.5 if dtype == "c64" else 0.05):
        case = _with_lazy(rng, case)
    if rng.random() < 0.12 and function not in _LAYERS and not case.mixed:
        case = _invalid(rng, case)
    return _distributed(random.Random(f"distribution of {kind}"), case)


def _pick(rng: random.Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _factor(rng: random.Random) -> float:
    return 1 if rng.random() < 0.4 else rng.choice(_FACTORS)


def _extents(rng: random.Random, varied: random.Random, sizes: Sizes) -> tuple[int, ...]:
    """(M, N, K, batch). A kind fixes the magnitudes, which are log-uniform, and the power of two
    that divides each extent. The odd quotients vary from seed to seed."""
    limits = (sizes.mn, sizes.mn, sizes.k)
    about = [most ** rng.random() for most in limits]
    units = [rng.choice([unit for unit in _UNITS if unit <= most]) for most in limits]
    batch = rng.choice((1, 2, 3, rng.randint(2, 7)))
    while batch * math.prod(about) > sizes.work / 4:
        about = [x / 2 for x in about]
        batch = (batch + 1) // 2
    return (*(_extent(x, unit, varied.uniform(-0.6, 0.6), most)
              for x, unit, most in zip(about, units, limits)), batch)


def _extent(about: float, unit: int, octaves: float, most: int) -> int:
    """An odd multiple of ``unit`` so many octaves from ``about``. Kernels have a path for extents
    of 1, so a kind has them always or never."""
    if unit == 1 and about < 1.5:
        return 1
    quotient = round(about * 2**octaves / unit) | 1
    largest = (most // unit - 1) | 1
    return unit * min(max(quotient, 3 if unit == 1 else 1), largest)


def _shapes(rng: random.Random, varied: random.Random, function: str,
            sizes: Sizes) -> list[tuple[int, ...]]:
    """Of the operands in the function's order, valid ones."""
    m, n, k, batch = _extents(rng, varied, sizes)
    if rng.random() < 0.03:
        m, n, k = (0 if rng.random() < 0.4 else x for x in (m, n, k))
    function = function.removeprefix("ops.")
    if function in ("mm", "addmm", "addmm_", "mulmm"):
        pair = [(m, k), (k, n)]
    elif function in ("bmm", "baddbmm", "baddbmm_"):
        pair = [(batch, m, k), (batch, k, n)]
    elif function == "mv":
        return [(m, k), (k,)]
    elif function == "dot":
        return [(k,), (k,)]
    elif function in ("linear", "residual", "gated"):
        x = [(m, k), (batch, m, k), (k,), (2, batch, m, k)][rng.choice((0, 0, 1, 1, 2, 3))]
        rows = 2 * n if function == "gated" else n
        return [*([(*x[:-1], n)] if function == "residual" else []),
                *([(rows,)] if rng.random() < 0.6 else []), x, (rows, k)]
    else:
        one, other = _batches(rng, batch)
        pair = [(*one, m, k), (*other, k, n)]
        if rng.random() < 0.08:
            pair = [(k,), (*other, k, n)] if rng.random() < 0.5 else [(*one, m, k), (k,)]
    if "add" in function or function == "mulmm":
        whole = _result(function, [(), *pair])
        choices = [whole, whole, whole[-1:], (*whole[:-1], 1), (1, *whole[-1:]), (1,), ()]
        pair.insert(0, rng.choice(choices))
    return pair


def _batches(rng: random.Random, batch: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batches that broadcast; a quarter of them both, along different axes, which no one stride
    walks."""
    if rng.random() < 0.25:
        one, other = (rng.randint(2, 3), 1), (1, rng.randint(2, 3))
        return (one, other) if rng.random() < 0.5 else (other, one)
    whole = rng.choice(((), (), (batch,), (2, batch), (batch, 1), (2, 1, batch)))
    one, other = ([size if rng.random() < 0.75 else 1 for size in whole] for _ in range(2))
    drop = rng.randrange(len(whole) + 1) if rng.random() < 0.4 else 0
    return (tuple(one), tuple(other[drop:])) if rng.random() < 0.5 else (tuple(one[drop:]),
                                                                         tuple(other))


def _result(function: str, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of a valid call's result."""
    a, b = shapes[-2:]
    if function in ("linear", "residual"):
        return (*a[:-1], b[0])
    if function == "gated":
        return (*a[:-1], b[0] // 2)
    batch = [1] * max(len(a) - 2, len(b) - 2, 0)
    for shape in (a, b):
        for i, size in enumerate(reversed(shape[:-2])):
            batch[-1 - i] = size if batch[-1 - i] == 1 else batch[-1 - i]
    return (*batch, *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ()))


def _view(rng: random.Random, shape: tuple[int, ...], written: bool = False) -> View:
    """A layout: contiguous, transposed, permuted, with gaps, steps, an offset; of what is read
    also with strides of 0 and rows that overlap."""
    order = list(range(len(shape)))
    chance = rng.random()
    if chance < 0.4 and len(order) > 1:
        order[-1], order[-2] = order[-2], order[-1]
    elif chance < 0.5:
        rng.shuffle(order)
    step = rng.choice((1,) * 12 + (2, 3))
    strides, size = [0] * len(shape), step
    for place, axis in enumerate(reversed(order)):
        strides[axis] = size
        gap = rng.choice(_GAPS) if place == 0 or rng.random() < 0.1 else 0
        size = size * max(shape[axis], 1)
        if gap:  # the next odd multiple of it
            size = (size // gap + 1 | 1) * gap
    if not written and order:
        if rng.random() < 0.06:
            strides[rng.choice(order)] = 0
        if rng.random() < 0.03:
            strides[rng.choice(order)] = rng.randint(1, 4)
    return View(shape, tuple(strides), rng.choice((0, 0, 0, 8, rng.randint(1, 9))))


def _with_out(rng: random.Random, case: Case, shapes: Sequence[tuple[int, ...]]) -> Case:
    """With an ``out=``: memory of its own, D itself, or memory that overlaps an operand."""
    whole = _result(case.function, shapes)
    out = _view(rng, whole, written=True)
    chance = rng.random()
    if chance < 0.12:
        out = replace(out, shares=rng.randrange(len(shapes)))
    elif chance < 0.3 and shapes[0] == whole and len(shapes) == 3:
        first = replace(out, shares=-1)
        return replace(case, operands=(first, *case.operands[1:]), out=replace(out, shares=0))
    return replace(case, out=out)


def _distributed(rng: random.Random, case: Case) -> Case:
    """Of float32 sums that are judged by the bound of their terms, half with other values than
    normal ones."""
    if (case.dtype != "fp32" or case.mixed or any(case.gradients) or case.function in _LAYERS
            or case.activation not in ("none", "relu") or rng.random() > 0.5):
        return case
    return replace(case, distribution=rng.choice(sorted(DISTRIBUTIONS)))


def _with_specials(rng: random.Random, case: Case) -> Case:
    which = rng.randrange(len(case.operands))
    size = math.prod(case.operands[which].shape)
    if size == 0 or case.gradients:
        return case
    values = _SPECIALS if case.activation == "none" else _SPECIALS[:1]
    special = tuple((rng.randrange(1 << 40), rng.choice(values)) for _ in range(rng.randint(1, 3)))
    operands = list(case.operands)
    operands[which] = replace(operands[which], special=special)
    return replace(case, operands=tuple(operands))


def _with_overlap(rng: random.Random, case: Case) -> Case:
    """The last operand lies in the first one's memory."""
    if case.function.endswith("_") or case.out is not None:
        return case
    operands = list(case.operands)
    operands[-1] = replace(operands[-1], shares=0)
    return replace(case, operands=tuple(operands))


def _with_lazy(rng: random.Random, case: Case) -> Case:
    """Operands whose conjugation or sign torch has put off."""
    kinds = ("conj", "conj", "neg") if case.dtype == "c64" else ("neg",)
    which = [rng.random() < 0.5 for _ in case.operands]
    return replace(case, operands=tuple(
        replace(view, lazy=rng.choice(kinds)) if lazy and not view.dtype else view
        for view, lazy in zip(case.operands, which)))


def _invalid(rng: random.Random, case: Case) -> Case:
    """Something that torch refuses, most often."""
    operands = list(case.operands)
    which = rng.randrange(len(operands))
    one = operands[which]
    kinds = ("extent", "rank", "rank", "dtype")
    kind = rng.choice(kinds if case.out is None else (*kinds, "out dtype", "out shape"))
    if kind == "extent" and one.shape:
        axis = rng.randrange(len(one.shape))
        shape = list(one.shape)
        shape[axis] += rng.choice((1, 2))
        operands[which] = _view(rng, tuple(shape), written=True)
    elif kind == "rank":
        shape = one.shape[1:] if rng.random() < 0.5 else (2, *one.shape)
        operands[which] = _view(rng, shape, written=True)
    elif kind == "dtype" and one.shares < 0 and case.dtype != "int32":
        operands[which] = replace(one, dtype=rng.choice(("bf16", "fp16", "fp32", "int64")))
    elif case.out is not None and case.out.shares < 0:
        if kind == "out dtype":
            return replace(case, out=replace(case.out, dtype=rng.choice(("fp16", "fp32",
                                                                         "float64"))))
        return replace(case, out=_view(rng, (*case.out.shape[:-1], 3), written=True))
    return replace(case, operands=tuple(operands), warm=False)
