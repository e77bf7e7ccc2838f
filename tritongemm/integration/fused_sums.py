"""Products of a graph with the factor, the addend and the activation that follow: :func:`find`,
:func:`wanted`, :func:`replace`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from tritongemm.activations import BY_NAME
from tritongemm.integration.graph_nodes import (
    activated,
    alike,
    called,
    laid_out_alike,
    materialized,
    only_user,
    product_in_place,
    scaled,
    value_of,
)
from tritongemm.integration.graph_problem import path, problem_of
from tritongemm.selection import choose, torch_wins

aten = torch.ops.aten


class Match(NamedTuple):
    """A product and what follows it.

    Attributes:
        product: ``mm`` or ``addmm``.
        view: of the product, or None.
        factor: a number that an ``mm`` is multiplied by.
        addend: what is added to an ``mm``, or None.
        activation: a name of :data:`tritongemm.activations.BY_NAME`.
        last: the node whose value the fused product has.
        inner: every node from the product to ``last``.
    """

    product: fx.Node
    view: fx.Node | None
    factor: float
    addend: fx.Node | None
    activation: str
    last: fx.Node
    inner: frozenset[fx.Node]


def find(product: fx.Node) -> Match | None:
    """The longest chain from ``product`` that one kernel can do; None: it is alone, or no product.
    """
    if product.target not in (aten.mm.default, aten.addmm.default):
        return None
    current, view, factor, inner = scaled(product)
    addend, user = None, only_user(current)
    if product.target is aten.mm.default and user is not None:
        addend = _addend_of(user, current, value_of(product))
        if addend is not None:
            current = user
            inner.add(user)
    for name in BY_NAME:
        if name == "none":
            continue
        found = activated(current, name)
        if found is not None:
            last, nodes = found
            return Match(product, view, factor, addend, name, last, frozenset(inner | nodes))
    if addend is None and factor == 1:
        return None
    return Match(product, view, factor, addend, "none", current, frozenset(inner))


def _addend_of(node: fx.Node, current: fx.Node, product: torch.Tensor) -> fx.Node | None:
    """What ``node`` adds to ``current``, where an epilogue can."""
    if node.target is not aten.add.Tensor or len(node.args) != 2 or (
            node.kwargs.get("alpha", 1) != 1):
        return None
    first, second = node.args
    other = second if first is current else first
    if not isinstance(other, fx.Node) or other is current:
        return None
    added, value = value_of(other), value_of(current)
    if added.dtype != product.dtype or added.device != product.device or (
            value_of(node).dtype != product.dtype):
        return None
    as_matrix = alike(added, value)
    as_bias = added.dim() == 1 and str(added.shape[0]) == str(product.shape[1])
    if as_matrix and added.dim() != 2 and not isinstance(product.shape[1], int):
        return None
    return other if as_matrix or as_bias else None


def wanted(found: Match, min_flops: float | None) -> bool:
    """Whether the fused product is one that this package's kernels should run."""
    if not materialized(found.last) or not laid_out_alike(
            value_of(found.last), value_of(found.view or found.product)):
        return False
    asked = problem_of(found.product, found.addend, found.activation, min_flops, found.factor)
    return asked is not None and torch_wins(
        asked.problem, choose(*asked), asked.device, path()) is None


def replace(graph: fx.Graph, found: Match) -> None:
    """Puts the fused product in the place of ``found.last``."""
    product, columns = found.product, value_of(found.product).shape[1]
    a, b = product.args[-2:]
    assert isinstance(b, fx.Node)
    numbers = {name: product.kwargs.get(name, 1) for name in ("beta", "alpha")}
    if found.factor != 1:
        numbers["alpha"] = found.factor
    with graph.inserting_before(found.last):
        if product.target is aten.addmm.default:
            d: Any = product.args[0]
        elif found.addend is None:  # nothing is added: D is not read where beta is 0
            d = called(graph, aten.select.int, b, 0, 0)
            numbers["beta"] = 0
        else:
            d = found.addend
            if value_of(d).dim() > 2:
                d = called(graph, aten.reshape.default, d, [-1, columns])
        new = graph.call_function(torch.ops.tritongemm.addmm.default, (d, a, b),
                                  {**numbers, "activation": found.activation})
        product_in_place(graph, new, product, found.view, found.last, found.inner)
