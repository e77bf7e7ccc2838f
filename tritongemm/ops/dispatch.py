"""How a call of ``tritongemm.matmul`` and related functions runs: by a kernel or by torch.

The fast path of a call with plain tensors is :mod:`tritongemm.ops.execute`, or, if it needs a
gradient, :mod:`tritongemm.ops.autograd`. Everything else takes :func:`slow_path`: modes and
sub-classes go to torch, autocast casts as torch does, a compiler gets registered ops. DTensors take
:mod:`tritongemm.ops.distributed`. A declined call is passed to torch's function with the same
arguments, so the result, warning or error is torch's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack, has_torch_function_variadic
from torch.utils._device import DeviceContext

from tritongemm import settings
from tritongemm.errors import UnsupportedError
from tritongemm.ops import autograd, compiled, native
from tritongemm.ops.autocast import cast
from tritongemm.ops.declined import Declined
from tritongemm.ops.distributed import distributed, of_shards
from tritongemm.ops.execute import Op, fused, product, product_into
from tritongemm.ops.untraced import uncompiled, untraced

#: Types of tensors that no sub-class changes the meaning of.
PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
#: Types of an alpha and a beta that a kernel takes.
NUMBERS = frozenset((int, float))
_FUNCTIONALIZE = TransformType.Functionalize
#: Up to 2.12 torch has named tensors, whose names its own functions check and propagate.
_NAMED = hasattr(torch.Tensor, "has_names")
_any_autocast = torch._C._is_any_autocast_enabled
compiling = torch.compiler.is_dynamo_compiling
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active


@uncompiled
def run_product(theirs: Callable[..., Tensor], op: Op, a: Tensor, b: Tensor,
                out_dtype: torch.dtype | None, out: Tensor | None, strict: bool) -> Tensor:
    """A product by ``op``, or by torch's function ``theirs``."""
    # Not compiling first: Dynamo would guard on native.run, and compile again when it is set.
    if (out_dtype is None and not compiling() and (find := native.run) is not None
            and (known := find(op.number, a, b) if out is None
                 else find(op.number, a, b, None, 0.0, 1.0, out)) is not None):
        if known is not False:
            return known
        if not (strict or settings.current().strict):
            return theirs(a, b, **given(None, out))
    if out is None and out_dtype is None:
        if not compiling() and (run := fast_path(a, b)) is not None:
            result = product(op, a, b, looked=True) if run is product else run(op, a, b)
            if not isinstance(result, Declined):
                return result
            if not (strict or settings.current().strict):
                return theirs(a, b)
        if distributed(a, b):
            found = _of_layer_or_product(theirs, op, a, b, strict)
            return theirs(a, b) if found is None else found
        return slow_path(partial(theirs, a, b), op, (a, b), strict)
    if out is not None and not compiling() and fast_path(a, b) is product and writable(out):
        result = product_into(op, a, b, out, out_dtype)
        if not isinstance(result, Declined):
            return written(result)
    return slow_path(partial(theirs, a, b, **given(out_dtype, out)), op, (a, b), strict, out,
                  out_dtype)


@uncompiled
def run_sum(theirs: Callable[..., Tensor], op: Op, d: Tensor, a: Tensor, b: Tensor,
           out_dtype: torch.dtype | None, beta: float, alpha: float, out: Tensor | None,
           strict: bool) -> Tensor:
    """A fused sum by ``op``, or by torch's function ``theirs``."""
    if (out_dtype is None and not compiling() and (find := native.run) is not None
            and type(beta) in NUMBERS and type(alpha) in NUMBERS
            and (known := find(op.number, a, b, d, beta, alpha) if out is None
                 else find(op.number, a, b, d, beta, alpha, out)) is not None):
        if known is not False:
            return known
        if not (strict or settings.current().strict):
            return theirs(d, a, b, **factors(beta, alpha), **given(None, out))
    if (out_dtype is None and not compiling() and type(beta) in NUMBERS
            and type(alpha) in NUMBERS and (run := fast_path(a, b)) and (run := adding(run, d))
            and (out is None or run is fused and writable(out))):
        result = (run(op, d, a, b, beta, alpha) if out is None and run is not fused
                  else fused(op, d, a, b, beta, alpha, out, looked=True))
        if not isinstance(result, Declined):
            return result if out is None else written(result)
        if not (strict or settings.current().strict):
            return theirs(d, a, b, **factors(beta, alpha), **given(None, out))
    if out is None and out_dtype is None and distributed(d, a, b):
        found = of_shards("total", lambda d, a, b: run_sum(
            theirs, op, d, a, b, None, beta, alpha, None, strict), d, a, b, strict=strict)
        return theirs(d, a, b, **factors(beta, alpha)) if found is None else found
    torchs = partial(theirs, d, a, b, **factors(beta, alpha), **given(out_dtype, out))
    return slow_path(torchs, op, (d, a, b), strict, out, out_dtype, (beta, alpha))


def run_older(theirs: Callable[..., Tensor], op: Op, arguments: tuple, strict: bool,
           **options: Any) -> Tensor:
    """A sum whose arguments are in one of torch's deprecated orders; any other order raises torch's
    error."""
    if len(arguments) == 4:
        (beta, d, a, b), alpha = arguments, 1
    elif len(arguments) == 5:
        beta, d, alpha, a, b = arguments
    else:
        return theirs(*arguments, **options)
    if ("beta" in options or "alpha" in options or type(beta) not in NUMBERS
            or type(alpha) not in NUMBERS
            or not all(isinstance(x, Tensor) for x in (d, a, b))):
        return theirs(*arguments, **options)
    name = op.rule.name
    if not compiling():  # Dynamo traces no warning; torch gives none there either
        warnings.warn(f"{name}(beta, input, ...) is deprecated; use {name}(input, ..., beta=, "
                      "alpha=)", stacklevel=3)
    return run_sum(theirs, op, d, a, b, None, beta, alpha, options.get("out"), strict)


def _of_layer_or_product(theirs: Callable[..., Tensor], op: Op, a: Tensor, b: Tensor,
                         strict: bool) -> Tensor | None:
    """A product of DTensors by ``op``, or a linear layer without a bias."""
    rule = op.rule
    if rule.flipped:
        return of_shards("layer", lambda x, w, *_: run_product(
            theirs, op, x, w, None, None, strict), a, b, None, strict=strict)
    if rule.ranks is not None and (a.dim(), b.dim()) != rule.ranks:
        return None
    return of_shards("product", lambda a, b: run_product(theirs, op, a, b, None, None, strict),
                      a, b, strict=strict, broadcasts=rule.broadcasts)


@untraced
def run_layer(run: Callable[..., Tensor | Declined], tensors: tuple[Tensor | None, ...],
             options: tuple, strict: bool) -> Tensor | Declined:
    """A layer of ``fused_linear``, unless a mode, a transform or a sub-class makes it torch's."""
    present = tuple(x for x in tensors if x is not None)
    reason = _torch_only(present)
    if reason is None and (_transforms() or forward_ad._current_level >= 0):
        reason = "a transform or forward mode is active"
    if reason is not None:
        return Declined(reason)
    if _any_autocast():
        cast_ = iter(cast("linear", present))
        tensors = tuple(None if x is None else next(cast_) for x in tensors)
    tensors = tuple(x if x is None or not x.is_neg() else x.resolve_neg() for x in tensors)
    result = run(*tensors, *options)
    if isinstance(result, Declined) and result.by_choice and (strict or settings.current().strict):
        return run(*tensors, *options, True)
    return result


@untraced
def fast_path(a: Tensor, b: Tensor) -> Callable[..., Tensor | Declined] | None:
    """The function that multiplies two plain tensors, with or without a gradient, if no mode,
    transform or autocast is active; None if the call must take the slow path."""
    if (type(a) in PLAIN and type(b) in PLAIN
            and not has_torch_function_variadic(a, b)  # also true under a function mode
            and not _dispatch_modes() and not _transforms() and not _any_autocast()
            and forward_ad._current_level < 0 and not a.is_neg() and not b.is_neg()
            and not (_NAMED and (a.has_names() or b.has_names()))):
        if (a.requires_grad or b.requires_grad) and autograd.recording():
            return autograd.eager_product
        return product
    return None


@untraced
def adding(run: Callable[..., Tensor | Declined],
            d: Tensor) -> Callable[..., Tensor | Declined] | None:
    """The function that computes a product plus ``d``, given the one that computes the product;
    None as for :func:`fast_path`."""
    if type(d) not in PLAIN or d.is_neg() or _NAMED and d.has_names():
        return None
    if run is not product or d.requires_grad and autograd.recording():
        return autograd.eager_fused
    return fused


@uncompiled
def slow_path(theirs: Callable[[], Tensor], op: Op, tensors: tuple[Tensor, ...], strict: bool,
           out: Tensor | None = None, out_dtype: torch.dtype | None = None,
           numbers: tuple[float, ...] = ()) -> Tensor:
    """Runs any call: by registered ops under a compiler, by kernels, or by ``theirs``; an error
    when strict.

    Args:
        tensors: A and B; or D, A and B with ``numbers``, which are beta and alpha.

    Raises:
        UnsupportedError: torch would run the call, and it is strict.
    """
    if torch.compiler.is_compiling():
        compiled.read_settings()
        result = None
        if out is None and out_dtype is None:
            result = compiled.run(op.rule, tensors, numbers)
        if result is None and (strict or settings.current().strict):
            raise UnsupportedError(f"tritongemm.{op.rule.name} would compile as torch's: no "
                                   "registered op covers such a call")
        return theirs() if result is None else result
    result = _run_eager(op, tensors, out, out_dtype, numbers)
    if not isinstance(result, Declined):
        return result if out is None else written(result)
    if strict or settings.current().strict:
        if result.by_choice and not op.rule.forced:
            return slow_path(theirs, op.forced, tensors, strict, out, out_dtype, numbers)
        raise UnsupportedError(f"tritongemm.{op.rule.name} would call torch: {result}")
    return theirs()


@untraced
def _run_eager(op: Op, tensors: tuple[Tensor, ...], out: Tensor | None,
                out_dtype: torch.dtype | None, numbers: tuple[float, ...]) -> Tensor | Declined:
    """Runs the call by kernels, unless only torch can run it."""
    reason = _torch_only(tensors if out is None else (*tensors, out))
    if reason is not None:
        return Declined(reason)
    if any(type(number) not in NUMBERS for number in numbers):
        return Declined("alpha or beta is no number")
    if out is None and out_dtype is None:
        tensors = cast(op.rule.name, tensors)
        tensors = tuple(x.resolve_neg() for x in tensors)
        if autograd.wanted(*tensors):
            return (autograd.fused if numbers else autograd.product)(op, *tensors, *numbers)
        return (fused if numbers else product)(op, *tensors, *numbers)
    if autograd.wanted(*tensors) or out is not None and not writable(out):
        return Declined("out= or out_dtype= is given, and a gradient is required, or out= is not "
                        "to be written")
    tensors = tuple(x.resolve_neg() for x in tensors)
    if not numbers:
        a, b = tensors
        return product_into(op, a, b, out, out_dtype)
    if out_dtype is not None:
        return Declined("out_dtype= is given")
    (d, a, b), (beta, alpha) = tensors, numbers
    return fused(op, d, a, b, beta, alpha, out)


def _torch_only(tensors: tuple[object, ...]) -> str | None:
    """Why torch must run the call: a sub-class, a mode, a transform; None if there is no such
    reason."""
    if any(type(x) not in PLAIN for x in tensors):
        return "operands are " + " and ".join(type(x).__name__ for x in tensors)
    if any(x.is_nested for x in tensors):  # type: ignore[attr-defined]
        return "an operand is nested"
    if _NAMED and any(x.has_names() for x in tensors):  # type: ignore[attr-defined]
        return "axes have names"
    modes = [mode for mode in _get_current_function_mode_stack()
             if not isinstance(mode, DeviceContext)]  # a default device affects only factories
    if modes or _dispatch_modes():
        return "a torch function or dispatch mode is active"
    if _transforms() and any(layer.key() == _FUNCTIONALIZE for layer in get_interpreter_stack()):
        return "torch.func.functionalize has no rule for an autograd function"
    return None


def writable(out: Tensor) -> bool:
    """Whether a kernel may write ``out``, apart from its shape and strides."""
    return (type(out) in PLAIN and not out.requires_grad and not out.is_neg()
            and not (_NAMED and out.has_names())
            and (not out.is_inference() or torch.is_inference_mode_enabled()))


def written(out: Tensor) -> Tensor:
    """``out`` after a kernel wrote it, with its version increased, so that autograd notices if it
    had saved it."""
    torch.autograd.graph.increment_version(out)
    return out


def given(out_dtype: torch.dtype | None, out: Tensor | None) -> dict[str, object]:
    """The arguments that were passed, by name: torch's functions distinguish None from a missing
    argument, and their errors name what was passed."""
    return {name: value for name, value in (("out_dtype", out_dtype), ("out", out))
            if value is not None}


def factors(beta: float, alpha: float) -> dict[str, object]:
    """The factors that differ from torch's defaults, by name."""
    return {name: value for name, value in (("beta", beta), ("alpha", alpha))
            if type(value) is not int or value != 1}
