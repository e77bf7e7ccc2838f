"""Products of a graph that a tensor multiplies, or an activation's derivative at one:
:func:`find`, :func:`wanted`, :func:`replace`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from tritongemm.activations import BY_NAME
from tritongemm.integration.graph_nodes import (
    alike,
    called,
    differentiated,
    laid_out_alike,
    materialized,
    only_user,
    product_in_place,
    scaled,
    value_of,
    written,
)
from tritongemm.integration.graph_problem import path, problem_of
from tritongemm.selection import choose, torch_wins

aten = torch.ops.aten


class Match(NamedTuple):
    """A product and what multiplies it.

    Attributes:
        product: ``mm``.
        view: of the product, or None.
        number: that it is multiplied by first.
        factor: what it is multiplied by, or the argument of the derivative.
        gradient_of: the activation of the derivative, or ``none``.
        last: the node whose value the fused product has.
        inner: every node from the product to ``last``.
    """

    product: fx.Node
    view: fx.Node | None
    number: float
    factor: fx.Node
    gradient_of: str
    last: fx.Node
    inner: frozenset[fx.Node]


def find(product: fx.Node) -> Match | None:
    """The factor of ``product`` that one kernel can multiply by; None: there is none."""
    if product.target is not aten.mm.default:
        return None
    current, view, number, inner = scaled(product)
    user = only_user(current)
    for name in BY_NAME:
        found = None if name == "none" else differentiated(current, name)
        if found is not None and _alike(found.at, current):
            return Match(product, view, number, found.at, name, found.result,
                         frozenset(inner | found.nodes))
    if user is None or user.target is not aten.mul.Tensor or user.kwargs:
        return None
    first, second = user.args
    other = second if first is current else first
    if not isinstance(other, fx.Node) or other is current or not _factor(other, user, current):
        return None
    return Match(product, view, number, other, "none", user, frozenset(inner | {user}))


def _alike(other: fx.Node, current: fx.Node) -> bool:
    """Whether ``other`` is a matrix like ``current`` that is in memory anyway."""
    added, value = value_of(other), value_of(current)
    return (added.dtype, added.device) == (value.dtype, value.device) and (
        written(other) and alike(added, value))


def _factor(other: fx.Node, result: fx.Node, current: fx.Node) -> bool:
    """Whether ``other`` may multiply ``current`` in an epilogue: a matrix that is in memory anyway,
    a value for each column or for each row."""
    added, value = value_of(other), value_of(current)
    if (added.dtype, added.device) != (value.dtype, value.device) or (
            value_of(result).dtype != value.dtype):
        return False
    if _alike(other, current):
        return True
    shape, wanted = [[str(x) for x in one.shape] for one in (added, value)]
    return shape == wanted[-1:] or shape == [*wanted[:-1], "1"]


def wanted(found: Match, min_flops: float | None) -> bool:
    """Whether the fused product is one that this package's kernels should run."""
    if not materialized(found.last) or not laid_out_alike(
            value_of(found.last), value_of(found.view or found.product)):
        return False
    asked = problem_of(found.product, found.factor, "none", min_flops, found.number,
                       found.gradient_of)
    return asked is not None and torch_wins(
        asked.problem, choose(*asked), asked.device, path()) is None


def replace(graph: fx.Graph, found: Match) -> None:
    """Puts the fused product in the place of ``found.last``."""
    product = found.product
    a, b = product.args
    with graph.inserting_before(found.last):
        d: Any = found.factor
        if value_of(d).dim() > 2:
            columns = 1 if str(value_of(d).shape[-1]) == "1" else value_of(product).shape[1]
            d = called(graph, aten.reshape.default, d, [-1, columns])
        new = graph.call_function(torch.ops.tritongemm.mulmm.default, (d, a, b), {
            "alpha": found.number, "gradient_of": found.gradient_of})
        product_in_place(graph, new, product, found.view, found.last, found.inner)
