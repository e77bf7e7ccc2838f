"""The torch baseline in its fastest form: preallocated output, the problem's precision, the faster
BLAS library, and the fastest of its implementations of an epilogue.

torch's settings for these are process-wide. Each is a context manager here, which restores the
previous value on exit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from tritongemm.measure.contender import TORCH, Contender
from tritongemm.measure.operands import OperandSet
from tritongemm.measure.torch_epilogue import torch_ways
from tritongemm.problem import GemmProblem

#: Libraries that torch can run a matrix product on; both are tried.
LIBRARIES = ("cublas", "cublaslt")


@contextlib.contextmanager
def fp32_precision(precision: str) -> Iterator[None]:
    """Sets torch's float32 precision, ``ieee`` or ``tf32``, inside the block."""
    matmul = torch.backends.cuda.matmul
    # Once the newer setting was set, reading the older one raises.
    name = "fp32_precision" if hasattr(matmul, "fp32_precision") else "allow_tf32"
    before = getattr(matmul, name)
    setattr(matmul, name, precision if name == "fp32_precision" else precision == "tf32")
    try:
        yield
    finally:
        setattr(matmul, name, before)


@contextlib.contextmanager
def blas_library(name: str) -> Iterator[None]:
    """Sets torch's preferred BLAS library inside the block; "" changes nothing."""
    if not name:
        yield
        return
    prefer = torch.backends.cuda.preferred_blas_library
    before = prefer()
    prefer(name)
    try:
        yield
    finally:
        prefer(before)


def available_libraries(device: torch.device) -> tuple[str, ...]:
    """The libraries that can be selected on ``device``; ("",) where there is no choice."""
    if device.type != "cuda":
        return ("",)
    found = []
    for name in LIBRARIES:
        try:
            with blas_library(name):
                found.append(name)
        except RuntimeError:  # this build of torch does not have the library
            continue
    return tuple(found) or ("",)


def product(operands: OperandSet) -> Callable[[], None]:
    """torch's own product into ``out``: ``mm`` or ``bmm`` with ``out=``."""
    a, b, out = operands.a, operands.b, operands.out
    run = torch.mm if a.dim() == 2 else torch.bmm
    if a.dtype != b.dtype:  # torch refuses them: the narrower operand is widened first
        return lambda: run(a.to(out.dtype), b.to(out.dtype), out=out)
    if out.dtype == a.dtype:
        return lambda: run(a, b, out=out)
    if a.is_cuda:
        return lambda: run(a, b, out.dtype, out=out)
    # On the host torch has no product with a wider output: the operands are widened first.
    return lambda: out.copy_(run(a.to(out.dtype), b.to(out.dtype)))


class TorchBaseline:
    """The candidate baselines, of which the fastest is kept: one for each library, and with an
    epilogue one for each library and implementation.

    Attributes:
        back_ends: their names, e.g. ``cublaslt`` or ``cublaslt addmm``; "" where there is no
            choice.
    """

    def __init__(self, problem: GemmProblem, device: torch.device) -> None:
        self.problem = problem
        self._made = {f"{library} {way}".strip(): (library, bind)
                      for library in available_libraries(device)
                      for way, bind in torch_ways(problem, product, device.type == "cuda").items()}
        self.back_ends = tuple(self._made)

    def contender(self, back_end: str, name: str = TORCH) -> Contender:
        """The torch contender on ``back_end``, named ``name``."""
        library, bind = self._made[back_end]
        return Contender(name, bind, context=lambda: blas_library(library))


def any_way(problem: GemmProblem) -> Callable[[OperandSet], Callable[[], object]]:
    """torch's simplest implementation of ``problem``, where time does not matter."""
    return next(iter(torch_ways(problem, product).values()))
