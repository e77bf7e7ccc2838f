"""The functions under ``torch.compile``: registered ops, which a compiler records and
differentiates.

Dynamo traces this module, so it has plain statements, no exceptions and no caches.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tritongemm import settings
from tritongemm.ops import registered  # noqa: F401 - it defines torch.ops.tritongemm
from tritongemm.ops.autocast import cast
from tritongemm.ops.calls import NAMES, Rule


def read_settings() -> None:
    """Reads the environment where that was not done yet, which Dynamo cannot trace."""
    settings.current()


#: Runs while Dynamo traces. What is read of the settings afterwards is guarded as before.
read_settings._dynamo_marked_constant = True  # type: ignore[attr-defined]


def run(rule: Rule, tensors: tuple[Tensor, ...], numbers: tuple[float, ...]) -> Tensor | None:
    """A @ B, or with ``numbers`` (beta, alpha) beta * D + alpha * A @ B; None if no registered op
    covers the call."""
    # A registered gradient supports neither torch.func nor forward mode. Dynamo guards on what is
    # read of a module, so a graph traced outside of forward mode is not used inside it.
    if _transformed() or forward_ad._current_level >= 0:
        return None
    tensors = cast(rule.name, tensors)
    if not _takes(tensors):
        return None
    a, b = tensors[-2:]
    d = tensors[0] if numbers else None
    if rule.flipped and d is not None and d.dim() != 1:
        return None  # D has the batch's shape, not that of the folded rows
    ranks = (a.dim(), b.dim())
    if 0 in ranks or 1 in ranks or rule.ranks is not None and ranks != rule.ranks:
        return None
    if a.shape[-1] == 0 or any(isinstance(x, Tensor) for x in numbers):
        return None
    if rule.flipped:
        b = b.mT
    if a.dim() == 3 and not rule.broadcasts:
        return torch.ops.tritongemm.bmm(a, b) if d is None else (
            torch.ops.tritongemm.baddbmm(d, a, b, beta=numbers[0], alpha=numbers[1]))
    if b.dim() == 2:
        return _folded(a, b, d, numbers, rule.activation)
    if a.shape[-1] != b.shape[-2]:
        return None
    if ranks == (3, 3) and a.shape[0] == b.shape[0]:
        return torch.ops.tritongemm.bmm(a, b)
    return torch.ops.tritongemm.matmul(a, b)  # the batch as it lies: bmm would want copies


def gated(x: Tensor, w: Tensor, bias: Tensor | None, up: Tensor | None, activation: str,
          interleaved: bool) -> Tensor | None:
    """``gated_linear`` by a registered op; None where none is for it."""
    tensors = _layer(x, w, bias, None)
    if tensors is None:
        return None
    x, w, bias, _ = tensors
    rows = x.reshape(-1, x.shape[-1])
    gradient = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, w, bias, up))
    if up is not None:
        if gradient:  # two products: Inductor fuses what follows them, forward and backward
            return None
        up, = cast("linear", (up,))
        result = torch.ops.tritongemm.gated_pair(rows, w, up, bias, activation)
        return result.reshape(x.shape[:-1] + (w.shape[0],))
    if gradient:
        result = torch.ops.tritongemm.gated_linear_aux(rows, w, bias, activation, interleaved)[0]
    else:
        result = torch.ops.tritongemm.gated_linear(rows, w, bias, activation, interleaved)
    return result.reshape(x.shape[:-1] + (w.shape[0] // 2,))


def linear(x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None,
           activation: str) -> Tensor | None:
    """``linear`` with a residual, or with an activation and a gradient, by a registered op; None
    where none is for it."""
    tensors = _layer(x, w, bias, residual)
    if tensors is None:
        return None
    x, w, bias, residual = tensors
    rows, shape = x.reshape(-1, x.shape[-1]), x.shape[:-1] + w.shape[:1]
    ops = torch.ops.tritongemm
    if activation != "none" and torch.is_grad_enabled() and (
            x.requires_grad or w.requires_grad or bias is not None and bias.requires_grad):
        result = ops.linear_aux(rows, w, bias, activation)[0].reshape(shape)
        return result if residual is None else result + residual
    if residual is None:
        return None
    return ops.linear_residual(rows, w, bias, residual.reshape(-1, w.shape[0]),
                               activation).reshape(shape)


def factored(d: Tensor, a: Tensor, b: Tensor, alpha: float, gradient_of: str) -> Tensor | None:
    """``mulmm`` by a registered op, whose operands are of one dtype; None where none is for it."""
    read_settings()
    if _transformed() or forward_ad._current_level >= 0 or isinstance(alpha, Tensor):
        return None
    a, b = cast("mm", (a, b))
    if not _takes((a, b, d)) or a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        return None
    if a.shape[1] == 0 or a.is_complex():
        return None
    return torch.ops.tritongemm.mulmm(d, a, b, alpha=alpha, gradient_of=gradient_of)


def _layer(x: Tensor, w: Tensor, bias: Tensor | None,
           residual: Tensor | None) -> tuple | None:
    """A layer's operands as autocast casts them, None among them; None where no op is for them."""
    read_settings()
    if _transformed() or forward_ad._current_level >= 0:
        return None
    x, w = cast("linear", (x, w))
    if bias is not None:
        bias, = cast("linear", (bias,))
    if residual is not None:
        residual, = cast("linear", (residual,))
    tensors = tuple(t for t in (x, w, bias, residual) if t is not None)
    if not _takes(tensors) or x.dim() < 2 or w.dim() != 2 or x.shape[-1] != w.shape[1]:
        return None
    if 0 in (w.shape[0], w.shape[1]) or bias is not None and bias.dim() != 1:
        return None
    return x, w, bias, residual


def _transformed() -> bool:
    return torch._C._are_functorch_transforms_active()


#: Same effect as torch.compiler.assume_constant_result, without importing Dynamo. Dynamo guards on
#: transforms itself, so the check needs no node in the graph.
_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _takes(tensors: tuple[Tensor, ...]) -> bool:
    """Whether the registered ops accept such operands. Others stay torch calls, which a compiler
    can optimize further."""
    first = tensors[0]
    if not (first.is_cuda or settings.current().interpret) or first.dtype not in NAMES:
        return False
    return all(x.dtype == first.dtype and x.device == first.device for x in tensors)


def _folded(a: Tensor, b: Tensor, d: Tensor | None, numbers: tuple[float, ...],
            activation: str) -> Tensor:
    """[..., M, K] @ [K, N] with the batch folded into the rows."""
    rows = a.reshape(-1, a.shape[-1])
    if d is not None:
        result = torch.ops.tritongemm.addmm(d, rows, b, beta=numbers[0], alpha=numbers[1],
                                            activation=activation)
    elif activation == "none":
        result = torch.ops.tritongemm.mm(rows, b)
    else:  # beta is 0: D is not read
        result = torch.ops.tritongemm.addmm(b[0], rows, b, beta=0, activation=activation)
    return result.reshape(a.shape[:-1] + b.shape[1:])
