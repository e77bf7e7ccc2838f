"""What the graph pass reads from a graph that Inductor traced: values, users, activations, and what
becomes a kernel of its own.

An activation is known by what torch decomposes it into: each is traced once with Inductor's own
decompositions, and the graph is compared with that trace.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from tritongemm.activations import BY_NAME
from tritongemm.ops.calls import NAMES
from tritongemm.ops.operands import StridedShape

aten = torch.ops.aten
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
#: Operations that move no data, by name: their overloads are many.
_MOVES_NOTHING = {"view", "reshape", "_unsafe_view", "permute", "t", "transpose", "expand",
                  "unsqueeze", "squeeze", "slice", "select", "split", "split_with_sizes", "unbind",
                  "alias", "getitem"}
#: Operations that Inductor fuses with pointwise code without torch's tag for such. Everything else
#: is a kernel of its own, whose operands are in memory.
_FUSES = {"sum", "mean", "amax", "amin", "var_mean", "var", "prod", "max", "min", "any", "all",
          "argmax", "argmin", "clone", "cat", "convert_element_type", "full", "full_like"}


class Unknown(Exception):
    """A node of which too little is known to decide."""


def value_of(node: fx.Node) -> torch.Tensor:
    """The fake tensor of a node. Raises Unknown."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor):
        raise Unknown(f"{node} has no value on record")
    return value


def only_user(node: fx.Node) -> fx.Node | None:
    """The node that reads ``node``, if that is one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def reader(node: fx.Node) -> fx.Node | None:
    """The node that reads ``node`` beside the caller, if that is one."""
    users = [user for user in node.users if user.op != "output"]
    return users[0] if len(users) == 1 else None


def given_to_caller(node: fx.Node) -> bool:
    """Whether ``node`` is a result of the graph, as what a forward graph keeps for the backward."""
    return any(user.op == "output" for user in node.users)


def readers(node: fx.Node) -> set[fx.Node]:
    """The nodes that read ``node``, without dead code: pure, and read by nothing."""
    return set(node.users) - dead_readers(node)


def dead_readers(node: fx.Node) -> set[fx.Node]:
    """The nodes that read ``node`` for nothing."""
    return {user for user in node.users
            if not user.users and user.op == "call_function" and not user.is_impure()}


def same_columns(view: fx.Node, product: torch.Tensor) -> bool:
    """Whether a view of [M, N] only splits the rows, N being a known number."""
    shape = value_of(view).shape
    return bool(len(shape)) and isinstance(product.shape[1], int) and (
        isinstance(shape[-1], int) and shape[-1] == product.shape[1])


class Scaled(NamedTuple):
    """A product as what follows reads it: viewed, then times a number, each where that is.

    Attributes:
        last: the node that is read.
        view: of the product, or None.
        number: that it is multiplied by.
        nodes: every node from the product to ``last``.
    """

    last: fx.Node
    view: fx.Node | None
    number: float
    nodes: set[fx.Node]


def scaled(product: fx.Node) -> Scaled:
    """What follows ``product``; only an ``mm`` is multiplied."""
    last, view, number, nodes = product, None, 1.0, {product}
    user = only_user(last)
    if user is not None and user.target in VIEWS and same_columns(user, value_of(product)):
        last = view = user
        nodes.add(user)
        user = only_user(last)
    if user is not None and product.target is aten.mm.default and (found := _number(user)) != 1:
        last, number = user, found
        nodes.add(user)
    return Scaled(last, view, number, nodes)


def _number(node: fx.Node) -> float:
    """The number that ``node`` multiplies something by; 1 where it does not, or where float32 does
    not hold the number."""
    if node.target not in (aten.mul.Tensor, aten.div.Tensor) or node.kwargs:
        return 1.0
    number = node.args[1]
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not number:
        return 1.0
    if value_of(node).dtype != value_of(node.args[0]).dtype:
        return 1.0
    try:
        factor = float(number) if node.target is aten.mul.Tensor else 1.0 / number
    except OverflowError:
        return 1.0
    return factor if abs(factor) <= torch.finfo(torch.float32).max else 1.0


def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two values are of one shape. Symbols are compared as they are written, so that no
    guard is added."""
    return [str(x) for x in one.shape] == [str(x) for x in other.shape]


def laid_out_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two values of one shape have the same strides along axes longer than 1, compared as
    :func:`alike` does: a fused product lies in memory as the product, whatever is added to it."""
    return all(str(size) == "1" or str(x) == str(y)
               for size, x, y in zip(one.shape, one.stride(), other.stride(), strict=True))


def activated(start: fx.Node, name: str,
              kept: bool = False) -> tuple[fx.Node, set[fx.Node]] | None:
    """(its result, its nodes) where ``start`` is only read by the activation ``name``; ``kept``:
    and by the caller."""
    found = _followed(start, name, derivative=False, kept=kept)
    return None if found is None else (found.result, found.nodes)


def differentiated(start: fx.Node, name: str) -> Followed | None:
    """What multiplies ``start`` by the derivative of the activation ``name`` at some value, as
    backward does."""
    return _followed(start, name, derivative=True)


class Followed(NamedTuple):
    """What ``start`` is followed by.

    Attributes:
        result: of the activation, or of its gradient.
        nodes: that compute it from ``start``.
        at: the argument of a derivative; of an activation ``start``.
    """

    result: fx.Node
    nodes: set[fx.Node]
    at: fx.Node


def _followed(start: fx.Node, name: str, derivative: bool,
              kept: bool = False) -> Followed | None:
    value = value_of(start)
    if value.dtype not in NAMES:
        return None
    pattern = trace(name, value.dtype, derivative)
    result = next(node for node in pattern.nodes if node.op == "output").args[0]
    given = [node for node in pattern.nodes if node.op == "placeholder"]
    for node in _behind(start, len(pattern.nodes)):
        if node.target is not result.target:
            continue
        bound: dict[fx.Node, fx.Node] = {}
        if not _same(node, result, bound) or bound.get(given[0]) is not start:
            continue
        # What depends on the argument of a derivative alone may be read by others too.
        nodes = {mine for theirs, mine in bound.items() if theirs not in given
                 and _depends(theirs, given[0])}
        read = {user for one in (start, *nodes) if one is not node for user in one.users
                if not (kept and one is start and user.op == "output")}
        if read <= nodes:
            return Followed(node, nodes, bound[given[-1]])
    return None


@functools.cache
def _depends(node: fx.Node, on: fx.Node) -> bool:
    return node is on or any(_depends(one, on) for one in node.all_input_nodes)


def _behind(start: fx.Node, limit: int) -> Iterator[fx.Node]:
    """Nodes that follow from ``start``, the nearest first, ``limit`` steps far."""
    seen, front = {start}, [start]
    for _ in range(limit):
        front = [user for node in front for user in node.users if user not in seen]
        for user in dict.fromkeys(front):
            seen.add(user)
            yield user


def _same(node: Any, pattern: Any, bound: dict[fx.Node, fx.Node]) -> bool:
    """Whether ``node`` computes what ``pattern`` does; nodes of the pattern are bound."""
    if not isinstance(pattern, fx.Node):
        return not isinstance(node, fx.Node) and type(node) is type(pattern) and node == pattern
    if not isinstance(node, fx.Node):
        return False
    if pattern in bound:
        return bound[pattern] is node
    if pattern.op != "placeholder":
        if (node.op != "call_function" or node.target is not pattern.target
                or len(node.args) != len(pattern.args)
                or node.kwargs.keys() != pattern.kwargs.keys()):
            return False
        if not all(_same(x, y, bound) for x, y in zip(node.args, pattern.args)):
            return False
        # A constant of the pattern is on the device that the pattern was traced on.
        if not all(_same(node.kwargs[key], y, bound) for key, y in pattern.kwargs.items()
                   if key != "device"):
            return False
    bound[pattern] = node
    return True


@functools.cache
def trace(name: str, dtype: torch.dtype, derivative: bool = False) -> fx.Graph:
    """What an activation of a tensor of ``dtype`` is to Inductor, or its gradient from those of its
    result and its argument."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    one = BY_NAME[name]
    activate = one.op()
    with torch.utils._python_dispatch._disable_current_modes(), FakeTensorMode():
        x = torch.empty(2, 2, dtype=dtype)
        table = select_decomp_table()
        if derivative:
            with torch.no_grad():
                return make_fx(lambda grad, x: one.gradient(grad, x), decomposition_table=table)(
                    x, x.clone()).graph
        return make_fx(lambda x: activate(x), decomposition_table=table)(x).graph


def _kind(node: fx.Node) -> str:
    """``view``, ``fuses`` (pointwise or reducing) or ``kernel``; the caller is one too."""
    target: Any = node.target
    if node.op != "call_function":
        return "kernel"
    overload = isinstance(target, torch._ops.OpOverload)
    name = target._schema.name.partition("::")[2] if overload else target.__name__
    if name in _MOVES_NOTHING:
        return "view"
    return "fuses" if name in _FUSES or overload and torch.Tag.pointwise in target.tags else (
        "kernel")


def given(node: Any) -> bool:
    """Whether ``node`` is an input of the graph or a constant, or a view of one."""
    while isinstance(node, fx.Node) and _kind(node) == "view":
        node = node.args[0]
    return isinstance(node, fx.Node) and node.op in ("placeholder", "get_attr")


def written(node: fx.Node) -> bool:
    """Whether the value of ``node`` is in memory: given, or made by a kernel of its own."""
    while _kind(node) == "view":
        node = node.args[0]
    return _kind(node) == "kernel"


def materialized(last: fx.Node) -> bool:
    """Whether the value of ``last`` is written to memory anyway.

    It is where a kernel of its own or the caller reads it, or pointwise code that also needs what
    such a kernel makes of it: a residual that is added again behind the next product.
    """
    readers = [user for user in _reached([last], "view") if _kind(user) != "view"]
    if any(_kind(user) == "kernel" for user in readers):
        return True
    kernels = [user for user in _reached([last], "view", "fuses") if _kind(user) == "kernel"]
    return not _reached(kernels, "view", "fuses", "kernel").isdisjoint(readers)


def _reached(start: Sequence[fx.Node], *through: str) -> set[fx.Node]:
    """Users of ``start``, and of those of them that are of a kind in ``through``."""
    seen: set[fx.Node] = set()
    todo = list(start)
    while todo:
        for user in todo.pop().users:
            if user not in seen:
                seen.add(user)
                if _kind(user) in through:
                    todo.append(user)
    return seen


def operand_of(x: torch.Tensor) -> StridedShape:
    """The sizes and strides of a fake tensor, as numbers. Raises Unknown."""
    return StridedShape(tuple(map(size_of, x.shape)), tuple(map(size_of, x.stride())))


def size_of(size: Any) -> int:
    """A size, or what it was when the graph was traced: no guard is added. Raises Unknown."""
    if isinstance(size, int):
        return size
    hint = getattr(getattr(size, "node", None), "hint", None)
    if not isinstance(hint, int):
        raise Unknown(f"size {size} is not known while compiling")
    return hint


def called(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    """A new node that calls ``target``, with its value."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*fx.map_arg(args, lambda one: one.meta["val"]))
    return node


def size_in(graph: fx.Graph, node: fx.Node, axis: int) -> int | fx.Node:
    """The size of an axis as an argument of a node: a number, or a new node where it is a
    symbol."""
    size = value_of(node).shape[axis]
    return size if isinstance(size, int) else called(graph, aten.sym_size.int, node, axis)


def product_in_place(graph: fx.Graph, new: fx.Node, product: fx.Node, view: fx.Node | None,
                     last: fx.Node, inner: Collection[fx.Node]) -> None:
    """:func:`put_in_place` of a product, with the ``view`` that the old one had."""
    new.meta["val"] = value_of(product)
    if view is not None:
        new = graph.call_function(view.target, (new, *view.args[1:]))
        new.meta["val"] = value_of(view)
    put_in_place(graph, new, last, inner)


def put_in_place(graph: fx.Graph, new: fx.Node, last: fx.Node, inner: Collection[fx.Node]) -> None:
    """Lets ``new`` be read instead of ``last``, and takes out those of ``inner`` that nothing reads
    then."""
    last.replace_all_uses_with(new)
    for node in reversed(list(graph.nodes)):
        if node in inner and not node.users:
            graph.erase_node(node)
