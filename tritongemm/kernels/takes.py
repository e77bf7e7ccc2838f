"""What a kernel takes of what a problem may ask for: formats, compute modes, scales, groups.

A spec states it as data (:class:`Takes`) and one rule checks it. So a format, mode or scale that is
added later is refused by every kernel that was not written for it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tritongemm.compute import COMPUTES
from tritongemm.kernels.constraints import Violation
from tritongemm.problem import EPILOGUES, GemmProblem, grouping_of

#: Of :attr:`Takes.outputs`: the format of A.
OF_A = "a"


@dataclass(frozen=True, eq=False)
class Takes:
    """What a kernel was written for; it takes every combination that a problem can be.

    Attributes:
        formats: of A and B, as :attr:`GemmProblem.operands` has them: ``bf16``, ``bf16xint4``.
        computes: names of :data:`COMPUTES`.
        outputs: formats of C; :data:`OF_A`: that of A.
        scales: granularities of the factors of A and B.
        groupings: extents that groups may cut, ``m``, ``n`` or ``k``.
        two_strides: the operands, of ``abc``, that may have two strides along the batch.
        all_epilogues: also those that are gated, add a residual or have an auxiliary output.
    """

    formats: tuple[str, ...]
    computes: tuple[str, ...] = ("native",)
    outputs: tuple[str, ...] = (OF_A, "fp32")
    scales: tuple[str, ...] = ()
    groupings: tuple[str, ...] = ()
    two_strides: str = ""
    all_epilogues: bool = False

    def violation(self, problem: GemmProblem) -> Violation | None:
        """The first thing that ``problem`` asks for and the kernel does not take, or None."""
        return _violation(self, problem)

    def _violation(self, problem: GemmProblem) -> Violation | None:
        if problem.operands not in self.formats:
            if problem.dtype_a != problem.dtype_b and not any("x" in x for x in self.formats):
                return Violation("dtype", f"operands of two dtypes, {problem.dtype_a} and "
                                          f"{problem.dtype_b}")
            return Violation("dtype", f"takes {', '.join(self.formats)}, not {problem.operands}")
        out = problem.dtype_out
        if out not in self.outputs and (out != problem.dtype_a or OF_A not in self.outputs):
            names = (problem.dtype_a if x == OF_A else x for x in self.outputs)
            return Violation("dtype", f"writes {' or '.join(dict.fromkeys(names))}, not {out}")
        if problem.compute.name not in self.computes:
            ways = [COMPUTES[name].precision for name in self.computes
                    if COMPUTES[name].takes(problem.a.format)]
            return Violation("precision", f"multiplies {problem.operands} at precision "
                             f"{' or '.join(ways)}; at precision {problem.precision} it does not")
        if problem.two_strides != "none" and not set(problem.two_strides) <= set(self.two_strides):
            able = f"two of {', '.join(self.two_strides.upper())}" if self.two_strides else "one"
            return Violation("batch_strides", f"takes {able} along the batch; two_strides is "
                                              f"{problem.two_strides}")
        if not self.all_epilogues and not EPILOGUES[problem.epilogue].plain:
            return Violation("epilogue", f"has no epilogue {problem.epilogue!r}: its epilogues are "
                                         "an addend and an activation, or a factor")
        return None if problem.plain else self._of_modifiers(problem)

    def _of_modifiers(self, problem: GemmProblem) -> Violation | None:
        for name, scale in (("A", problem.a.scale), ("B", problem.b.scale)):
            if scale is not None and scale.granularity not in self.scales:
                return Violation("scale", f"takes {_or_no(self.scales, 'scales')}; {name} has "
                                          f"scale {scale}")
        grouping = grouping_of(problem.grouping)
        if grouping is not None and grouping.kind not in self.groupings:
            return Violation("grouping", f"takes {_or_no(self.groupings, 'groups along')}; "
                                         f"grouping is {grouping}")
        return None


@functools.lru_cache(maxsize=1024)  # asked once a config, of thousands of one problem
def _violation(takes: Takes, problem: GemmProblem) -> Violation | None:
    return takes._violation(problem)


def _or_no(names: tuple[str, ...], what: str) -> str:
    return f"{what} {', '.join(names)}" if names else f"no {what.split()[0]}"
