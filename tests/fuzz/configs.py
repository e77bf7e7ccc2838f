"""Which config each product runs: drawn from the legal ones, given, or selection's own."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from tritongemm import settings
from tritongemm.activations import BY_NAME
from tritongemm.config import KernelConfig
from tritongemm.device import INTERPRETER, DeviceSpec
from tritongemm.errors import ConstraintError, UnsupportedError
from tritongemm.kernels import SPECS
from tritongemm.kernels.compile import launches_of
from tritongemm.kernels.launch import Geometry
from tritongemm.measure.torch_epilogue import ACTIVATIONS
from tritongemm.ops import plans
from tritongemm.ops.execute import clear_plans
from tritongemm.ops.plan import InterpretedPlan
from tritongemm.problem import GemmProblem, epilogue_of
from tritongemm.records.spaces import load_spaces
from tritongemm.selection import Choice
from tritongemm.workers.builder import Builder

#: Configs of a kernel that a GPU run and the interpreter draw from, and draws that may find them.
_A_KERNEL, _INTERPRETED, _DRAWS = 16, 400, 4000
#: Draws until one is legal for a problem.
_TRIES = 60
#: Tiles beside those of the spaces, for the interpreter's small problems.
_SMALL = {"block_m": (16, 32, 64), "block_n": (16, 32, 64), "block_k": (16, 32, 64),
          "split_k": (1, 1, 2, 3, 5)}

#: Problems that a GPU's configs are legal for.
_SAMPLES = tuple(GemmProblem.contiguous(m, 1024, 1024, layout="nt", dtype=dtype,
                                        precision=precision)
                 for m in (4, 24, 1024) for dtype, precision in (
                     ("bf16", "ieee"), ("fp32", "ieee"), ("fp32", "fp16x3"), ("fp32", "tf32")))


@functools.cache
def palette(kernel: str, device: DeviceSpec) -> tuple[KernelConfig, ...]:
    """Configs of a kernel, drawn once from its space: for the interpreter many with small tiles,
    for a GPU a few, each legal for one of :data:`_SAMPLES`."""
    rng = random.Random(kernel)
    products = load_spaces()[kernel].products
    interpreted = device.slug == INTERPRETER
    found: list[KernelConfig] = []
    for _ in range(_DRAWS):
        axes = dict(rng.choice(products).axes)
        if interpreted:
            if kernel != "gemv":
                axes = {name: _SMALL.get(name, values) for name, values in axes.items()}
            axes = {name: tuple(v for v in values if v <= 128) for name, values in axes.items()}
            if not all(axes.values()):
                continue
        config = KernelConfig(kernel, **{name: rng.choice(v) for name, v in axes.items()})
        if interpreted or any(legal(problem, config, device) for problem in _SAMPLES):
            found.append(config)
        if len(found) == (_INTERPRETED if interpreted else _A_KERNEL):
            break
    return tuple(found)


def legal(problem: GemmProblem, config: KernelConfig, device: DeviceSpec) -> bool:
    """Whether it can run, be it wasteful."""
    try:
        SPECS[config.kernel].require(problem, config, device)
    except ConstraintError:
        return False
    return True


def drawn(problem: GemmProblem, device: DeviceSpec, rng: random.Random) -> KernelConfig | None:
    """A legal config, or None where none was found."""
    kernels = [name for name, spec in SPECS.items()
               if spec.supports(problem, device) is None and palette(name, device)]
    for _ in range(_TRIES if kernels else 0):
        config = rng.choice(palette(rng.choice(kernels), device))
        if legal(problem, config, device):
            return config
    return None


class Choices:
    """Stands in for selection and for the making of plans while one case runs.

    Attributes:
        made: (problem, config) of each plan.

    Args:
        configs: as of a :class:`~.case.Case`.
        built: keys of the binaries that may be used; None: any, compiled when asked for.
        recorded: given, no kernel runs: what would have to be built is added to it.
        host_only: no kernel runs, and torch multiplies in its place.
    """

    def __init__(self, configs: int | KernelConfig | None, built: frozenset[str] | None = None,
                 recorded: dict | None = None, host_only: bool = False) -> None:
        self._configs, self._built, self._recorded = configs, built, recorded
        self.host_only = host_only
        self._rng = random.Random(configs if isinstance(configs, int) else 0)
        self._choose, self._make = plans.choose, plans.make_plan
        self.made: list[tuple[GemmProblem, KernelConfig]] = []

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Inside, each product of a new kind comes here for its config. No plan outlives it."""
        clear_plans()
        plans.choose, plans.make_plan = self.choose, self.make_plan
        try:
            yield
        finally:
            plans.choose, plans.make_plan = self._choose, self._make
            clear_plans()

    def choose(self, problem: GemmProblem, device: DeviceSpec) -> Choice:
        """As ``selection.choose``."""
        if settings.current().batch_invariant:  # one class for every M: the mode's own
            return self._choose(problem, device)
        config = self._configs
        if isinstance(config, int):
            config = drawn(problem, device, self._rng)
        if config is not None and legal(problem, config, device):
            return Choice(config, "rule", None, "drawn")
        return self._choose(problem, device)

    def make_plan(self, problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
                  geometry: Geometry, where: torch.device) -> Any:
        """As ``ops.plan.make_plan``."""
        if self._recorded is not None:
            key = build_key(problem, config, device, geometry)
            self._recorded.setdefault(key, (problem, config, geometry))
            plan = NoPlan()
        elif self.host_only:
            plan = TorchPlan(problem)
        elif self._built is None or self._built.issuperset(
                build_key(problem, config, device, geometry).split()):
            plan = self._make(problem, config, device, geometry, where)
        else:
            raise UnsupportedError("its binary is not among those that were built first")
        self.made.append((problem, config))
        return CheckedPlan(problem, plan) if isinstance(plan, InterpretedPlan) else plan


class CheckedPlan:
    """A plan of the interpreter, which has no vector loads to fail: what the problem says of its
    operands' alignment is checked at each call."""

    def __init__(self, problem: GemmProblem, plan: InterpretedPlan) -> None:
        self._problem, self._plan = problem, plan

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                 *others: object, **views: object) -> None:
        """Runs the plan. Raises AssertionError."""
        for operand, x in ((self._problem.a, a), (self._problem.b, b), (self._problem.c, c)):
            outer = [s for s, n in zip(x.stride(), x.shape) if s != 1 and n > 1]
            steps = (x.data_ptr(), *(s * x.element_size() for s in outer))
            # Of an A of 16 bits in a float32 problem it is that of as many elements.
            align = max(1, operand.align * 8 * x.element_size() // operand.format.bits)
            assert all(step % align == 0 for step in steps), (
                f"an operand is said to be aligned to {align} bytes; its address and strides are "
                f"{steps}")
        self._plan(a, b, c, *others, **views)


def build_key(problem: GemmProblem, config: KernelConfig, device: DeviceSpec,
              geometry: Geometry) -> str:
    """The keys of the binaries of one plan, between spaces."""
    from tritongemm.kernels.compile import binary_key

    return " ".join(binary_key(launch, device.arch)
                    for launch in launches_of(problem, config, device, geometry))


class NoPlan:
    """Stands in for a plan of which only what it would launch is asked."""

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *others: object,
                 **views: torch.Tensor) -> None:
        """Writes ``c`` and further results."""
        for view in views.values():
            view.zero_()
        c.zero_()


class TorchPlan:
    """A plan that torch computes, in float32: it tries all of the host's code, without kernels.
    (Element by element: an override would hand a product of torch's back.)"""

    def __init__(self, problem: GemmProblem) -> None:
        self._problem = problem

    def __call__(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor,
                 d: torch.Tensor | None = None, alpha: float = 1.0, beta: float = 1.0,
                 aux: torch.Tensor | None = None, bias: torch.Tensor | None = None) -> None:
        """Writes ``c`` and ``aux``."""
        kind = epilogue_of(self._problem.epilogue)
        a, b, d, bias = (x if x is None or x.is_complex() else x.float() for x in (a, b, d, bias))
        result = (a[..., None] * b[..., None, :, :]).sum(-2)
        if kind.scales:
            result = result * alpha
        if bias is not None:
            result = result + bias
        if kind.multiplies:
            # By torch's own backward: NaN times a derivative of 0 is 0.
            result = (result * d if kind.gradient_of == "none"
                      else BY_NAME[kind.gradient_of].gradient(result, d))
        elif kind.reads_d and not kind.residual:
            result = result + beta * d
        if aux is not None:
            aux.copy_(result)
        if kind.gated:
            result = ACTIVATIONS[kind.activation](result[0]) * result[1]
        else:
            result = ACTIVATIONS[kind.activation](result)
        c.copy_(result + beta * d if kind.residual else result)


class GeometryBuilder(Builder):
    """What a compile process serves: a build of any strides. ``problem`` is a pair."""

    def one(self, problem, config):
        """Compiles one plan's launches. Raises CompileError, ConstraintError."""
        from tritongemm.kernels.compile import build_launches
        from tritongemm.workers.builder import build_values
        from tritongemm.workers.messages import Outcome

        problem, geometry = problem
        launches = launches_of(problem, config, self._device, geometry)
        return Outcome("ok", values=build_values(build_launches(launches, self._device.arch)[1]))


def build_first(recorded: dict, device: DeviceSpec, workers: int) -> frozenset[str]:
    """Compiles what was recorded by the package's own pool; the keys of what was built."""
    from tritongemm.workers.compile_pool import compile_all

    outcomes = compile_all(
        [(key, (problem, geometry), config) for key, (problem, config, geometry)
         in recorded.items()],
        {"device": device}, target="tests.fuzz.configs:GeometryBuilder", workers=workers)
    return frozenset(itertools.chain.from_iterable(
        key.split() for key, outcome in outcomes.items() if outcome.ok))


def simpler(config: KernelConfig) -> list[KernelConfig]:
    """The config with one parameter each at its default."""
    return [replace(config, **{name: value}) for name, value in
            (("split_k", 1), ("group_m", 8), ("epilogue_subtile", 1), ("num_stages", 2))
            if getattr(config, name) != value]
