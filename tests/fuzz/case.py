"""One call as a value: what it is made of, and a repr that can be pasted into ``--case``."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from math import inf, nan

from tritongemm.config import KernelConfig


def _short(value: object) -> str:
    """The constructor call of a dataclass without the fields that are at their default."""
    words = []
    for f in fields(value):  # type: ignore[arg-type]
        one = getattr(value, f.name)
        default = f.default_factory() if f.default_factory is not MISSING else f.default
        if default is not MISSING and repr(one) == repr(default):
            continue
        words.append(f"{f.name}={_short(one) if isinstance(one, KernelConfig) else repr(one)}")
    return f"{type(value).__name__}({', '.join(words)})"


@dataclass(frozen=True, repr=False)
class View:
    """A tensor in memory of its own, or in that of another operand.

    Attributes:
        shape, stride, offset: elements; the offset is counted from the end of the guard band.
        special: (index among the view's elements, value) of what is not drawn.
        shares: the operand whose memory it lies in, by its place in ``Case.operands``; -1: none.
        dtype: where it is not the case's.
        lazy: ``conj`` or ``neg``: a view that torch conjugates or negates only when it is read.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    special: tuple[tuple[int, float], ...] = ()
    shares: int = -1
    dtype: str = ""
    lazy: str = ""

    __repr__ = _short


@dataclass(frozen=True, repr=False)
class Case:
    """A call of one function, and how it is made.

    Attributes:
        function: a name of :data:`functions.FUNCTIONS`.
        operands: in the function's order.
        out: where the result goes; None: fresh memory.
        alpha, beta: of the functions that take them.
        interleaved: of ``gated``.
        apart: of ``gated``: the two halves of the weight are tensors of their own.
        mixed: A is of 16 bits, B of float32.
        gradients: for each operand whether its gradient is computed.
        override: torch's function is called under ``tg.override``.
        strict: our function is called with ``strict=True`` first.
        mode: ``""``, ``batch_invariant`` or ``sm_budget``.
        precision: of float32: ``ieee``, ``tf32`` or ``fp16x3``.
        configs: a seed: each product's config is drawn from the legal ones; a config: it is taken
            wherever it is legal; None: selection chooses.
        warm: the same call was made before, with other values and with other strides.
        values: the seed of what is drawn.
        distribution: of what is drawn, a name of :data:`memory.DISTRIBUTIONS`.
    """

    function: str
    operands: tuple[View, ...]
    dtype: str = "fp32"
    out: View | None = None
    alpha: float = 1
    beta: float = 1
    activation: str = "none"
    interleaved: bool = False
    apart: bool = False
    mixed: bool = False
    gradients: tuple[bool, ...] = ()
    override: bool = False
    strict: bool = True
    mode: str = ""
    precision: str = "ieee"
    configs: int | KernelConfig | None = None
    warm: bool = False
    values: int = field(default=0)
    distribution: str = "normal"

    __repr__ = _short


def read(text: str) -> Case:
    """The case of a pasted repr."""
    names = {"Case": Case, "View": View, "KernelConfig": KernelConfig, "nan": nan, "inf": inf,
             "__builtins__": {}}
    case = eval(text, names)
    if not isinstance(case, Case):
        raise ValueError(f"{text!r:.80} is not the repr of a Case")
    return case
