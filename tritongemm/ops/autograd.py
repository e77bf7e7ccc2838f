"""Gradients of products. Each gradient is itself a product on this package's kernels.

The formulas are in :mod:`tritongemm.ops.formulas`. Both functions support higher derivatives in
forward and reverse mode, and ``torch.func.vmap``, which runs one batched product.

The activation is not part of these autograd functions: its gradient needs the pre-activation, so
the kernel writes that, and torch's activation runs after it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd import Function, forward_ad

from tritongemm import settings
from tritongemm.activations import BY_NAME
from tritongemm.errors import UnsupportedError
from tritongemm.ops import formulas
from tritongemm.ops.calls import ranks_reason
from tritongemm.ops.declined import Declined, DeclinedByChoice
from tritongemm.ops.execute import MATMUL, Op, judge
from tritongemm.ops.execute import fused as run_fused
from tritongemm.ops.execute import product as run_product
from tritongemm.ops.operands import VECTORS_ARE_TORCHS, StridedShape, expanded
from tritongemm.ops.untraced import untraced

_transforms = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_JVP = TransformType.Jvp
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


_VECTOR = DeclinedByChoice(VECTORS_ARE_TORCHS)

#: The activations as torch's own functions.
ACTIVATE = {name: one.functional() for name, one in BY_NAME.items()}


def product(op: Op, a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor | Declined:
    """The op's activation of alpha * A @ B, with a gradient."""
    if a.dim() < 2 or b.dim() < 2:
        return _activated(op, _of_vectors(op, a, b, alpha))
    if not _transformed():
        return eager_product(op, a, b, alpha)
    reason = _wrong_sample(op, a, b)
    if reason is not None:
        return reason
    return _activated(op, _applied(ProductFunction, op.plain, a, b, alpha))


def fused(op: Op, d: Tensor, a: Tensor, b: Tensor, beta: float = 1.0,
          alpha: float = 1.0) -> Tensor | Declined:
    """The op's activation of alpha * A @ B + beta * D, with a gradient."""
    if a.dim() == 1:
        if not op.rule.forced:
            return _VECTOR
        wrong = ranks_reason(op.rule, a, b, d)
        if wrong is not None:
            return Declined(wrong)
        result = fused(op, d, a[None], b, beta, alpha)
        return result if isinstance(result, Declined) else result[0]
    if not _transformed():
        return eager_fused(op, d, a, b, beta, alpha)
    reason = _wrong_sample(op, a, b, d)
    if reason is not None:
        return reason
    return _activated(op, _applied(Fused, op.plain, d, a, b, beta, alpha))


def eager_product(op: Op, a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor | Declined:
    """:func:`product` of matrices or batches, outside of ``torch.func`` transforms and forward
    mode."""
    result = run_product(op.plain, a, b, alpha)
    if isinstance(result, Declined):
        return result
    return _activated(op, _apply_product(op.plain, a, b, alpha, (result,)))


def eager_fused(op: Op, d: Tensor, a: Tensor, b: Tensor, beta: float = 1.0,
                alpha: float = 1.0) -> Tensor | Declined:
    """:func:`fused` of matrices or batches, outside of ``torch.func`` transforms and forward
    mode."""
    result = run_fused(op.plain, d, a, b, beta, alpha)
    if isinstance(result, Declined):
        return result
    return _activated(op, _apply_fused(op.plain, d, a, b, beta, alpha, (result,)))


def _applied(function: type[Function], *arguments: object) -> Tensor | Declined:
    """Applies a function of this module. A :class:`Declined` raised inside it arrives here as an
    exception.

    Declines nested forward mode: ``save_for_forward`` keeps operands without the tangents of the
    outer level, so a second derivative would lack terms.
    """
    if _forward_levels() > 1:
        return Declined("forward mode is nested: an autograd function has tangents of one level")
    try:
        return function.apply(*arguments)
    except Declined as reason:
        return reason.fresh()


def _wrong_sample(op: Op, a: Tensor, b: Tensor, d: Tensor | None = None) -> Declined | None:
    """Why torch refuses these operands (under vmap: those of one sample). The batched product of
    all samples would otherwise accept ranks and broadcasting that ``op`` does not."""
    reason = ranks_reason(op.rule, a, b, d)
    if reason is not None:
        return Declined(reason)
    if d is not None and op.rule.ranks is not None:
        shape = (*a.shape[:-1], b.shape[-1])
        if expanded(StridedShape(d.shape, (1,) * d.dim()), shape) is None:
            return Declined(f"the input of shape {tuple(d.shape)} does not broadcast to {shape}")
    return None


def _taken(result: Tensor | Declined) -> Tensor:
    """``result``, inside an autograd function. Raises it if it is a :class:`Declined`."""
    if isinstance(result, Declined):
        raise result.fresh()
    return result


def _activated(op: Op, result: Tensor | Declined) -> Tensor | Declined:
    if op is op.plain or isinstance(result, Declined):
        return result
    return ACTIVATE[op.rule.activation](result)


def _transformed() -> bool:
    """Whether a ``torch.func`` transform or forward mode is active."""
    return forward_ad._current_level >= 0 or _transforms()


def _forward_levels() -> int:
    """The number of active levels of forward mode, from ``torch.func`` and from ``dual_level``."""
    levels = sum(layer.key() == _JVP for layer in get_interpreter_stack() or ())
    return levels or int(forward_ad._current_level >= 0)


def _of_vectors(op: Op, a: Tensor, b: Tensor, alpha: float) -> Tensor | Declined:
    """A product with a vector, as a matrix of one row or column."""
    ranks = (a.dim(), b.dim())
    if not op.rule.forced:
        return _VECTOR
    if 0 in ranks or op.rule.ranks not in (None, ranks):
        return Declined(f"ranks are {ranks[0]} and {ranks[1]}")
    result = product(op.plain if op.rule.flipped else MATMUL.forced,
                     a[None] if ranks[0] == 1 else a, b[:, None] if ranks[1] == 1 else b, alpha)
    if isinstance(result, Declined):
        return result
    result = result.squeeze(-1) if ranks[1] == 1 else result
    if ranks[0] == 1:
        result = result.squeeze(-1 if ranks[1] == 1 else -2)
    return result


def recording() -> bool:
    """Whether autograd records operations at this point. Inference mode, unlike ``no_grad``,
    overrides an ``enable_grad`` inside it."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def wanted(*tensors: Tensor) -> bool:
    """Whether autograd must record a function of ``tensors``."""
    return recording() and any(x.requires_grad for x in tensors) or _transformed()


@untraced
def multiply(op: Op, a: Tensor, b: Tensor, alpha: float = 1.0) -> Tensor:
    """alpha * A @ B inside a gradient formula: by a kernel, else by torch; differentiable if
    needed.

    Raises:
        UnsupportedError: torch would run it, and TRITONGEMM_STRICT=1 is set.
    """
    a, b = _solid(a), _solid(b)
    if type(a) not in _PLAIN or type(b) not in _PLAIN or _dispatch_modes():
        result: Tensor | Declined = Declined(
            "a gradient is a sub-class, or a torch dispatch mode is active")
    else:
        result = (product if wanted(a, b) else run_product)(op, a, b, alpha)
    if not isinstance(result, Declined):
        return result
    if settings.current().strict:
        if result.by_choice and not op.rule.forced:
            return multiply(op.forced, a, b, alpha)
        raise UnsupportedError(f"a gradient of {op.rule.name} would call torch: {result}")
    return formulas.scaled(torch.matmul(a, b.mT if op.rule.flipped else b), alpha)


def _solid(x: Tensor) -> Tensor:
    """``x`` with its values in memory: a lazy negative bit and lazy zeros are resolved."""
    if x._is_zerotensor():
        return torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    return x.resolve_neg()


def _grad_a(op: Op, grad: Tensor, b: Tensor, alpha: float, form: formulas.OperandForm) -> Tensor:
    return formulas.grad_a(partial(multiply, MATMUL, alpha=alpha), grad,
                           b.mT if op.rule.flipped else b, form)


def _grad_b(op: Op, grad: Tensor, a: Tensor, alpha: float, form: formulas.OperandForm) -> Tensor:
    left, right = (grad.conj(), a.conj()) if op.rule.flipped else (a, grad)
    return formulas.grad_b(partial(multiply, MATMUL, alpha=alpha), left, right, form)


def _tangent(op: Op, a: Tensor, b: Tensor, alpha: float, a_t: Tensor | None,
             b_t: Tensor | None) -> Tensor | None:
    """alpha * (dA @ B + A @ dB); a missing tangent counts as zero."""
    terms = [multiply(op, x, y, alpha) for x, y in ((a_t, b), (a, b_t))
             if x is not None and y is not None]
    return sum(terms[1:], terms[0]) if terms else None


def _keep(ctx: Any, a: Tensor, b: Tensor, need_a: bool, need_b: bool) -> None:
    """Saves A if dB is needed and B if dA is needed, and both for a tangent."""
    ctx.save_for_backward(a if need_b else None, b if need_a else None)
    ctx.save_for_forward(a, b)


def _mapped(x: Tensor, axis: int | None, rank: int) -> Tensor:
    """``x`` with vmap's axis moved to the front, followed by axes of length 1 up to ``rank``, the
    rank of one sample. A tensor that is not mapped broadcasts unchanged."""
    if axis is None:
        return x
    x = x.movedim(axis, 0)
    return x.reshape(x.shape[0], *(1,) * (rank - x.dim() + 1), *x.shape[1:])


def _mapped_pair(op: Op, a: Tensor, b: Tensor, axes: tuple) -> tuple[Op, Tensor, Tensor, int]:
    """The product of one sample, rewritten as one product of all samples, and the rank of one
    sample's result."""
    rank = max(a.dim() - (axes[0] is not None), b.dim() - (axes[1] is not None))
    if op.rule.flipped and axes[1] is None:
        return op, _mapped(a, axes[0], rank), b, rank  # the samples fold into rows
    b = _mapped(b, axes[1], rank)
    return _matmul(op), _mapped(a, axes[0], rank), b.mT if op.rule.flipped else b, rank


def _matmul(op: Op) -> Op:
    """``matmul``, forced if ``op`` is."""
    return MATMUL.forced if op.rule.forced else MATMUL


class ProductFunction(Function):
    """alpha * A @ B."""

    @staticmethod
    def forward(op: Op, a: Tensor, b: Tensor, alpha: float) -> Tensor:
        """Runs it. Raises Declined."""
        return _taken(run_product(op, a, b, alpha))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps what the gradients need."""
        op, a, b, alpha = inputs
        ctx.rest = op, alpha, formulas.OperandForm.of(a), formulas.OperandForm.of(b)
        _, need_a, need_b, _ = ctx.needs_input_grad
        _keep(ctx, a, b, need_a, need_b)

    @staticmethod
    @untraced
    def backward(ctx: Any, grad: Tensor) -> tuple:
        """dA and dB, where they are needed."""
        a, b = ctx.saved_tensors
        op, alpha, form_a, form_b = ctx.rest
        return (None, None if b is None else _grad_a(op, grad, b, alpha, form_a),
                None if a is None else _grad_b(op, grad, a, alpha, form_b), None)

    @staticmethod
    @untraced
    def jvp(ctx: Any, _op: None, a_t: Tensor | None, b_t: Tensor | None,
            _alpha: None) -> Tensor | None:
        """The tangent of the product."""
        a, b = ctx.saved_tensors
        op, alpha, *_ = ctx.rest
        return _tangent(op, a, b, alpha, a_t, b_t)

    @staticmethod
    @untraced
    def vmap(info: Any, in_dims: tuple, op: Op, a: Tensor, b: Tensor,
             alpha: float) -> tuple[Tensor, int]:
        """One product of all samples."""
        op, a, b, _ = _mapped_pair(op, a, b, in_dims[1:3])
        return _taken(product(op, a, b, alpha)), 0


class _EagerProduct(Function):
    """:class:`ProductFunction` outside of transforms and forward mode, for a result that is already
    computed.

    The product runs before the autograd function, because an exception inside one is too slow for a
    declined call. A combined ``forward`` costs 3 us; with a separate ``setup_context`` torch binds
    the arguments through ``inspect.signature``, which costs 15 us.
    """

    @staticmethod
    def forward(ctx: Any, op: Op, a: Tensor, b: Tensor, alpha: float,
                result: tuple[Tensor]) -> Tensor:
        """Keeps what the gradients need."""
        _, need_a, need_b, _, _ = ctx.needs_input_grad
        ctx.rest = op, alpha, formulas.OperandForm.of(a), formulas.OperandForm.of(b)
        ctx.save_for_backward(a if need_b else None, b if need_a else None)
        return result[0]

    @staticmethod
    @untraced
    def backward(ctx: Any, grad: Tensor) -> tuple:
        """dA and dB, where they are needed."""
        return *ProductFunction.backward(ctx, grad), None


class Fused(Function):
    """alpha * A @ B + beta * D, D broadcast."""

    @staticmethod
    def forward(op: Op, d: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float) -> Tensor:
        """Runs it. Raises Declined."""
        return _taken(run_fused(op, d, a, b, beta, alpha))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Saves what the gradients need: of D only its shape."""
        op, d, a, b, beta, alpha = inputs
        ctx.rest = op, alpha, formulas.OperandForm.of(a), formulas.OperandForm.of(b), beta, d.shape
        _, ctx.need_d, need_a, need_b, _, _ = ctx.needs_input_grad
        _keep(ctx, a, b, need_a, need_b)

    @staticmethod
    @untraced
    def backward(ctx: Any, grad: Tensor) -> tuple:
        """dD, dA and dB, where they are needed."""
        a, b = ctx.saved_tensors
        op, alpha, form_a, form_b, beta, shape_d = ctx.rest
        return (None, formulas.grad_d(grad, shape_d, beta) if ctx.need_d else None,
                None if b is None else _grad_a(op, grad, b, alpha, form_a),
                None if a is None else _grad_b(op, grad, a, alpha, form_b), None, None)

    @staticmethod
    @untraced
    def jvp(ctx: Any, _op: None, d_t: Tensor | None, a_t: Tensor | None,
            b_t: Tensor | None, _beta: None, _alpha: None) -> Tensor | None:
        """The tangent of the sum."""
        a, b = ctx.saved_tensors
        op, alpha, _, _, beta, _ = ctx.rest
        tangent = _tangent(op, a, b, alpha, a_t, b_t)
        if d_t is None:
            return tangent
        scaled = formulas.scaled(_solid(d_t), beta)
        if tangent is None:
            shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (
                a.shape[-2], b.shape[-2 if op.rule.flipped else -1])
            return scaled.expand(shape).contiguous()
        return tangent + scaled

    @staticmethod
    @untraced
    def vmap(info: Any, in_dims: tuple, op: Op, d: Tensor, a: Tensor,
             b: Tensor, beta: float, alpha: float) -> tuple[Tensor, int]:
        """One product of all samples, D with it."""
        if in_dims[2:4] == (None, None):
            reason = judge(alpha, beta)  # the sum below would accept any factor
            if reason is not None:
                raise reason
            d = _mapped(d, in_dims[1], max(a.dim(), b.dim()))
            result = _taken(product(op, a, b, alpha))
            if beta == 0:  # D is not read
                return result.expand(d.shape[0], *result.shape).contiguous(), 0
            return result + formulas.scaled(d, beta), 0
        op, a, b, rank = _mapped_pair(op, a, b, in_dims[2:4])
        if op.rule.flipped and in_dims[1] is not None:  # a mapped bias is not a vector
            op, b = _matmul(op), b.mT
        return _taken(fused(op, _mapped(d, in_dims[1], rank), a, b, beta, alpha)), 0


class _EagerFused(Function):
    """:class:`Fused` outside of transforms and forward mode, as :class:`_EagerProduct` is."""

    @staticmethod
    def forward(ctx: Any, op: Op, d: Tensor, a: Tensor, b: Tensor, beta: float,
                alpha: float, result: tuple[Tensor]) -> Tensor:
        """Keeps what the gradients need."""
        _, ctx.need_d, need_a, need_b, _, _, _ = ctx.needs_input_grad
        ctx.rest = op, alpha, formulas.OperandForm.of(a), formulas.OperandForm.of(b), beta, d.shape
        ctx.save_for_backward(a if need_b else None, b if need_a else None)
        return result[0]

    @staticmethod
    @untraced
    def backward(ctx: Any, grad: Tensor) -> tuple:
        """dD, dA and dB, where they are needed."""
        return *Fused.backward(ctx, grad), None


#: Their ``apply`` without torch's Python wrapper, which checks for transforms.
_apply_product = super(Function, _EagerProduct).apply
_apply_fused = super(Function, _EagerFused).apply
