"""Verification of contenders: float64 references of a few operand sets, and the checks against
them.

Made once for each problem. For a large problem the reference covers all columns of a seeded sample
of the rows, which includes the first and the last. NaN is searched for in the whole output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tritongemm.measure import numerics
from tritongemm.measure.numerics import Error, ErrorReport, Limit
from tritongemm.measure.operands import OperandSets
from tritongemm.measure.torch_epilogue import factor_of, finish_of, linear_part
from tritongemm.problem import GemmProblem, epilogue_of

#: Number of sets that have a reference, within the bounds below.
_SETS = 3
#: Multiply-adds and float64 elements of all references together. On a GPU 2**40 multiply-adds
#: are 40 ms of float64 tensor cores, 2**28 elements 2 GiB.
_PRODUCTS = {"cuda": 2**40, "cpu": 2**32}
_ELEMENTS = {"cuda": 2**28, "cpu": 2**24}


@dataclass
class _Set:
    """An operand set with a reference: its rows (None: all), the reference before the activation
    (and a residual, in columns behind), the function that finishes it, and the error limits."""

    index: int
    rows: torch.Tensor | None
    ref: torch.Tensor
    finish: Callable[[torch.Tensor], torch.Tensor]
    lowest: Limit
    allowed: Limit
    linear: Limit
    gated: bool = False

    def error(self, operands: OperandSets, scale: float) -> Error:
        return numerics.error_of(self._of(operands[self.index].out), self.ref, scale, self.finish)

    def judged_aux(self, operands: OperandSets, scale: float, what: str) -> ErrorReport | None:
        """Of the auxiliary output, which is the reference itself; None: there is none."""
        aux = operands[self.index].aux
        if aux is None:
            return None
        allowed = Limit(self.linear.maximum * abs(scale), self.linear.rms * abs(scale))
        return numerics.judge(numerics.error_of(self._of(aux), self.ref, scale), allowed,
                              f"{what}, auxiliary output")

    def _of(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.rows is None else x[..., self.rows, :]


class Proof:
    """References of a problem's operand sets, and every check against them.

    Attributes:
        sampled_rows: rows of each reference, None where it covers them all.
    """

    def __init__(self, problem: GemmProblem, operands: OperandSets, seed: int) -> None:
        self._operands = operands
        device = operands[0].a.device
        kind = device.type if device.type in _PRODUCTS else "cpu"
        rows = _rows(problem, _PRODUCTS[kind], _ELEMENTS[kind])
        cost = max(1, problem.batch * rows * problem.n)
        count = min(_SETS, len(operands), _PRODUCTS[kind] // (cost * max(1, problem.k)),
                    _ELEMENTS[kind] // cost)
        rng = np.random.default_rng(seed)
        self.sampled_rows = rows if rows < problem.m else None
        chosen = None
        if self.sampled_rows is not None:
            chosen = torch.as_tensor(_sample(problem.m, rows, rng), device=device)
        self._sets = [self._prepare(i, chosen, problem)
                      for i in _spread_indices(len(operands), max(1, count), rng)]

    def _prepare(self, index: int, rows: torch.Tensor | None, problem: GemmProblem) -> _Set:
        one = self._operands[index]
        epilogue, factor = epilogue_of(problem.epilogue), None
        if epilogue.multiplies:
            assert one.d is not None
            factor = factor_of(epilogue)(one.d.double())
        added = 0.0 if one.d is None or factor is not None else abs(one.beta) * numerics.rms(one.d)
        if one.bias is not None:
            added += numerics.rms(one.bias)
        size = abs(one.alpha) * numerics.output_size(one.a, one.b)
        k, compute = one.a.shape[-1], problem.compute
        linear = lowest = numerics.floor(one.out.dtype, k, size, compute, added)
        if problem.gated:  # a product of two sums, each with its error
            lowest = numerics.floor(one.out.dtype, k, 2.0 * (size + added) ** 2, compute)
        if factor is not None:  # each error is multiplied by the element's factor
            linear = lowest = Limit(lowest.maximum * float(factor.abs().max()),
                                    lowest.rms * numerics.rms(factor))
        ref = linear_part(numerics.reference(one.a, one.b, rows), one, rows, epilogue)
        return _Set(index, rows, ref, finish_of(problem), lowest, lowest, linear,
                    problem.gated)

    @property
    def sets(self) -> list[int]:
        """Indices of the operand sets that have a reference."""
        return [one.index for one in self._sets]

    def learn_from_torch(self) -> None:
        """Uses the current outputs of :attr:`sets` as torch's results and widens the limits by
        their error."""
        for one in self._sets:
            one.allowed = numerics.limit(one.lowest, one.error(self._operands, 1.0))

    def check(self, what: str, *, sets: Sequence[int] | None = None, scale: float = 1.0,
              everywhere: bool = False) -> ErrorReport:
        """Checks the outputs that were written since they were poisoned.

        Args:
            what: named in the message.
            sets: those of :attr:`sets` to check; all by default.
            scale: the outputs should be this many times the reference, before the activation.
            everywhere: whether every operand set must be written, not only those with a reference.
        """
        unwritten, outside = self._operands.blemishes()
        if outside:
            return _wrong(f"{what}: {outside} elements outside the output were written")
        if everywhere and unwritten:
            return _wrong(f"{what}: {unwritten} outputs are NaN or were not written")
        worst = ErrorReport(0.0, 0.0, True)
        for one in self._sets:
            if sets is not None and one.index not in sets:
                continue
            if one.rows is not None and (missing := self._operands.unwritten(one.index)):
                return _wrong(f"{what}: {missing} outputs are NaN or were not written")
            factor = abs(scale) ** (2 if one.gated else 1)
            allowed = Limit(one.allowed.maximum * factor, one.allowed.rms * factor)
            worst = worse(worst, numerics.judge(one.error(self._operands, scale), allowed, what))
            aux = one.judged_aux(self._operands, scale, what)
            if aux is not None:
                worst = worse(worst, aux)
        return worst


def worse(first: ErrorReport, second: ErrorReport) -> ErrorReport:
    """Combines two checks: the larger ratios; ok if both are."""
    return ErrorReport(max(first.max_err_ratio, second.max_err_ratio),
                       max(first.rms_err_ratio, second.rms_err_ratio),
                       first.ok and second.ok, first.message or second.message)


def _wrong(message: str) -> ErrorReport:
    return ErrorReport(math.inf, math.inf, False, message)


def _rows(problem: GemmProblem, products: int, elements: int) -> int:
    """Rows of one reference within the bounds."""
    row = max(1, problem.batch * problem.n)
    return max(1, min(problem.m, products // (row * max(1, problem.k)), elements // row))


def _sample(m: int, rows: int, rng: np.random.Generator) -> np.ndarray:
    """``rows`` (fewer than ``m``) row indices, sorted; the last and the first among them."""
    ends = [0, m - 1][-rows:]
    between = rng.choice(np.arange(1, m - 1), rows - len(ends), replace=False)
    return np.sort(np.concatenate((ends, between))).astype(np.int64)


def _spread_indices(sets: int, count: int, rng: np.random.Generator) -> list[int]:
    """The first, the last and some between."""
    chosen = [0, sets - 1] if sets > 1 else [0]
    between = rng.permutation(np.arange(1, sets - 1)) if sets > 2 else []
    return [int(i) for i in [*chosen, *between][:count]]
