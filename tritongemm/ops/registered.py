"""The products as ops that a compiler records: ``torch.ops.tritongemm.mm, bmm, matmul, addmm,
baddbmm``. ``matmul`` is for batches that broadcast or have several axes: aten's is no single op but
copies such operands for ``bmm``.

Schemas are aten's; ``addmm`` also takes an activation. ``mulmm`` multiplies the product by
``self``, or by the derivative of an activation at ``self``; aten does not have it. In eager mode an
op runs a kernel of this package, or calls aten if the call is declined. Its fake implementation is
aten's, so shapes, strides and errors match, symbolic ones included. Their gradients are in
``registered_gradients.py``. Forward mode and ``torch.func`` work with ``tritongemm.matmul`` and
related functions only.

Defined with ``torch.library.Library``, whose calls take 1.3 us of host time, 5.4 us with a
registered gradient; ``torch.library.custom_op`` takes 11.4 us.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from tritongemm import settings
from tritongemm.activations import BY_NAME
from tritongemm.errors import UnsupportedError, UsageError
from tritongemm.ops import execute, formulas, fused_linear, native
from tritongemm.ops import registered_gradients as gradients
from tritongemm.ops.execute import Declined
from tritongemm.ops.fused_linear import LinearLayer
from tritongemm.ops.native import Form
from tritongemm.ops.registered_gradients import half_of, product_of_layer
from tritongemm.ops.untraced import untraced

aten = torch.ops.aten

SCHEMAS = {
    "mm": "(Tensor self, Tensor mat2) -> Tensor",
    "bmm": "(Tensor self, Tensor mat2) -> Tensor",
    "matmul": "(Tensor self, Tensor other) -> Tensor",
    "addmm": "(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, "
             'str activation="none") -> Tensor',
    "baddbmm": "(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) "
               "-> Tensor",
}
#: What aten does not have: a product with a factor, and the linear layers of
#: :mod:`tritongemm.ops.fused_linear`.
OWN_SCHEMAS = {
    "mulmm": "(Tensor self, Tensor mat1, Tensor mat2, *, Scalar alpha=1, "
             'str gradient_of="none") -> Tensor',
    "gated_linear": "(Tensor input, Tensor weight, Tensor? bias, str activation, bool interleaved) "
                    "-> Tensor",
    "gated_pair": "(Tensor input, Tensor gate, Tensor up, Tensor? bias, str activation) -> Tensor",
    "gated_linear_aux": "(Tensor input, Tensor weight, Tensor? bias, str activation, "
                        "bool interleaved) -> (Tensor, Tensor)",
    "linear_aux": "(Tensor input, Tensor weight, Tensor? bias, str activation) "
                  "-> (Tensor, Tensor)",
    "linear_residual": "(Tensor input, Tensor weight, Tensor? bias, Tensor residual, "
                       "str activation) -> Tensor",
}
_ACTIVATE = {name: one.op() for name, one in BY_NAME.items()}


def _product(op: execute.Op, theirs: Callable[[Tensor, Tensor], Tensor]
             ) -> Callable[[Tensor, Tensor], Tensor]:
    """The body of a product by ``op``, or by ``theirs``."""
    @untraced
    def body(self: Tensor, mat2: Tensor) -> Tensor:
        result = execute.product(op, self, mat2, looked=True)  # by the entry above, if any
        if not isinstance(result, Declined):
            return result
        return _declined(result, op, lambda op: execute.product(op, self, mat2),
                         lambda: theirs(self, mat2))
    return body


def _fake_matmul(self: Tensor, other: Tensor) -> Tensor:
    if self.dim() < 2 or other.dim() < 2 or self.shape[-1] != other.shape[-2]:
        return aten.matmul(self, other).contiguous()
    try:
        batch = torch.broadcast_shapes(self.shape[:-2], other.shape[:-2])
    except RuntimeError:  # of other words than matmul's
        return aten.matmul(self, other)
    return self.new_empty((*batch, self.shape[-2], other.shape[-1]))


@untraced
def _addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1,
           activation: str = "none") -> Tensor:
    activate = _activation(activation)
    op = execute.ADDMM[activation]
    result = _sum(op, self, mat1, mat2, beta, alpha)
    if not isinstance(result, Declined):
        return result
    return _declined(result, op, lambda op: _sum(op, self, mat1, mat2, beta, alpha),
                     lambda: activate(aten.addmm(self, mat1, mat2, beta=beta, alpha=alpha)))


@untraced
def _baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1,
             alpha: float = 1) -> Tensor:
    result = _sum(execute.BADDBMM, self, batch1, batch2, beta, alpha)
    if not isinstance(result, Declined):
        return result
    return _declined(result, execute.BADDBMM,
                     lambda op: _sum(op, self, batch1, batch2, beta, alpha),
                     lambda: aten.baddbmm(self, batch1, batch2, beta=beta, alpha=alpha))


@untraced
def _mulmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, alpha: float = 1,
           gradient_of: str = "none") -> Tensor:
    _activation(gradient_of)
    op = execute.MULMM[gradient_of]
    result = _sum(op, self, mat1, mat2, 1, alpha)
    if not isinstance(result, Declined):
        return result
    # The product alone may be ours where its factor is not.
    return _declined(result, op, lambda op: _sum(op, self, mat1, mat2, 1, alpha),
                     lambda: formulas.multiplied(
                         formulas.scaled(torch.ops.tritongemm.mm(mat1, mat2), alpha), self,
                         gradient_of))


def _fake_mulmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, alpha: float = 1,
                gradient_of: str = "none") -> Tensor:
    _activation(gradient_of)
    return formulas.multiplied(formulas.scaled(aten.mm(mat1, mat2), alpha), self, gradient_of)


def _sum(op: execute.Op, d: Tensor, a: Tensor, b: Tensor, beta: float,
         alpha: float) -> Tensor | Declined:
    """``execute.fused`` of a schema's scalars, which may be complex."""
    if isinstance(beta, complex) or isinstance(alpha, complex):
        return Declined("alpha or beta is no real number")
    return execute.fused(op, d, a, b, beta, alpha, looked=True)


def _declined(reason: Declined, op: execute.Op,
              ours: Callable[[execute.Op], Tensor | Declined],
              theirs: Callable[[], Tensor]) -> Tensor:
    """Runs a call that ``op`` declined: by torch, or, under TRITONGEMM_STRICT=1 and if only the
    policy declined it, by our kernel. Otherwise raises UnsupportedError under that setting."""
    if not settings.current().strict:
        return theirs()
    if reason.by_choice:
        result = ours(op.forced)
        if not isinstance(result, Declined):
            return result
        reason = result
    raise UnsupportedError(f"torch.ops.tritongemm.{op.rule.name} would call torch: {reason}")


def _fake_addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1,
                activation: str = "none") -> Tensor:
    _activation(activation)
    return aten.addmm(self, mat1, mat2, beta=beta, alpha=alpha)


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    try:
        return _ACTIVATE[name]
    except KeyError:
        raise UsageError(f"activation={name!r} is not known; use one of "
                         f"{', '.join(BY_NAME)}") from None


def _layer(layer: LinearLayer, x: Tensor, w: Tensor, bias: Tensor | None,
           residual: Tensor | None = None) -> tuple[Tensor, ...]:
    """The results of a linear layer by one launch, else by aten."""
    activate = _activation(layer.activation)

    def theirs() -> tuple[Tensor, ...]:
        total = product_of_layer(x, w, bias)
        if layer.gated:
            done = fused_linear.gate(activate, total, layer.interleaved)
            if layer.interleaved and layer.aux:
                total = torch.cat(fused_linear.halves(total, True), -1)
        else:
            done = activate(total)
            if layer.aux and done is total:  # the results of an op must not share memory
                done = total.clone()
        if residual is not None:
            done = done + residual
        return (done, total) if layer.aux else (done,)

    return _one_launch(layer, x, w, bias, residual, theirs=theirs)


def _one_launch(layer: LinearLayer, x: Tensor, w: Tensor, bias: Tensor | None,
                residual: Tensor | None = None, up: Tensor | None = None, *,
                theirs: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The results of :func:`fused_linear.run`, else ``theirs``; strict calls raise instead."""
    result = fused_linear.run(layer, x, w, bias, residual, up)
    if isinstance(result, Declined) and settings.current().strict:
        if result.by_choice:
            result = fused_linear.run(layer._replace(forced=True), x, w, bias, residual, up)
        if isinstance(result, Declined):
            raise UnsupportedError(f"a linear layer would call torch: {result}")
    return theirs() if isinstance(result, Declined) else result


@untraced
def _gated_linear(x: Tensor, w: Tensor, bias: Tensor | None, activation: str,
                  interleaved: bool) -> Tensor:
    return _layer(LinearLayer(activation, True, interleaved), x, w, bias)[0]


@untraced
def _gated_pair(x: Tensor, gate: Tensor, up: Tensor, bias: Tensor | None,
                activation: str) -> Tensor:
    activate, layer = _activation(activation), LinearLayer(activation, True)
    _check_pair(gate, up, bias)
    return _one_launch(layer, x, gate, bias, up=up, theirs=lambda: (
        activate(product_of_layer(x, gate, half_of(bias, 0)))
        * product_of_layer(x, up, half_of(bias, 1)),))[0]


def _check_pair(gate: Tensor, up: Tensor, bias: Tensor | None) -> None:
    if gate.dim() != 2 or bias is not None and tuple(bias.shape) != (2 * gate.shape[0],):
        raise UsageError(f"the gate's weight is {tuple(gate.shape)}, the bias "
                         f"{None if bias is None else tuple(bias.shape)}; they are [N, K] and "
                         "[2 N]")
    if up.shape != gate.shape or up.dtype != gate.dtype or up.device != gate.device:
        raise UsageError(f"up is {tuple(up.shape)}, {up.dtype} on {up.device}; the gate's weight, "
                         f"to which it is the other half, {tuple(gate.shape)}, {gate.dtype} on "
                         f"{gate.device}")


@untraced
def _gated_linear_aux(x: Tensor, w: Tensor, bias: Tensor | None, activation: str,
                      interleaved: bool) -> tuple[Tensor, ...]:
    return _layer(LinearLayer(activation, True, interleaved, True), x, w, bias)


@untraced
def _linear_aux(x: Tensor, w: Tensor, bias: Tensor | None, activation: str) -> tuple[Tensor, ...]:
    return _layer(LinearLayer(activation, aux=True), x, w, bias)


@untraced
def _linear_residual(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor,
                     activation: str) -> Tensor:
    return _layer(LinearLayer(activation), x, w, bias, residual)[0]


def _fake_layer(layer: LinearLayer, x: Tensor, w: Tensor,
                bias: Tensor | None) -> tuple[Tensor, Tensor]:
    _activation(layer.activation)
    total = aten.mm(x, w.t()) if bias is None else aten.addmm(bias, x, w.t())
    if layer.gated:
        return total.new_empty((total.shape[0], total.shape[1] // 2)), total
    return torch.empty_like(total), total


def _fake_gated_linear(x: Tensor, w: Tensor, bias: Tensor | None, activation: str,
                       interleaved: bool) -> Tensor:
    return _fake_layer(LinearLayer(activation, True, interleaved), x, w, bias)[0]


def _fake_gated_pair(x: Tensor, gate: Tensor, up: Tensor, bias: Tensor | None,
                     activation: str) -> Tensor:
    _check_pair(gate, up, bias)
    return _fake_layer(LinearLayer(activation), x, gate, half_of(bias, 0))[0]


def _fake_gated_linear_aux(x: Tensor, w: Tensor, bias: Tensor | None, activation: str,
                           interleaved: bool) -> tuple[Tensor, Tensor]:
    return _fake_layer(LinearLayer(activation, True, interleaved), x, w, bias)


def _fake_linear_aux(x: Tensor, w: Tensor, bias: Tensor | None,
                     activation: str) -> tuple[Tensor, Tensor]:
    return _fake_layer(LinearLayer(activation), x, w, bias)


def _fake_linear_residual(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor,
                          activation: str) -> Tensor:
    return _fake_layer(LinearLayer(activation), x, w, bias)[0]


#: Must live as long as the process: torch removes an op when its library is destroyed.
_library = torch.library.Library("tritongemm", "FRAGMENT")


@untraced
def _register() -> None:
    bodies = {"mm": (_product(execute.MM, aten.mm), aten.mm),
              "bmm": (_product(execute.BMM, aten.bmm), aten.bmm),
              "matmul": (_product(execute.MATMUL, lambda a, b: aten.matmul(a, b).contiguous()),
                         _fake_matmul),
              "addmm": (_addmm, _fake_addmm), "baddbmm": (_baddbmm, aten.baddbmm),
              "mulmm": (_mulmm, _fake_mulmm),
              "gated_linear": (_gated_linear, _fake_gated_linear),
              "gated_pair": (_gated_pair, _fake_gated_pair),
              "gated_linear_aux": (_gated_linear_aux, _fake_gated_linear_aux),
              "linear_aux": (_linear_aux, _fake_linear_aux),
              "linear_residual": (_linear_residual, _fake_linear_residual)}
    for name, schema in {**SCHEMAS, **OWN_SCHEMAS}.items():
        body, fake = bodies[name]
        _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(name, body, "CompositeExplicitAutograd")
        # As aten's products: lazy conjugates reach the kernels, which need no copy of them.
        _library.impl(name, torch.library.fallthrough_kernel, "Conjugate")
        torch.library.register_fake(f"tritongemm::{name}", fake, lib=_library)
    for name in ("mm", "bmm", "matmul"):
        gradients.register_product(_library, name)
    gradients.register_sum(_library, "addmm", "mm")
    gradients.register_sum(_library, "baddbmm", "bmm")
    gradients.register_factor(_library)
    gradients.register_layer(_library, "gated_linear", LinearLayer(gated=True))
    gradients.register_layer(_library, "gated_linear_aux", LinearLayer(gated=True, aux=True))
    gradients.register_pair(_library)
    gradients.register_layer(_library, "linear_aux", LinearLayer(aux=True))
    gradients.register_layer(_library, "linear_residual", LinearLayer(), residual=True)


_register()

#: Entries of the native dispatcher, each with its module.
_native: list[tuple[ModuleType, object]] = []
_OPERATIONS = {"mm": (Form.PRODUCT, {"none": execute.MM}),
               "bmm": (Form.PRODUCT, {"none": execute.BMM}),
               "matmul": (Form.PRODUCT, {"none": execute.MATMUL}),
               "addmm": (Form.SUM_ACTIVATED, execute.ADDMM),
               "baddbmm": (Form.SUM, {"none": execute.BADDBMM}),
               "mulmm": (Form.FACTOR, execute.MULMM),
               "gated_linear": (Form.GATED, fused_linear.GATED),
               "gated_pair": (Form.GATED_PAIR, fused_linear.GATED_PAIR)}


def _follow(module: ModuleType | None) -> None:
    """Answers known calls in C++, above the bodies of this file, in ``module`` alone. Autograd's
    kernels stay torch's, but a call that none of them would record does not reach them."""
    while _native:
        before, installed = _native.pop()
        before.remove(installed)
    if module is not None:
        _install(module)
    for name in (*SCHEMAS, *OWN_SCHEMAS):  # torch looks up an op's kernels once (torch/_ops.py)
        getattr(torch.ops.tritongemm, name).default._dispatch_cache.clear()


def _install(module: ModuleType) -> None:
    for name, (form, ops) in _OPERATIONS.items():
        numbers = [(activation, op.number) for activation, op in ops.items()]
        for key in execute.dispatch_keys():
            _native.append((module, module.install(f"tritongemm::{name}", key, numbers, form,
                                                   0.0, False, None)))
    for name in (*SCHEMAS, *OWN_SCHEMAS):
        for key in execute.dispatch_keys():
            _native.append((module, module.pass_unrecorded(f"tritongemm::{name}",
                                                           f"Autograd{key}")))


native.follow(_follow)
#: Before torch takes the bodies out at the end of the process.
atexit.register(_follow, None)
