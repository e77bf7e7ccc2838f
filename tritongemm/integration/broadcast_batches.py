"""Batched products of a graph whose operands are copies of broadcast ones: :func:`find`,
:func:`wanted`, :func:`replace`.

To Inductor ``torch.matmul`` of batches that broadcast is expand, clone, view, ``bmm``; so is
attention whose keys have fewer heads than its queries. The clone writes an operand once for each
matrix that it multiplies. ``torch.ops.tritongemm.matmul`` reads the operand where it is.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import fx

from tritongemm.errors import TritonGemmError
from tritongemm.integration.graph_nodes import (
    VIEWS,
    called,
    dead_readers,
    operand_of,
    put_in_place,
    readers,
    size_in,
    size_of,
    value_of,
    written,
)
from tritongemm.integration.graph_problem import Asked, path, problems_of_batch
from tritongemm.ops.operands import StridedShape
from tritongemm.selection import choose, torch_wins

aten = torch.ops.aten


class Operand(NamedTuple):
    """An operand [B, R, C] of a ``bmm``, as another product can read it.

    Attributes:
        source: [..., R, C], or [..., C, R] where ``swapped``. Its batch broadcasts to that of
            ``whole``.
        swapped: whether rows and columns are swapped.
        whole: a node whose leading axes are the batch, B being their product.
        saved: whether the ``bmm`` reads a copy of ``source`` for each matrix that it multiplies.
        nodes: from ``whole`` to the ``bmm``.
    """

    source: fx.Node
    swapped: bool
    whole: fx.Node
    saved: bool
    nodes: tuple[fx.Node, ...]


class Match(NamedTuple):
    """A product that can do without a copy.

    Attributes:
        product: ``bmm``.
        a, b: its operands; None: one is read as ``bmm`` reads it, its batch split.
        whole: a node that has the batch as its leading axes.
    """

    product: fx.Node
    a: Operand | None
    b: Operand | None
    whole: fx.Node


def find(product: fx.Node) -> Match | None:
    """The product and its operands; None: it reads no copy of a broadcast one."""
    if product.target is not aten.bmm.default:
        return None
    a, b = (_operand(product, node) for node in product.args)
    whole = next((one.whole for one in (a, b) if one.saved), None)
    if whole is None:
        return None
    a_fits, b_fits = (_sizes(one.whole)[:-2] == _sizes(whole)[:-2] for one in (a, b))
    if a_fits and b_fits and not _covered(whole, a, b):  # both broadcast along an axis
        a_fits, b_fits = a.saved, not a.saved
    inner = value_of(whole).shape[1:-2]
    if not (a_fits and b_fits or all(isinstance(size, int) for size in inner)):
        return None  # Inductor would copy an operand to split its batch by symbols
    return Match(product, a if a_fits else None, b if b_fits else None, whole)


def _operand(product: fx.Node, node: Any) -> Operand:
    """What can be read in the place of ``node``, an operand of ``product``."""
    above, swapped = _viewed(node)
    clone = above[-1]
    if clone.target is not aten.clone.default:
        return _expanded(above, swapped, copied=False)
    below, swapped_below = _viewed(clone.args[0])
    found = _expanded((*above, *below), swapped != swapped_below, copied=True)
    # A clone that something else reads too is written anyway, and one of what pointwise code makes
    # is how Inductor writes that.
    if all(readers(one) == {reader} for one, reader in zip(above, (product, *above))) and (
            found.saved or written(found.source)):
        return found
    return Operand(clone, swapped, clone, False, above)


def _expanded(nodes: tuple[fx.Node, ...], swapped: bool, copied: bool) -> Operand:
    """The operand that ``nodes`` lead to, the last of which may expand it."""
    whole = source = nodes[-1]
    if whole.target is aten.expand.default:
        below = whole.args[0]
        assert isinstance(below, fx.Node)
        if _sizes(below)[-2:] == _sizes(whole)[-2:]:
            source = below
    return Operand(source, swapped, whole, copied and source is not whole, nodes)


def _viewed(node: Any) -> tuple[tuple[fx.Node, ...], bool]:
    """``node`` and what it is a view of, one after the other, and whether rows and columns are
    swapped: views that join or split leading axes, or swap the last two."""
    nodes, swapped = [node], False
    while (below := _below(node)) is not None:
        swapped ^= node.target is aten.permute.default
        node = below
        nodes.append(node)
    return tuple(nodes), swapped


def _below(node: fx.Node) -> fx.Node | None:
    """What ``node`` is such a view of, or None."""
    below = node.args[0] if node.args else None
    if node.op != "call_function" or not isinstance(below, fx.Node):
        return None
    if node.target is aten.permute.default:
        rank = value_of(node).dim()
        axes: Any = node.args[1]
        order = [axis % rank for axis in axes]
        return below if order == [*range(rank - 2), rank - 1, rank - 2] else None
    if node.target in VIEWS:
        same = _sizes(node)[-2:] == _sizes(below)[-2:]
    else:  # matmul expands whatever it multiplies
        same = node.target is aten.expand.default and _sizes(node) == _sizes(below)
    return below if same else None


def _sizes(node: fx.Node) -> list[str]:
    """Sizes as they are written: compared so, symbols add no guard."""
    return [str(size) for size in value_of(node).shape]


def _covered(whole: fx.Node, *operands: Operand) -> bool:
    """Whether the batches of the sources broadcast to all of that of ``whole``."""
    batch = _sizes(whole)[:-2]
    having = [_sizes(one.source)[:-2] for one in operands]
    return all(any(size == "1" or len(have) >= back and have[-back] == size for have in having)
               for back, size in zip(range(len(batch), 0, -1), batch))


def wanted(found: Match, min_flops: float | None) -> bool:
    """Whether a call of ``matmul`` with these operands would run a kernel of this package."""
    a, b = (_layout(one, node, found.whole)
            for one, node in zip((found.a, found.b), found.product.args))
    return any(map(_runs, problems_of_batch(found.product, a, b, min_flops)))


def _runs(asked: Asked) -> bool:
    try:
        return torch_wins(asked.problem, choose(*asked), asked.device, path()) is None
    except TritonGemmError:  # no kernel reads a batch like this; the next reading may have one
        return False


def _layout(operand: Operand | None, node: Any, whole: fx.Node) -> StridedShape:
    """Sizes and strides of an operand as the new product reads it."""
    if operand is not None:
        shape, stride = map(list, operand_of(value_of(operand.source)))
        if operand.swapped:
            for x in (shape, stride):
                x[-2:] = x[:-3:-1]
        return StridedShape(shape, stride)
    (_, *matrix), (step, *steps) = operand_of(value_of(node))
    batch = [size_of(size) for size in value_of(whole).shape[:-2]]
    return StridedShape((*batch, *matrix), (
        *(step * math.prod(batch[axis + 1:]) for axis in range(len(batch))), *steps))


def replace(graph: fx.Graph, found: Match) -> None:
    """Puts the product of the operands where they are in the place of ``found.product``."""
    product = found.product
    inner = {product}
    for one in (found.a, found.b):
        if one is not None:
            inner.update(one.nodes, *map(dead_readers, one.nodes))
    with graph.inserting_before(product):
        new = called(graph, torch.ops.tritongemm.matmul.default, *(
            _read(graph, one, node, found.whole)
            for one, node in zip((found.a, found.b), product.args)))
        rows, columns = (size_in(graph, new, axis) for axis in (-2, -1))
        folded = graph.call_function(aten.view.default, (new, [-1, rows, columns]))
        folded.meta["val"] = value_of(product)
    put_in_place(graph, folded, product, inner)


def _read(graph: fx.Graph, operand: Operand | None, node: Any, whole: fx.Node) -> fx.Node:
    """The operand of the new product."""
    if operand is None:
        matrix = (size_in(graph, node, axis) for axis in (1, 2))
        return called(graph, aten.view.default, node,
                      [-1, *value_of(whole).shape[1:-2], *matrix])
    if not operand.swapped:
        return operand.source
    rank = value_of(operand.source).dim()
    return called(graph, aten.permute.default, operand.source,
                  [*range(rank - 2), rank - 1, rank - 2])
