"""The vocabulary of a matrix product: layouts, alignments, groups, and :class:`GemmProblem`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tritongemm.compute import PRECISIONS as PRECISIONS
from tritongemm.compute import Compute, compute_of
from tritongemm.epilogues import ACTIVATIONS as ACTIVATIONS
from tritongemm.epilogues import ADDENDS as ADDENDS
from tritongemm.epilogues import EPILOGUES as EPILOGUES
from tritongemm.epilogues import FACTORS as FACTORS
from tritongemm.epilogues import GATES as GATES
from tritongemm.epilogues import PLAIN_EPILOGUES as PLAIN_EPILOGUES
from tritongemm.epilogues import Epilogue as Epilogue
from tritongemm.epilogues import epilogue_of as epilogue_of
from tritongemm.errors import ProblemError
from tritongemm.formats import FORMATS, OPERAND_FORMATS, Format, format_of, on_change
from tritongemm.formats import torch_dtype as torch_dtype
from tritongemm.scales import Scale as Scale
from tritongemm.scales import scale_of as scale_of

#: The formats by their older names: what torch calls a dtype.
DTYPES, OPERAND_DTYPES, dtype_of = FORMATS, OPERAND_FORMATS, format_of
#: First letter A, second B: ``n`` is stored row-major as [M, K] or [K, N]; ``t`` is stored
#: transposed and passed as its ``.t()`` view. ``nt`` is what ``nn.Linear`` does.
LAYOUTS = ("nn", "nt", "tn", "tt")
#: Bytes; TMA and 128-bit loads need this alignment, and nothing needs more.
FULL_ALIGNMENT = 16
#: What an alignment may be, bytes.
ALIGNMENTS = (1, 2, 4, 8, FULL_ALIGNMENT)
#: Why a product with an extent of 0 is torch's.
NOTHING_TO_MULTIPLY = "an extent is 0"
MAX_EXTENT = 2**31 - 1
_set = object.__setattr__


def divisor_of(value: int, limit: int = FULL_ALIGNMENT) -> int:
    """The largest power of two up to ``limit`` that divides ``value`` (``limit`` for 0)."""
    low = value & -value
    return limit if low == 0 or low > limit else low


#: The extents that the groups of a grouped product may cut.
GROUPED_EXTENTS = ("m", "n", "k")


@dataclass(frozen=True, slots=True)
class Grouping:
    """Several products in one launch that share all extents but one. Its word is e.g. ``m64``.

    Attributes:
        kind: the extent that the groups cut, each into as much as it likes: ``m`` (experts: each
            has rows of A and a B of its own), ``n`` or ``k``. The problem's extent is the total;
            offsets are an operand on the device, and no part of a problem.
        groups: how many.
    """

    kind: str
    groups: int

    def __str__(self) -> str:
        return f"{self.kind}{self.groups}"


@functools.lru_cache(maxsize=256)
def _grouping_of(word: str) -> Grouping:
    kind, groups = word[:1], word[1:]
    if kind not in GROUPED_EXTENTS or re.fullmatch(r"[1-9][0-9]{0,8}", groups) is None:
        raise ProblemError(f"grouping {word!r:.80} is not known; use none, or one of "
                           f"{', '.join(GROUPED_EXTENTS)} and the number of groups, such as m64")
    return Grouping(kind, int(groups))


def grouping_of(word: str) -> Grouping | None:
    """The :class:`Grouping` of a word; None for ``none``. Raises :class:`ProblemError`."""
    if word == "none":
        return None
    if not isinstance(word, str):
        raise ProblemError(f"grouping {word!r:.80} is not a word")
    return _grouping_of(word)


#: Which operands may have two strides along the batch: see :class:`GemmProblem`.
TWO_STRIDES = ("none", "a", "b", "ab", "c", "ac", "bc", "abc")


class Operand(NamedTuple):
    """A, B or C of a problem.

    Attributes:
        format: of its elements.
        major: the extent along which it is contiguous, ``m``, ``n`` or ``k``.
        align: bytes; see :class:`GemmProblem`.
        scale: its factors, if it has any.
    """

    format: Format
    major: str
    align: int
    scale: Scale | None = None

    @property
    def k_major(self) -> bool:
        """Whether it is contiguous along K."""
        return self.major == "k"

    @property
    def elements(self) -> int:
        """Elements that its alignment covers, at least 1."""
        return self.format.elements_of(self.align)


class _Kind(NamedTuple):
    """What a combination of a problem's words says, checked and worked out once."""

    words: tuple
    hash: int
    a: Operand
    b: Operand
    c: Operand
    compute: Compute
    plain: bool
    gated: bool


_kinds: dict[tuple, _Kind] = {}
_MOST_KINDS = 4096
on_change.append(_kinds.clear)


class _Kept:
    """What a problem works out when it is made."""

    __slots__ = ("_hash", "_kind")
    _hash: int
    _kind: _Kind


@dataclass(frozen=True, slots=True, eq=False)
class GemmProblem(_Kept):
    """C[batch, M, N] = A[batch, M, K] @ B[batch, K, N], as selection and kernels see it, with what
    is fused after the product.

    The fields are flat words and numbers, as files and CSV rows have them; :attr:`a`, :attr:`b`
    and :attr:`c` are the operands that they describe.

    Attributes:
        m, n, k, batch: extents, each >= 0. N counts columns of B; C of a gated epilogue has half
            as many (:attr:`columns`).
        dtype_a, dtype_b, dtype_out: names from :data:`FORMATS`.
        layout: one of :data:`LAYOUTS`.
        align_a, align_b, align_c: bytes, a power of two up to 16 that divides the operand's
            base address and its leading and batch strides in bytes. An operand whose inner
            stride is not 1 has the alignment of one element, and such a C has 1.
        epilogue: a name of :data:`EPILOGUES`.
        precision: ``ieee``, ``tf32`` or ``fp16x3``, the last two for fp32 operands only: how they
            are multiplied (``compute.py``).
        scale_a, scale_b: words of :class:`Scale`, or ``none``.
        grouping: a word of :class:`Grouping`, or ``none``; a grouped problem has a batch of 1.
        two_strides: the operands whose batch no single stride walks, one of :data:`TWO_STRIDES`:
            ``ab`` for A and B. Such a batch has an outer and an inner extent, which are part of
            the strides and not of the problem, and each of the operands a stride for both.

    Raises:
        ProblemError: a negative or too large extent, an unknown name.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype_a: str = "bf16"
    dtype_b: str = "bf16"
    dtype_out: str = "bf16"
    layout: str = "nn"
    align_a: int = FULL_ALIGNMENT
    align_b: int = FULL_ALIGNMENT
    align_c: int = FULL_ALIGNMENT
    epilogue: str = "none"
    precision: str = "ieee"
    scale_a: str = "none"
    scale_b: str = "none"
    grouping: str = "none"
    two_strides: str = "none"

    def __post_init__(self) -> None:
        m, n, k, batch = self.m, self.n, self.k, self.batch
        if not (type(m) is type(n) is type(k) is type(batch) is int
                and 0 <= m <= MAX_EXTENT and 0 <= n <= MAX_EXTENT and 0 <= k <= MAX_EXTENT
                and 0 <= batch <= MAX_EXTENT):
            self._check_extents()
        words = (self.dtype_a, self.dtype_b, self.dtype_out, self.layout, self.align_a,
                 self.align_b, self.align_c, self.epilogue, self.precision, self.scale_a,
                 self.scale_b, self.grouping, self.two_strides)
        try:
            kind = _kinds.get(words)
        except TypeError:  # one is a list, say: the check names it
            kind = None
        if kind is None:
            kind = self._learn_kind(words)
        if batch != 1 and self.grouping != "none":
            raise ProblemError(f"grouping {self.grouping} with batch={batch}; a grouped problem "
                               "has a batch of 1")
        if kind.gated and (batch != 1 or n % 2):
            raise ProblemError(f"epilogue {self.epilogue} with batch={batch}, n={n}; B of a gated "
                               "product holds two halves, so n is even, and the batch is 1")
        _set(self, "_kind", kind)
        _set(self, "_hash", hash((m, n, k, batch, kind.hash)))

    def _check_extents(self) -> None:
        for name in ("m", "n", "k", "batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ProblemError(f"{name}={value!r} is not an integer")
            if not 0 <= value <= MAX_EXTENT:
                raise ProblemError(f"{name}={value} is outside 0 to {MAX_EXTENT}")

    def _learn_kind(self, words: tuple) -> _Kind:
        """Checks a combination of words that was not met yet, and keeps what it says."""
        a, b, c = format_of(self.dtype_a), format_of(self.dtype_b), format_of(self.dtype_out)
        gated = epilogue_of(self.epilogue).gated
        if self.layout not in LAYOUTS:
            raise ProblemError(f"layout {self.layout!r} is not known; use one of "
                               f"{', '.join(LAYOUTS)}")
        compute = compute_of(self.precision, a)
        for name in ("align_a", "align_b", "align_c"):
            if getattr(self, name) not in ALIGNMENTS:
                raise ProblemError(f"{name}={getattr(self, name)!r} is not 1, 2, 4, 8 or 16")
        scale_a, scale_b = scale_of(self.scale_a), scale_of(self.scale_b)
        grouping = grouping_of(self.grouping)
        if self.two_strides not in TWO_STRIDES:
            raise ProblemError(f"two_strides={self.two_strides!r:.80} is not known; use one of "
                               f"{', '.join(TWO_STRIDES)}")
        kind = _Kind(
            words, hash(words),
            Operand(a, "k" if self.layout[0] == "n" else "m", self.align_a, scale_a),
            Operand(b, "n" if self.layout[1] == "n" else "k", self.align_b, scale_b),
            Operand(c, "n", self.align_c), compute, scale_a is scale_b is grouping is None, gated)
        if len(_kinds) >= _MOST_KINDS:
            _kinds.clear()
        _kinds[words] = kind
        return kind

    # Problems are keys of all that is kept of them, and looked up far more often than made.
    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not GemmProblem:
            return NotImplemented
        return (self.m == other.m and self.n == other.n and self.k == other.k
                and self.batch == other.batch and self._kind.words == other._kind.words)

    def __reduce__(self) -> tuple:
        # Made anew: hashes of words differ from process to process.
        return GemmProblem, (self.m, self.n, self.k, self.batch, *self._kind.words)

    @classmethod
    def contiguous(cls, m: int, n: int, k: int, *, batch: int = 1, dtype: str = "bf16",
                   dtype_b: str | None = None, dtype_out: str | None = None, layout: str = "nn",
                   epilogue: str = "none", precision: str = "ieee", scale_a: str = "none",
                   scale_b: str = "none", grouping: str = "none") -> GemmProblem:
        """The problem of freshly allocated, gapless operands: alignment follows the extents.
        ``dtype`` is A's, and that of the others where they name none."""
        dtype_b, dtype_out = dtype_b or dtype, dtype_out or dtype

        def made(align_a: int, align_b: int, align_c: int) -> GemmProblem:
            return cls(m, n, k, batch, dtype, dtype_b, dtype_out, layout, align_a, align_b,
                       align_c, epilogue, precision, scale_a, scale_b, grouping)

        lead_a, lead_b = made(*(FULL_ALIGNMENT,) * 3).leading_dimensions()  # it checks them all
        columns = n // 2 if EPILOGUES[epilogue].gated else n
        if layout[1] == "n":  # the second half of a gated product's B begins behind the first
            lead_b = columns
        return made(*(divisor_of(FORMATS[name].bytes_of(lead)) for name, lead in (
            (dtype, lead_a), (dtype_b, lead_b), (dtype_out, columns))))

    @property
    def a(self) -> Operand:
        """A [batch, M, K]."""
        return self._kind.a

    @property
    def b(self) -> Operand:
        """B [batch, K, N]."""
        return self._kind.b

    @property
    def c(self) -> Operand:
        """The result [batch, M, N]; D has its format."""
        return self._kind.c

    @property
    def plain(self) -> bool:
        """Whether it is one product, or a batch, of operands without factors."""
        return self._kind.plain

    @property
    def gated(self) -> bool:
        """Whether B holds the two halves of a gated product."""
        return self._kind.gated

    @property
    def columns(self) -> int:
        """Columns of C: N, or half of it where the epilogue is gated."""
        return self.n // 2 if self._kind.gated else self.n

    def leading_dimensions(self) -> tuple[int, int]:
        """Elements between rows of A and of B as stored, without gaps."""
        return (self.k if self.layout[0] == "n" else self.m,
                self.n if self.layout[1] == "n" else self.k)

    def stored(self, operand: str) -> tuple[int, int]:
        """(rows, columns) of ``a`` or ``b`` as it lies in memory, row by row."""
        if operand == "a":
            return (self.m, self.k) if self.layout[0] == "n" else (self.k, self.m)
        return (self.k, self.n) if self.layout[1] == "n" else (self.n, self.k)

    @property
    def op(self) -> str:
        """Which family of tuned tables it belongs to: ``mm``, ``bmm``, ``scaled_mm`` (a batch or
        not), ``grouped_mm``."""
        if not self.plain:
            return "scaled_mm" if self.grouping == "none" else "grouped_mm"
        return "mm" if self.batch == 1 else "bmm"

    @property
    def unit(self) -> str:
        """What bounds this problem, as calibrations call it: see :meth:`Compute.unit`."""
        return self._kind.compute.unit(self._kind.a.format)

    @property
    def compute(self) -> Compute:
        """How it multiplies and sums."""
        return self._kind.compute

    def peak_tflops(self, peaks: Mapping[str, float]) -> float | None:
        """The peak rate that bounds it, TFLOP/s, of a device's ``peak_tflops``; None: not known."""
        return self.compute.peak_tflops(self.a.format, peaks)

    def flops(self) -> int:
        """Operations of real numbers: a multiply and an add a product, of which a complex one has
        four."""
        return (8 if self.a.format.real else 2) * self.batch * self.m * self.n * self.k

    def _matrices(self, without: str) -> int:
        """Matrices of the operand that has not the extent ``without``: with groups along that
        extent it has one each."""
        if self.grouping == "none":
            return self.batch
        grouping = _grouping_of(self.grouping)
        return grouping.groups if grouping.kind == without else 1

    def bytes(self) -> int:
        """Compulsory traffic in bytes: each operand, its factors and D among them, read once, the
        result written once."""
        in_a, in_b = self._matrices("n") * self.m * self.k, self._matrices("m") * self.k * self.n
        size = (self.a.format.bytes_of(in_a) + self.b.format.bytes_of(in_b)
                + self.bytes_of_c() + self.bytes_of_d())
        if EPILOGUES[self.epilogue].aux:
            size += self.c.format.bytes_of(self.batch * self.m * self.n)
        return size if self.plain else size + self._bytes_of_factors()

    def _bytes_of_factors(self) -> int:
        size = 0
        for scale, without, rows in ((self.a.scale, "n", self.m), (self.b.scale, "m", self.n)):
            if scale is not None:
                count = self._matrices(without) * scale.count(rows, self.k)
                size += format_of(scale.format).bytes_of(count)
        return size

    def bytes_of_c(self) -> int:
        """What the result takes."""
        return self.c.format.bytes_of(self._matrices("k") * self.m * self.columns)

    def bytes_of_d(self) -> int:
        """What the epilogue reads: N elements of a vector, a whole C where D is a matrix."""
        epilogue = EPILOGUES[self.epilogue]
        size = self.c.format.bytes_of(self.n) if epilogue.has_vector else 0
        return size + self.bytes_of_c() if epilogue.d_is_matrix else size

    @property
    def operands(self) -> str:
        """The formats of A and B in one word: ``bf16``, or ``bf16xint4`` where they differ."""
        return self.dtype_a if self.dtype_b == self.dtype_a else f"{self.dtype_a}x{self.dtype_b}"

    def formats(self, joined: str) -> str:
        """The formats of the operands and, where it is another than A's, of the result."""
        return self.operands if self.dtype_out == self.dtype_a else (
            f"{self.operands}{joined}{self.dtype_out}")

    def modifiers(self) -> tuple[str, ...]:
        """Its scales and groups in words that a file's name and an assembler take, e.g. ``a_row,
        b_1x128, m64``; none where it is plain."""
        if self.plain:
            return ()
        words = (f"a_{self.scale_a}", f"b_{self.scale_b}", self.grouping)
        return tuple(word for word in words if not word.endswith("none"))

    def __str__(self) -> str:
        size = f"{self.m}x{self.n}x{self.k}"
        if self.batch != 1:
            size = f"{self.batch}x{size}"
        parts = [size, self.formats(">"), self.layout]
        if self.precision != "ieee":
            parts.append(self.precision)
        if self.epilogue != "none":
            parts.append(self.epilogue)
        parts += self.modifiers()
        if self.two_strides != "none":
            parts.append(f"two_strides_{self.two_strides}")
        return " ".join(parts)
