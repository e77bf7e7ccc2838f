"""Gated layers of a graph, activation(gate) * other, as one product each: :func:`find`,
:func:`wanted`, :func:`replace`.

The gate and the other half are two products of one operand, whose weights are tensors of their own
(Llama, Qwen), or the two halves of the columns of one product, in either order (Phi; GEGLU in
diffusion models).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace as with_fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx

from tritongemm.integration.graph_nodes import (
    VIEWS,
    activated,
    called,
    given,
    given_to_caller,
    only_user,
    put_in_place,
    reader,
    same_columns,
    value_of,
)
from tritongemm.integration.graph_problem import Asked, path, problem_of
from tritongemm.ops.fused_linear import faster_apart
from tritongemm.problem import GATES, Epilogue, epilogue_of
from tritongemm.selection import choose, torch_wins

aten = torch.ops.aten
_PRODUCTS = (aten.mm.default, aten.addmm.default)


class _Half(NamedTuple):
    """The columns of a product that one half of a gated layer is.

    Attributes:
        node: the node with their values.
        product: the product.
        place: 0 or 1, of a product of both halves; None: they are all of its columns.
        base: the product or its view, of which ``node`` is the half or the whole.
        nodes: every node from the product to ``node``.
    """

    node: fx.Node
    product: fx.Node
    place: int | None
    base: fx.Node
    nodes: frozenset[fx.Node]


class Gate(NamedTuple):
    """A gated layer.

    Attributes:
        gate, other: its halves.
        activation: of the gate.
        last: the node whose value the layer has.
        kept: whether the caller gets the product of both halves too, as a forward graph keeps it
            for the backward.
        inner: every node from the products to ``last``.
    """

    gate: _Half
    other: _Half
    activation: str
    last: fx.Node
    kept: bool
    inner: frozenset[fx.Node]


def find(last: fx.Node) -> Gate | None:
    """The gated layer whose result ``last`` is, or None."""
    if last.target is not aten.mul.Tensor or not all(isinstance(x, fx.Node) for x in last.args):
        return None
    for active, node in (last.args, last.args[::-1]):
        assert isinstance(active, fx.Node) and isinstance(node, fx.Node)
        other = _half(node)
        if other is None or only_user(node) is not last or only_user(active) is not last:
            continue
        for gate in _partners(other):
            for name in GATES:
                found = activated(gate.node, name)
                if found is not None and found[0] is active and _fit(gate, other, last):
                    return Gate(gate, other, name, last, _kept(gate),
                                gate.nodes | other.nodes | found[1] | {last})
    return None


def _half(node: fx.Node) -> _Half | None:
    """What ``node`` is of a product that nothing else reads, or the caller alone where it is a
    product of both halves; or None."""
    base, between, place = node, [], None
    if node.target is operator.getitem:
        split, place = node.args
        if not isinstance(split, fx.Node) or split.target not in (
                aten.split.Tensor, aten.split_with_sizes.default):
            return None
        base, between = split.args[0], [split]
    elif node.target is aten.slice.Tensor:
        base, dim, start, end, step = _slice_of(node)
        place = 0 if start in (None, 0) else 1
    if not isinstance(base, fx.Node):
        return None
    product = base.args[0] if base.target in VIEWS else base
    if not isinstance(product, fx.Node) or product.target not in _PRODUCTS:
        return None
    if product is not base:
        if not same_columns(base, value_of(product)) or reader(product) is not base:
            return None
    half = _Half(node, product, place, base, frozenset((node, *between, base, product)))
    if place is None:
        return None if given_to_caller(product) else half
    columns, whole = value_of(product).shape[1], value_of(base)
    if not isinstance(columns, int) or columns % 2 or place not in (0, 1):
        return None
    size, axis = columns // 2, whole.dim() - 1
    if between:
        _, sizes, *dim = split.args
        even = sizes in (size, [size, size]) and dim in ([-1], [axis]) and (
            reader(base) is split)
    else:
        bounds = (start or 0, columns if end is None else end)
        even = dim in (-1, axis) and step == 1 and all(type(x) is int for x in bounds) and (
            bounds == (0, size) or bounds[0] == size and bounds[1] >= columns) and (
            len([user for user in base.users if user.op != "output"]) == 2)
    return half if even else None


def _kept(half: _Half) -> bool:
    """Whether the caller gets the product, or its view."""
    return given_to_caller(half.product) or given_to_caller(half.base)


def _slice_of(node: fx.Node) -> tuple[Any, ...]:
    """The arguments of a slice, those that are left out at their defaults."""
    names = ("self", "dim", "start", "end", "step")
    given = {**dict(zip(names, node.args)), **node.kwargs}
    return tuple({"dim": 0, "start": None, "end": None, "step": 1, **given}[x] for x in names)


def _partners(other: _Half) -> Iterator[_Half]:
    """What the gate beside ``other`` can be."""
    if other.place is not None:
        above = other.node.args[0]
        assert isinstance(above, fx.Node)
        nodes = list(above.users)
    else:  # products of the same operand, which may be viewed again for each
        x = other.product.args[-2]
        assert isinstance(x, fx.Node)
        views = [x]
        if x.target in VIEWS:
            views = [y for y in x.args[0].users if y.target is x.target and y.args == x.args]
        products = [y for view in views for y in view.users
                    if y.target is aten.mm.default and y.args[0] is view]
        nodes = [user if user is not None and user.target in VIEWS else y
                 for y in products for user in (only_user(y),)]
    for node in nodes:
        half = None if node is other.node else _half(node)
        if half is not None:
            yield half


def _fit(gate: _Half, other: _Half, last: fx.Node) -> bool:
    """Whether the halves are alike, and ``last`` is nothing but their product."""
    values = [value_of(x) for x in (gate.node, other.node, last)]
    # Symbols are compared as they are written, so that no guard is added.
    if len({str((tuple(x.shape), x.dtype)) for x in values}) != 1:
        return False
    if gate.place is not None:  # what the caller gets has the gate's columns first
        return gate.product is other.product and gate.place != other.place and (
            gate.place == 0 or not _kept(gate))
    # A plan is for one distance between the two in memory, which that of tensors that the graph
    # makes anew may not be at the next call.
    weights = [half.product.args[-1] for half in (gate, other)]
    if not all(map(given, weights)):
        return False
    values = [value_of(x) for x in weights]
    return other.place is None and gate.product.target is other.product.target is (
        aten.mm.default) and len({str((x.shape, x.stride(), x.dtype)) for x in values}) == 1


def wanted(found: Gate, min_flops: float | None) -> bool:
    """Whether one launch is expected to be faster than the products and a pointwise kernel."""
    product = found.gate.product
    asked = problem_of(product, None, "none", min_flops)
    if asked is None or bias_of(product) is None and product.target is aten.addmm.default:
        return False
    return wins_in_one_launch(asked, found.activation, gated=True, aux=found.kept,
                              products=2 if found.gate.place is None else 1)


def wins_in_one_launch(asked: Asked, activation: str, *, gated: bool = False, aux: bool = False,
                       products: int = 1) -> bool:
    """Whether so many products like ``asked`` are faster with what follows them than apart, and
    faster than torch's.

    Args:
        gated, aux: as of :class:`tritongemm.epilogues.Epilogue`.

    Raises:
        UnsupportedError: no kernel computes it.
    """
    addend = epilogue_of(asked.problem.epilogue).addend
    whole = with_fields(asked.problem, n=asked.problem.n * products,
                        epilogue=str(Epilogue(addend, activation, gated, aux=aux)))
    choose(whole, asked.device)
    return torch_wins(asked.problem, choose(*asked), asked.device, path(not aux)) is None and (
        faster_apart(whole, asked.device, products=products, fused=True) is None)


def bias_of(product: fx.Node) -> fx.Node | None:
    """The bias that ``addmm`` adds as it is; None where it adds none, or something else."""
    if product.target is not aten.addmm.default or set(product.kwargs.values()) - {1}:
        return None
    bias = product.args[0]
    return bias if isinstance(bias, fx.Node) and value_of(bias).dim() == 1 else None


def replace(graph: fx.Graph, found: Gate) -> None:
    """Puts one product in the place of ``found.last``."""
    gate, other = found.gate, found.other
    columns = value_of(gate.node).shape[-1]
    call = partial(called, graph)

    def rows_of(half: _Half, weight: fx.Node) -> fx.Node:
        begin = columns * (half.place or 0)
        return call(aten.slice.Tensor, weight, 0, begin, begin + columns)

    with graph.inserting_before(gate.product if found.kept else found.last):
        weight = call(aten.permute.default, gate.product.args[-1], [1, 0])
        bias = bias_of(gate.product)
        if gate.place == 0:
            op = (torch.ops.tritongemm.gated_linear_aux if found.kept else
                  torch.ops.tritongemm.gated_linear).default
            weights: tuple[fx.Node, ...] = (weight,)
            words: tuple[Any, ...] = (found.activation, False)
        else:
            op, words = torch.ops.tritongemm.gated_pair.default, (found.activation,)
            if gate.place is None:
                weights = (weight, call(aten.permute.default, other.product.args[-1], [1, 0]))
            else:  # the gate's half is the second
                weights = (rows_of(gate, weight), rows_of(other, weight))
                if bias is not None:
                    bias = call(aten.cat.default, [rows_of(gate, bias), rows_of(other, bias)])
        new = call(op, gate.product.args[-2], *weights, bias, *words)
        if found.kept:
            new, total = (call(operator.getitem, new, i) for i in (0, 1))
            gate.product.replace_all_uses_with(total)
    if gate.base is not gate.product:
        with graph.inserting_before(found.last):  # sizes may be made behind the product
            new = graph.call_function(gate.base.target,
                                      (new, [*gate.base.args[1][:-1], columns]))
            new.meta["val"] = value_of(found.last).contiguous()
    put_in_place(graph, new, found.last, found.inner)
