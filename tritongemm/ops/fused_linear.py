"""Linear layers whose epilogue is gated, adds a residual, or writes the argument of its activation.

:func:`run` is one launch, or the reason why there is none, below autograd and modes. :func:`gated`
and :func:`linear` differentiate it: the launch writes what the gradient of the activation needs as
a second result, so that the activation stays in the kernel, and the products of the backward are
this package's. Functions that autograd, a mode or a compiler must see are composed of torch's
(:func:`gate`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from tritongemm import settings
from tritongemm.activations import BY_NAME
from tritongemm.device import DeviceSpec
from tritongemm.errors import LaunchError, TritonGemmError
from tritongemm.formats import format_of
from tritongemm.kernels.launch import Geometry, View
from tritongemm.ops import autograd, calls, execute, formulas, native
from tritongemm.ops.calls import NAMES
from tritongemm.ops.declined import Declined, DeclinedByChoice, DeclinedNow
from tritongemm.ops.execute import Op
from tritongemm.ops.native import Bound
from tritongemm.ops.operands import StridedShape, form_of, gapless, problem_of_form
from tritongemm.ops.plan import PRODUCT, Plan
from tritongemm.ops.plans import device_of, plans
from tritongemm.ops.untraced import untraced
from tritongemm.problem import GATES, Epilogue, GemmProblem, divisor_of, epilogue_of
from tritongemm.selection import choose

Results = tuple[Tensor, ...]
#: Microseconds of a pointwise kernel of torch beside the bytes that it moves: 256 cubed, a product
#: of next to no work, takes 2.6 on an H200 in a CUDA graph.
_PASS_US = 2.5
_RULE = calls.Rule("linear", (2, 2), flipped=True)
#: The calls that are known, by all that their launch depends on: cleared with all others.
_LINEAR = Op(_RULE)
#: Gated layers that the native dispatcher answers, by its words: of one weight, and of two.
GATED = {f"{name}{order}": Op(_RULE) for name in GATES for order in ("", " interleaved")}
GATED_PAIR = {name: Op(_RULE) for name in GATES}


class LinearLayer(NamedTuple):
    """What a linear layer computes beside its product.

    Attributes:
        activation: a name of :data:`tritongemm.activations.BY_NAME`.
        gated: the weight [2 N, K] holds the gate's rows and the others; or it is [N, K], the
            gate's, and the others are a tensor of their own, ``up``.
        interleaved: these alternate, else the gate's N rows come first.
        aux: the argument of the activation, [M, N] or [M, 2 N] (the gate's columns first), is a
            second result.
        forced: run also what is torch's by choice.
    """

    activation: str = "none"
    gated: bool = False
    interleaved: bool = False
    aux: bool = False
    forced: bool = False


_COMPLEX = Declined("complex layers are composed")


@untraced
def run(layer: LinearLayer, x: Tensor, w: Tensor, bias: Tensor | None = None,
        residual: Tensor | None = None, up: Tensor | None = None) -> Results | Declined:
    """activation(x @ w.T + bias) + residual, or with a gate activation(gate) * other, by one
    launch.

    Args:
        x: [M, K].
        w: [N, K], or [2 N, K].
        bias: as many elements as the weights have rows.
        residual: [M, N], not with a gate nor with ``aux``.
        up: [N, K], where ``w`` is the gate's part alone. The kernel reads both as halves of one
            operand, as far from each other as they happen to lie in memory, so each distance has a
            plan of its own.

    Returns:
        (result [M, N],) or (result, argument of the activation).
    """
    if up is not None and _reads_one_tensor():
        if (reason := _unlike(w, up)) is not None:
            return Declined(reason)
        w, up = torch.cat((w, up)), None
    tensors = [t for t in (x, w, bias, residual, up) if t is not None]
    if any(t.is_complex() for t in tensors):
        return _COMPLEX
    try:
        addresses = [t.data_ptr() for t in tensors]
        distance = None if up is None else addresses[-1] - addresses[1]
        key = (layer, bias is None, distance, *((t.shape, t.stride(), t.dtype, t.device, at & 15)
                                                for t, at in zip(tensors, addresses)),
               calls.precision_setting("cuda", "matmul"))
    except RuntimeError:
        return execute._NOT_STRIDED
    if execute._without_memory(*tensors):
        return execute._NOT_IN_MEMORY
    call = _LINEAR.hits.get(key)
    if call is None:
        hits, generation = _LINEAR.hits, native.generation()
        try:
            call = _bind(layer, x, w, bias, residual, up)
        except Declined as reason:
            call = execute._refusing(reason)
            if not reason.lasting:
                return reason.fresh()
        execute._keep(hits, key, call)
        results = call(x, w, bias, residual)
        if (op := _answered_natively(layer, up)) is not None:
            native.offer(generation, op.number, call,
                         results if isinstance(results, Declined) else results[0], x, w, bias,
                         alpha=1.0, beta=1.0, up=up)
        return results
    return call(x, w, bias, residual)


def _unlike(w: Tensor, up: Tensor) -> str | None:
    """Why two weights cannot be the halves of one operand; None: they can."""
    if w.dim() != 2 or w.layout is not torch.strided or up.layout is not torch.strided:
        return "the weights are no strided matrices"
    if (w.shape, w.stride(), w.dtype, w.device) == (up.shape, up.stride(), up.dtype, up.device):
        return None
    return " and ".join(f"{tuple(x.shape)} with strides {x.stride()}, {x.dtype} on {x.device}"
                        for x in (w, up))


def _reads_one_tensor() -> bool:
    """Whether kernels are interpreted, by which B is one tensor."""
    return settings.current().interpret


def _answered_natively(layer: LinearLayer, up: Tensor | None) -> Op | None:
    """The op of a layer in the native dispatcher; None: it has none."""
    if not layer.gated or layer.aux or layer.forced:
        return None
    if up is not None:
        return GATED_PAIR[layer.activation]
    return GATED[layer.activation + (" interleaved" if layer.interleaved else "")]


def _bind(layer: LinearLayer, x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None,
          up: Tensor | None) -> Callable[..., Results | Declined]:
    """The callable for operands like these. Raises Declined."""
    rule = _RULE._replace(forced=layer.forced)
    m, n = x.shape[0], w.shape[0]
    if up is None:
        calls._check(rule, calls.Operands(x, w, None, bias), x.dtype)
    else:
        if (reason := _unlike(w, up)) is not None:
            raise Declined(reason)
        n *= 2
        if bias is not None and tuple(bias.shape) != (n,):
            raise Declined(f"the bias is of shape {tuple(bias.shape)}")
        first = None if bias is None else bias[:w.shape[0]]
        calls._check(rule, calls.Operands(x, w, None, first), x.dtype)
    shape = (m, n // 2 if layer.gated else n)
    if residual is not None and (residual.dtype, residual.device, tuple(residual.shape)) != (
            x.dtype, x.device, shape):
        raise Declined(f"the residual is {tuple(residual.shape)}, {residual.dtype} on "
                       f"{residual.device}")
    problem, geometry = _problem(layer, x, w, bias, residual, up)
    key = (problem, geometry, x.device)
    if not layer.forced and not torch.cuda._is_in_bad_fork():
        reason = faster_apart(problem, device_of(x.device), products=1 if up is None else 2)
        if reason is not None:
            raise DeclinedByChoice(reason)
    plan = plans.get(key, forced=layer.forced)
    dtype, device, aux = x.dtype, x.device, layer.aux
    vector_is_d = residual is None

    def call(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None) -> Results:
        results: Results = (torch.empty(shape, dtype=dtype, device=device),)
        others: dict[str, Tensor] = {}
        if aux:
            results += (torch.empty((m, n), dtype=dtype, device=device),)
            others["aux"] = results[1]
        d = bias if vector_is_d else residual
        if not vector_is_d and bias is not None:
            others["bias"] = bias
        if isinstance(plan, Plan):
            values = (x.data_ptr(), w.data_ptr(), results[0].data_ptr(),
                      0 if d is None else d.data_ptr(), 1.0, 1.0,
                      *(others[name].data_ptr() for name in plan.operands[len(PRODUCT):]))
            if calls._alone():
                plan.at(values)
            else:
                with torch.cuda.device(plan.index):
                    plan.at(values)
        elif layer.gated:  # a plan that takes views, such as the interpreter's
            plan(x, _apart(w, layer).mT, results[0],
                 None if d is None else _apart(d, layer)[:, None], 1.0, 1.0,
                 **{name: halves.movedim(-2, 0) for name, other in others.items()
                    for halves in [other.unflatten(-1, (2, -1))]})
        else:
            plan(x, w.mT, results[0], d, 1.0, 1.0, **others)
        return results

    def guarded(*operands: Tensor | None) -> Results | Declined:
        try:
            return call(*operands)
        except LaunchError as error:
            reason = plans.refuse(key, error)
            for forget in calls.on_refusal:
                forget()
            return reason
        except torch.OutOfMemoryError:
            return DeclinedNow("there is no memory for the results or the scratch of this call")
    if isinstance(plan, Plan) and plan.operands == PRODUCT and calls._alone():
        guarded.bound = Bound(  # type: ignore[attr-defined]
            plan, shape, gapless(shape), dtype)
    return guarded


def _problem(layer: LinearLayer, x: Tensor, w: Tensor, bias: Tensor | None,
             residual: Tensor | None, up: Tensor | None) -> tuple[GemmProblem, Geometry]:
    """The problem of a launch, and its strides. Raises Declined for an extent of 0, and for halves
    that are no whole number of elements apart."""
    rows, k = w.shape
    n, apart = rows, 1
    along_n, along_k = w.stride()
    half_b = half_d = 0
    if up is not None:
        rows *= 2
        half_b, rest = divmod(up.data_ptr() - w.data_ptr(), w.element_size())
        if rest:
            raise Declined("the weights are not a whole number of elements apart in memory")
    elif layer.gated:
        n //= 2
        half_b, apart = (along_n, 2) if layer.interleaved else (n * along_n, 1)
    d = None
    if residual is not None:
        d = StridedShape(residual.shape, residual.stride())
    elif bias is not None:
        step = bias.stride(0)
        d = StridedShape((n,), (apart * step,))
        half_d = (step if layer.interleaved else n * step) if layer.gated else 0
    form = form_of(StridedShape(x.shape, x.stride()),
                   StridedShape((k, n), (along_k, apart * along_n)), None, d)
    name = NAMES[x.dtype]
    vector = bias if residual is None else residual
    bases = (x.data_ptr(), w.data_ptr(), 0, 0 if vector is None else vector.data_ptr())
    problem, geometry = problem_of_form(form, bases, (name, name, name), "none",
                                        calls._precision_of(x))
    plain = not layer.gated and not layer.aux
    if residual is not None and bias is None and layer.activation == "none":
        epilogue = Epilogue("add", "none")
    else:
        epilogue = Epilogue("none" if bias is None else "bias", layer.activation, layer.gated,
                            plain and residual is not None, layer.aux)
    align_b = min(problem.align_b, divisor_of(half_b * format_of(name).itemsize))
    problem = replace(problem, n=rows, epilogue=str(epilogue), align_b=align_b)
    others: tuple[tuple[str, View], ...] = ()
    if layer.aux:
        others = (("aux", View((n if layer.gated else 0, rows, 1))),)
    elif residual is not None and bias is not None:
        others = (("bias", View((bias.stride(0),), divisor_of(bias.data_ptr()))),)
    if layer.gated:
        geometry = replace(geometry, bb=half_b, db=half_d)
    return problem, replace(geometry, others=others)


def faster_apart(problem: GemmProblem, device: DeviceSpec, products: int = 1,
                 fused: bool = False) -> str | None:
    """Why the product with the plain part of its epilogue, and torch's pointwise kernels after it,
    should take less time than one launch; None: it should not, or no time is known.

    Args:
        products: 2, where a gated product would be one for each half.
        fused: what follows is one pointwise kernel, as ``torch.compile`` makes it.

    With few rows the kernels that only the product can take, such as those for a matrix that is
    read once, are faster by more than the passes cost. Under batch invariance it is always one
    launch: two round the product in between, and times depend on the number of rows.
    """
    epilogue = epilogue_of(problem.epilogue)
    if epilogue.plain or settings.current().batch_invariant:
        return None
    activation = epilogue.activation if epilogue.residual else "none"
    product = replace(problem, n=problem.n // products,
                      epilogue=str(Epilogue(epilogue.addend, activation)))
    try:
        whole, part = choose(problem, device).time_us, choose(product, device).time_us
    except TritonGemmError:  # whoever asks for a plan gets the reason
        return None
    if whole is None or part is None or not device.memory_gbps:
        return None
    # The gate: activation, then product; else one pass. Each element of C is read or written so
    # many times.
    passes, times = (2, 5) if epilogue.gated and not fused else (
        1, 3 if epilogue.gated or epilogue.residual else 2)
    apart = (products * part + passes * _PASS_US
             + times * problem.bytes_of_c() / (1e3 * device.memory_gbps))
    if whole <= apart:
        return None
    what = "the product" if products == 1 else "the products"
    return (f"one launch is predicted to take {whole:.1f} us, {what} and what follows "
            f"{apart:.1f} us")


def _apart(x: Tensor, layer: LinearLayer) -> Tensor:
    """The two halves of a gated weight's or bias's rows as [2, N, ...]."""
    if layer.interleaved:
        return x.unflatten(0, (-1, 2)).transpose(0, 1)
    return x.unflatten(0, (2, -1))


def gate(activate: Callable[[Tensor], Tensor], total: Tensor, interleaved: bool) -> Tensor:
    """activate(gate) * other of [..., 2 N], by torch."""
    first, second = halves(total, interleaved)
    return activate(first) * second


def halves(total: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """The gate and the other columns of [..., 2 N]."""
    if interleaved:
        return total[..., ::2], total[..., 1::2]
    first, second = total.chunk(2, -1)
    return first, second


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return autograd.recording() and any(x is not None and x.requires_grad for x in tensors)


@untraced
def gated(x: Tensor, w: Tensor, bias: Tensor | None, up: Tensor | None, activation: str,
          interleaved: bool, forced: bool = False) -> Tensor | Declined:
    """activation(gate) * other of x @ w.T + bias for ``x`` [..., K] and ``w`` [2 N, K], or ``w``
    and ``up`` [N, K], with a gradient where one is needed."""
    layer = LinearLayer(activation, True, interleaved, _wants_gradient(x, w, bias, up), forced)
    return _folded(layer, x, w, bias, None, up)


@untraced
def linear(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None,
           activation: str, forced: bool = False) -> Tensor | Declined:
    """activation(x @ w.T + bias) + residual for ``x`` [..., K] and ``w`` [N, K], with a gradient
    where one is needed."""
    layer = LinearLayer(activation, forced=forced)
    if not _wants_gradient(x, w, bias, residual):
        return _folded(layer, x, w, bias, residual)
    if activation == "none":
        return _folded(layer, x, w, bias, residual)
    # The gradient needs the activation's own result or argument, not the sum with the residual.
    result = _folded(layer._replace(aux=not BY_NAME[activation].of_result), x, w, bias, None)
    return result if residual is None or isinstance(result, Declined) else result + residual


def _folded(layer: LinearLayer, x: Tensor, w: Tensor, bias: Tensor | None,
            residual: Tensor | None, up: Tensor | None = None) -> Tensor | Declined:
    """The layer of ``x`` [..., K]: the batch folded into the rows."""
    if x.dim() < 2 or w.dim() != 2:
        return Declined(f"ranks are {x.dim()} and {w.dim()}")
    if x.shape[-1] != w.shape[1] or 0 in (x.numel(), w.numel()):
        return Declined(f"shapes are {tuple(x.shape)} and {tuple(w.shape)}")
    columns = w.shape[0] // 2 if layer.gated and up is None else w.shape[0]
    shape = (*x.shape[:-1], columns)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    added = residual if residual is None or residual.dim() == 2 else residual.reshape(-1, columns)
    results = run(layer, rows, w, bias, added, up)
    if isinstance(results, Declined):
        return results
    result = results[0]
    if _wants_gradient(x, w, bias, residual, up):
        result = FusedLinear.apply(rows, w, bias, added, up, layer, results)[0]
    return result if x.dim() == 2 else result.view(shape)


class FusedLinear(Function):
    """A layer's results that are already there, with their gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None,
                up: Tensor | None, layer: LinearLayer, results: Results) -> Results:
        """Keeps what the gradients need; a second result is the argument of the activation."""
        ctx.set_materialize_grads(False)
        ctx.layer = layer
        need_x, need_w, _, _, need_up, *_ = ctx.needs_input_grad
        of = results[1] if layer.aux else results[0] if layer.activation != "none" else None
        ctx.save_for_backward(x if need_w or need_up else None,
                              *((w, up) if need_x else (None, None)), of)
        ctx.parts = 1 if up is None else 2
        return results

    @staticmethod
    @untraced
    def backward(ctx: Any, grad: Tensor | None, grad_total: Tensor | None = None) -> tuple:
        """The gradients of x, w, bias, residual and up, where they are needed."""
        x, w, up, of = ctx.saved_tensors
        need_x, need_w, need_bias, need_residual, need_up, *_ = ctx.needs_input_grad
        total = grad_of_total(ctx.layer, grad, grad_total, of)
        if total is None:
            return (None,) * 7
        multiply = partial(autograd.multiply, execute.MATMUL)
        parts = total.chunk(ctx.parts, -1)  # of w, and of up
        grad_x = None
        if need_x:
            grad_x = multiply(parts[0], w)
            if up is not None:
                grad_x = grad_x + multiply(parts[1], up)
        return (grad_x, multiply(parts[0].mT, x) if need_w else None,
                total.sum(0) if need_bias else None, grad if need_residual else None,
                multiply(parts[1].mT, x) if need_up else None, None, None)


def grad_of_total(layer: LinearLayer, grad: Tensor | None, grad_total: Tensor | None,
                  of: Tensor | None) -> Tensor | None:
    """The gradient of x @ w.T + bias, its columns in the order of the rows of w.

    Args:
        grad, grad_total: of the result and of the argument of the activation; None: none.
        of: that argument, or the result where the activation's gradient is of that.
    """
    if grad is not None and layer.activation != "none":
        assert of is not None
        if layer.gated:
            grad = formulas.grad_gated(layer.activation, grad, of)
        else:
            grad = formulas.grad_activation(layer.activation, grad, of, lambda: of)
    if grad is None or grad_total is not None:
        grad = grad_total if grad is None else grad + grad_total
    if grad is not None and layer.interleaved:
        grad = torch.stack(grad.chunk(2, -1), -1).flatten(-2)
    return grad
