"""What providers of other packages share: their package, their limits, and how they say so.

None of these packages is a dependency; each is imported only when its provider is asked for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING

from tritongemm.bench.providers import Prepared
from tritongemm.errors import UnsupportedError
from tritongemm.measure.contender import Contender
from tritongemm.problem import LAYOUTS

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.measure.operands import OperandSet
    from tritongemm.problem import GemmProblem


class Rival:
    """Plain two-dimensional products of another package.

    What it cannot do is a row of status ``constraint`` that says so.

    Attributes:
        package: the module that must be importable.
        install: the words behind ``pip install``.
        dtypes: of A, B and the result alike.
        layouts: those it reads without a copy.
        source: what the column ``selection_source`` says of its choice.
    """

    name = ""
    package = ""
    install = ""
    dtypes: tuple[str, ...] = ("bf16", "fp16")
    layouts: tuple[str, ...] = LAYOUTS
    source = ""

    def available(self, target: Target) -> str | None:
        """No CUDA device, or no package."""
        if target.kind != "cuda":
            return f"{self.package} needs a CUDA device"
        if importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed. Run: pip install {self.install}"
        return None

    def build(self, problem: GemmProblem, target: Target) -> None:
        """Nothing of this package is compiled ahead."""

    def refusal(self, problem: GemmProblem) -> str | None:
        """Why it has no such product; None where it has."""
        if problem.batch != 1:
            return f"batch={problem.batch}; it is offered for a batch of 1"
        if not problem.plain:
            return "scales and groups are not offered"
        if problem.epilogue != "none":
            return f"the epilogue {problem.epilogue} is not offered"
        dtypes = {problem.dtype_a, problem.dtype_b, problem.dtype_out}
        if len(dtypes) > 1 or not dtypes <= set(self.dtypes):
            return f"{problem.formats(' x ')} is not offered; {' and '.join(self.dtypes)} are"
        if problem.layout not in self.layouts:
            return f"layout {problem.layout} is not offered; {', '.join(self.layouts)} are"
        return None

    def prepare(self, problem: GemmProblem, target: Target) -> Prepared:
        """Binds the package's product. Raises UnsupportedError for what it has not."""
        reason = self.refusal(problem)
        if reason is not None:
            raise UnsupportedError(f"not supported by {self.name}: {reason}")
        columns = {"kernel": self.package}
        if self.source:
            columns["selection_source"] = self.source
        return Prepared(Contender(self.name, self.binder(problem)), columns)

    def binder(self, problem: GemmProblem) -> Callable[[OperandSet], Callable[[], object]]:
        """What binds one operand set after the other."""
        raise NotImplementedError
