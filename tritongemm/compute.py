"""Compute modes: how two operands are multiplied and summed. Roofs, error limits, tolerances and
the scratch of a split K read this table.

A problem names its mode by ``precision``, the word in tables and CSV rows. ``ieee`` stands for two
modes: operands with a tensor-core instruction of their own are multiplied by it (``native``), the
others on CUDA cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tritongemm.errors import ProblemError
from tritongemm.formats import FORMATS, Format


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """One compute mode.

    Attributes:
        name: ``native, ieee, tf32, fp16x3``.
        precision: what problems, tables and CSV rows call it.
        formats: the operands that it takes, by name; empty: those of ``tensor_cores``.
        tensor_cores: whether a product runs on tensor cores.
        products: products of the hardware that make one of the operands' own.
        peak: of the device's peak rates the one of these products; empty: the operands' own.
        accumulator: the format in which products are summed, and partial sums of a split K kept.
        input_precision: what ``tl.dot`` and torch call it; of ``fp16x3``, which neither knows,
            the mode of theirs whose results have no larger error. A kernel that multiplies by
            ``tl.dot`` runs it as that.
        eps: spacing at 1 of the operands as multiplied, both together, where that is coarser than
            the result's own; 0: it is not.
        max_factor, rms_factor: the constants of the error limit (``measure/numerics.py``).
        bound_of_product, bound_of_sum: of the error of an element of C over |A| |B|, what the
            products add, and what each of K additions adds.
    """

    name: str
    precision: str
    formats: tuple[str, ...] = ()
    tensor_cores: bool = True
    products: int = 1
    peak: str = ""
    accumulator: str = "fp32"
    input_precision: str = "ieee"
    eps: float = 0.0
    max_factor: float = 4.0
    rms_factor: float = 0.5
    bound_of_product: float = 0.0
    bound_of_sum: float = 2.0**-24

    def bound(self, k: int) -> float:
        """The largest |C - exact| over |A| |B|, elementwise and to first order, before C is
        rounded."""
        return self.bound_of_product + k * self.bound_of_sum

    def error_unit(self, eps_out: float, k: int) -> float:
        """What the error limits are multiples of, for an output of size 1.

        Args:
            eps_out: spacing of the output's format at 1.
        """
        eps = self.eps or eps_out
        return eps + min(FORMATS[self.accumulator].eps, eps) * math.sqrt(k)

    def takes(self, operand: Format) -> bool:
        """Whether operands of this format can be multiplied so."""
        if self.formats:
            return operand.name in self.formats
        return bool(operand.mma_kind) == self.tensor_cores

    def unit(self, operand: Format) -> str:
        """What bounds a product of such operands, as calibrations call it: the mode's name where
        it has a peak rate of its own, else the operand's format."""
        return self.name if self.peak else operand.real or operand.name

    def peak_tflops(self, operand: Format, peaks: Mapping[str, float]) -> float | None:
        """The peak rate of such operands in TFLOP/s; None where ``peaks``, a device's, has none."""
        peak = peaks.get(self.peak or operand.real or operand.name)
        return None if peak is None else peak / self.products


#: Every compute mode by its name.
COMPUTES = {c.name: c for c in (
    # Tensor cores truncate their sums: 2^-23 an addition, where rounding to nearest costs 2^-24.
    Compute("native", "ieee", bound_of_sum=2.0**-23),
    # K multiply-adds are within K 2^-24 of |A| |B| (Higham, Accuracy and Stability of Numerical
    # Algorithms, 2nd edition, section 3.1).
    Compute("ieee", "ieee", tensor_cores=False),
    # Both operands are rounded to 10 bits of mantissa. The limit of a check leaves room for those
    # that are truncated, as other packages' kernels do.
    Compute("tf32", "tf32", ("fp32", "c64"), peak="tf32", input_precision="tf32", eps=2 * 2.0**-10,
            bound_of_product=2 * 2.0**-11, bound_of_sum=2.0**-23),
    # Each operand as a sum of two fp16 numbers, of whose four products the smallest is left out
    # (Ootomo and Yokota, arXiv 2203.03341). The bound is twice that of K float32 multiply-adds
    # (device/split_fp32.py); results are held to the limits of ieee.
    Compute("fp16x3", "fp16x3", ("fp32", "c64"), products=3, peak="fp16",
            bound_of_product=4 * 2.0**-23, bound_of_sum=2.0**-23),
)}
#: What a problem's ``precision`` may be.
PRECISIONS = tuple(dict.fromkeys(c.precision for c in COMPUTES.values()))


def compute_of(precision: str, operand: Format) -> Compute:
    """The mode that multiplies operands of a format at ``precision``.

    Raises:
        ProblemError: an unknown precision, or one that is not for such operands.
    """
    try:
        return _of[precision, operand]
    except (KeyError, TypeError):  # a precision read from a file may be anything
        found = _look_up(precision, operand)
    _of[precision, operand] = found
    return found


def precision_for(precision: str, operand: Format) -> str:
    """``precision`` where it is for such operands, else ``ieee``: what a list of several formats
    means by one precision. Raises :class:`ProblemError` for an unknown one."""
    modes = [c for c in COMPUTES.values() if c.precision == precision]
    if not modes:
        raise _unknown(precision)
    return precision if any(mode.takes(operand) for mode in modes) else "ieee"


_of: dict[tuple[str, Format], Compute] = {}


def _unknown(precision: str) -> ProblemError:
    return ProblemError(f"precision {precision!r} is not known; use one of "
                        f"{', '.join(PRECISIONS)}")


def _look_up(precision: str, operand: Format) -> Compute:
    modes = [c for c in COMPUTES.values() if c.precision == precision]
    if not modes:
        raise _unknown(precision)
    for mode in modes:
        if mode.takes(operand):
            return mode
    taken = [name for name, f in FORMATS.items() if any(mode.takes(f) for mode in modes)]
    raise ProblemError(f"precision {precision} is for {', '.join(taken)} operands, not "
                       f"{operand.name}")


def units() -> tuple[str, ...]:
    """Every :meth:`Compute.unit` that a problem may have, the formats' own first."""
    return (*FORMATS, *(c.name for c in COMPUTES.values() if c.peak))
