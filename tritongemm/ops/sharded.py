"""Products of DTensors: every rank multiplies its local tensors by this package's kernels.

The axes of a product are named as in an einsum. On one axis of the mesh at most one name is
sharded: a name of the result leaves the result sharded along it, the inner one leaves a partial sum
on each rank. Gradients follow from the same rule, and are products of local tensors too. This is
what DTensor does for ``torch.mm``, by its public functions alone (``to_local``, ``from_local``,
``redistribute``); placements that no rule is for, which need communication first, are torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

Names = tuple[str, ...]


class _Operand(NamedTuple):
    """A DTensor, the names of its axes, and the placements of its gradient."""

    tensor: Any
    names: Names
    grads: list[Placement]


def product(function: Callable[..., Tensor], a: Tensor, b: Tensor, *,
            broadcasts: bool = True) -> Tensor | str:
    """``function(a, b)``, by ``matmul``'s rules of rank; a reason where it is torch's.

    Args:
        function: takes and returns local tensors.
        broadcasts: axes of the batch may have one element where the other operand has more.
    """
    if a.dim() < 2 or b.dim() < 2:
        return "a product of DTensors with a vector is torch's"
    rank = max(a.dim(), b.dim())
    batch = tuple(f"b{i}" for i in range(rank - 2))
    ours_a = (*batch[rank - a.dim():], "m", "k")
    ours_b = (*batch[rank - b.dim():], "k", "n")
    if not broadcasts and a.shape[:-2] != b.shape[:-2]:
        return f"shapes are {tuple(a.shape)} and {tuple(b.shape)}"
    return _run(function, ((a, ours_a), (b, ours_b)), (*batch, "m", "n"))


def total(function: Callable[..., Tensor], d: Tensor, a: Tensor, b: Tensor) -> Tensor | str:
    """``function(d, a, b)``, of operands as ``addmm`` and ``baddbmm`` take them; a reason where it
    is torch's."""
    if a.dim() != b.dim() or a.dim() not in (2, 3) or d.dim() > a.dim():
        return f"shapes are {tuple(a.shape)} and {tuple(b.shape)}"
    batch = ("b0",) * (a.dim() - 2)
    names = (*batch, "m", "n")
    factors = ((a, (*batch, "m", "k")), (b, (*batch, "k", "n")))
    return _run(lambda a, b, d: function(d, a, b), factors, names,
                ((d, names[len(names) - d.dim():]),))


def layer(function: Callable[..., Tensor], x: Tensor, w: Tensor, bias: Tensor | None,
          residual: Tensor | None = None, up: Tensor | None = None, *, plain: bool = True,
          gated: bool = False, interleaved: bool = False) -> Tensor | str:
    """``function(x, w, bias, residual, up)``, of a linear layer's operands; a reason where it is
    not to be one.

    Args:
        up: the other half of a gated layer, where ``w`` is the gate's alone.
        plain: nothing follows the product and its sums, so that partial sums may stay apart.
        gated: the weight has two rows, one of the gate, for each column of the result; ranks hold
            whole pairs of them where these are ``interleaved``.
    """
    if x.dim() < 2 or w.dim() != 2 or bias is not None and bias.dim() != 1:
        return "a layer of DTensors with a vector is torch's"
    rows = tuple(f"b{i}" for i in range(x.dim() - 1))
    names = (*rows, "n")
    added = tuple((t, of) for t, of in ((bias, ("n",)), (residual, names)) if t is not None)

    def local(x: Tensor, w: Tensor, *others: Tensor) -> Tensor:
        second, *rest = others if up is not None else (None, *others)
        first = rest[0] if bias is not None else None
        return function(x, w, first, rest[-1] if residual is not None else None, second)

    factors = ((x, (*rows, "k")), (w, ("n", "k")),
               *(((up, ("n", "k")),) if up is not None else ()))
    return _run(local, factors, names, added, plain=plain,
                halved=(2 if interleaved else 1) if gated and up is None else 0)


def _run(function: Callable[..., Tensor], factors: Sequence[tuple[Any, Names]], result: Names,
         added: Sequence[tuple[Any, Names]] = (), *, plain: bool = True,
         halved: int = 0) -> Tensor | str:
    """``function`` of the local tensors of ``factors`` and ``added``.

    Args:
        factors: A and B, which the result is linear in, with the names of their axes; or both
            halves of a gated layer's B.
        result: the names of the result's axes.
        added: what is added to their product.
        plain: as for :func:`layer`.
        halved: the result has half as many columns as ``n`` has elements: 1: the first half of
            these belongs to the second; 2: each even one to the next.
    """
    mesh = factors[0][0].device_mesh
    if any(x.device_mesh != mesh for x, _ in (*factors, *added)):
        return "operands are on different meshes"
    if mesh.get_coordinate() is None:
        return "this rank is not on the operands' mesh"
    sizes = _sizes(factors)
    if sizes is None:
        return "shapes are " + " and ".join(str(tuple(x.shape)) for x, _ in factors)
    placements: list[Placement] = []
    operands = [_Operand(x, _of_several(x, names), []) for x, names in factors]
    for i in range(mesh.ndim):
        placed = _placed(operands, result, i)
        if isinstance(placed, str):
            return placed
        if placed.is_partial() and (not plain or halved):
            return "an activation or a gate is of whole sums, and each rank has a part of them"
        if halved and placed == Shard(len(result) - 1) and (
                halved == 1 or sizes["n"] % (2 * mesh.size()) != 0):
            return "the rows of the gate and the other rows are on different ranks"
        placements.append(placed)
    if _leaves_a_rank_without(operands, mesh):
        return "a rank has no part of an operand"
    addends = []
    for x, names in added:
        names = _of_several(x, names)
        if any(name and x.shape[at] != sizes[name] for at, name in enumerate(names)):
            return f"the input of shape {tuple(x.shape)} is not of the result's shape"
        addends.append(_added(x, names, result, placements))
    local = function(*(_local(o.tensor, o.grads) for o in operands), *addends)
    shape = [sizes[name] for name in result]
    if halved:
        shape[-1] //= 2
    return _place(local, mesh, tuple(placements), shape)


def _place(local: Tensor, mesh: Any, placements: tuple[Placement, ...],
           shape: Sequence[int]) -> Tensor:
    """The DTensor of this shape whose part on this rank is ``local``, differentiable."""
    if _evenly(shape, placements, mesh):
        return _Placed.apply(local, mesh, placements, None, None)
    stride = [1] * len(shape)
    for at in range(len(shape) - 1, 0, -1):
        stride[at - 1] = stride[at] * max(shape[at], 1)
    return _Placed.apply(local.contiguous(), mesh, placements, torch.Size(shape), tuple(stride))


def _of_several(x: Any, names: Names) -> Names:
    """The names of the axes, empty for an axis of one element, which broadcasts."""
    return tuple(name if x.shape[at] != 1 else "" for at, name in enumerate(names))


def _sizes(factors: Sequence[tuple[Any, Names]]) -> dict[str, int] | None:
    """Name -> extent; None where extents do not fit."""
    sizes: dict[str, int] = {}
    for x, names in factors:
        for name, size in zip(names, x.shape):
            before = sizes.get(name, 1)
            if before != size and 1 not in (before, size) or name == "k" and (
                    sizes.get(name, size) != size):
                return None
            sizes[name] = size if before == 1 else before
    return sizes


def _placed(operands: list[_Operand], result: Names, i: int) -> Placement | str:
    """The result's placement on axis ``i`` of the mesh, and into the operands those of their
    gradients; a reason where no rule is for theirs."""
    given = [o.tensor.placements[i] for o in operands]
    apart = "placements are " + " and ".join(str(tuple(o.tensor.placements)) for o in operands)
    whole = [p.is_replicate() for p in given]
    if all(whole):
        placed: Placement = Replicate()
        name = ""
    elif any(p.is_partial() for p in given):
        # The product is linear in each operand, if the other one is whole.
        if whole.count(False) > 1 or not all(p == Partial() or p.is_replicate() for p in given):
            return apart
        placed, name = Partial(), ""
    else:
        # Not of a strided shard, by an attribute: Dynamo of torch 2.12 compares no such types.
        along = {o.names[p.dim] if p.is_shard() and not hasattr(p, "split_factor") else ""
                 for o, p, entire in zip(operands, given, whole) if not entire}
        name = along.pop()
        if along or not name or any((name in o.names) == entire
                                    for o, entire in zip(operands, whole)):
            return apart
        placed = Shard(result.index(name)) if name in result else Partial()
    for o, p, entire in zip(operands, given, whole):
        if not entire:
            o.grads.append(Replicate() if p.is_partial() else p)
        else:
            o.grads.append(Replicate() if placed.is_replicate() else Partial())
    return placed


def _added(x: Any, names: Names, result: Names, placements: list[Placement]) -> Tensor:
    """The local part of what is added to a result of these placements. Of a partial sum, the first
    rank adds it."""
    wanted: list[Placement] = []
    grads: list[Placement] = []
    first = True
    place = x.device_mesh.get_coordinate()
    for i, placed in enumerate(placements):
        want: Placement = Replicate()
        grad: Placement = want
        if placed.is_partial():
            if x.placements[i] == Partial():
                want = Partial()
            else:
                first = first and place[i] == 0
        elif placed.is_shard():
            name = result[placed.dim]
            want = Shard(names.index(name)) if name in names else want
            grad = want if name in names else Partial()
        wanted.append(want)
        grads.append(grad)
    if tuple(x.placements) != tuple(wanted):
        parts = any(p.is_partial() for p in x.placements)
        x = x.redistribute(placements=tuple(wanted))
        x = _WholeGradient.apply(x) if parts else x
    local = _local(x, grads)
    return local if first else _OnOtherRanks.apply(local)


def _local(x: Any, grads: Sequence[Placement]) -> Tensor:
    """The local tensor, in memory, differentiable."""
    local = _Local.apply(x, tuple(grads))
    return _Waited.apply(local) if hasattr(local, "trigger_wait") else local


class _Placed(Function):
    """A DTensor of local tensors. Unlike that of ``DTensor.from_local``, whose backward leaves
    apart the parts of a gradient of a partial sum, each rank's gradient is of the whole sum."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, mesh: Any, placements: tuple[Placement, ...],
                shape: torch.Size | None, stride: tuple[int, ...] | None) -> Tensor:
        ctx.placements = placements
        return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape,
                                  stride=stride)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Tensor, None, None, None, None]:
        # Unconditionally: Dynamo would decide a condition by placements that it guesses.
        whole = _WholeGradient.apply(grad.redistribute(placements=_whole(ctx.placements)))
        return _Local.apply(whole, ctx.placements), None, None, None, None


class _Local(Function):
    """A DTensor's local tensor. ``to_local``, but its backward is differentiable in every torch
    (that of 2.10 is not)."""

    @staticmethod
    def forward(ctx: Any, x: Any, grads: tuple[Placement, ...]) -> Tensor:
        ctx.mesh, ctx.grads, ctx.shape = x.device_mesh, grads, x.shape
        local = x.to_local()
        return local.view_as(local)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _place(grad, ctx.mesh, ctx.grads, ctx.shape), None


class _WholeGradient(Function):
    """The same DTensor; parts of its gradient are summed, which the backward of a redistribution
    from a partial sum leaves to what is before it."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Tensor:
        return grad.redistribute(placements=_whole(grad.placements))


def _whole(placements: Sequence[Placement]) -> tuple[Placement, ...]:
    """The placements, ``Replicate()`` in place of partial sums."""
    return tuple(Replicate() if p.is_partial() else p for p in placements)


class _Waited(Function):
    """The result of a collective that may still run, as a plain tensor."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Tensor:
        done = x.trigger_wait()
        return done.view_as(done)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _OnOtherRanks(Function):
    """Zeros in the place of what the first rank adds; the gradient is that of the whole sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def _leaves_a_rank_without(operands: Sequence[_Operand], mesh: Any) -> bool:
    """Whether a rank may have no part of an operand, so that no kernel runs there. The same answer
    on every rank: where one raised and others went on, these would wait for it."""
    for o in operands:
        for size, parts in zip(o.tensor.shape, _parts(o.tensor.placements, o.tensor.dim(), mesh)):
            if parts > 1 and -(-size // parts) * (parts - 1) >= size:
                return True
    return False


def _evenly(shape: Sequence[int], placements: Sequence[Placement], mesh: Any) -> bool:
    """Whether every rank has as many elements of the result, so that torch finds its shape."""
    return all(size % part == 0 for size, part in zip(shape, _parts(placements, len(shape), mesh)))


def _parts(placements: Sequence[Placement], rank: int, mesh: Any) -> list[int]:
    """Into how many parts each axis is sharded."""
    parts = [1] * rank
    for i, placed in enumerate(placements):
        if placed.is_shard():
            parts[placed.dim] *= mesh.size(i)
    return parts
