"""torch's own samples (OpInfo) of every product, run through both doors and held against float64.

The two doors are ``tritongemm``'s functions, where there is one of that name, and torch's function
under ``tritongemm.override``. An OpInfo's skips and decorators are about torch, and not used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

import tritongemm as tg
from tritongemm.errors import UnsupportedError

NAMES = ("matmul", "__rmatmul__", "mm", "mv", "dot", "bmm", "addmm", "addbmm", "baddbmm",
         "nn.functional.linear", "einsum", "tensordot", "inner", "linalg.multi_dot")
FUNCTIONS = {"matmul": tg.matmul, "mm": tg.mm, "mv": tg.mv, "dot": tg.dot, "bmm": tg.bmm,
             "addmm": tg.addmm, "baddbmm": tg.baddbmm, "nn.functional.linear": tg.linear,
             "__rmatmul__": lambda a, b, **strict: tg.matmul(b, a, **strict)}
#: What even strict calls leave to torch.
TORCHS = ("an extent is 0",)
DOORS = [pytest.param(name, door, id=f"{name}-{door}") for name in NAMES
         for door in ("override", "functions") if door == "override" or name in FUNCTIONS]
ASPECTS = ("values", "noncontiguous", "gradients", "forward", "batched")
#: Whose samples are products with vectors only, which an override leaves to torch.
WITHOUT_MATRICES = {"mv", "dot", "inner"}

Run = Callable[..., torch.Tensor]


@functools.cache
def op_infos() -> dict:
    """The OpInfos by name. The module that has them is imported here, because that takes seconds.

    Left out: `addmm` "decomposed" has the samples of addmm with alpha = beta = 1, and torch's table
    gives it no gradients; `bmm` "triton_optimized" draws outer products for torch's own override of
    bmm, without gradients.
    """
    # Torch's test helpers import expecttest, of the extra [test].
    from torch.testing._internal.common_methods_invocations import op_db

    return {info.name: info for info in op_db
            if info.name in NAMES and not info.variant_test_name}


def held(name: str, door: str, aspect: str, device: str, dtype: torch.dtype,
         limit: int | None = None) -> int:
    """Holds the samples of an OpInfo against float64; how many products kernels made of them.

    Each is computed twice: the native dispatcher answers only calls that were made before, since
    the last change of the settings.
    """
    torch.manual_seed(0)
    info = op_infos()[name]
    samples = list(info.sample_inputs(device, dtype, requires_grad=False))
    tg.override_report(clear=True)
    for sample in _spread(samples, limit):
        if name == "linalg.multi_dot" and dtype == torch.float16:
            sample = sample.transform(_halved)  # five matrices of up to 9 leave float16's range
        if aspect == "noncontiguous":
            sample = sample.noncontiguous()
        call = _Call(info.op, sample)
        run = call.torch if door == "override" else call.by(FUNCTIONS[name])
        with tg.override(min_flops=0) if door == "override" else nullcontext():
            got = [list(_aspects(aspect, run, call.tensors)) for _ in range(2)]
        want = list(_aspects(aspect, call.torch, [x.double() for x in call.tensors]))
        for results in got:
            assert len(results) == len(want)
            for ours, exact in zip(results, want):
                _close(ours, exact, dtype, f"{name}, {aspect}, {sample}")
    return tg.override_report().taken


def _spread(samples: list, limit: int | None) -> list:
    """At most ``limit`` of the samples, from all over the list."""
    if limit is None or len(samples) <= limit:
        return samples
    return [samples[i * len(samples) // limit] for i in range(limit)]


def _halved(x):
    return x * 0.5 if isinstance(x, torch.Tensor) else x


class _Call:
    """A sample as a function of its tensors."""

    def __init__(self, function: Run, sample) -> None:
        self._function = function
        leaves, self._spec = tree_flatten((sample.input, sample.args, sample.kwargs))
        self._leaves = leaves
        self._at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.tensors = [leaves[i] for i in self._at]

    def torch(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self._apply(self._function, tensors)

    def by(self, function: Run) -> Run:
        """By a function of this package: strictly, but for what is torch's even then."""
        def run(*tensors: torch.Tensor) -> torch.Tensor:
            try:
                return self._apply(function, tensors, strict=True)
            except UnsupportedError as error:
                assert any(reason in str(error) for reason in TORCHS), error
                return self._apply(function, tensors)
        return run

    def _apply(self, function: Run, tensors: tuple, **more: bool) -> torch.Tensor:
        leaves = list(self._leaves)
        for i, x in zip(self._at, tensors):
            leaves[i] = x
        first, args, kwargs = tree_unflatten(leaves, self._spec)
        return function(first, *args, **kwargs, **more)


def _aspects(aspect: str, run: Run, tensors: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What is compared: the result, and with it gradients or a tangent."""
    if aspect in ("values", "noncontiguous"):
        yield run(*tensors)
    elif aspect == "forward":
        with forward_ad.dual_level():
            dual = run(*(forward_ad.make_dual(x, _like(x)) for x in tensors))
            value, tangent = forward_ad.unpack_dual(dual)
            yield value
            yield torch.zeros_like(value) if tangent is None else tangent
    else:
        leaves = [x.detach().requires_grad_() for x in tensors]
        result = run(*leaves)
        yield result.detach()
        batched = aspect == "batched"
        cotangent = _like(result.detach().expand(3, *result.shape) if batched else result)
        yield from torch.autograd.grad(result, leaves, cotangent, is_grads_batched=batched)


def _like(x: torch.Tensor) -> torch.Tensor:
    """A fixed tensor of that shape, exact in every dtype."""
    values = torch.arange(x.numel(), device=x.device).reshape(x.shape) % 5 - 2
    return values.to(x.dtype)


def _close(ours: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, what: str) -> None:
    """Within eight roundings of the largest element: intermediate results are rounded as well."""
    assert ours.shape == exact.shape and ours.dtype == dtype, what
    if exact.numel():
        limit = 8 * torch.finfo(dtype).eps * max(1.0, exact.abs().max().item())
        error = (ours.double() - exact).abs().max().item()
        assert error <= limit, f"{what}: {error} is over {limit}"


__all__ = ["ASPECTS", "DOORS", "WITHOUT_MATRICES", "held"]
