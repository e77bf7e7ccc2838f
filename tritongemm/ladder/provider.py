"""Rungs of the ladder as providers, so that the bench measures them as it measures any other.

A rung's name is the provider's. Parameters are changed behind it: ``NAME+num_stages=1`` and
``NAME+block_m=64+block_n=64``; ``NAME+tuned`` takes them from the tuned table of op ``ladder``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tritongemm.baselines.cuda import rungs as cuda
from tritongemm.bench.providers import Prepared
from tritongemm.config import PARAMETERS, KernelConfig
from tritongemm.device import DeviceSpec
from tritongemm.errors import UnsupportedError, UsageError, install_command
from tritongemm.kernels.ladder import RUNG_SPECS
from tritongemm.ladder import catalog
from tritongemm.occupancy import occupancy
from tritongemm.problem import GemmProblem
from tritongemm.records.tables import LADDER, layers_for, read_layers

if TYPE_CHECKING:
    from tritongemm.bench.target import Target
    from tritongemm.measure.operands import OperandSet

TUNED = "tuned"
#: This rung is the project's own answer: it takes the tuned parameters where there are some.
_ALWAYS_TUNED = "warp_tiled_async"


def parse(text: str) -> tuple[catalog.Rung, dict[str, int], bool]:
    """``NAME+axis=value+tuned`` -> the rung, what is changed, whether the table is asked.

    Raises:
        UsageError: an unknown rung or parameter, or a value that is no integer.
    """
    head, *changes = text.split("+")
    one, values, tuned = catalog.rung(head), {}, False
    for change in changes:
        axis, _, value = change.partition("=")
        if change == TUNED:
            tuned = True
        elif axis not in PARAMETERS or not value.isdecimal():
            raise UsageError(f"{text!r}: {change!r} is neither `tuned` nor AXIS=INTEGER with an "
                             f"axis of {', '.join(PARAMETERS)}")
        else:
            values[axis] = int(value)
    if (values or tuned) and one.kind == catalog.HOST:
        raise UsageError(f"{text!r}: host rungs have no parameters")
    if tuned and one.kind != catalog.CUDA:
        raise UsageError(f"{text!r}: only CUDA rungs have a tuned table of their own")
    return one, values, tuned


def config_for(one: catalog.Rung, problem: GemmProblem, device: DeviceSpec,
               changes: dict[str, int] | None = None, tuned: bool = False
               ) -> tuple[KernelConfig, str]:
    """The parameters of a CUDA or Triton rung for ``problem``, and where they come from.

    ``exact`` and ``nearest`` are rows of the tuned table, ``source`` what the rung's text fixes,
    ``rule`` a choice by the number of tiles, ``asked`` with changes on top.
    """
    if one.kind == catalog.TRITON:
        config, source = RUNG_SPECS[one.name].default(problem, device), "rule"
        config = replace(config, **(changes or {}))
    else:
        config, source = _cuda_config(cuda.CUDA_RUNGS[one.name], problem, device,
                                      tuned or one.name == _ALWAYS_TUNED)
        if changes:
            code = cuda.CUDA_RUNGS[one.name]
            config = code.canonical(replace(config, **changes))
    return config, "asked" if changes else source


def _cuda_config(rung: cuda.CudaRung, problem: GemmProblem, device: DeviceSpec,
                 tuned: bool) -> tuple[KernelConfig, str]:
    if tuned:
        found = _from_table(rung.name, problem, device)
        if found is not None:
            return found
    variants = rung.variants
    if rung.name != _ALWAYS_TUNED:
        return variants[0], "source"
    for config in variants:  # the largest tile that leaves at most an eighth of the SMs without one
        tiles = -(-problem.m // config.block_m) * -(-problem.n // config.block_n)
        if 8 * tiles >= 7 * device.num_sms:
            return config, "rule"
    return variants[-1], "rule"


def _from_table(name: str, problem: GemmProblem, device: DeviceSpec
                ) -> tuple[KernelConfig, str] | None:
    layers = layers_for(problem, device.slug, LADDER)
    table = read_layers([path for path, *_ in layers], device.arch)
    rows = [row for row in table.rows.values() if row.config.kernel == name
            and cuda.violation(problem, row.config, device) is None] if table else []
    if not rows:
        return None

    def away(row) -> float:
        return sum(abs(math.log2(max(getattr(row, x), 1) / max(getattr(problem, x), 1)))
                   for x in "mnk")

    best = min(rows, key=lambda row: (away(row), row.key))
    return best.config, "exact" if away(best) == 0 else "nearest"


class RungProvider:
    """One rung, with what is changed behind its name."""

    def __init__(self, text: str) -> None:
        self.name = text
        self.rung, self._changes, self._tuned = parse(text)

    @staticmethod
    def takes(name: str) -> bool:
        """Whether ``name``, without what is changed behind it, is a rung's."""
        head = name.partition("+")[0]
        return any(r.name == head for r in catalog.RUNGS)

    def available(self, target: Target) -> str | None:
        if self.rung.kind == catalog.HOST:
            if target.kind != "cpu":
                return "it runs on the host: use --device cpu"
            try:
                import numba  # noqa: F401
            except ImportError:
                return f"it needs numba. Run: {install_command('cpu')}"
            return None
        if target.kind == "cuda" or (target.kind == "interpreter"
                                     and self.rung.kind == catalog.TRITON):
            if self.rung.kind == catalog.CUDA:
                try:
                    import cuda.core  # noqa: F401
                except ImportError:
                    return f"it needs cuda-core. Run: {install_command('cuda')}"
            return None
        if self.rung.kind == catalog.TRITON:
            return "it runs on a CUDA device, or proves itself under TRITON_INTERPRET=1"
        return "it runs on a CUDA device"

    def build(self, problem: GemmProblem, target: Target) -> KernelConfig | None:
        if self.rung.kind != catalog.TRITON or target.kind != "cuda":
            return None
        config, _ = config_for(self.rung, problem, target.spec, self._changes)
        return config

    def prepare(self, problem: GemmProblem, target: Target) -> Prepared:
        if self.rung.kind == catalog.HOST:
            return self._host(problem)
        config, source = config_for(self.rung, problem, target.spec, self._changes, self._tuned)
        columns: dict[str, object] = {"kernel": self.rung.name, "config_id": config.config_id,
                                      "selection_source": source}
        if self.rung.kind == catalog.CUDA:
            from tritongemm.baselines.cuda.gemm import bind_cuda

            bound = bind_cuda(problem, config, target.spec)
            report = bound.report
            columns.update(registers=report.registers, spills=report.spills // 4,
                           shared_bytes=report.shared_bytes, occupancy=report.occupancy)
        else:
            from tritongemm.kernels.compile import launches_of
            from tritongemm.ladder.triton_rung import TritonRung

            bound = TritonRung(problem, config, target.spec)  # type: ignore[assignment]
            report = bound.report
            first = launches_of(problem, config, target.spec)[0]
            columns.update(registers=report.registers, spills=report.spills,
                           shared_bytes=report.shared_bytes or None,
                           occupancy=occupancy(target.spec, registers=report.registers,
                                               shared_bytes=report.shared_bytes,
                                               num_warps=first.num_warps))
        if not report.cached:
            columns["compile_s"] = report.seconds
        return Prepared(_contender(self.name, lambda o: lambda: bound(o.a, o.b, o.out)), columns)

    def _host(self, problem: GemmProblem) -> Prepared:
        from tritongemm.baselines.host import load_host

        if {problem.dtype_a, problem.dtype_b, problem.dtype_out} != {"fp32"} \
                or problem.layout != "nn" or problem.batch != 1 or problem.epilogue != "none":
            raise UnsupportedError(f"{self.name} multiplies fp32 matrices of layout nn, not "
                                   f"{problem}")
        gemm = load_host(self.name)

        def bind(operands: OperandSet) -> Callable[[], None]:
            arrays = [x.numpy() for x in (operands.a, operands.b, operands.out)]
            one = arrays[0].dtype.type
            return lambda: gemm(*arrays, one(1), one(0))

        return Prepared(_contender(self.name, bind, capturable=False),
                        {"kernel": self.name, "config_id": self.name,
                         "selection_source": "source"})


def _contender(name: str, bind: Callable, capturable: bool = True):
    from tritongemm.measure.contender import Contender

    return Contender(name, bind, capturable=capturable)
