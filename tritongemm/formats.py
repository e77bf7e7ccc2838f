"""Number formats: what an element takes, what others call it, how the proofs draw and poison it.

A format says nothing about how it is multiplied; that is ``compute.py``. Importing this loads no
torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tritongemm.errors import ProblemError

if TYPE_CHECKING:
    import torch


def draw_normal(x: torch.Tensor, generator: torch.Generator) -> None:
    """Fills ``x`` with standard normal values."""
    x.normal_(generator=generator)


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """A number format by its short name. One object a name: formats are compared by identity.

    Attributes:
        name: as in problems, tables, CSV rows and kernel symbols.
        bits: of one element.
        torch_name, triton_name: as ``torch.<name>`` and as in a Triton signature.
        eps: the spacing at 1 (2 ** -mantissa bits); of an integer format 0.
        mma_kind: the element type of the tensor-core instruction (PTX ``mma``) that multiplies
            two such operands; empty where the kernels multiply them on CUDA cores.
        packed: elements in one element of the torch tensor that holds them.
        poison: the value that a proof fills an output with before it is written. No correct
            result may hold it. Formats with NaN use NaN.
        draw: fills a torch tensor of the format with random values.
        real: of a complex format, the format of its real and imaginary parts; empty: it is real.
    """

    name: str
    bits: int
    torch_name: str
    triton_name: str
    eps: float
    mma_kind: str = ""
    packed: int = 1
    poison: float = math.nan
    draw: Callable[[torch.Tensor, torch.Generator], None] = draw_normal
    real: str = ""

    def bytes_of(self, count: int) -> int:
        """Bytes of ``count`` elements without gaps."""
        return -(-count * self.bits // 8)

    def elements_of(self, size: int) -> int:
        """Elements that ``size`` bytes hold, at least 1: those that an alignment of ``size`` bytes
        covers."""
        return max(1, size * 8 // self.bits)

    @property
    def itemsize(self) -> int:
        """Bytes of one element. Raises :class:`ProblemError` where that is no whole number."""
        if self.bits % 8:
            raise ProblemError(f"an element of {self.name} is {self.bits} bits, not whole bytes; "
                               "use bytes_of(count)")
        return self.bits // 8


#: Every format by its name; :func:`register_format` adds to it.
FORMATS = {f.name: f for f in (
    Format("bf16", 16, "bfloat16", "bf16", 2.0**-7, "bf16"),
    Format("fp16", 16, "float16", "fp16", 2.0**-10, "f16"),
    Format("fp32", 32, "float32", "fp32", 2.0**-23),
    Format("fp64", 64, "float64", "fp64", 2.0**-52),
    # Kernels read the parts: "fp32" is of one of them.
    Format("c64", 64, "complex64", "fp32", 2.0**-23, real="fp32"),
)}
#: Formats of the operands that ``matmul`` hands to a kernel.
OPERAND_FORMATS = ("bf16", "fp16", "fp32")
#: Complex formats whose products ``matmul`` runs as real ones (``kernels/complex_product.py``).
COMPLEX_FORMATS = ("c64",)


#: Called when a format was added or removed: what was worked out from formats is forgotten.
on_change: list[Callable[[], None]] = []


def register_format(new: Format) -> Format:
    """Adds a format, and returns it. Kernels take it where their specs name it.

    Raises:
        ProblemError: another format has that name, or its name would not be read as one.
    """
    if not new.name.isalnum() or "x" in new.name:
        raise ProblemError(f"format name {new.name!r} is not letters and digits without x, which "
                           "joins the formats of two operands")
    if FORMATS.setdefault(new.name, new) is not new:
        raise ProblemError(f"a format named {new.name!r} is registered already")
    _changed()
    return new


def remove_format(name: str) -> None:
    """Forgets a format that was registered. Problems of it that were made stay as they are."""
    FORMATS.pop(name, None)
    _changed()


def _changed() -> None:
    for forget in on_change:
        forget()


def format_of(name: str) -> Format:
    """The :class:`Format` named ``name``. Raises :class:`ProblemError` for an unknown one."""
    try:
        return FORMATS[name]
    except (KeyError, TypeError):
        raise ProblemError(
            f"dtype {name!r} is not known; use one of {', '.join(FORMATS)}") from None


def format_named(what: str | torch.dtype) -> Format:
    """The format of ``"bf16"``, ``"bfloat16"`` or ``torch.bfloat16``. Raises
    :class:`ProblemError` for an unknown one."""
    name = str(what).removeprefix("torch.")
    return _of_torch_name(name) or format_of(name)


def _of_torch_name(name: str) -> Format | None:
    return next((one for one in FORMATS.values() if one.torch_name == name), None)


def format_of_dtype(dtype: torch.dtype) -> Format:
    """``torch.bfloat16`` -> the format ``bf16``. Raises :class:`ProblemError` where none is."""
    if (found := _of_torch_name(str(dtype).removeprefix("torch."))) is not None:
        return found
    raise ProblemError(f"no number format is held in tensors of {dtype}; known: "
                       f"{', '.join(FORMATS)}")


def torch_dtype(name: str) -> torch.dtype:
    """``"bf16"`` -> ``torch.bfloat16``."""
    import torch

    return getattr(torch, format_of(name).torch_name)
