"""The vocabulary of a matrix product: dtypes, layouts, epilogues, and :class:`GemmProblem`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from tritongemm.errors import ProblemError

if TYPE_CHECKING:
    import torch

#: First letter A, second B: ``n`` is stored row-major as [M, K] or [K, N]; ``t`` is stored
#: transposed and passed as its ``.t()`` view. ``nt`` is what ``nn.Linear`` does.
LAYOUTS = ("nn", "nt", "tn", "tt")
#: ``fp16x3``: three fp16 products of operands split into two fp16 parts each.
PRECISIONS = ("ieee", "tf32", "fp16x3")
#: Bytes; TMA and 128-bit loads need this alignment, and nothing needs more.
FULL_ALIGNMENT = 16
#: Why a product with an extent of 0 is torch's.
NOTHING_TO_MULTIPLY = "an extent is 0"
MAX_EXTENT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Dtype:
    """A dtype by its short name.

    ``eps`` is the spacing at 1 (2 ** -mantissa bits), ``unit`` the key of the device's peak
    rate that bounds it when the precision is ``ieee``.
    """

    name: str
    itemsize: int
    torch_name: str
    triton_name: str
    eps: float
    unit: str


DTYPES = {d.name: d for d in (
    Dtype("bf16", 2, "bfloat16", "bf16", 2.0**-7, "bf16"),
    Dtype("fp16", 2, "float16", "fp16", 2.0**-10, "fp16"),
    Dtype("fp32", 4, "float32", "fp32", 2.0**-23, "fp32"),
    Dtype("fp64", 8, "float64", "fp64", 2.0**-52, "fp64"),
)}
#: Operand dtypes that a kernel of this package takes.
OPERAND_DTYPES = ("bf16", "fp16", "fp32")


def dtype_of(name: str) -> Dtype:
    """The :class:`Dtype` named ``name``. Raises :class:`ProblemError` for an unknown one."""
    try:
        return DTYPES[name]
    except (KeyError, TypeError):
        raise ProblemError(
            f"dtype {name!r} is not known; use one of {', '.join(DTYPES)}") from None


def torch_dtype(name: str) -> torch.dtype:
    """``"bf16"`` -> ``torch.bfloat16``."""
    import torch

    return getattr(torch, dtype_of(name).torch_name)


#: What may be added to the product, or only scale it, and what may be applied to the sum.
ADDENDS = ("none", "scale", "bias", "add")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu")


@dataclass(frozen=True, slots=True)
class Epilogue:
    """activation(alpha * A @ B + beta * D), computed in float32 before C is rounded.

    Attributes:
        addend: ``none``; ``scale``: alpha alone, no D; ``bias``: D is [N], the same for every row;
            ``add``: D is [batch, M, N]. D has C's dtype; alpha and beta come with each call.
        activation: ``none, relu, gelu`` (of the error function), ``gelu_tanh, silu``.
    """

    addend: str
    activation: str

    @property
    def scales(self) -> bool:
        """Whether it takes alpha."""
        return self.addend != "none"

    @property
    def reads_d(self) -> bool:
        """Whether it takes D and beta."""
        return self.addend in ("bias", "add")

    def __str__(self) -> str:
        return "+".join(x for x in (self.addend, self.activation) if x != "none") or "none"


#: Every epilogue by its name, e.g. ``none, bias, relu, bias+gelu``.
EPILOGUES = {str(e): e for e in (Epilogue(*both) for both in product(ADDENDS, ACTIVATIONS))}


def epilogue_of(name: str) -> Epilogue:
    """The :class:`Epilogue` named ``name``. Raises :class:`ProblemError` for an unknown one."""
    try:
        return EPILOGUES[name]
    except (KeyError, TypeError):
        raise ProblemError(
            f"epilogue {name!r} is not known; use none, or one of {', '.join(ADDENDS[1:])}, then "
            f"one of {', '.join(ACTIVATIONS[1:])}, joined by + (bias+gelu), or either alone"
        ) from None


def divisor_of(value: int, limit: int = FULL_ALIGNMENT) -> int:
    """The largest power of two up to ``limit`` that divides ``value`` (``limit`` for 0)."""
    low = value & -value
    return limit if low == 0 or low > limit else low


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """C[batch, M, N] = A[batch, M, K] @ B[batch, K, N], as selection and kernels see it, with what
    is fused after the product.

    Attributes:
        m, n, k, batch: extents, each >= 0.
        dtype_a, dtype_b, dtype_out: names from :data:`DTYPES`.
        layout: one of :data:`LAYOUTS`.
        align_a, align_b, align_c: bytes, a power of two up to 16 that divides the operand's
            base address and its leading and batch strides in bytes. An operand whose inner
            stride is not 1 has the alignment of one element, and such a C has 1.
        epilogue: a name of :data:`EPILOGUES`.
        precision: ``ieee``, ``tf32`` or ``fp16x3``; only fp32 operands may say other than ``ieee``.

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

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ProblemError(f"{name}={value!r} is not an integer")
            if not 0 <= value <= MAX_EXTENT:
                raise ProblemError(f"{name}={value} is outside 0 to {MAX_EXTENT}")
        for name in ("dtype_a", "dtype_b", "dtype_out"):
            dtype_of(getattr(self, name))
        epilogue_of(self.epilogue)
        if self.layout not in LAYOUTS:
            raise ProblemError(f"layout {self.layout!r} is not known; use one of "
                               f"{', '.join(LAYOUTS)}")
        if self.precision not in PRECISIONS:
            raise ProblemError(f"precision {self.precision!r} is not known; use one of "
                               f"{', '.join(PRECISIONS)}")
        if self.precision != "ieee" and self.dtype_a != "fp32":
            raise ProblemError(f"precision {self.precision} is for fp32 operands, not "
                               f"{self.dtype_a}")
        for name in ("align_a", "align_b", "align_c"):
            if getattr(self, name) not in (1, 2, 4, 8, 16):
                raise ProblemError(f"{name}={getattr(self, name)!r} is not 1, 2, 4, 8 or 16")

    @classmethod
    def contiguous(cls, m: int, n: int, k: int, *, batch: int = 1, dtype: str = "bf16",
                   dtype_out: str | None = None, layout: str = "nn", epilogue: str = "none",
                   precision: str = "ieee") -> GemmProblem:
        """The problem of freshly allocated, gapless operands: alignment follows the extents."""
        problem = cls(m, n, k, batch, dtype, dtype, dtype_out or dtype, layout,
                      epilogue=epilogue, precision=precision)
        size, size_out = dtype_of(dtype).itemsize, dtype_of(problem.dtype_out).itemsize
        lead_a, lead_b = problem.leading_dimensions()
        return replace(problem, align_a=divisor_of(lead_a * size),
                       align_b=divisor_of(lead_b * size), align_c=divisor_of(n * size_out))

    def leading_dimensions(self) -> tuple[int, int]:
        """Elements between rows of A and of B as stored, without gaps."""
        return (self.k if self.layout[0] == "n" else self.m,
                self.n if self.layout[1] == "n" else self.k)

    @property
    def op(self) -> str:
        """``mm`` or ``bmm``: which family of tuned tables it belongs to."""
        return "mm" if self.batch == 1 else "bmm"

    @property
    def unit(self) -> str:
        """The key of the device's peak rate that bounds this problem."""
        return "tf32" if self.precision == "tf32" else dtype_of(self.dtype_a).unit

    def flops(self) -> int:
        """Operations: a multiply and an add a product."""
        return 2 * self.batch * self.m * self.n * self.k

    def bytes(self) -> int:
        """Compulsory traffic in bytes: each operand, D among them, read once, the result written
        once."""
        per_batch = (self.m * self.k * dtype_of(self.dtype_a).itemsize
                     + self.k * self.n * dtype_of(self.dtype_b).itemsize)
        return self.batch * per_batch + self.bytes_of_c() + self.bytes_of_d()

    def bytes_of_c(self) -> int:
        """What the result takes."""
        return self.batch * self.m * self.n * dtype_of(self.dtype_out).itemsize

    def bytes_of_d(self) -> int:
        """What the epilogue's D takes: N elements of a bias, a whole C where D is added to it."""
        rows = {"bias": 1, "add": self.batch * self.m}.get(EPILOGUES[self.epilogue].addend, 0)
        return rows * self.n * dtype_of(self.dtype_out).itemsize

    def __str__(self) -> str:
        size = f"{self.m}x{self.n}x{self.k}"
        if self.batch != 1:
            size = f"{self.batch}x{size}"
        dtype = self.dtype_a
        if self.dtype_out != self.dtype_a:
            dtype += f">{self.dtype_out}"
        parts = [size, dtype, self.layout]
        if self.precision != "ieee":
            parts.append(self.precision)
        if self.epilogue != "none":
            parts.append(self.epilogue)
        return " ".join(parts)
