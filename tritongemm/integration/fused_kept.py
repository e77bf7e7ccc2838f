"""Products of a graph with an activation, whose argument the caller gets too: :func:`find`,
:func:`wanted`, :func:`replace`.

A forward graph returns the argument of a gelu or silu for the backward graph. One kernel can write
both results.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

import torch
from torch import fx

from tritongemm.activations import BY_NAME
from tritongemm.integration.fused_gates import bias_of, wins_in_one_launch
from tritongemm.integration.graph_nodes import (
    VIEWS,
    activated,
    called,
    given_to_caller,
    materialized,
    put_in_place,
    reader,
    same_columns,
    value_of,
)
from tritongemm.integration.graph_problem import problem_of

aten = torch.ops.aten


class Match(NamedTuple):
    """A product and its activation.

    Attributes:
        product: ``mm``, or ``addmm`` with a bias.
        view: of the product, or None.
        activation: a name of :data:`tritongemm.activations.BY_NAME`.
        last: the activation's result.
        inner: every node from the product to ``last``.
    """

    product: fx.Node
    view: fx.Node | None
    activation: str
    last: fx.Node
    inner: frozenset[fx.Node]

    @property
    def kept(self) -> bool:
        """The caller gets the product too."""
        return True


def find(product: fx.Node) -> Match | None:
    """The activation of ``product``; None: there is none whose argument the caller gets."""
    if product.target not in (aten.mm.default, aten.addmm.default):
        return None
    view, user = None, reader(product)
    if user is not None and user.target in VIEWS and same_columns(user, value_of(product)):
        view = user
    if not any(given_to_caller(one) for one in (product, view) if one is not None):
        return None
    for name, one in BY_NAME.items():
        # The gradient of any other takes the activation's result.
        found = None if name == "none" or one.of_result else (
            activated(view or product, name, kept=True))
        if found is not None:
            last, nodes = found
            return Match(product, view, name, last,
                         frozenset({product, *nodes, *([] if view is None else [view])}))
    return None


def wanted(found: Match, min_flops: float | None) -> bool:
    """Whether one launch is expected to be faster than the product and a pointwise kernel."""
    product = found.product
    if not materialized(found.last) or (
            product.target is aten.addmm.default and bias_of(product) is None):
        return False
    asked = problem_of(product, None, "none", min_flops)
    return asked is not None and wins_in_one_launch(asked, found.activation, aux=True)


def replace(graph: fx.Graph, found: Match) -> None:
    """Puts both results of one kernel in the place of the product and of ``found.last``."""
    product = found.product
    with graph.inserting_before(product):
        weight = called(graph, aten.permute.default, product.args[-1], [1, 0])
        new = called(graph, torch.ops.tritongemm.linear_aux.default, product.args[-2], weight,
                     bias_of(product), found.activation)
        result, total = (called(graph, operator.getitem, new, i) for i in (0, 1))
    if found.view is not None:
        with graph.inserting_before(found.last):  # sizes may be made behind the product
            result = graph.call_function(found.view.target, (result, *found.view.args[1:]))
            result.meta["val"] = value_of(found.view)
    product.replace_all_uses_with(total)
    put_in_place(graph, result, found.last, found.inner)
