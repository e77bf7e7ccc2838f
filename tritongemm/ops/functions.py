"""``tritongemm.matmul`` and related functions: torch's functions, on this package's kernels where
possible (:mod:`tritongemm.ops.dispatch`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from tritongemm import settings
from tritongemm.activations import Name as Activation
from tritongemm.errors import UnsupportedError, UsageError
from tritongemm.ops import compiled, fused_linear, native
from tritongemm.ops.autocast import dtype_within
from tritongemm.ops.autograd import ACTIVATE
from tritongemm.ops.declined import Declined
from tritongemm.ops.dispatch import (
    NUMBERS,
    PLAIN,
    adding,
    compiling,
    factors,
    fast_path,
    given,
    run_layer,
    run_older,
    run_product,
    run_sum,
    slow_path,
    writable,
    written,
)
from tritongemm.ops.distributed import distributed, of_shards
from tritongemm.ops.execute import (
    ACTIVATIONS,
    ADDMM,
    BADDBMM,
    BMM,
    DOT,
    LINEAR,
    MATMUL,
    MIXED,
    MM,
    MULMM,
    MV,
    Op,
    fused,
    product,
)
from tritongemm.ops.execute import mixed as mixed_product
from tritongemm.ops.formulas import multiplied, scaled
from tritongemm.ops.operands import StridedShape, expanded
from tritongemm.problem import GATES

#: What ``mixed`` takes for A.
_NARROW = frozenset((torch.bfloat16, torch.float16))


def matmul(input: Tensor, other: Tensor, *, out: Tensor | None = None,
           strict: bool = False, mixed: bool = False) -> Tensor:
    """A @ B as ``torch.matmul``: vectors, matrices and batches. Batches broadcast without a copy.

    Args:
        input: [K], [M, K] or [..., M, K].
        other: [K], [K, N] or [..., K, N].
        out: the output tensor, as in torch.
        strict: raise, naming the reason, instead of calling torch. Also TRITONGEMM_STRICT=1.
        mixed: also accept a bfloat16 or float16 ``input`` with a float32 ``other``, which torch
            refuses. The input is converted to float32, which is exact; the result is float32, under
            autocast too.

    Raises:
        UnsupportedError: only when strict. UsageError: ``mixed`` with other dtypes. Wrong
            arguments raise what torch raises.
    """
    if mixed:
        return _mixed(matmul, MATMUL, input, other, None, out, strict)
    return run_product(torch.matmul, MATMUL, input, other, None, out, strict)


def mm(input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *,
       out: Tensor | None = None, strict: bool = False, mixed: bool = False) -> Tensor:
    """[M, K] @ [K, N] as ``torch.mm``; otherwise as :func:`matmul`."""
    if mixed:
        return _mixed(mm, MM, input, mat2, out_dtype, out, strict)
    return run_product(torch.mm, MM, input, mat2, out_dtype, out, strict)


def bmm(input: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None, *,
        out: Tensor | None = None, strict: bool = False, mixed: bool = False) -> Tensor:
    """[batch, M, K] @ [batch, K, N] as ``torch.bmm``; otherwise as :func:`matmul`."""
    if mixed:
        return _mixed(bmm, BMM, input, mat2, out_dtype, out, strict)
    return run_product(torch.bmm, BMM, input, mat2, out_dtype, out, strict)


def mv(input: Tensor, vec: Tensor, *, out: Tensor | None = None, strict: bool = False) -> Tensor:
    """[M, K] @ [K] as ``torch.mv``. torch runs it unless ``strict`` is set: the product is
    memory-bound, and torch already reads at the memory's bandwidth."""
    return run_product(torch.mv, MV, input, vec, None, out, strict)


def dot(input: Tensor, tensor: Tensor, *, out: Tensor | None = None,
        strict: bool = False) -> Tensor:
    """[K] @ [K] as ``torch.dot``. torch runs it unless ``strict`` is set."""
    return run_product(torch.dot, DOT, input, tensor, None, out, strict)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, out_dtype: torch.dtype | None = None,
          *older: Tensor, beta: float = 1, alpha: float = 1, out: Tensor | None = None,
          strict: bool = False) -> Tensor:
    """beta * input + alpha * mat1 @ mat2 as ``torch.addmm``, by one kernel.

    ``input`` broadcasts to [M, N] and is not read where beta is 0. Torch's deprecated argument
    orders, (beta, input, mat1, mat2) and (beta, input, alpha, mat1, mat2), are accepted with a
    warning. Otherwise as :func:`matmul`.
    """
    if older or out_dtype is not None and isinstance(out_dtype, Tensor):
        return run_older(torch.addmm, ADDMM["none"], (input, mat1, mat2, out_dtype, *older), strict,
                      **factors(beta, alpha), **given(None, out))
    return run_sum(torch.addmm, ADDMM["none"], input, mat1, mat2, out_dtype, beta, alpha, out,
                  strict)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, out_dtype: torch.dtype | None = None,
            *older: Tensor, beta: float = 1, alpha: float = 1, out: Tensor | None = None,
            strict: bool = False) -> Tensor:
    """beta * input + alpha * batch1 @ batch2 as ``torch.baddbmm``, as :func:`addmm` is."""
    if older or out_dtype is not None and isinstance(out_dtype, Tensor):
        return run_older(torch.baddbmm, BADDBMM, (input, batch1, batch2, out_dtype, *older), strict,
                      **factors(beta, alpha), **given(None, out))
    return run_sum(torch.baddbmm, BADDBMM, input, batch1, batch2, out_dtype, beta, alpha, out,
                  strict)


def mulmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, alpha: float = 1,
          gradient_of: Activation = "none", strict: bool = False) -> Tensor:
    """input * alpha * mat1 @ mat2 by one kernel; with ``gradient_of`` the product times that
    activation's derivative at ``input``, as backward through an activation has it.

    Where a gradient is needed: the product, then torch's multiplication.

    Args:
        input: broadcasts to [M, N]: [N] scales columns, [M, 1] rows. With ``gradient_of`` the
            argument of the activation, or its result where its gradient is of that (``relu``).
        mat1: [M, K].
        mat2: [K, N].
        gradient_of: a name of ``tritongemm.activations.BY_NAME``.
        strict: as in :func:`matmul`; of a call that needs a gradient, the product.

    Raises:
        UsageError: an unknown activation; an ``input`` that does not broadcast to [M, N]; a complex
            ``alpha`` of real operands. Otherwise as :func:`matmul`.
    """
    op = MULMM.get(gradient_of)
    if op is None:
        raise UsageError(f"gradient_of={gradient_of!r} is not known; use one of "
                         f"{', '.join(ACTIVATIONS)}")
    plain = all(isinstance(x, Tensor) for x in (input, mat1, mat2))  # else proxies of a tracer
    if not plain:
        _tensors("mulmm", mat1=mat1, mat2=mat2)
        if gradient_of != "none" or type(input) not in NUMBERS:  # torch multiplies by a number
            _tensors("mulmm", input=input)
    if isinstance(alpha, bool):
        alpha = int(alpha)
    if isinstance(alpha, complex) and not mat1.is_complex():
        raise UsageError(f"alpha={alpha} is complex, the operands are {mat1.dtype}")
    if plain:
        _check_factor(input, mat1, mat2)
        if not _needs_gradient(input, mat1, mat2) and not distributed(input, mat1, mat2):
            if compiling():
                result = compiled.factored(input, mat1, mat2, alpha, gradient_of)
                if result is not None:
                    return result
            else:
                done = _factored(op, input, mat1, mat2, alpha, strict)
                if not isinstance(done, Declined):
                    return done
                if strict or settings.current().strict:
                    raise UnsupportedError(f"tritongemm.mulmm would call torch: {done}")
    product = mm(mat1, mat2, strict=strict)
    product = product * alpha if isinstance(alpha, Tensor) else scaled(product, alpha)
    return multiplied(product, input, gradient_of)


def _factored(op: Op, d: Tensor, a: Tensor, b: Tensor, alpha: float,
              strict: bool) -> Tensor | Declined:
    """``mulmm`` by one kernel."""
    if type(alpha) not in NUMBERS:
        return Declined("alpha is no number")
    # Under autocast torch would multiply by an input that it does not cast.
    if d.dtype != (dtype := dtype_within("mm", a)):
        return Declined(f"the input is {d.dtype}, the product {dtype}")

    def run(d: Tensor, a: Tensor, b: Tensor, forced: bool = False) -> Tensor | Declined:
        return fused(op.forced if forced else op, d, a, b, 1.0, alpha)
    return run_layer(run, (d, a, b), (), strict)


def _check_factor(input: Tensor, mat1: Tensor, mat2: Tensor) -> None:
    if any(x.is_nested for x in (input, mat1, mat2)) or mat1.dim() != 2 or mat2.dim() != 2:
        return  # the product checks it
    shape = (mat1.shape[0], mat2.shape[1])
    if expanded(StridedShape(input.shape, (0,) * input.dim()), shape) is None:
        raise UsageError(f"input is of shape {tuple(input.shape)}; it multiplies a product of "
                         f"shape {tuple(shape)}, to which it must broadcast")


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *,
           activation: Activation = "none", residual: Tensor | None = None,
           strict: bool = False, mixed: bool = False) -> Tensor:
    """activation(input @ weight.T + bias) + residual as ``torch.nn.functional.linear``, by one
    kernel: in float32, rounded once.

    If a gradient is needed, the kernel also writes the pre-activation if the activation's gradient
    depends on that (``gelu, gelu_tanh, silu``), and torch adds the residual.

    Args:
        input: [..., K].
        weight: [N, K].
        bias: [N].
        activation: a name of ``tritongemm.activations.BY_NAME``, such as ``relu`` or ``gelu``.
        residual: [..., N], of the result's shape, dtype and device; added after the activation.
        strict, mixed: as in :func:`matmul`, ``weight`` and ``bias`` in float32.

    Raises:
        UsageError: an unknown activation; a residual of another shape, dtype or device than the
            result; with ``mixed`` a bias that is not float32. Otherwise as :func:`matmul`.
    """
    if mixed:
        op = LINEAR.get(activation)
        if op is not None and residual is None and (
                known := _known_mixed(op, input, weight, bias)) is not None:
            return known
        if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
            _tensors("linear", input=input, weight=weight)
        with _without_autocast(input):
            if op is not None and residual is None and (
                    found := _read_as_it_is(op, input, weight, bias)) is not None:
                return found
            widened = _widened(input, weight)
            if isinstance(bias, Tensor) and bias.dtype is not torch.float32:
                raise UsageError("with mixed=True bias is float32, as the weight and the result, "
                                 f"not {bias.dtype}; convert it")
            return linear(widened, weight, bias, activation=activation, residual=residual,
                          strict=strict)
    op = LINEAR.get(activation)
    if op is None:
        raise UsageError(f"activation={activation!r} is not known; use one of "
                         f"{', '.join(ACTIVATIONS)}")
    if residual is not None or activation != "none" and (
            _needs_gradient(input, weight, bias)
            or type(input) not in PLAIN and distributed(input, weight, bias)):
        return _further_linear(input, weight, bias, activation, residual, strict)
    theirs = torch.nn.functional.linear if activation == "none" else partial(
        _activated_linear, activation)
    if bias is None:
        return run_product(theirs, op, input, weight, None, None, strict)
    if (not compiling() and (find := native.run) is not None
            and (known := find(op.number, input, weight, bias)) is not None):
        if known is not False:
            return known
        if not (strict or settings.current().strict):
            return theirs(input, weight, bias)
    if not compiling() and (run := fast_path(input, weight)) and (run := adding(run, bias)):
        result = (fused(op, bias, input, weight, looked=True) if run is fused
                  else run(op, bias, input, weight))
        if not isinstance(result, Declined):
            return result
        if not (strict or settings.current().strict):
            return theirs(input, weight, bias)
    if distributed(input, weight, bias):
        found = of_shards("layer", lambda x, w, b, *_: linear(x, w, b, strict=strict), input,
                           weight, bias, strict=strict)
        return theirs(input, weight, bias) if found is None else found
    return slow_path(partial(theirs, input, weight, bias), op, (bias, input, weight), strict,
                      numbers=(1, 1))


def gated_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *,
                 up: Tensor | None = None, activation: Activation = "silu",
                 interleaved: bool = False, strict: bool = False) -> Tensor:
    """activation(input @ gate.T + gate_bias) * (input @ up.T + up_bias) by one kernel, which does
    not write the 2 N columns of the product (GLU variants: Shazeer, arXiv 2002.05202).

    Where a gradient is needed the kernel does write them, as a second result. Where no kernel runs
    it: :func:`linear`, then torch's activation and product.

    Args:
        input: [..., K].
        weight: [2 N, K]: the N rows of the gate, then those of the other half. With ``up``: [N, K],
            the gate's.
        bias: [2 N], in the order of the weights' rows.
        up: [N, K], the other half where it is a tensor of its own, as in Llama. The kernel reads
            both where they are. They must have equal strides.
        activation: of the gate: ``relu``, ``gelu``, ``gelu_tanh`` or ``silu``.
        interleaved: rows of ``weight`` are gate, up, gate, up, ...
        strict: as in :func:`matmul`.

    Returns:
        [..., N].

    Raises:
        UsageError: an activation that no gate has; a weight that is no matrix or has an odd number
            of rows; an ``up`` of another shape than ``weight``, or with ``interleaved``; a bias of
            another shape. Otherwise as :func:`matmul`.
    """
    if activation not in GATES:
        raise UsageError(f"activation={activation!r} is not one of a gate; use one of "
                         f"{', '.join(GATES)}")
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        _tensors("gated_linear", input=input, weight=weight)
    _check_gate(weight, bias, up, interleaved)
    if distributed(input, weight, bias, up):
        result = of_shards("layer", lambda x, w, b, _, up: gated_linear(
            x, w, b, up=up, activation=activation, interleaved=interleaved, strict=strict), input,
            weight, bias, None, up, plain=False, gated=True, interleaved=interleaved)
        if result is not None:
            return result
    elif compiling():
        result = compiled.gated(input, weight, bias, up, activation, interleaved)
        if result is not None:
            return result
    else:
        reason = run_layer(fused_linear.gated, (input, weight, bias, up),
                          (activation, interleaved), strict)
        if not isinstance(reason, Declined):
            return reason
    # Strict calls raise in `linear` where the product would be torch's.
    if up is None:
        total = linear(input, weight, bias, strict=strict)
        return fused_linear.gate(ACTIVATE[activation], total, interleaved)
    first, second = (None, None) if bias is None else bias.chunk(2)
    return (ACTIVATE[activation](linear(input, weight, first, strict=strict))
            * linear(input, up, second, strict=strict))


#: Types of arguments that cannot stand for a tensor, as proxies of tracers do.
_NO_TENSORS = frozenset((bool, int, float, complex, str, list, tuple, dict, type(None)))


def _tensors(function: str, **arguments: object) -> None:
    """Raises torch's error for an argument that is no tensor, where torch would not see it."""
    for name, value in arguments.items():
        if type(value) in _NO_TENSORS:
            raise TypeError(f"{function}(): argument '{name}' must be Tensor, not "
                            f"{type(value).__name__}")


def _check_gate(weight: Tensor, bias: Tensor | None, up: Tensor | None, interleaved: bool) -> None:
    if not isinstance(weight, Tensor) or weight.is_nested:
        return  # a proxy of a tracer, or nested: the products check it
    rows, two = weight.shape[0] if weight.dim() else 0, up is not None
    if weight.dim() != 2 or rows % 2 and not two:
        raise UsageError(f"weight is of shape {tuple(weight.shape)}; a gated weight is [2 N, K]: "
                         "as many rows of the gate as of the other half; or [N, K], and so is up=")
    if two and interleaved:
        raise UsageError("interleaved=True is for the rows of one weight; with up= there are two")
    if two and not isinstance(up, Tensor):
        raise UsageError(f"up is a {type(up).__name__}, not a tensor")
    if isinstance(up, Tensor) and up.shape != weight.shape:
        raise UsageError(f"up is of shape {tuple(up.shape)}; the weight, to which it is the other "
                         f"half, is of shape {tuple(weight.shape)}")
    rows *= 2 if two else 1
    if isinstance(bias, Tensor) and tuple(bias.shape) != (rows,):
        whose = "both weights have" if two else "the weight has"
        raise UsageError(f"bias is of shape {tuple(bias.shape)}; {whose} {rows} rows, so it is "
                         f"({rows},)")


def _needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad
                                           for x in tensors)


def _further_linear(input: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation,
                    residual: Tensor | None, strict: bool) -> Tensor:
    """A linear layer with a residual, or with an activation and a gradient: by one kernel, else
    composed."""
    if residual is not None:
        _check_residual(input, weight, residual)
    if distributed(input, weight, bias, residual):
        result = of_shards("layer", lambda x, w, b, r, _: linear(
            x, w, b, activation=activation, residual=r, strict=strict), input, weight, bias,
            residual, plain=activation == "none")
        if result is not None:
            return result
    elif compiling():
        result = compiled.linear(input, weight, bias, residual, activation)
        if result is not None:
            return result
    else:
        done = run_layer(fused_linear.linear, (input, weight, bias, residual), (activation,),
                         strict)
        if not isinstance(done, Declined):
            return done
    if residual is None:
        return ACTIVATE[activation](linear(input, weight, bias, strict=strict))
    result = linear(input, weight, bias, activation=activation, strict=strict)
    return result + residual.to(result.dtype)  # under autocast as a kernel does


def _check_residual(input: Tensor, weight: Tensor, residual: Tensor) -> None:
    if not all(isinstance(x, Tensor) and not x.is_nested for x in (input, weight, residual)):
        _tensors("linear", input=input, weight=weight, residual=residual)
        return  # a proxy of a tracer, or nested: the sum checks it
    shape = (*input.shape[:-1], *weight.shape[:-1])
    if tuple(residual.shape) != shape:
        raise UsageError(f"residual is of shape {tuple(residual.shape)}; the result, to which it "
                         f"is added, is of shape {shape}. Expand it first")
    dtype = dtype_within("linear", input)
    if residual.dtype not in (dtype, input.dtype) or residual.device != input.device:
        raise UsageError(f"residual is {residual.dtype} on {residual.device}; the result is "
                         f"{dtype} on {input.device}. Convert it first")


def _mixed(ours: Callable[..., Tensor], op: Op, a: Tensor, b: Tensor,
           out_dtype: torch.dtype | None, out: Tensor | None, strict: bool) -> Tensor:
    """The product of 16-bit A and float32 B by ``op``, else by ``ours`` of A as float32."""
    if out_dtype is None and (known := _known_mixed(op, a, b, out=out)) is not None:
        return known
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        _tensors(ours.__name__, input=a, **{"other" if ours is matmul else "mat2": b})
    with _without_autocast(a):
        found = _read_as_it_is(op, a, b, out=out) if out_dtype is None else None
        if found is not None:
            return found
        return ours(_widened(a, b), b, **given(out_dtype, out), strict=strict)


def _known_mixed(op: Op, a: Tensor, b: Tensor, d: Tensor | None = None,
                 out: Tensor | None = None) -> Tensor | None:
    """The result, by the native dispatcher; None where the Python path must look at the call."""
    if compiling() or (find := native.run) is None:
        return None
    number = MIXED[op].number
    known = find(number, a, b, d) if out is None else find(number, a, b, d, float(d is not None),
                                                           1.0, out)
    return None if known is False else known


def _read_as_it_is(op: Op, a: Tensor, b: Tensor, d: Tensor | None = None,
                   out: Tensor | None = None) -> Tensor | None:
    """A product of 16-bit A and float32 B by kernels that read A as it is; None where A is to be
    converted first: for a gradient, a transform, a compiler or batch invariance, and where the
    float32 product is torch's or of a kernel that does not read it."""
    if compiling() or a.dtype not in _NARROW or b.dtype is not torch.float32:
        return None
    if fast_path(a, b) is not product or d is not None and adding(product, d) is not fused:
        return None
    if out is not None and not writable(out):
        return None
    result = mixed_product(op, a, b, d, out)
    if isinstance(result, Declined):
        return None
    return result if out is None else written(result)


def _widened(a: Tensor, b: Tensor) -> Tensor:
    """A of 16 bits as float32, for a product with a float32 B; differentiable. Raises UsageError
    for other dtypes."""
    if a.dtype not in _NARROW or b.dtype is not torch.float32:
        raise UsageError(f"mixed=True multiplies bfloat16 or float16 by float32, not {a.dtype} by "
                         f"{b.dtype}; convert an operand, or leave mixed out where both are alike")
    return a.float()


def _without_autocast(a: Tensor) -> AbstractContextManager[object]:
    """A block in which autocast, if it is on, leaves operands like A as they are."""
    kind = a.device.type
    if kind in ("cuda", "cpu") and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def _activated_linear(activation: str, *operands: Tensor) -> Tensor:
    return ACTIVATE[activation](torch.nn.functional.linear(*operands))
